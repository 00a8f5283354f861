"""Lines of output and error files have OpenAI's shape and stay valid JSON whatever the ids hold."""

from __future__ import annotations

import json
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from carbonq import answers
from carbonq.booking import ItemFigures
from carbonq.engines.protocol import EngineResult
from carbonq.model import Endpoint, Quality, RateStatus

FIGURES = ItemFigures(3_600_000, Decimal("0.0000012"), Quality.ESTIMATED, RateStatus.PROVISIONAL, ("eb.1.0",))


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_an_output_line_is_one_line_of_json(custom_id: str) -> None:
    line = answers.output_line(custom_id, "req_1", b'{"object":"list"}\n', {"prompt_tokens": 1})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    values = json.loads(line)
    assert values["custom_id"] == custom_id
    assert values["response"]["body"] == {"object": "list", "usage": {"prompt_tokens": 1}}
    assert (values["error"], values["response"]["status_code"]) == (None, 200)


def test_an_error_line_carries_the_answer() -> None:
    failed = EngineResult(400, None, 3, error_code="bad", error_message="no", error_param="input")
    values = json.loads(answers.error_line("a", "req_1", failed))
    assert values["response"]["status_code"] == 400
    assert values["response"]["body"]["error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": "input",
        "code": "bad",
    }
    broken = EngineResult(500, None, 0, error_code="engine_error", error_message="down")
    assert json.loads(answers.error_line("a", "r", broken))["response"]["body"]["error"]["type"] == "server_error"


def test_usage_follows_the_endpoint() -> None:
    result = EngineResult(200, b"{}", 10, 4, 3)
    assert answers.usage(result, Endpoint.EMBEDDINGS) == {"prompt_tokens": 10, "total_tokens": 13}
    chat = answers.usage(result, Endpoint.CHAT)
    assert chat["completion_tokens"] == 3
    assert chat["prompt_tokens_details"] == {"cached_tokens": 4}
    assert json.loads(answers.body(b'{"a":1}', chat))["usage"] == chat


def test_unknown_figures_are_null_and_never_zero() -> None:
    known = answers.carbon(FIGURES, "fr", Decimal(120))
    assert known["energy_wh"] == 0.001
    assert (known["quality"], known["status"], known["intensity_g_per_kwh"]) == ("estimated", "provisional", 120.0)
    nothing = ItemFigures(None, None, Quality.ESTIMATED, RateStatus.MISSING, ())
    unknown = answers.carbon(nothing, "fr", None)
    assert (unknown["energy_wh"], unknown["gco2e"], unknown["intensity_g_per_kwh"]) == (None, None, None)

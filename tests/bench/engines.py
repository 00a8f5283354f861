"""Figures of the engines and the hub on this machine: ``python -m tests.bench.engines``. Asserts nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from importlib import util
from pathlib import Path

import orjson

from carbonq.clock import GridClock
from carbonq.engines.llama_cpp import LlamaCppEngine
from carbonq.engines.protocol import EngineRequest
from carbonq.engines.wordllama import WordLlamaEngine
from carbonq.meters.discover import discover
from carbonq.meters.hub import Hub
from carbonq.models import SMOLLM2_135M_INSTRUCT, WORDLLAMA_256

_VOCABULARY = (
    "the of carbon energy grid window region when power plant batch job queue summary marginal emission analysis "
    "temporal shifting server night solar wind demand response flexible deadline forecast schedule capacity storage"
)
_WORDS = _VOCABULARY.split()
_DOCUMENTS, _WORDS_EACH, _BATCH = 20_000, 60, 512


def never() -> bool:
    """Never stop."""
    return False


def timed(name: str, count: int, work: Callable[[], object]) -> None:
    """Print how many a second ``work`` did, by wall and by CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:44s} {count / wall:10.0f}/s wall {count / cpu:10.0f}/CPU-s")


def embeddings() -> None:
    """Compare the engine, bodies encoded, with a bare ``WordLlama.embed`` and with one that writes JSON."""
    from wordllama import WordLlama

    spec = util.find_spec("wordllama")
    assert spec is not None and spec.origin is not None
    bare = WordLlama.load(cache_dir=Path(spec.origin).parent, disable_download=True)
    engine = WordLlamaEngine(WORDLLAMA_256)
    engine.load()
    chance = random.Random(1)
    texts = [" ".join(chance.choices(_WORDS, k=_WORDS_EACH)) for _ in range(_DOCUMENTS)]
    requests = [EngineRequest(str(index), {"input": text}) for index, text in enumerate(texts)]
    batches = [requests[first : first + _BATCH] for first in range(0, len(requests), _BATCH)]

    def with_json() -> None:
        for row in bare.embed(texts, norm=True):
            orjson.dumps({"embedding": row}, option=orjson.OPT_SERIALIZE_NUMPY)

    for _ in range(2):
        timed("bare WordLlama.embed", _DOCUMENTS, lambda: bare.embed(texts))
        timed("bare embed, unit length, JSON", _DOCUMENTS, with_json)
        timed("engine, bodies encoded", _DOCUMENTS, lambda: [engine.run(batch, never) for batch in batches])
    tokens = sum(result.prompt_tokens for result in engine.run(batches[0], never)) / _BATCH
    print(f"{tokens:.1f} tokens a document, {sum(map(len, texts)) / _DOCUMENTS / tokens:.2f} characters a token")
    timed("engine, one document a call", 2000, lambda: [engine.run([request], never) for request in requests[:2000]])


def hub() -> None:
    """Time a start and an end with the meters of this machine."""
    meters = discover(gpus=(), watts_per_core=None, pids=lambda: (), may_use_rapl=True)
    measured = Hub(meters, GridClock.real())
    print("meters:", *(f"{meter.component}={meter.kind} {list(meter.device_ids)}" for meter in meters))
    timed("hub.start + hub.end", 20_000, lambda: [measured.end(measured.start(1.0)) for _ in range(20_000)])
    others = [measured.start(float(rate)) for rate in range(3)]
    timed(
        "the same beside three open batches", 5_000, lambda: [measured.end(measured.start(1.0)) for _ in range(5_000)]
    )
    for handle in others:
        measured.end(handle)


def summary() -> None:
    """Time one summary of a document of about 200 words with one thread and with two."""
    chance = random.Random(2)
    text = " ".join(chance.choices(_WORDS, k=200))
    message = {"role": "user", "content": f"Summarize the following text in one or two sentences.\n\n{text}"}
    for threads in (1, 2):
        engine = LlamaCppEngine(SMOLLM2_135M_INSTRUCT, threads=threads)
        started = time.perf_counter()
        engine.load()
        loaded = time.perf_counter()
        meter = Hub(discover(gpus=(), watts_per_core=None, pids=engine.pids, may_use_rapl=True), GridClock.real())
        handle = meter.start()
        [result] = engine.run([EngineRequest("a", {"messages": [message], "max_tokens": 64})], never)
        done = time.perf_counter()
        parts, info = meter.end(handle)
        joules = sum((part.gpu_uj or 0) + (part.cpu_uj or 0) for part in parts) / 1e6
        print(
            f"summary, {threads} thread(s): loaded in {loaded - started:.2f} s, {result.prompt_tokens} + "
            f"{result.completion_tokens} tokens in {done - loaded:.2f} s, {joules:.2f} J ({info.quality})"
        )
        engine.close()


if __name__ == "__main__":
    embeddings()
    hub()
    summary()

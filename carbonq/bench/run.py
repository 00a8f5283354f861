"""Items per second end to end, beside the same engine in a plain loop that reads and writes the same files.

The stack runs on the real clock and a level grid (so that nothing waits for a cleaner window); the time counts from the
first byte of the upload to the last byte of the output file, ledger entries committed. Seconds are machine seconds.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from carbonq import config, verify
from carbonq.bench.level_grid import level_settings
from carbonq.client import Client
from carbonq.demo import samples
from carbonq.embedded.stack import Stack

MODEL = "wordllama-256"

#: What the plain loop runs: read lines, embed in batches, write OpenAI output lines. No queue, no ledger.
_PLAIN_LOOP = """
import sys, time
import orjson
from carbonq import models, wiring
from carbonq.engines.protocol import EngineRequest
model = models.BUILTIN[sys.argv[3]]
engine = wiring.make_engine(model)
engine.load()
began = time.perf_counter()
done = 0
with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as target:
    def run(lines):
        requests = [EngineRequest(line["custom_id"], line["body"]) for line in lines]
        for line, result in zip(lines, engine.run(requests, lambda: False)):
            head = b'{"custom_id":' + orjson.dumps(line["custom_id"]) + b',"response":{"status_code":200,"body":'
            target.write(head + result.body_json + b'},"error":null}\\n')
    batch = []
    for raw in source:
        batch.append(orjson.loads(raw))
        if len(batch) == model.batch_items:
            run(batch)
            batch = []
    if batch:
        run(batch)
print(time.perf_counter() - began)
"""


def lines(items: int, *, words: int) -> Iterator[bytes]:
    """Yield OpenAI embedding lines of about ``words`` words each, the same for the same arguments."""
    pool: list[str] = []
    for document in samples.documents(items * 2 if words > 50 else items):
        pool += document["text"].split()
        while len(pool) >= words and items > 0:
            items -= 1
            body = {"model": MODEL, "input": " ".join(pool[:words])}
            del pool[:words]
            yield (
                orjson.dumps({"custom_id": f"d{items}", "method": "POST", "url": "/v1/embeddings", "body": body})
                + b"\n"
            )


def plain_loop_s(source: Path, target: Path) -> float:
    """Run the plain loop in a process of its own and return its seconds, model loading left out."""
    command = [sys.executable, "-c", _PLAIN_LOOP, str(source), str(target), MODEL]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def end_to_end_s(client: Client, source: Path, target: Path) -> tuple[float, float, str]:
    """Submit ``source``, wait, write ``target``; return (seconds in all, seconds until accepted, job id)."""
    began = time.perf_counter()
    with source.open("rb") as stream:
        job = client.submit(stream, endpoint="/v1/embeddings", model=MODEL, deadline="2h")
    accepted = time.perf_counter() - began
    client.wait(job["id"], poll_s=0.05)
    with target.open("wb") as out:
        for line in client.results(job["id"]):
            out.write(line)
    return time.perf_counter() - began, accepted, str(job["id"])


def bench(folder: Path, *, items: int, words: int, rounds: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure ``rounds`` pairs (plain loop, carbonq) of ``items`` documents in ``folder``; return JSON values."""
    source, target = folder / "documents.jsonl", folder / "out.jsonl"
    with source.open("wb") as stream:
        stream.writelines(lines(items, words=words))
    settings = config.load(**level_settings(folder))
    pairs: list[dict[str, float]] = []
    with Stack(settings, report=report, flower=False) as stack, stack.client() as client:
        for _ in range(rounds):
            plain = plain_loop_s(source, folder / "plain.jsonl")
            whole, accepted, job_id = end_to_end_s(client, source, target)
            pairs.append({"plain_s": plain, "carbonq_s": whole, "accepted_s": accepted, "ratio": plain / whole})
            report(f"plain loop {items / plain:,.0f} items/s, carbonq {items / whole:,.0f} items/s")
            _check(target, items)
            _check_ledger(client, job_id, items)
    middle = sorted(pairs, key=lambda pair: pair["ratio"])[len(pairs) // 2]
    return {
        "bench": "run",
        "items": items,
        "words": words,
        "rounds": pairs,
        "median": {
            "plain_items_per_s": items / middle["plain_s"],
            "carbonq_items_per_s": items / middle["carbonq_s"],
            "ratio": middle["ratio"],
        },
    }


def _check(target: Path, items: int) -> None:
    with target.open("rb") as stream:
        found = sum(1 for _ in stream)
    if found != items:
        raise RuntimeError(f"{found} result lines came back, {items} were expected")


def _check_ledger(client: Client, job_id: str, items: int) -> None:
    """Every item has its entry, and the standalone checker agrees with each of them."""
    export = io.StringIO(b"".join(client.ledger_csv(job_id=job_id)).decode(), newline="")
    report = verify.check(export)
    if not report.is_consistent or report.lines < items:  # an item whose engine batch crossed a window has two
        raise RuntimeError(f"the ledger of {job_id} is wrong: {report.summary()}")

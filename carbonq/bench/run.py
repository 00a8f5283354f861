"""Items per second end to end, beside the same engine in a plain loop that reads and writes the same files.

The stack runs on the real clock and a level grid (so that nothing waits for a cleaner window); the time counts from the
first byte of the upload to the last byte of the output file, ledger entries committed. Seconds are machine seconds.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from carbonq import verify, wiring
from carbonq.bench.backend import Backend
from carbonq.bench.copies import Copies
from carbonq.bench.halted import halted
from carbonq.bench.per_task import items_per_s
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
        out.writelines(client.result_lines(job["id"]))
    return time.perf_counter() - began, accepted, str(job["id"])


def bench(
    folder: Path,
    backend: Backend,
    *,
    items: int,
    words: int,
    rounds: int,
    processes: Sequence[int],
    per_task: int = 0,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Measure ``rounds`` pairs (plain loop, carbonq) of ``items`` documents for each number of processes.

    ``per_task`` of them also go as one Celery task each to a worker with the same engine, with a result backend.

    ``processes`` counts API processes and control processes of each kind; the documents are as many jobs, one by each
    API process at the same time. Returns JSON values.
    """
    source = folder / "documents.jsonl"
    with source.open("wb") as stream:
        stream.writelines(lines(items, words=words))
    found: list[dict[str, Any]] = []
    for count in processes:
        sources = _parts(source, count, items)
        place = folder / f"with-{count}"
        place.mkdir()
        with (
            backend.settings(place) as settings,
            Stack(settings, report=report, flower=False) as stack,
            Copies(stack, count - 1, report=report) as copies,
        ):
            pairs = [_pair(source, sources, copies.clients, items, report) for _ in range(rounds)]
            alone = _per_task_items_per_s(stack, source, place, per_task, report)
        middle = sorted(pairs, key=lambda pair: pair["ratio"])[len(pairs) // 2]
        median = {
            "plain_items_per_s": items / middle["plain_s"],
            "carbonq_items_per_s": items / middle["carbonq_s"],
            "ratio": middle["ratio"],
            "per_task_items_per_s": alone,
            "ratio_to_per_task": None if alone is None else items / middle["carbonq_s"] / alone,
        }
        found.append({"processes": count, "rounds": pairs, "median": median})
    return {"bench": "run", "backend": backend.name, "items": items, "words": words, "with": found}


def _per_task_items_per_s(
    stack: Stack, source: Path, folder: Path, count: int, report: Callable[[str], None]
) -> float | None:
    """Let one Celery task for each item do the work on the stack's broker; None where that is not Redis, or not asked.

    The stack's own workers are halted meanwhile: they would take turns with it.
    """
    url = wiring.broker_url(stack.settings)
    if not count or not url.startswith("redis"):
        return None
    with source.open("rb") as stream:
        texts = [orjson.loads(line)["body"]["input"] for line, _ in zip(stream, range(count), strict=False)]
    with halted(stack, lambda name: name != "broker"):
        found = items_per_s(url, MODEL, texts, folder / "per-task.log")
    report(f"one Celery task an item: {found:,.0f} items/s")
    return found


def _parts(source: Path, count: int, items: int) -> list[Path]:
    """Cut the documents into as many files as there are API processes."""
    parts = [source.with_name(f"part-{count}-{number}.jsonl") for number in range(count)]
    with source.open("rb") as stream:
        for number, part in enumerate(parts):
            size = items * (number + 1) // count - items * number // count
            with part.open("wb") as target:
                target.writelines(stream.readline() for _ in range(size))
    return parts


def _pair(
    source: Path, parts: Sequence[Path], clients: Sequence[Client], items: int, report: Callable[[str], None]
) -> dict[str, float]:
    plain = plain_loop_s(source, source.with_name("plain.jsonl"))
    targets = [part.with_suffix(".out") for part in parts]
    began = time.perf_counter()
    with ThreadPoolExecutor(len(parts)) as pool:
        ended = list(pool.map(end_to_end_s, clients, parts, targets))
    whole = time.perf_counter() - began
    report(f"plain loop {items / plain:,.0f} items/s, carbonq {items / whole:,.0f} items/s")
    for (_, _, job_id), part, target, client in zip(ended, parts, targets, clients, strict=True):
        count = _count(part)
        if _count(target) != count:
            raise RuntimeError(f"{_count(target)} result lines came back, {count} were expected")
        _check_ledger(client, job_id, count)
    accepted = max(accepted for _, accepted, _ in ended)
    return {"plain_s": plain, "carbonq_s": whole, "accepted_s": accepted, "ratio": plain / whole}


def _count(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(1 for _ in stream)


def _check_ledger(client: Client, job_id: str, items: int) -> None:
    """Every item has its entry, and the standalone checker agrees with each of them."""
    export = io.StringIO(b"".join(client.ledger_csv(job_id=job_id)).decode(), newline="")
    report = verify.check(export)
    if not report.is_consistent or report.lines < items:  # an item whose engine batch crossed a window has two
        raise RuntimeError(f"the ledger of {job_id} is wrong: {report.summary()}")

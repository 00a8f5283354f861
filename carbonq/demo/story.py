"""The demonstration, step by step: a stack, two jobs, one real-time request, settled figures, a checked ledger."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from carbonq import jsonl, verify
from carbonq.client import Client, Job
from carbonq.demo import samples
from carbonq.demo.facts import CheckFacts, JobFacts, RealtimeFacts, job_facts
from carbonq.demo.picture import Picture, Watcher
from carbonq.demo.view import View
from carbonq.errors import Infeasible, Unavailable
from carbonq.model import FINAL_JOB_STATES, Endpoint, WorkClass

MODELS = {Endpoint.EMBEDDINGS: "wordllama-256", Endpoint.CHAT: "smollm2-135m-instruct"}

#: Deadline of both jobs in grid time: at 75x, 96 machine seconds.
DEADLINE = "2h"

#: Longest summary, so that one article fits into a window of four machine seconds on an idle core.
SUMMARY_TOKENS = 48

#: A handful, even on a slow machine.
FEWEST_ARTICLES = 3

#: The real-time request is sent while some work runs and some waits, and at this time if that never happens.
REALTIME_AT_LATEST_S = 75.0

#: Deadline of the warm-up in grid time, so short that it runs at once, and how long it may take in machine seconds.
WARM_UP_DEADLINE = "12m"
WARM_UP_DOCUMENTS = 400
WARM_UP_S = 30.0

#: How long the story waits for jobs, and for their entries to settle, in machine seconds.
JOBS_S = 125.0
SETTLE_S = 25.0

_LOOK_S = 0.5

_REALTIME_TEXT = "A patient asks whether the eye test bus comes to the north of the town on Thursday."


@dataclass(frozen=True, slots=True)
class Told:
    """What came of the story."""

    jobs: list[JobFacts]
    realtime: RealtimeFacts | None
    check: CheckFacts | None


def tell(client: Client, view: View, folder: Path) -> Told:
    """Run the story against a ready installation; files go into ``folder``. Raises what the client raises."""
    warm_up(client, view)
    submitted = submit(client, view)
    for label, job in submitted.items():
        view.note(f"submitted {label}: {job['progress']['total']:,} documents, {job['id']}, deadline {DEADLINE}")
    watcher = Watcher(client, {label: job["id"] for label, job in submitted.items()})
    with view.live():
        realtime = follow(client, watcher, view)
    fetch_results(client, submitted, folder, view)
    jobs = settled(client, submitted)
    check = check_ledger(client, folder)
    return Told(jobs, realtime and booked(realtime, Path(check.path)), check)


def warm_up(client: Client, view: View) -> None:
    """Run a little of both at once: carbonq plans with the speeds it has measured, and this machine is new to it."""
    articles = _documents(samples.read_articles()[:1], Endpoint.CHAT)
    documents = _documents(samples.read_documents()[:WARM_UP_DOCUMENTS], Endpoint.EMBEDDINGS)
    began_at = time.monotonic()
    jobs = [
        _send(client, articles, Endpoint.CHAT, "warm-up", WARM_UP_DEADLINE),
        _send(client, documents, Endpoint.EMBEDDINGS, "warm-up", WARM_UP_DEADLINE),
    ]
    for job in jobs:
        client.wait(job["id"], poll_s=0.2, timeout_s=WARM_UP_S)
    took_s = time.monotonic() - began_at
    view.note(f"warm-up: one article and {WARM_UP_DOCUMENTS} documents took {took_s:.1f} s, so speeds are known now")


def submit(client: Client, view: View) -> dict[str, Job]:
    """Submit both jobs, as the command line would; fewer articles where all of them cannot be done in time here."""
    documents = _documents(samples.read_documents(), Endpoint.EMBEDDINGS)
    submitted = {"embeddings": _send(client, documents, Endpoint.EMBEDDINGS, "embeddings", DEADLINE)}
    articles = samples.read_articles()
    while True:
        try:
            lines = _documents(articles, Endpoint.CHAT)
            submitted["summaries"] = _send(client, lines, Endpoint.CHAT, "summaries", DEADLINE)
            return submitted
        except Infeasible as error:
            if len(articles) <= FEWEST_ARTICLES:
                raise
            view.note(f"this machine is slow or busy: {error.message}; trying half of the articles")
            articles = articles[: len(articles) // 2]


def _send(client: Client, lines: Iterable[bytes], endpoint: Endpoint, workload: str, deadline: str) -> Job:
    return client.submit(
        lines,
        endpoint=endpoint.value,
        model=MODELS[endpoint],
        deadline=deadline,
        product_line="demo",
        workload=workload,
    )


def _documents(lines: Iterable[bytes], endpoint: Endpoint) -> Iterator[bytes]:
    limit = SUMMARY_TOKENS if endpoint is Endpoint.CHAT else None
    return jsonl.to_openai_lines(lines, endpoint=endpoint, model=MODELS[endpoint], fmt="jsonl", max_output_tokens=limit)


def follow(client: Client, watcher: Watcher, view: View) -> RealtimeFacts | None:
    """Show the work until both jobs are final; send the real-time request while some of it runs and some waits."""
    began_at = time.monotonic()
    realtime: RealtimeFacts | None = None
    while True:
        elapsed_s = time.monotonic() - began_at
        picture = watcher.look()
        view.draw(picture)
        is_busy = picture.chunks_running > 0 and picture.items_waiting > 0
        if realtime is None and (is_busy or elapsed_s > REALTIME_AT_LATEST_S):
            realtime = ask_now(client, picture)
            view.note(realtime_sentence(realtime))
        if all(job.phase in FINAL_JOB_STATES for job in picture.jobs):
            return realtime
        if elapsed_s > JOBS_S:
            raise Unavailable(f"the jobs were not done after {JOBS_S:.0f} s; see the logs")
        time.sleep(_LOOK_S)


def ask_now(client: Client, picture: Picture) -> RealtimeFacts:
    """Send one real-time request and take its time as a client sees it, HTTP and all."""
    began_at = time.perf_counter()
    answer = client.embeddings(_REALTIME_TEXT, model=MODELS[Endpoint.EMBEDDINGS])
    latency_ms = (time.perf_counter() - began_at) * 1000
    return RealtimeFacts(
        latency_ms=latency_ms,
        engine_ms=None,
        region=answer["usage"]["carbon"]["region"],
        is_in_ledger=False,
        items_waiting=picture.items_waiting,
        chunks_running=picture.chunks_running,
        next_window_at=picture.next_window_at,
    )


def realtime_sentence(facts: RealtimeFacts) -> str:
    """Say how the real-time request went."""
    waits = f"{facts.items_waiting:,} items waited for their windows and {facts.chunks_running} chunks ran"
    then = f" (the next window begins at {facts.next_window_at:%H:%M})" if facts.next_window_at else ""
    return f"real-time request answered by {facts.region} in {facts.latency_ms:.0f} ms, while {waits}{then}"


def fetch_results(client: Client, submitted: dict[str, Job], folder: Path, view: View) -> None:
    """Write each job's output file beside the ledger."""
    for label, job in submitted.items():
        path = folder / f"{label}.out.jsonl"
        with path.open("wb") as file:
            file.writelines(client.result_lines(job["id"]))
        view.note(f"wrote {path}")


def settled(client: Client, submitted: dict[str, Job]) -> list[JobFacts]:
    """Return how the jobs stand once all their entries carry observed rates, or when waiting longer is no use."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        jobs = [job_facts(label, client.job(job["id"]).raw) for label, job in submitted.items()]
        if all(job.is_settled for job in jobs) or time.monotonic() > deadline:
            return jobs
        time.sleep(_LOOK_S)


def check_ledger(client: Client, folder: Path) -> CheckFacts:
    """Export the ledger as a client and have the standalone checker recompute it in a bare interpreter."""
    path = folder / "ledger.csv"
    with path.open("wb") as file:
        file.writelines(client.ledger_csv())
    with path.open("rb") as file:
        lines = sum(1 for _ in file) - 1
    # -I -S: nothing but the standard library, as on the auditor's machine.
    done = subprocess.run(
        (sys.executable, "-I", "-S", str(Path(verify.__file__)), str(path)), capture_output=True, text=True, check=False
    )
    said = (done.stdout + done.stderr).strip().splitlines()
    return CheckFacts(str(path), lines, done.returncode, said[-1] if said else "the checker said nothing")


def booked(realtime: RealtimeFacts, path: Path) -> RealtimeFacts:
    """Look the real-time request up in the ledger's CSV; its entry was written behind the answer."""
    with path.open(newline="", encoding="utf-8") as file:
        found = [line for line in csv.DictReader(file) if line["class"] == WorkClass.REALTIME]
    if not found:
        return realtime
    engine_ms = sum(float(line["duration_s"]) for line in found) * 1000
    return replace(realtime, is_in_ledger=True, engine_ms=engine_ms)

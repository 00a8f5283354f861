"""A day of two tenants' work to look at: rates, jobs that ran, run and wait, entries and events."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
from fastapi import FastAPI
from sqlalchemy import select, update

from carbonq import web
from carbonq.api.app import create_app
from carbonq.model import ChunkState, Scope, Signal
from carbonq.services import carbon
from carbonq.services.refresh import refresh
from carbonq.store import events, keys
from carbonq.store.events import NewEvent
from carbonq.store.tables import chunks, items, jobs
from carbonq.testing import FakeGrid, RecordedSignal
from tests.api.harness import EMBEDDER, Harness
from tests.api.inprocess import InProcess, in_process
from tests.api.test_jobs import chunk_up, finish
from tests.api.test_ledger import book

HOUR = timedelta(hours=1)

FORM = {"content-type": "application/x-www-form-urlencoded"}


def app_of(harness: Harness) -> FastAPI:
    """The API with the dashboard on it, and nothing in the background."""
    return create_app(harness.api, background=[], extend=web.install)


def feed(harness: Harness, hours: int = 26) -> None:
    """Give both zones rates of a day back and a day ahead."""
    start = harness.clock.now() - hours * HOUR

    def wave(base: float, size: float, at: float) -> list[int]:
        return [round(base + size * math.sin((n / 288 + at) * 2 * math.pi) + 9 * math.sin(n / 5)) for n in range(640)]

    recorded = [
        RecordedSignal("ZONE_FR", start, wave(310, 150, 0.1)),
        RecordedSignal("ZONE_SE", start, wave(150, 70, 0.6)),
    ]
    source = FakeGrid(recorded, name="grid")
    refresh(harness.db, {(one.zone, Signal.MOER): (source,) for one in recorded}, harness.clock)


def submit(app: Callable[..., Any], key: str, *, count: int = 12, word: str = "clean", **query: str) -> str:
    """Store a job through the API and return its id."""
    lines = b"".join(
        orjson.dumps({"custom_id": f"{word}-{n}", "body": {"input": f"text {n}"}}) + b"\n" for n in range(count)
    )
    given = {"endpoint": "/v1/embeddings", "model": EMBEDDER, "deadline": "6h", **query}
    target = "/v1/jobs?" + "&".join(f"{name}={value}" for name, value in given.items())
    with in_process(app, {"authorization": f"Bearer {key}"}) as api:
        answer = api.ask("POST", target, body=lines, headers={"content-type": "application/x-ndjson"})
    assert answer.status == 202, answer.body
    return answer.json()["id"]


def place(harness: Harness, job_id: str, region: str, hours: float, **values: Any) -> None:
    """Put a job's chunk into a cell some hours from now."""
    chunk_id = chunk_up(harness, job_id)
    with harness.db.write() as tx:
        tx.execute(
            update(chunks)
            .where(chunks.c.chunk_id == chunk_id)
            .values(region=region, window_at=harness.clock.now() + hours * HOUR, **values)
        )
        tx.execute(update(items).where(items.c.job_id == job_id).values(chunk_id=chunk_id))
        tx.execute(update(jobs).where(jobs.c.job_id == job_id).values(is_chunked=True))


def end(harness: Harness, job_id: str, batch_id: str, tenant: str = "acme") -> list[str]:
    """Run a job to its end with entries of its own, and tell of it; return the entries' ids."""
    ids = book(harness, batch_id, tenant=tenant, job_id=job_id, items=3)
    now = harness.clock.now()
    with harness.db.write() as tx:
        done = {"state": ChunkState.DONE, "finished_at": now}
        tx.execute(update(chunks).where(chunks.c.chunk_id == f"chunk_of_{job_id}").values(**done))
        total = tx.execute(select(jobs.c.items_total).where(jobs.c.job_id == job_id)).scalar_one()
        tx.execute(update(jobs).where(jobs.c.job_id == job_id).values(items_succeeded=total, started_at=now))
    finish(harness, job_id, b"{}\n")
    with harness.db.write() as tx:
        figures = carbon.of_job(tx, job_id)
        events.append_many(tx, [NewEvent("job.completed", now, tenant, job_id, {"carbon": figures})])
    return ids


class World:
    """Jobs of acme that ended, wait and are not placed; one of rival; a key of acme's that may do all."""

    def __init__(self, harness: Harness) -> None:
        """Make it."""
        self.harness = harness
        self.app = app_of(harness)
        with harness.db.write() as tx:
            _, self.key = keys.create(tx, "acme", "all", False, scopes=frozenset(Scope))
            _, self.reader = keys.create(tx, "acme", "reads", False, scopes=frozenset({Scope.READ}))
        harness.api.keyring.refresh()
        feed(harness)
        self.ended = submit(self.app, self.key, product_line="search", workload="reindex")
        place(harness, self.ended, "se", -2)
        self.entries = end(harness, self.ended, "eb_1")
        self.planned = submit(self.app, self.key, count=40, product_line="support", deadline="9h")
        place(harness, self.planned, "se", 3.5, est_duration_s=120.0)
        with harness.db.write() as tx:
            tx.execute(update(jobs).where(jobs.c.job_id == self.planned).values(items_succeeded=11))
        self.waiting = submit(self.app, self.key, count=5, deadline="20h")
        self.theirs = submit(self.app, harness.rival, word="secret", product_line="undisclosed")
        place(harness, self.theirs, "fr", 2)
        self.their_entries = end(harness, self.theirs, "eb_9", "rival")
        harness.api.directory.refresh()

    def client(self, cookie: str = "") -> Any:
        """A client in this process, with a session's cookie."""
        return in_process(self.app, {"cookie": cookie} if cookie else {})


def cookies_of(answer: Any) -> str:
    """Return the cookies of answers that set one."""
    return answer.headers["set-cookie"].partition(";")[0]


def log_in(client: InProcess, key: str) -> str:
    """Log in with a key by the form and return the session's cookie."""
    shown = client.ask("GET", "/login")
    csrf = shown.body.decode().partition('name="csrf" value="')[2].partition('"')[0]
    body = f"csrf={csrf}&next=%2F&key={key}".encode()
    answer = client.ask("POST", "/login", body=body, headers={"cookie": cookies_of(shown), **FORM})
    assert answer.status == 303, answer.body
    return cookies_of(answer)

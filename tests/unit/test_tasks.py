"""The tasks of a region worker: what becomes of tickets before and while their chunk runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from celery.worker import state as worker_state

from carbonq import rooms
from carbonq.services.run import Result
from carbonq.services.writebehind import WriteBehind
from carbonq.store.database import Database
from carbonq.store.tables import entries
from carbonq.tickets import REALTIME, RUN_CHUNK, make_celery
from tests.services.running import MODEL, Bench


def test_tickets_of_a_chunk_that_runs_here_are_dropped_and_others_go_back(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(sqlite_database, tmp_path)
    tasks = rooms.load("workers", "tasks")
    runs, go = threading.Event(), threading.Event()
    ran: list[str] = []

    def run_chunk(_site: object, chunk_id: str, _stop: object) -> Result:
        ran.append(chunk_id)
        runs.set()
        go.wait(10)
        return Result.DONE

    monkeypatch.setattr(tasks, "run_chunk", run_chunk)
    app = make_celery("memory://")
    stop = threading.Event()
    tasks.register(app, bench.site, WriteBehind(bench.db, bench.site.spool), stop)
    run: Any = app.tasks[RUN_CHUNK].run
    first = threading.Thread(target=run, args=("chunk_1",))
    first.start()
    assert runs.wait(10)
    run("chunk_1")
    assert bench.tickets.sent == []
    run("chunk_2")  # the only slot is taken
    assert bench.tickets.sent == [("fr", "chunk_2")]
    go.set()
    first.join()
    run("chunk_1")  # it may come again: back from the planner, say
    stop.set()
    run("chunk_3")
    assert ran == ["chunk_1", "chunk_1"]


def test_a_realtime_call_that_was_revoked_stops_in_its_engine(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    behind = WriteBehind(bench.db, bench.site.spool)
    app = make_celery("memory://")
    rooms.load("workers", "tasks").register(app, bench.site, behind, threading.Event())
    call = {"request_id": "r", "tenant": "acme", "api_key_id": None, "product_line": None, "workload": None}
    call |= {"endpoint": "/v1/embeddings", "model": MODEL.name, "requested_model": MODEL.name}
    call |= {"body": {"model": MODEL.name, "input": "words"}}
    behind.start()
    worker_state.revoked.add("call-gone")
    statuses = [
        app.tasks[REALTIME].apply((call,), task_id=call_id).get()["status_code"] for call_id in ("call-1", "call-gone")
    ]
    behind.close()
    assert statuses == [200, 499]
    assert sorted(row.outcome for row in bench.rows(entries)) == ["cancelled", "succeeded"]

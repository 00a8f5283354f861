"""A worker that lives and takes none of its tickets is found; one that is busy, new, or without tickets is not."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from carbonq.services.watch import Watch
from carbonq.store import deaf, dispatch, regions
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.dispatch import Sent
from carbonq.store.tables import chunks, workers
from carbonq.testing import FAKE_EPOCH
from carbonq.units import window_of
from tests.services.running import Bench

LATER_S = deaf.DEAF_AFTER_S + 10


@pytest.fixture
def bench(database: Database, tmp_path: Path) -> Bench:
    made = Bench(database, tmp_path)
    with database.write() as tx:
        regions.register_worker(
            tx, worker_id="wrk_1", region="fr", host="gpu-1", pid=7, slots=1, software_version="0", hardware="cpu"
        )
    return made


def send(bench: Bench, *, times: int = deaf.SENDS) -> str:
    """A chunk whose ticket went out so many times."""
    chunk_id = bench.chunk(bench.job(1))
    with bench.db.write() as tx:
        tx.execute(update(chunks).where(chunks.c.chunk_id == chunk_id).values(dispatched_at=None))
        sent = Sent(chunk_id, "fr", window_of(FAKE_EPOCH), None)
        dispatch.mark_sent(tx, [sent], now=FAKE_EPOCH, reason="planned")
        for _ in range(times - 1):
            dispatch.mark_resent(tx, [chunk_id])
    return chunk_id


def pass_time(bench: Bench) -> None:
    """Let everything have happened a while ago, but for the worker's heartbeat."""
    ago = timedelta(seconds=LATER_S)
    with bench.db.write() as tx:
        then = machine_now(tx) - ago
        tx.execute(update(chunks).values(ticket_at=then))
        tx.execute(update(workers).values(started_at=then, last_claimed_at=then))


def names(bench: Bench) -> list[str]:
    with bench.db.read() as tx:
        return [one.worker_id for one in deaf.find(tx, regions.live_workers(tx, worker_alive_s=60))]


def test_a_live_worker_that_leaves_its_tickets_alone_is_deaf(bench: Bench) -> None:
    send(bench)
    assert names(bench) == [], "it was sent just now"
    pass_time(bench)
    assert names(bench) == ["wrk_1"]
    with bench.db.write() as tx:
        regions.worker_claimed(tx, "wrk_1")
    assert names(bench) == []


def test_one_that_has_just_started_or_is_gone_or_has_no_tickets_is_not(bench: Bench) -> None:
    chunk_id = send(bench)
    pass_time(bench)
    with bench.db.write() as tx:
        tx.execute(update(workers).values(started_at=machine_now(tx)))
    assert names(bench) == []
    pass_time(bench)
    with bench.db.write() as tx:
        regions.worker_stopped(tx, "wrk_1")
    assert names(bench) == []
    with bench.db.write() as tx:
        regions.worker_seen(tx, "wrk_1")
        dispatch.withdraw(tx, [chunk_id])
    assert names(bench) == []


def test_a_ticket_that_was_lost_once_is_no_workers_fault(bench: Bench) -> None:
    send(bench, times=deaf.SENDS - 1)
    pass_time(bench)
    assert names(bench) == []


def test_the_watch_says_it_once_and_once_when_it_is_over(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    send(bench)
    pass_time(bench)
    watch = Watch(bench.db, worker_alive_s=60)
    with caplog.at_level(logging.WARNING):
        assert [one.pid for one in watch.look()] == [7]
        watch.look()
        with bench.db.write() as tx:
            regions.worker_claimed(tx, "wrk_1")
        assert watch.look() == []
    error, warning = caplog.records
    assert error.levelno == logging.ERROR
    assert error.getMessage().startswith(
        "worker wrk_1 (pid 7 on gpu-1) says that it lives and has taken none of the 1 ticket of region fr for 4"
    )
    assert warning.getMessage() == "worker wrk_1 is deaf no longer, or gone"

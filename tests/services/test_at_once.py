"""Two processes at the same work at the same moment, as PostgreSQL allows: nothing is lost, nothing doubled."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from carbonq.clock import GridClock
from carbonq.model import ItemState, JobState, Signal
from carbonq.ratebook import rate_row
from carbonq.services import finish, settle, setup
from carbonq.services.dispatch import dispatch
from carbonq.store import chunks, clocks, forecasts, jobs, ledger, revisions, schema
from carbonq.store.database import Database
from carbonq.units import WINDOW
from tests.databases import connected
from tests.services.booked import configure, lines, observe, store
from tests.services.jobs import World
from tests.services.planning import NORTH, START, Broker, SetClock, add_chunks, open_regions, place
from tests.store.rows import T0
from tests.store.test_forecasts import OBSERVATION
from tests.unit.bookings import W0, book, rate

DEADLINE_S = 20.0


class Second:
    """Work in a thread that is given time to end or to wait for a lock, whichever comes first."""

    def __init__(self, db: Database, work: Callable[[], Any]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self.future: Future[Any] = self._pool.submit(work)
        pause = threading.Event()
        with connected(db.url) as connection:
            for _ in range(int(DEADLINE_S / 0.01)):
                if self.future.done() or connection.execute(text(_WAITERS)).scalar():
                    break
                pause.wait(0.01)

    def result(self) -> Any:
        found = self.future.result(DEADLINE_S)
        self._pool.shutdown()
        return found


_WAITERS = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def test_two_dispatchers_do_not_fill_the_same_slots(postgresql: Database) -> None:
    open_regions(postgresql, replace(NORTH, slots=2))
    for name in add_chunks(postgresql, 5):
        place(postgresql, name, "norcal", START, latest_start_at=START + timedelta(hours=5))

    class Slow(Broker):
        def flexible(self, pairs: Sequence[tuple[str, str]], shown: Mapping[str, str] | None = None) -> None:
            if not self.sent:
                self.sent.extend(pairs)
                self.second = Second(postgresql, send)
                return
            self.sent.extend(pairs)

    broker = Slow()

    def send() -> int:
        return dispatch(postgresql, broker, SetClock(), redispatch_after_s=10, worker_alive_s=15)

    assert (send(), broker.second.result()) == (2, 0)
    assert len(broker.sent) == 2


def test_two_settlements_with_different_news_lose_neither_book(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(postgresql)
    store(postgresql, book())
    observe(postgresql, "Z-AWAY", W0, "100")
    append, seconds = revisions.append, []

    def run() -> int:
        return settle.settle(postgresql, W0 + WINDOW, settle_after_s=0)

    def slow(*arguments: Any) -> int:
        count = append(*arguments)
        if not seconds:
            observe(postgresql, "Z-AWAY", W0, "50", signal=Signal.AER, method="direct")
            seconds.append(None)
            seconds[0] = Second(postgresql, run)
        return count

    monkeypatch.setattr(revisions, "append", slow)
    assert (run(), seconds[0].result()) == (5, 5)
    assert {(line["moer_status"], line["aer_status"]) for line in lines(postgresql)} == {("settled", "settled")}


def test_a_process_that_comes_late_leaves_a_finished_jobs_files_alone(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(database, tmp_path)
    job, _ = world.submit(3)
    world.end(job, {"a-0": ItemState.SUCCEEDED, "a-1": ItemState.FAILED, "a-2": ItemState.SUCCEEDED})
    with database.read() as tx:
        seen = jobs.ended(tx)
    assert finish.finish_jobs(world.db, world.blobs, world.clock) == 1
    final = world.job(job.job_id)
    before = [world.lines_of(blob) for blob in (final.output_blob, final.error_blob)]
    monkeypatch.setattr(jobs, "ended", lambda _tx: seen)
    assert finish.finish_jobs(world.db, world.blobs, world.clock) == 0
    assert world.job(job.job_id).state is JobState.COMPLETED
    assert [world.lines_of(blob) for blob in (final.output_blob, final.error_blob)] == before


def test_two_refreshes_store_an_observation_once(postgresql: Database) -> None:
    def add() -> int:
        with postgresql.write() as tx:
            return forecasts.add_observations(tx, [OBSERVATION])

    with postgresql.write() as tx:
        assert forecasts.add_observations(tx, [OBSERVATION]) == 1
        second = Second(postgresql, add)
    assert second.result() == 0


def test_new_rates_are_stored_in_one_order(postgresql: Database) -> None:
    first, last = sorted((rate_row(rate("Z", W0)), rate_row(rate("Z", W0 + WINDOW))), key=lambda row: row["rate_id"])

    def add() -> None:
        with postgresql.write() as tx:
            ledger.append_revisions(tx, [last, first], [])

    with postgresql.write() as tx:
        ledger.append_revisions(tx, [first], [])
        second = Second(postgresql, add)
        ledger.append_revisions(tx, [last], [])  # a deadlock, if the other one had begun with it
    second.result()


def test_the_baseline_queue_has_one_writer_from_the_start(postgresql: Database) -> None:
    later = T0 + timedelta(minutes=7)

    def look() -> list[Any]:
        with postgresql.write() as tx:
            return chunks.baseline_queue(tx, "north", 1, T0)

    with postgresql.write() as tx:
        chunks.baseline_queue(tx, "north", 1, T0)
        second = Second(postgresql, look)
        chunks.set_baseline_queue(tx, "north", [later])
    assert second.result() == [later]


def test_two_hosts_that_set_up_regions_and_clock_agree(
    postgresql: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure, seconds = clocks.ensure, []
    fast = GridClock.accelerated(T0, 75.0)

    def prepare(clock: GridClock) -> GridClock:
        configured = [replace(NORTH, name=name) for name in ("a", "b")]
        return setup.prepare(postgresql, configured=configured, data_dir=tmp_path, tenant="t", clock=clock).clock

    def slow(tx: Any, first: GridClock) -> GridClock:
        found = ensure(tx, first)
        if not seconds:
            seconds.append(None)
            seconds[0] = Second(postgresql, lambda: prepare(GridClock.real()))
        return found

    monkeypatch.setattr(clocks, "ensure", slow)
    assert prepare(fast) == seconds[0].result() == fast


_UPGRADE = """
import sys
from alembic import command
from carbonq.store import schema
from carbonq.store.database import Database
database = Database(sys.argv[1])
schema.current(database)
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
schema.upgrade(database)
"""


def test_several_hosts_may_upgrade_an_empty_database_at_once(database_url: str) -> None:
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", _UPGRADE, database_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for host in hosts:
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
    for host in hosts:
        assert host.stdin is not None
        host.stdin.write("go\n")
        host.stdin.flush()
    said = [host.communicate(timeout=60)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0] * len(hosts), said
    db = Database(database_url)
    schema.check_usable(db)
    db.dispose()

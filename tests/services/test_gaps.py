"""What a silent worker may have used is booked once, as an estimate; and taken back when its meters come back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from carbonq import ids, verify
from carbonq.booking import EngineBatch, Fact
from carbonq.clock import ClockKind, GridClock
from carbonq.ledger import book_overhead
from carbonq.meters.protocol import MeteredPart, MeterInfo, MeterKind
from carbonq.model import EntryKind, Quality, WorkClass
from carbonq.services.gaps import book_gaps
from carbonq.services.settle import settle
from carbonq.store import ledger, regions
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import entries, gaps, workers
from carbonq.units import WINDOW, window_of
from tests.services.booked import lines, observe
from tests.unit.bookings import AWAY, HOME, rate_book

CLOCK = GridClock.real()
ALIVE_S = 15.0
INFO = MeterInfo(MeterKind.NVML_COUNTER, MeterKind.CPU_TIME, MeterKind.NONE, Quality.MIXED, None, ("GPU-1",))


def enter(database: Database, worker_id: str = "wrk_1", *, silent: timedelta, clock: GridClock = CLOCK) -> datetime:
    """Enter a worker that was heard of last so long ago; return when, in machine time."""
    with database.write() as tx:
        regions.sync(tx, [HOME, AWAY])
        now = machine_now(tx)
        regions.register_worker(
            tx, worker_id=worker_id, region="away", host="h", pid=1, slots=1, software_version="1.2", hardware="gpu"
        )
        tx.execute(update(workers).where(workers.c.worker_id == worker_id).values(last_seen_at=now - silent))
    return now - silent


def idle(database: Database, end_at: datetime, *, seconds: int, gpu: int, cpu: int, worker_id: str = "wrk_1") -> None:
    """Book idle energy of ``seconds`` up to ``end_at``, cut at window edges, gpu and cpu uJ a second."""
    start_at = end_at - timedelta(seconds=seconds)
    while start_at < end_at:
        until = min(end_at, window_of(start_at) + WINDOW)
        length_s = (until - start_at).total_seconds()
        part = MeteredPart(
            window_of(start_at), start_at, until, length_s, round(gpu * length_s), round(cpu * length_s), None
        )
        batch = EngineBatch(
            engine_batch_id=ids.new("eb"),
            worker_id=worker_id,
            work_class=WorkClass.FLEXIBLE,
            fact=Fact.of(AWAY),
            info=INFO,
            parts=[part],
            items=(),
            model=None,
            engine=None,
            engine_version=None,
            software_version="1.2",
            clock=ClockKind.REAL,
        )
        booking = book_overhead(
            batch, rate_book([]), EntryKind.IDLE, outcome=None, recorded_at=until, recorded_by=worker_id
        )
        with database.write() as tx:
            ledger.insert_booking(tx, booking)
        start_at = until


def run(database: Database, clock: GridClock = CLOCK) -> int:
    book = rate_book([])
    return book_gaps(database, clock, rates=lambda: book, silent_s=120, alive_s=ALIVE_S, recorded_by="ctl_1")


def booked(database: Database, **options: bool) -> list[dict[str, str]]:
    return [line for line in lines(database, **options) if line["kind"] == "gap"]


def test_a_silent_worker_is_booked_once_as_an_estimate_of_its_mean_power(database: Database) -> None:
    heard = enter(database, silent=timedelta(minutes=10))
    idle(database, heard - timedelta(seconds=45), seconds=600, gpu=2_000_000, cpu=500_000)
    assert (run(database), run(database)) == (1, 0)
    found = booked(database)
    # 45 s that were never reported and 15 s that its heartbeat counts for, at 2.5 W.
    assert sum(int(line["energy_uj"]) for line in found) == 60 * 2_500_000
    assert sum(int(line["gpu_uj"]) for line in found) == 60 * 2_000_000
    for line in found:
        assert (line["quality"], line["uncertainty_pct"], line["outcome"]) == ("estimated", "100.0", "silent")
        assert (line["tenant"], line["job_id"], line["dram_uj"], line["dram_meter"]) == ("", "", "", "none")
        assert (line["gpu_meter"], line["recorded_by"]) == ("nvml_counter", "ctl_1")
    assert found[0]["started_at"] == (heard - timedelta(seconds=45)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert sum(Decimal(line["duration_s"]) for line in found) == 60


@pytest.mark.parametrize(
    ("host", "gpus", "seconds"),
    [("h", [], 4), ("h", ["GPU-2"], 15), ("elsewhere", ["GPU-1"], 4), ("elsewhere", [], 15)],
)
def test_a_gap_ends_where_its_successor_begins(
    sqlite_database: Database, host: str, gpus: list[str], seconds: int
) -> None:
    heard = enter(sqlite_database, silent=timedelta(minutes=10))
    enter(sqlite_database, "wrk_2", silent=timedelta(seconds=1))
    idle(sqlite_database, heard, seconds=600, gpu=2_000_000, cpu=0)
    with sqlite_database.write() as tx:
        tx.execute(update(workers).where(workers.c.worker_id == "wrk_1").values(gpus=["GPU-1"]))
        later = {"started_at": heard + timedelta(seconds=4), "host": host, "gpus": gpus}
        tx.execute(update(workers).where(workers.c.worker_id == "wrk_2").values(**later))
    assert run(sqlite_database) == 1
    assert sum(int(line["energy_uj"]) for line in booked(sqlite_database)) == seconds * 2_000_000


def test_a_gap_is_cut_at_window_edges_and_its_pieces_sum_to_it(database: Database) -> None:
    heard = enter(database, silent=timedelta(minutes=40))
    idle(database, heard - timedelta(minutes=11), seconds=601, gpu=7, cpu=3)
    run(database)
    found = booked(database)
    assert len(found) >= 3
    assert sum(int(line["gpu_uj"]) for line in found) == 7 * (11 * 60 + 15)
    assert {line["parts"] for line in found} == {str(len(found))}


def test_one_that_comes_back_has_its_gap_taken_back(database: Database, tmp_path: Path) -> None:
    heard = enter(database, silent=timedelta(minutes=10))
    idle(database, heard, seconds=600, gpu=2_000_000, cpu=0)
    assert run(database) == 1
    first = booked(database)
    with database.write() as tx:
        assert regions.worker_seen(tx, "wrk_1")
    assert (run(database), run(database)) == (0, 0)
    found = booked(database)
    assert len(found) == len(first)
    for line in found:
        assert (line["revision"], line["reason"], line["outcome"]) == ("2", "corrected", "returned")
        assert (line["energy_uj"], line["gpu_uj"], line["embodied_g"]) == ("0", "0", "0.000000000000000")
    # It settles like any other, and says so; the checker takes it, alone and with its first revision.
    for at in {window_of(CLOCK.at(heard)) + WINDOW * step for step in (-3, -2, -1, 0, 1)}:
        observe(database, "Z-AWAY", at, "100")
    assert settle(database, CLOCK.now() + timedelta(hours=1), settle_after_s=0) > 0
    assert {(line["reason"], line["energy_uj"], line["emission_g"]) for line in booked(database)} == {
        ("settled", "0", "0.000000000000000")
    }
    assert verify.line_problems(booked(database)[0] | {"gpu_uj": "1", "energy_uj": "1"}) != []
    with database.read() as tx:
        total = tx.execute(select(func.count()).select_from(entries).where(entries.c.kind == "gap")).scalar_one()
    assert total == 3 * len(first)


def test_one_that_falls_silent_again_is_another_gap(database: Database) -> None:
    heard = enter(database, silent=timedelta(minutes=30))
    idle(database, heard, seconds=60, gpu=10, cpu=0)
    assert run(database) == 1
    with database.write() as tx:
        tx.execute(update(workers).values(last_seen_at=machine_now(tx) - timedelta(minutes=5)))
    assert run(database) == 1
    with database.read() as tx:
        assert tx.execute(select(func.count()).select_from(gaps)).scalar_one() == 2
    assert {line["outcome"] for line in booked(database)} == {"silent", "returned"}


def test_a_worker_whose_power_is_unknown_has_a_gap_without_figures(database: Database) -> None:
    enter(database, silent=timedelta(minutes=10))
    assert run(database) == 1
    for line in booked(database):
        assert (line["energy_uj"], line["emission_g"], line["gpu_meter"]) == ("", "", "none")


@pytest.mark.parametrize("silent", [timedelta(seconds=60), timedelta(days=2)])
def test_the_living_and_those_long_gone_are_left_alone(database: Database, silent: timedelta) -> None:
    enter(database, silent=silent)
    assert run(database) == 0
    assert booked(database) == []


def test_one_that_ended_in_order_left_no_gap(database: Database) -> None:
    enter(database, silent=timedelta(minutes=10))
    with database.write() as tx:
        regions.worker_stopped(tx, "wrk_1")
    assert run(database) == 0


def test_on_a_faster_clock_the_estimate_is_by_machine_time(database: Database) -> None:
    heard = enter(database, silent=timedelta(minutes=10))
    epoch = heard - timedelta(hours=1)
    clock = GridClock(epoch, datetime(2026, 3, 2, tzinfo=UTC), 10.0, ClockKind.ACCELERATED)
    end_at = clock.at(heard)
    idle(database, end_at, seconds=600, gpu=1_000_000, cpu=0)  # 60 machine seconds
    assert run(database, clock) == 1
    found = booked(database)
    assert {line["clock"] for line in found} == {"accelerated"}
    assert sum(Decimal(line["duration_s"]) for line in found) == Decimal(15)
    assert sum(int(line["energy_uj"]) for line in found) == 15 * 10 * 1_000_000

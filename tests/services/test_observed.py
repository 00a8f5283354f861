"""Work that is only observed or held out runs at once at home, and what planning would save is kept beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from carbonq.clock import ClockKind
from carbonq.errors import InvalidRequest
from carbonq.model import ChunkState, Signal, Treatment
from carbonq.services import measured
from carbonq.services.chosen import AT_ONCE
from carbonq.services.dispatch import dispatch
from carbonq.services.plan import plan_waiting
from carbonq.services.refresh import refresh
from carbonq.store import jobs as job_rows
from carbonq.store import regions as region_rows
from carbonq.store import shadows as shadow_rows
from carbonq.store.database import Database
from carbonq.store.placements import Placed
from carbonq.store.tables import chunks, jobs, placements, shadows
from carbonq.units import WINDOW
from tests.services import booked
from tests.services.planning import NORTH, SOUTH, START, Broker, SetClock, add_chunks, chunk, open_regions
from tests.services.test_plan import SOURCES
from tests.store.rows import job
from tests.unit.bookings import AWAY, HOME, W0, batch, book, item, rate, rate_book


def ready(db: Database, clock: SetClock, slots: int = 1) -> None:
    open_regions(db, replace(NORTH, slots=slots), replace(SOUTH, slots=slots))
    refresh(db, SOURCES, clock)


def shadows_of(db: Database) -> dict[str, Any]:
    with db.read() as tx:
        return {row.chunk_id: row for row in tx.execute(select(shadows))}


def test_observed_work_runs_at_once_at_home_first_come_first_served(database: Database) -> None:
    clock = SetClock()
    ready(database, clock)
    late, soon = timedelta(minutes=10), timedelta(minutes=50)
    (second,) = add_chunks(database, 1, prefix="b", treatment=Treatment.OBSERVED, release_at=START - late)
    (first,) = add_chunks(database, 1, prefix="a", hours=20, treatment=Treatment.OBSERVED, release_at=START - soon)
    (held,) = add_chunks(database, 1, prefix="h", treatment=Treatment.HELD_OUT, release_at=START - late / 2)
    planned = add_chunks(database, 3, prefix="p")
    summary = plan_waiting(database, clock)
    assert (summary.chunks, summary.at_once, summary.shadows, summary.placed) == (3, 3, 2, 6)
    for name in (first, second, held):
        row = chunk(database, name)
        assert (row.region, row.window_at, row.state) == ("norcal", START, "placed")
    with database.read() as tx:
        reasons = dict(tx.execute(select(placements.c.chunk_id, placements.c.reason)).all())
    assert [reasons[name] for name in (first, second, held)] == [AT_ONCE] * 3
    assert set(shadows_of(database)) == {first, second}
    # The home region's only slot goes to who came first, whatever the deadlines say, and before planned work.
    broker = Broker()
    dispatch(database, broker, clock, redispatch_after_s=10, worker_alive_s=15)
    assert [name for region, name in broker.sent if region == "norcal"] == [first]
    # What is planned keeps clear of the three that go first.
    taken = [chunk(database, name) for name in planned]
    busy_until = START + timedelta(seconds=3 * 170)
    assert all(row.region != "norcal" or row.window_at + WINDOW > busy_until for row in taken)
    assert plan_waiting(database, clock).plan_id is None


def test_a_shadow_moves_until_its_window_has_come_whatever_its_chunk_does(database: Database) -> None:
    clock = SetClock()
    ready(database, clock)
    names = add_chunks(database, 4, treatment=Treatment.OBSERVED)
    plan_waiting(database, clock)
    before = shadows_of(database)
    cells = [(row.region, row.window_at) for row in before.values()]
    assert len(set(cells)) == 4  # one slot a region: they never share a cell
    assert all(row.g_per_kwh is not None and row.issued_at == START for row in before.values())
    assert {row.reason for row in before.values()} == {"carbon"}
    with database.write() as tx:
        done = update(chunks).where(chunks.c.chunk_id.in_(names))
        tx.execute(done.values(state=ChunkState.DONE.value, finished_at=START))
    first = min(before.values(), key=lambda row: row.window_at)
    # Its window has come; the others may still move, and one that must not move is not moved.
    clock.at = first.window_at
    with database.write() as tx:
        region_rows.sync(tx, [replace(NORTH, slots=1, models=("other",)), replace(SOUTH, slots=1)])
        tx.execute(update(shadows).where(shadows.c.chunk_id != first.chunk_id).values(region="norcal"))
    summary = plan_waiting(database, clock, max_stale_s=10**6)
    assert (summary.chunks, summary.at_once, summary.shadows) == (0, 0, 3)
    after = shadows_of(database)
    assert (after[first.chunk_id].region, after[first.chunk_id].plan_id) == (first.region, first.plan_id)
    assert {row.region for name, row in after.items() if name != first.chunk_id} == {"socal"}


def test_a_slow_planner_moves_no_shadow_whose_window_has_come(database: Database) -> None:
    placed = Placed(["c"], ["norcal"], [START + WINDOW], [None], [None], ["carbon"])
    later = replace(placed, region=["socal"], window_at=[START + 5 * WINDOW])
    for made, at in ((placed, START), (later, START + WINDOW)):
        with database.write() as tx:
            shadow_rows.put(tx, "pln", made, [60.0], created_at=at, signal=Signal.MOER)
    assert (shadows_of(database)["c"].region, len(shadows_of(database))) == ("norcal", 1)
    with database.write() as tx:
        shadow_rows.put(tx, "pln", later, [60.0], created_at=START, signal=Signal.MOER)
    assert shadows_of(database)["c"].region == "socal"


def test_shadows_take_only_what_planned_work_leaves(sqlite_database: Database) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    planned = add_chunks(sqlite_database, 10, prefix="p", hours=1)
    plan_waiting(sqlite_database, clock)
    add_chunks(sqlite_database, 8, prefix="o", hours=1, treatment=Treatment.OBSERVED)
    plan_waiting(sqlite_database, clock)
    theirs = {(row.region, row.window_at) for row in (chunk(sqlite_database, name) for name in planned)}
    found = shadows_of(sqlite_database)
    assert len(found) == 8
    assert not theirs & {(row.region, row.window_at) for row in found.values()}


def put_shadow(db: Database, chunk_id: str, region: str, at: datetime, g_per_kwh: str, **changes: Any) -> None:
    row = {
        "chunk_id": chunk_id,
        "plan_id": "pln",
        "region": region,
        "window_at": at,
        "duration_s": 60.0,
        "g_per_kwh": Decimal(g_per_kwh),
        "issued_at": W0,
        "signal": "moer",
        "reason": "carbon",
        "created_at": W0,
    }
    with db.write() as tx:
        tx.execute(insert(shadows).values(row | changes))


def report(db: Database, now: datetime, **options: Any) -> dict[str, Any]:
    return measured.observed(db, now, settle_after_s=0, max_stale_s=7200, **options)


def test_the_report_says_what_would_have_been_saved_with_settled_apart(database: Database) -> None:
    booked.configure(database)
    later = W0 + timedelta(hours=1)
    settled_book = rate_book(
        [rate("Z-AWAY", W0, "400", kind=rate("Z-AWAY").kind.OBSERVED), rate("Z-HOME", W0 - WINDOW, "500")],
        now=later,
    )
    one = batch([item(chunk_id="c_settled")])
    booked.store(database, book(one, settled_book))
    booked.store(database, book(batch([item(chunk_id="c_open")])), book(batch([item(chunk_id="c_alone")])))
    booked.observe(database, "Z-HOME", later, "100")
    booked.foretell(database, "Z-HOME", later + WINDOW, ["80"])
    put_shadow(database, "c_settled", "home", later, "90")
    put_shadow(database, "c_open", "home", later + WINDOW, "85")
    put_shadow(database, "c_alone", "home", later, "90")
    found = report(database, later + WINDOW)
    assert (found["clock"], found["chunks"], found["shadows_to_come"]) == ("real", 3, 0)
    by_status = {group["status"]: group for group in found["saving"]}
    assert set(by_status) == {"settled", "provisional"}
    kwh = Decimal(1_000_003) / Decimal(3_600_000_000_000)
    settled = by_status["settled"]
    assert Decimal(settled["emission_g"]) == pytest.approx(kwh * Decimal("1.2") * 400)
    assert Decimal(settled["realised_g"]) == pytest.approx(kwh * Decimal("1.5") * 100)
    assert Decimal(settled["planned_g"]) == pytest.approx(kwh * Decimal("1.5") * 90)
    assert Decimal(settled["baseline_g"]) == pytest.approx(kwh * Decimal("1.5") * 500)
    assert settled["saved_pct"] == pytest.approx(100 * (1 - 150 / 480), abs=0.01)
    assert Decimal(by_status["provisional"]["realised_g"]) == pytest.approx(kwh * Decimal("1.5") * 80)
    # c_alone: its shadow is settled and its own entry is not; the two are not compared.
    assert found["not_compared"] == {"chunks": 1, "energy_uj": 1_000_003}
    assert report(database, later + WINDOW, tenant="nobody")["chunks"] == 0
    assert report(database, later + WINDOW, start=W0 + WINDOW)["chunks"] == 0


def add_job(db: Database, job_id: str, treatment: Treatment, created_at: datetime = W0) -> None:
    with db.write() as tx:
        job_rows.insert_job(tx, job(job_id=job_id, created_at=created_at), source="jobs", machine_created_at=W0)
        tx.execute(update(jobs).where(jobs.c.job_id == job_id).values(treatment=treatment))


def test_the_holdout_is_compared_by_energy_and_by_tokens(database: Database) -> None:
    booked.configure(database, (HOME, AWAY))
    rates = rate_book([rate("Z-AWAY", W0, "200"), rate("Z-HOME", W0, "400")])
    add_job(database, "earlier", Treatment.PLANNED, W0 - timedelta(hours=9))
    booked.store(database, book(batch([item(job_id="earlier", chunk_id="x")]), rates))
    for number in range(6):
        for name, treatment in (("planned", Treatment.PLANNED), ("held", Treatment.HELD_OUT)):
            job_id = f"{name}_{number}"
            add_job(database, job_id, treatment)
            value = "200" if treatment is Treatment.PLANNED else str(350 + 20 * number)
            made = batch([item(job_id=job_id, chunk_id=job_id, tokens=(100, 0, 0))])
            booked.store(database, book(made, rate_book([rate("Z-AWAY", W0, value)])))
    found = measured.holdout(database)
    (one,) = found["comparisons"]
    # The job from before the holdout ran in other hours and does not count.
    assert (one["status"], one["planned_jobs"], one["held_out_jobs"]) == ("provisional", 6, 6)
    assert one["per_kwh"]["planned_g"] == pytest.approx(1.2 * 200)
    assert one["per_kwh"]["held_out_g"] == pytest.approx(1.2 * 400)
    assert one["per_kwh"]["saved_pct"] == pytest.approx(50)
    assert 45 < one["per_kwh"]["low_pct"] < 50 < one["per_kwh"]["high_pct"] < 55
    assert one["per_1000_tokens"]["saved_pct"] == pytest.approx(50)
    assert measured.holdout(database, end=W0)["comparisons"] == []


def test_clocks_are_not_mixed(sqlite_database: Database) -> None:
    booked.configure(sqlite_database)
    names: Sequence[str] = ("real", "simulated")
    for name in names:
        add_job(sqlite_database, name, Treatment.HELD_OUT)
        booked.store(sqlite_database, book(batch([item(job_id=name, chunk_id=name)], clock=ClockKind(name))))
        put_shadow(sqlite_database, name, "home", W0, "1")
    for ask in (partial(report, sqlite_database, W0), partial(measured.holdout, sqlite_database)):
        with pytest.raises(InvalidRequest, match="different clocks"):
            ask()
        assert ask(clock="real")["clock"] == "real"

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import insert, select

from carbonq.grid.recorded import RecordedSource
from carbonq.model import RegionState, Signal
from carbonq.services.dispatch import dispatch
from carbonq.services.plan import PlanSummary, plan_waiting
from carbonq.services.refresh import refresh
from carbonq.signals import Observation
from carbonq.store import regions as region_rows
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import items, jobs, placements, plans
from carbonq.units import WINDOW
from tests.services.planning import (
    NORTH,
    SOUTH,
    START,
    Broker,
    SetClock,
    add_chunks,
    change,
    chunk,
    open_regions,
    place,
    run,
)


class RecentSource(RecordedSource):
    """Knows two days and not two weeks: most of a test's time would go into storing what was observed."""

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        return super().observations(zone, max(start, end - timedelta(days=2)), end, now)


SOURCES = {(region.zone, Signal.MOER): [RecentSource()] for region in (NORTH, SOUTH)}


def ready(db: Database, clock: SetClock) -> None:
    open_regions(db, NORTH, SOUTH)
    refresh(db, SOURCES, clock)


def test_waiting_chunks_get_placements_they_can_be_judged_by(database: Database) -> None:
    clock = SetClock()
    ready(database, clock)
    names = add_chunks(database, 20)
    summary = plan_waiting(database, clock)
    assert (summary.chunks, summary.placed, summary.late, summary.moved, summary.is_overlay) == (20, 20, 0, 0, False)
    assert summary.objective_g is not None and summary.lower_bound_g is not None
    assert summary.lower_bound_g <= summary.objective_g
    cells: Counter[tuple[str, datetime]] = Counter()
    with database.read() as tx:
        stored = {row.placement_id: row for row in tx.execute(select(placements))}
        plan = tx.execute(select(plans)).one()
    assert (plan.plan_id, plan.chunks, plan.is_overlay) == (summary.plan_id, 20, False)
    for name in names:
        row = chunk(database, name)
        assert row.state == "placed"
        assert row.latest_start_at == row.deadline_at - timedelta(seconds=170 + 2 + 170 / 4 + 60)
        assert START <= row.window_at <= row.latest_start_at
        placement = stored[row.placement_id]
        assert (placement.chunk_id, placement.region, placement.window_at) == (name, row.region, row.window_at)
        assert placement.reason == "carbon"
        assert placement.g_per_kwh is not None
        assert placement.issued_at == START
        cells[row.region, row.window_at] += 1
    assert max(cells.values()) == 1


def test_it_rests_until_something_changes(sqlite_database: Database) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    assert plan_waiting(sqlite_database, clock) == PlanSummary()
    add_chunks(sqlite_database, 3)
    assert plan_waiting(sqlite_database, clock).placed == 3
    assert plan_waiting(sqlite_database, clock) == PlanSummary()
    assert plan_waiting(sqlite_database, clock, is_forced=True).placed == 0
    clock.at += WINDOW
    refresh(sqlite_database, SOURCES, clock)
    again = plan_waiting(sqlite_database, clock)
    assert again.plan_id is not None
    assert again.placed == again.moved


def test_what_is_running_or_has_a_ticket_is_left_alone_and_keeps_its_slot(sqlite_database: Database) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    running, ticket, free = add_chunks(sqlite_database, 3, hours=0.14, regions=("norcal",))
    run(sqlite_database, running, "norcal", elapsed_s=20)
    place(sqlite_database, ticket, "norcal", START, dispatched_at=START)
    summary = plan_waiting(sqlite_database, clock)
    assert summary.chunks == 1
    row = chunk(sqlite_database, free)
    # 150 s of the running one, then 170 s of the one with the ticket: free from 320 s on.
    assert row.window_at == START + WINDOW
    assert (chunk(sqlite_database, running).window_at, chunk(sqlite_database, ticket).window_at) == (None, START)


def test_a_chunk_about_to_start_stays_unless_its_region_goes_away(sqlite_database: Database) -> None:
    clock = SetClock(START + timedelta(seconds=250))
    ready(sqlite_database, clock)
    (name,) = add_chunks(sqlite_database, 1)
    place(sqlite_database, name, "socal", START, latest_start_at=START + timedelta(hours=5))
    assert plan_waiting(sqlite_database, clock, is_forced=True).chunks == 0
    assert chunk(sqlite_database, name).region == "socal"
    with sqlite_database.write() as tx:
        region_rows.set_state(tx, "socal", RegionState.PAUSED)
    assert plan_waiting(sqlite_database, clock).moved == 1
    assert chunk(sqlite_database, name).region == "norcal"


def test_a_backlog_does_not_pile_up_behind_one_region(sqlite_database: Database) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    names = add_chunks(sqlite_database, 8)
    for name in names:
        place(sqlite_database, name, "norcal", START, latest_start_at=START + timedelta(hours=5))
    summary = plan_waiting(sqlite_database, clock, is_forced=True)
    assert summary.chunks == 6  # the first starts now, the second within a window
    assert summary.moved == 6


def test_two_short_chunks_start_side_by_side_in_regions_that_cost_the_same(sqlite_database: Database) -> None:
    clock, broker = SetClock(), Broker()
    open_regions(sqlite_database, NORTH, replace(SOUTH, zone=NORTH.zone))
    refresh(sqlite_database, SOURCES, clock)
    names = add_chunks(sqlite_database, 2, est_duration_s=2.0, hours=0.1)
    assert plan_waiting(sqlite_database, clock).placed == 2
    assert {chunk(sqlite_database, name).window_at for name in names} == {START}
    assert dispatch(sqlite_database, broker, clock, redispatch_after_s=10, worker_alive_s=15) == 2
    assert sorted(region for region, _ in broker.sent) == ["norcal", "socal"]
    assert plan_waiting(sqlite_database, clock, is_forced=True).moved == 0


def test_without_a_worker_the_other_region_is_taken_and_without_any_there_is_still_a_plan(
    sqlite_database: Database,
) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH, SOUTH, without_worker=("norcal", "socal"))
    refresh(sqlite_database, SOURCES, clock)
    add_chunks(sqlite_database, 4)
    assert plan_waiting(sqlite_database, clock).placed == 4
    open_regions(sqlite_database, NORTH, SOUTH, without_worker=("norcal",))
    plan_waiting(sqlite_database, clock)
    assert {chunk(sqlite_database, f"c{i:04d}").region for i in range(4)} == {"socal"}


def test_regions_models_and_backoff_are_respected(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, replace(NORTH, models=("other",)), SOUTH)
    refresh(sqlite_database, SOURCES, clock)
    (a,) = add_chunks(sqlite_database, 1, prefix="a")
    (b,) = add_chunks(sqlite_database, 1, prefix="b", regions=("norcal",))
    (c,) = add_chunks(sqlite_database, 1, prefix="c", hours=1)
    with sqlite_database.read() as tx:
        machine = machine_now(tx)
    change(sqlite_database, c, not_before=machine + timedelta(seconds=1500))
    summary = plan_waiting(sqlite_database, clock)
    assert (summary.placed, summary.unplaced) == (2, 1)
    assert chunk(sqlite_database, a).region == "socal"
    assert chunk(sqlite_database, b).state == "waiting"
    assert chunk(sqlite_database, c).window_at >= START + timedelta(seconds=1500)
    with sqlite_database.read() as tx:
        assert tx.execute(select(plans.c.note)).scalar_one() == "1 chunks have no region to run in"


def test_a_backoff_that_ends_within_the_running_window_does_not_cost_the_next_one(sqlite_database: Database) -> None:
    clock = SetClock(START + timedelta(seconds=60))
    open_regions(sqlite_database, NORTH)
    refresh(sqlite_database, SOURCES, clock)
    soon, later = add_chunks(sqlite_database, 2, hours=1)
    with sqlite_database.read() as tx:
        machine = machine_now(tx)
    # The deadlines leave the running window to one, and what begins after the backoff to the other.
    for name, wait_s, deadline_s in ((soon, 60, 420), (later, 300, 900)):
        values = {"deadline_at": START + timedelta(seconds=deadline_s), "est_duration_s": 100.0}
        change(sqlite_database, name, not_before=machine + timedelta(seconds=wait_s), **values)
    assert plan_waiting(sqlite_database, clock).late == 0
    assert [chunk(sqlite_database, name).window_at for name in (soon, later)] == [START, START + 2 * WINDOW]


def test_with_every_source_down_work_goes_on_nearest_first_and_says_so(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH, SOUTH)
    names = add_chunks(sqlite_database, 3)
    summary = plan_waiting(sqlite_database, clock)
    assert summary.is_overlay
    assert summary.objective_g is None
    taken = sorted((row.window_at, row.region) for row in (chunk(sqlite_database, name) for name in names))
    assert taken == [(START, "norcal"), (START, "socal"), (START + WINDOW, "norcal")]
    with sqlite_database.read() as tx:
        rows = tx.execute(select(placements)).all()
    assert {(row.reason, row.g_per_kwh, row.issued_at) for row in rows} == {("overlay", None, None)}


def test_an_old_forecast_counts_as_none(sqlite_database: Database) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    add_chunks(sqlite_database, 1)
    clock.at += timedelta(hours=3)
    assert plan_waiting(sqlite_database, clock, max_stale_s=7200).is_overlay


def test_a_jobs_carbon_cap_reaches_the_planner(sqlite_database: Database) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    (name,) = add_chunks(sqlite_database, 1)
    with sqlite_database.write() as tx:
        tx.execute(
            insert(jobs).values(
                job_id="j",
                tenant="t",
                source="jobs",
                endpoint="/v1/embeddings",
                model="m",
                requested_model="m",
                home_region="norcal",
                deadline_at=START,
                late_policy="finish_late",
                max_carbon_g=Decimal("0.1"),
                state="waiting",
                is_cancel_requested=False,
                is_chunked=True,
                input_blob="b",
                input_bytes=1,
                items_total=1,
                items_succeeded=0,
                items_failed=0,
                items_expired=0,
                items_cancelled=0,
                est_tokens=2000,
                created_at=START,
                machine_created_at=START,
                metadata={},
            )
        )
        tx.execute(
            insert(items).values(
                job_id="j",
                idx=0,
                custom_id="x",
                line_offset=0,
                line_bytes=1,
                est_tokens=1,
                state="waiting",
                chunk_id=name,
            )
        )
        from carbonq.store.placements import caps

        assert caps(tx) == {name: Decimal("0.05")}
    assert plan_waiting(sqlite_database, clock).placed == 1


def test_five_hundred_chunks_are_planned_and_written_at_once(database: Database) -> None:
    clock = SetClock()
    ready(database, clock)
    open_regions_more = replace(NORTH, slots=20), replace(SOUTH, slots=20)
    with database.write() as tx:
        region_rows.sync(tx, open_regions_more)
    for part in range(20):
        add_chunks(database, 25, prefix=f"p{part:02d}-", hours=2 + part, est_energy_uj=3_600_000_000 + part * 10**8)
    started = time.perf_counter()
    summary = plan_waiting(database, clock)
    took = time.perf_counter() - started
    assert (summary.placed, summary.late) == (500, 0)
    assert took < 10  # about 0.3 s alone on a core
    print(f"{summary.duration_s:.2f} s of planning, {took:.2f} s in all")

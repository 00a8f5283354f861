"""The plan tick asks little when little has changed: it rests, or puts few new chunks beside many that stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from carbonq.model import Maintenance, Treatment
from carbonq.plan.taken import span
from carbonq.services import beside, trigger
from carbonq.services.plan import PlanSummary, plan_waiting
from carbonq.services.refresh import refresh
from carbonq.store import overview, waiting
from carbonq.store import regions as region_rows
from carbonq.store.database import Database
from carbonq.store.placements import BESIDE
from carbonq.store.tables import chunks, plans
from carbonq.units import WINDOW
from tests.services.planning import NORTH, SOUTH, START, SetClock, add_chunks, chunk, open_regions, place, run
from tests.services.test_plan import SOURCES, ready


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty chunks are many."""
    monkeypatch.setattr(beside, "LEAST_PLACED", 20)


def cells(db: Database) -> Counter[tuple[str, datetime]]:
    """Count the lanes that placed chunks hold in each cell."""
    held: Counter[tuple[str, datetime]] = Counter()
    with db.read() as tx:
        for row in tx.execute(select(chunks).where(chunks.c.state == "placed")):
            for number in range(span(row.est_duration_s)):
                held[row.region, row.window_at + number * WINDOW] += 1
    return held


def places(db: Database, names: Sequence[str]) -> dict[str, Any]:
    return {name: (row.region, row.window_at, row.placement_id) for name in names for row in [chunk(db, name)]}


def test_few_new_chunks_go_beside_many_that_stay(database: Database) -> None:
    clock = SetClock()
    ready(database, clock)
    old = add_chunks(database, 24) + add_chunks(database, 6, prefix="long", est_duration_s=700.0)
    whole = plan_waiting(database, clock)
    assert (whole.chunks, whole.trigger) == (30, "new work, window, forecast, regions, drift")
    before = places(database, old)
    new = add_chunks(database, 3, prefix="n")
    added = plan_waiting(database, clock)
    assert (added.trigger, added.chunks, added.placed, added.moved, added.late) == (BESIDE, 3, 3, 0, 0)
    assert added.objective_g is not None and added.lower_bound_g is not None
    assert 0 < added.lower_bound_g <= added.objective_g
    assert places(database, old) == before
    assert max(cells(database).values()) == 1
    assert all(START <= chunk(database, name).window_at <= chunk(database, name).latest_start_at for name in new)
    assert plan_waiting(database, clock) == PlanSummary()
    with database.read() as tx:
        rows = {row.plan_id: row for row in tx.execute(select(plans))}
        shown = overview.latest_plan(tx)
    assert rows[added.plan_id].note == "3 new chunks beside 30 that stay; cost and bound: the new alone"
    # What is said of the plan in force is of the one that held everything.
    assert shown is not None and shown.plan_id == whole.plan_id
    clock.at += WINDOW
    assert plan_waiting(database, clock).chunks >= 30


def test_where_others_have_to_make_room_everything_is_planned(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH)
    refresh(sqlite_database, SOURCES, clock)
    old = add_chunks(sqlite_database, 24, hours=24)
    for number, name in enumerate(old):
        place(sqlite_database, name, "norcal", START + (number + 1) * WINDOW)
    plan_waiting(sqlite_database, clock, is_forced=True)
    for number, name in enumerate(old):
        place(sqlite_database, name, "norcal", START + (number + 1) * WINDOW)
    (busy,) = add_chunks(sqlite_database, 1, prefix="b", hours=0.2)
    place(sqlite_database, busy, "norcal", START, latest_start_at=START)
    (new,) = add_chunks(sqlite_database, 1, prefix="n", hours=0.3)
    made = plan_waiting(sqlite_database, clock)
    assert (made.trigger, made.late) == ("new work", 0)
    assert made.moved >= 1
    assert chunk(sqlite_database, new).window_at == START + WINDOW


@pytest.mark.parametrize("what", ["observed", "shadows", "backlog", "many", "signal down"])
def test_what_is_not_simple_is_planned_as_a_whole(sqlite_database: Database, what: str) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    old = add_chunks(sqlite_database, 24)
    if what == "shadows":
        add_chunks(sqlite_database, 1, prefix="o", treatment=Treatment.OBSERVED)
    plan_waiting(sqlite_database, clock)
    if what == "shadows":
        run(sqlite_database, "o0000", "norcal")
    changes: dict[str, Any] = {"treatment": Treatment.OBSERVED} if what == "observed" else {}
    if what == "backlog":
        for name in old[:6]:
            place(sqlite_database, name, "norcal", START, latest_start_at=START + timedelta(hours=5))
    add_chunks(sqlite_database, 3 if what == "many" else 1, prefix="n", **changes)
    stale_s = 0.0 if what == "signal down" else 7200.0
    clock.at += timedelta(seconds=1)
    made = plan_waiting(sqlite_database, clock, max_stale_s=stale_s)
    assert made.trigger == "new work"
    assert made.chunks >= 20


def test_what_has_no_place_does_not_keep_the_planner_busy(sqlite_database: Database) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    add_chunks(sqlite_database, 2)
    add_chunks(sqlite_database, 1, prefix="x", regions=("nowhere",))
    assert plan_waiting(sqlite_database, clock).unplaced == 1
    assert plan_waiting(sqlite_database, clock) == PlanSummary()
    add_chunks(sqlite_database, 1, prefix="n")
    assert plan_waiting(sqlite_database, clock).trigger == "new work"
    assert plan_waiting(sqlite_database, clock) == PlanSummary()


def test_nothing_changed_is_told_without_reading_what_waits(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    add_chunks(sqlite_database, 25)
    plan_waiting(sqlite_database, clock)

    def read(*_: Any) -> Any:
        raise AssertionError("read everything")

    monkeypatch.setattr(waiting, "read", read)
    assert plan_waiting(sqlite_database, clock) == PlanSummary()
    add_chunks(sqlite_database, 1, prefix="n")
    assert plan_waiting(sqlite_database, clock).trigger == BESIDE


def test_a_maintenance_to_come_counts_as_soon_as_it_is_known(sqlite_database: Database) -> None:
    clock = SetClock()
    ready(sqlite_database, clock)
    names = add_chunks(sqlite_database, 25)
    plan_waiting(sqlite_database, clock)
    hours = sorted({row.window_at for name in names for row in [chunk(sqlite_database, name)]})
    shut = Maintenance(hours[10], hours[10] + timedelta(hours=24), 0)
    with sqlite_database.write() as tx:
        region_rows.sync(tx, [replace(NORTH, maintenance=(shut,)), SOUTH])
    assert plan_waiting(sqlite_database, clock).trigger == "regions"
    assert not [
        name
        for name in names
        if (row := chunk(sqlite_database, name)).region == "norcal" and row.window_at >= hours[10]
    ]
    assert plan_waiting(sqlite_database, clock) == PlanSummary()


def test_what_is_kept_of_a_moment_is_read_again() -> None:
    assert trigger.parse("window 5; forecast moer 3") == {"window": "5", "forecast": "moer 3"}
    assert trigger.parse(None) == trigger.parse("") == {}
    assert trigger.digest(["a", "b"]) == trigger.digest(["b", "a"]) != trigger.digest(["ab"])

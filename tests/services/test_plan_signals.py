"""Which signal a plan is made by, and that the two are never ranked against each other."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from sqlalchemy import select

from carbonq import export
from carbonq.grid.annual import AnnualSource
from carbonq.model import Region, Signal
from carbonq.services.plan import plan_waiting
from carbonq.services.refresh import refresh
from carbonq.store import overview
from carbonq.store.database import Database
from carbonq.store.tables import placements, plans
from carbonq.testing import FakeGrid, RecordedSignal
from carbonq.units import WINDOW
from tests.services.planning import NORTH, SOUTH, START, SetClock, add_chunks, chunk, open_regions


def grid(region: Region, values: list[int], signal: Signal) -> FakeGrid:
    start = START - timedelta(hours=2)
    # Before START the first value, so that what is held and the daily shape say nothing new.
    recorded = RecordedSignal(region.zone, start, [values[0]] * 24 + values + [values[-1]] * 300)
    return FakeGrid([recorded], name=f"{signal.value}-{region.name}", signal=signal)


def test_an_installation_with_average_rates_only_plans_by_them_and_says_so(database: Database) -> None:
    clock = SetClock()
    open_regions(database, NORTH, SOUTH)
    dear, cheap = [500] * 6 + [300] * 6, [900] * 12
    refresh(
        database,
        {
            (NORTH.zone, Signal.AER): (grid(NORTH, dear, Signal.AER),),
            (SOUTH.zone, Signal.AER): (grid(SOUTH, cheap, Signal.AER),),
        },
        clock,
    )
    (name,) = add_chunks(database, 1)
    summary = plan_waiting(database, clock)
    assert not summary.is_overlay and summary.objective_g is not None
    assert chunk(database, name).region == "norcal" and chunk(database, name).window_at >= START + 6 * WINDOW
    with database.read() as tx:
        plan = tx.execute(select(plans)).one()
        placement = tx.execute(select(placements)).mappings().one()
        shown = overview.open_chunks(tx, "nobody")
        latest = overview.latest_plan(tx)
    assert (plan.signal, placement["signal"]) == ("aer", "aer") and latest is not None and latest.signal == "aer"
    assert plan.note == "decided by average rates: no zone has a marginal source"
    assert shown == []
    # The ledger's column of planned marginal rates stays empty: an average one does not belong there.
    cells = export.placement_cells({**placement})
    assert cells["planned_moer_g_per_kwh"] == "" and cells["planned_region"] == "norcal"
    assert export.placement_cells({**placement, "signal": "moer"})["planned_moer_g_per_kwh"] != ""


def test_a_zone_without_a_marginal_source_counts_as_having_no_rate(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH, SOUTH)
    refresh(
        sqlite_database,
        {
            (NORTH.zone, Signal.AER): (grid(NORTH, [1] * 12, Signal.AER),),  # far below the other zone's marginal rate
            (SOUTH.zone, Signal.MOER): (grid(SOUTH, [900] * 6 + [700] * 6, Signal.MOER),),
        },
        clock,
    )
    (name,) = add_chunks(sqlite_database, 1)
    plan_waiting(sqlite_database, clock)
    assert chunk(sqlite_database, name).region == "socal"
    with sqlite_database.read() as tx:
        (row,) = tx.execute(select(placements)).all()
    assert (row.signal, row.g_per_kwh) == ("moer", 700)


def test_a_marginal_source_that_is_down_is_not_replaced_by_average_rates(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH)
    away = FakeGrid([], name="away")
    refresh(
        sqlite_database,
        {
            (NORTH.zone, Signal.MOER): (away,),
            (NORTH.zone, Signal.AER): (grid(NORTH, [500] * 6 + [1] * 6, Signal.AER),),
        },
        clock,
    )
    (name,) = add_chunks(sqlite_database, 1)
    assert plan_waiting(sqlite_database, clock).is_overlay
    assert chunk(sqlite_database, name).window_at == START
    with sqlite_database.read() as tx:
        assert tx.execute(select(plans.c.note)).scalar_one().startswith("no marginal rate is known")


def test_nothing_is_moved_in_time_on_annual_factors(sqlite_database: Database, tmp_path: Path) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH)
    path = tmp_path / "factors.csv"
    path.write_text(f"zone,year,value,unit,reference\n{NORTH.zone},2020,450,g/kWh,ministry\n")
    refresh(sqlite_database, {(NORTH.zone, Signal.AER): (AnnualSource(path, NORTH.zone, Signal.AER),)}, clock)
    names = add_chunks(sqlite_database, 3)
    summary = plan_waiting(sqlite_database, clock)
    assert not summary.is_overlay
    # One slot: the first three windows, one after the other, as if carbon played no part.
    taken = sorted(chunk(sqlite_database, name).window_at for name in names)
    assert taken == [START, START + WINDOW, START + 2 * WINDOW]

"""What the planner's service hands on: hardware's energy, embodied carbon, prices, what was learned, why it planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert, select

from carbonq.model import Endpoint, Maintenance, Model, Region
from carbonq.plan import planner
from carbonq.plan.demand import Assignment, Demand, Terms
from carbonq.plan.hardware import round_to_digits
from carbonq.services.plan import plan_waiting
from carbonq.services.refresh import refresh
from carbonq.store import regions as region_rows
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import plans, throughputs
from carbonq.units import WINDOW, WINDOW_S
from tests.services.planning import NORTH, SOUTH, START, SetClock, add_chunks, chunk, open_regions, place, run
from tests.services.test_plan import SOURCES

MODEL = Model("m", "x", Endpoint.EMBEDDINGS, 100, 4.0, 10.0, 3_600_000, 1000, 10)
MODELS: Mapping[str, Model] = {"m": MODEL}

#: The same grid twice, so that nothing but what is tested tells the two apart; ``far`` loses every tie.
NEAR = replace(NORTH, name="near", slots=20)
FAR = replace(NORTH, name="far", slots=20, latency_ms=99.0)


def learn(db: Database, hardware: str, **changes: Any) -> None:
    row = {
        "model": "m",
        "hardware": hardware,
        "tokens_per_s": 10.0,
        "uj_per_token": 3_600_000,
        "samples": 9,
        "overrun": None,
    }
    with db.write() as tx:
        tx.execute(insert(throughputs).values(row | changes | {"updated_at": machine_now(tx)}))


@dataclass
class Asked:
    """What the planner was given."""

    demand: Demand
    terms: Terms


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    made: list[Asked] = []
    real = planner.assign

    def assign(demand: Demand, *rest: Any, terms: Terms, **options: Any) -> Assignment:
        made.append(Asked(demand, terms))
        return real(demand, *rest, terms=terms, **options)

    monkeypatch.setattr(planner, "assign", assign)
    return made


def plan_two(db: Database, near: Region = NEAR, far: Region = FAR, **options: Any) -> None:
    clock = SetClock()
    open_regions(db, near, far)
    refresh(db, SOURCES, clock)
    add_chunks(db, 6, baseline_region="near")
    assert plan_waiting(db, clock, models=MODELS, **options).late == 0


def test_each_region_takes_the_energy_of_its_own_hardware(database: Database, asked: list[Asked]) -> None:
    learn(database, "lean", uj_per_token=3_000_000)
    plan_two(database, far=replace(FAR, hardware="lean"))
    (kind,) = asked[0].demand.kinds
    # Regions by name: far, near.
    assert kind.energy_uj == (3_000_000_000, 3_600_000_000)
    assert (kind.extra_g, kind.regions) == ((0.0, 0.0), (0, 1))


def test_embodied_carbon_and_the_way_there_count_where_they_are_stated(
    sqlite_database: Database, asked: list[Asked]
) -> None:
    stated = {"transfer_kwh_per_gb": Decimal(1000), "transfer_g_per_kwh": Decimal(500)}
    learn(sqlite_database, "fast", tokens_per_s=20.0)
    worn = {"embodied_kg": Decimal(1000), "life_h": Decimal(10_000)}
    plan_two(sqlite_database, near=replace(NEAR, **stated, **worn), far=replace(FAR, hardware="fast", **stated, **worn))
    (kind,) = asked[0].demand.kinds
    # 1,000 tokens: 100 s at home and 50 s there, on 1,000 kg over 10,000 h; 4,000 bytes there, and none at home.
    grams_a_second = 1_000_000 / (10_000 * 3600)
    assert kind.extra_g == pytest.approx((50 * grams_a_second + 4e-6 * 1000 * 500, 100 * grams_a_second))


def test_prices_are_those_that_are_stated(sqlite_database: Database, asked: list[Asked]) -> None:
    plan_two(sqlite_database)
    assert asked[0].terms.price_per_kwh is None
    with sqlite_database.write() as tx:
        region_rows.sync(tx, [replace(NEAR, price_per_kwh=Decimal("0.30")), FAR])
    plan_waiting(sqlite_database, SetClock(), models=MODELS, price_weight_g=12.5, margin=0.1, is_forced=True)
    terms = asked[1].terms
    assert (terms.price_weight_g, terms.margin) == (12.5, 0.1)
    assert terms.price_per_kwh is not None
    assert np.isnan(terms.price_per_kwh[0]).all()
    assert (terms.price_per_kwh[1] == 0.3).all()


def test_no_chunk_is_planned_into_a_maintenance(sqlite_database: Database) -> None:
    clock = SetClock()
    shut = Maintenance(START + 2 * WINDOW, START + timedelta(hours=7), 0)
    open_regions(sqlite_database, replace(NORTH, maintenance=(shut,)), SOUTH)
    refresh(sqlite_database, SOURCES, clock)
    names = add_chunks(sqlite_database, 12)
    assert plan_waiting(sqlite_database, clock).unplaced == 0
    rows = [chunk(sqlite_database, name) for name in names]
    assert all(row.window_at < shut.start_at for row in rows if row.region == "norcal")
    assert {row.region for row in rows} >= {"socal"}


def test_a_placed_chunk_leaves_when_maintenance_closes_its_region(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH, SOUTH)
    refresh(sqlite_database, SOURCES, clock)
    (name,) = add_chunks(sqlite_database, 1)
    place(sqlite_database, name, "norcal", START, latest_start_at=START + timedelta(hours=5))
    shut = Maintenance(START, START + timedelta(hours=7), 0)
    with sqlite_database.write() as tx:
        region_rows.sync(tx, [replace(NORTH, maintenance=(shut,)), SOUTH])
    assert plan_waiting(sqlite_database, clock).moved == 1
    assert chunk(sqlite_database, name).region == "socal"


def test_what_was_learned_of_overruns_moves_guard_and_latest_start(database: Database) -> None:
    clock = SetClock()
    open_regions(database, NORTH)
    refresh(database, SOURCES, clock)
    (name,) = add_chunks(database, 1, hours=0.5)
    learn(database, "cpu", overrun=2.0)
    plan_waiting(database, clock)
    row = chunk(database, name)
    # 170 s once more instead of a quarter of them.
    assert row.latest_start_at == row.deadline_at - timedelta(seconds=170 + 2 + 170 + 60)
    assert row.window_at + timedelta(seconds=2 * 170) < row.deadline_at
    with database.write() as tx:
        tx.execute(throughputs.update().values(overrun=2.02))
    assert plan_waiting(database, clock, is_forced=True).placed == 0
    assert chunk(database, name).latest_start_at == row.latest_start_at  # not worth a write
    with database.write() as tx:
        tx.execute(throughputs.update().values(overrun=1.5))
    plan_waiting(database, clock, is_forced=True)
    assert chunk(database, name).latest_start_at == row.deadline_at - timedelta(seconds=170 + 2 + 85 + 60)


def test_each_plan_says_why_it_was_made(database: Database) -> None:
    clock = SetClock()
    open_regions(database, replace(NORTH, slots=2), SOUTH)
    refresh(database, SOURCES, clock)
    (running,) = add_chunks(database, 1, prefix="r")
    add_chunks(database, 2)
    assert (plan_waiting(database, clock).trigger or "").startswith("new work")
    run(database, running, "norcal", elapsed_s=10)
    assert plan_waiting(database, clock).plan_id is None
    add_chunks(database, 1, prefix="n")
    assert plan_waiting(database, clock).trigger == "new work"
    with database.write() as tx:
        region_rows.sync(tx, [replace(NORTH, slots=1), SOUTH])
    assert plan_waiting(database, clock).trigger == "regions"
    clock.at += WINDOW
    assert plan_waiting(database, clock).trigger == "window"
    refresh(database, SOURCES, clock)
    assert plan_waiting(database, clock).trigger == "forecast"
    assert plan_waiting(database, clock, is_forced=True).trigger == "asked for"
    with database.read() as tx:
        rows = tx.execute(select(plans).order_by(plans.c.recorded_at)).all()
    assert [row.trigger for row in rows][1:] == ["new work", "regions", "window", "forecast", "asked for"]
    assert all(row.gap is not None and 0 <= row.gap < 1 and row.unplaced == 0 and row.at_once == 0 for row in rows)
    assert all(row.objective_g >= row.lower_bound_g > 0 and row.duration_s > 0 for row in rows)


def test_running_chunks_that_overrun_their_margin_are_a_reason_to_plan(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH, SOUTH)
    refresh(sqlite_database, SOURCES, clock)
    (running,) = add_chunks(sqlite_database, 1, prefix="r")
    add_chunks(sqlite_database, 1)
    run(sqlite_database, running, "norcal", elapsed_s=170 * 1.2)
    plan_waiting(sqlite_database, clock)
    assert plan_waiting(sqlite_database, clock).plan_id is None
    with sqlite_database.write() as tx:
        from carbonq.store.tables import attempts

        began = machine_now(tx) - timedelta(seconds=170 * 1.25 + 3)
        tx.execute(attempts.update().values(machine_started_at=began))
    assert plan_waiting(sqlite_database, clock).trigger == "drift"


def test_realtime_slots_are_never_planned_into(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, replace(NORTH, slots=2, realtime_slots=8))
    refresh(sqlite_database, SOURCES, clock)
    names = add_chunks(sqlite_database, 12, hours=1)
    plan_waiting(sqlite_database, clock)
    windows = [chunk(sqlite_database, name).window_at for name in names]
    assert max(windows.count(one) for one in windows) == 2
    assert (max(windows) - min(windows)).total_seconds() >= 5 * WINDOW_S


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0), (7, 7), (999, 999), (1234, 1230), (1235, 1240), (99_951, 100_000), (99_949, 99_900)]
)
def test_rounding_to_three_digits(value: int, expected: int) -> None:
    assert round_to_digits(value) == expected

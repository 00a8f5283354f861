"""Work waits for its budgets, is let go when there is room, and never for longer than it must."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from carbonq.budget import Action, Level
from carbonq.model import ChunkState, HeldKind, LatePolicy, RegionState, Signal
from carbonq.services import budget_plan, dispatch, downgrade, expire, foreseen, plan, why
from carbonq.services.budget_tick import Keeper
from carbonq.services.cancel import cancel
from carbonq.store import budgets, holds, placements, tables, waiting
from carbonq.store.database import Database
from tests.services.budget_world import DAY, MODELS, NORTH, SOUTH, UJ_PER_TOKEN, World
from tests.services.planning import Broker


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    made = World(database, tmp_path)
    made.foresee(north=["100"])
    return made


def dispatched(world: World) -> list[str]:
    broker = Broker()
    dispatch.dispatch(world.db, broker, world.clock, redispatch_after_s=1e9, worker_alive_s=86_400.0)
    return [chunk_id for _, chunk_id in broker.sent]


def held(world: World) -> list[tuple[str | None, object]]:
    return [(one.held_by, one.held_until) for one in world.chunks()]


def hours(world: World, count: float) -> datetime:
    return world.clock.now() + timedelta(hours=count)


def test_what_fits_is_placed_and_reserved_and_the_rest_waits_in_the_order_of_deadlines(world: World) -> None:
    made = world.budget(3, Action.QUEUE)
    world.submit(20_000, deadline_at=hours(world, 9))
    world.submit(20_000, deadline_at=hours(world, 3))
    world.submit(10_000, deadline_at=hours(world, 6))
    world.plan()
    first, second, third = world.chunks()
    assert [one.state for one in (first, second, third)] == ["placed", "placed", "waiting"]
    assert (third.held_by, third.held_until) == (made.budget_id, DAY + timedelta(days=1))
    found = world.status()
    assert (found.reserved_g, found.waiting_chunks, found.left_g) == (3, 1, 0)


def test_what_waits_is_kept_from_the_planner_and_from_the_dispatchers_urgent_path(world: World) -> None:
    world.submit(20_000)
    world.budget(1, Action.QUEUE)
    world.plan()
    world.pass_on(hours=5.99)  # its latest safe start has long come
    world.plan()
    assert dispatched(world) == []
    with world.db.read() as tx:
        assert waiting.without_place(tx, limit=10) == []
    world.pass_on(hours=3)  # and its deadline
    world.plan()
    assert dispatched(world) == []
    assert world.status().waiting_chunks == 1


def test_room_that_comes_back_lets_it_go(world: World) -> None:
    world.budget(2, Action.QUEUE)
    first = world.submit(20_000, deadline_at=hours(world, 3))
    world.submit(20_000)
    world.plan()
    assert [one.state for one in world.chunks()] == ["placed", "waiting"]
    cancel(world.db, first.job_id, "acme", world.clock)
    world.plan()
    assert [one.state for one in world.chunks()] == ["done", "placed"]
    assert held(world)[1] == (None, None)
    assert world.status().reserved_g == 2


def test_true_values_below_the_expected_ones_give_room(world: World) -> None:
    world.budget(3, Action.QUEUE)
    world.submit(20_000, deadline_at=hours(world, 3))
    world.submit(20_000)
    world.plan()
    first, second = world.chunks()
    assert second.held_by is not None
    world.run(first.chunk_id, g_per_kwh="50")  # 1 g instead of 2
    world.plan()
    assert world.chunks()[1].state == "placed"
    assert world.status().spent_g == 1


def test_a_cleaner_window_makes_it_fit(world: World) -> None:
    world.submit(20_000)
    world.budget(1, Action.QUEUE)
    world.plan()
    assert world.status().waiting_chunks == 1
    world.pass_on(minutes=5)
    world.foresee(north=["100", "50"], hours=2)
    world.plan()
    (chunk,) = world.chunks()
    assert chunk.state == "placed"
    assert chunk.window_at >= world.clock.now() + timedelta(minutes=55)
    assert world.status().reserved_g == 1


def test_the_next_period_lets_it_go_late(world: World) -> None:
    world.budget(2, Action.QUEUE)
    world.submit(20_000, deadline_at=hours(world, 3))
    world.plan()
    world.run(world.chunks()[0].chunk_id)
    world.submit(20_000, deadline_at=hours(world, 4))
    world.plan()
    assert world.status().waiting_chunks == 1
    world.pass_on(hours=16, minutes=1)  # midnight
    world.foresee(north=["100"])
    world.plan()
    assert world.chunks()[1].state == "placed"
    assert (world.status().spent_g, world.status().reserved_g) == (0, 2)


def test_what_is_to_expire_expires_while_it_waits(world: World) -> None:
    job = world.submit(20_000, deadline_at=hours(world, 20), late_policy=LatePolicy.EXPIRE)
    world.budget(1, Action.QUEUE)
    world.plan()
    world.pass_on(hours=15.9)
    assert world.status().waiting_chunks == 1
    world.pass_on(hours=5)
    expire.expire(world.db, world.clock)
    assert world.jobs.job(job.job_id).items_expired == 1
    assert world.status().waiting_chunks == 0


def test_a_cell_that_is_dirtier_than_hoped_is_not_taken_and_not_tried_again_at_once(world: World) -> None:
    world.foresee(north=["50", "200"], hours=2)
    world.budget(2, Action.QUEUE)
    world.submit(20_000)
    world.jobs.chunk()
    world.keeper.tick()
    (chunk,) = world.chunks()
    assert (chunk.held_by, world.status().reserved_g) == (None, 1)  # let go by the best cell
    with world.db.write() as tx:  # the planner finds that one taken
        placed = placements.Placed([chunk.chunk_id], ["north"], [hours(world, 1.5)], [Decimal(200)], [None], ["carbon"])
        assert len(_guard(world).admit(tx, placed)) == 0
    (chunk,) = world.chunks()
    assert chunk.held_by is not None
    assert chunk.impact_pg_per_token == 200_000_000
    world.keeper.tick()
    assert world.status().waiting_chunks == 1  # it needs 4 g there
    world.pass_on(minutes=5)
    world.keeper.tick()
    assert world.status().waiting_chunks == 0  # another window, another look


def test_a_move_into_a_cell_that_does_not_fit_is_not_made(world: World) -> None:
    world.budget(2, Action.QUEUE)
    world.submit(20_000)
    world.plan()
    (chunk,) = world.chunks()
    world.foresee(north=["100", "200"], hours=2)
    with world.db.write() as tx:
        placed = placements.Placed([chunk.chunk_id], ["south"], [hours(world, 1.5)], [Decimal(200)], [None], ["carbon"])
        assert len(_guard(world).admit(tx, placed)) == 0
    assert [(one.state, one.region, one.held_by) for one in world.chunks()] == [("placed", chunk.region, None)]


def _guard(world: World) -> budget_plan.Guard:
    with world.db.read() as tx:
        found = budgets.list_(tx)
    cells = foreseen.load(
        world.db,
        (NORTH, SOUTH),
        world.models,
        {},
        now=world.clock.now(),
        max_stale_s=86_400.0,
        books=foreseen.books_of(found),
    )
    return budget_plan.Guard(found, cells, world.clock.now())


def test_a_budget_that_is_removed_lets_go(world: World) -> None:
    world.submit(20_000)
    made = world.budget(1, Action.QUEUE)
    world.plan()
    assert world.chunks()[0].held_by == made.budget_id
    with world.db.write() as tx:
        budgets.delete(tx, made.budget_id)
    world.plan()
    assert world.chunks()[0].state == "placed"


@pytest.mark.parametrize("action", [Action.WARN, Action.REJECT])
def test_a_budget_that_only_warns_or_refuses_lets_go_what_was_accepted(world: World, action: Action) -> None:
    world.submit(20_000)
    world.budget(1, Action.QUEUE)
    world.plan()
    world.budget(1, action)
    world.plan()
    assert world.chunks()[0].state == "placed"
    assert world.status().reserved_g == 2  # accepted work keeps its reservation


def test_all_of_several_budgets_must_have_room(world: World) -> None:
    world.submit(20_000)
    world.budget(10, Action.QUEUE)
    other = world.budget(1, Action.QUEUE, level=Level.PRODUCT_LINE, name="search")
    world.plan()
    (chunk,) = world.chunks()
    assert (chunk.held_by, chunk.held_until) == (other.budget_id, DAY.replace(month=4, day=1))
    assert world.status().waiting_chunks == 0
    assert world.status("search").waiting_chunks == 1
    assert world.status().reserved_g == 0


def test_work_of_other_lines_neither_waits_nor_counts(world: World) -> None:
    world.submit(20_000)
    world.submit(20_000, workload="evals")
    world.submit(20_000, tenant="rival")
    world.budget(1, Action.QUEUE)
    world.plan()
    assert sorted(one.state for one in world.chunks()) == ["placed", "placed", "waiting"]


def test_a_smaller_model_is_taken_where_that_fits(world: World) -> None:
    world.budget(1, Action.DOWNGRADE)
    world.submit(20_000)  # 2 g, or 0.5 g on the smaller model
    world.plan()
    (chunk,) = world.chunks()
    assert (chunk.model, chunk.downgraded, chunk.state, chunk.held_by) == ("small", "budget", "placed", None)
    assert world.status().reserved_g == Decimal("0.5")
    world.submit(30_000)  # 3 g, or 0.75 g: neither fits
    world.plan()
    assert sorted((one.model, one.state) for one in world.chunks()) == [("small", "placed"), ("words", "waiting")]
    assert world.status().waiting_chunks == 1


def test_work_that_refuses_a_smaller_model_waits(world: World) -> None:
    world.submit(20_000, may_downgrade=False)
    world.budget(1, Action.DOWNGRADE)
    world.plan()
    (chunk,) = world.chunks()
    assert (chunk.model, chunk.state) == ("words", "waiting")


def test_each_item_waits_for_a_window_clean_enough_for_it(world: World) -> None:
    world.foresee(north=["100", "40"], hours=2)
    world.budget("0.5", Action.QUEUE, level=Level.ITEM, name="*")
    world.submit(10_000, 100)  # 1 g now, 0.4 g from the second hour on
    world.plan()
    (chunk,) = world.chunks()
    assert chunk.state == "placed"
    assert chunk.window_at >= world.clock.now() + timedelta(hours=1)
    with world.db.read() as tx:
        assert budget_plan.item_caps(tx, Signal.MOER) == {chunk.chunk_id: Decimal("0.50")}
        assert budget_plan.item_caps(tx, Signal.AER) == {}
    world.submit(20_000, workload="other")
    world.plan()
    assert [one.state for one in world.chunks()].count("waiting") == 1
    assert world.status("*").waiting_chunks == 1


def test_work_planned_for_tomorrow_is_tomorrows(world: World) -> None:
    world.foresee(north=["400", "400", "50"], hours=24)  # clean from midnight on
    world.budget(3, Action.QUEUE)
    world.submit(20_000, deadline_at=hours(world, 22))
    world.plan()
    (chunk,) = world.chunks()
    assert chunk.state == ChunkState.PLACED
    assert chunk.window_at >= DAY + timedelta(days=1)
    assert world.status().reserved_g == 0


def test_accepted_work_of_a_budget_that_refuses_is_placed_whatever_its_cell_costs(world: World) -> None:
    world.budget(2, Action.REJECT)
    world.submit(20_000)
    world.foresee(north=["300"])
    world.plan()
    assert world.chunks()[0].state == "placed"
    assert world.status().reserved_g == 6


def test_a_job_says_by_which_budget_it_is_held_and_until_when(world: World) -> None:
    job = world.submit(20_000)
    world.budget(1, Action.QUEUE)
    world.plan()
    page = why.why(world.db, job, why.World((NORTH, SOUTH), world.models, {}, 7200.0, 0.03), world.clock)
    assert page.groups[0].sentences[0] == (
        "1 chunk is held back by the budget of workload 'backfill' until 2026-03-03T00:00Z. It waits for room in it, "
        "or its next period: a budget's cap comes before a deadline."
    )
    assert "held by a budget 1" in page.summary


def test_work_from_before_a_budget_keeps_its_place_and_what_has_none_is_asked(world: World) -> None:
    world.submit(20_000, deadline_at=hours(world, 3))
    world.plan()
    world.submit(20_000)
    world.jobs.chunk()  # cut, and not placed yet
    world.budget(3, Action.QUEUE)
    world.plan()
    first, second = world.chunks()
    assert (first.state, first.impact_pg_per_token) == ("placed", 100_000_000)
    assert (second.state, second.held_by is not None) == ("waiting", True)
    assert world.status().reserved_g == 2
    assert world.status().unknown_reserved == 0


def test_with_every_source_down_work_runs_and_is_asked_again_once_rates_are_known(
    database: Database, tmp_path: Path
) -> None:
    world = World(database, tmp_path)
    world.budget(3, Action.QUEUE)
    world.submit(20_000, deadline_at=hours(world, 3))
    world.submit(20_000)
    world.plan()
    assert [one.state for one in world.chunks()] == ["placed", "placed"]
    assert (world.status().unknown_reserved, world.status().reserved_g) == (2, 0)
    world.foresee(north=["100"])
    world.plan()
    assert world.status().unknown_reserved == 0
    assert [one.state for one in world.chunks()] == ["placed", "placed"]  # what has a place keeps it


def test_a_chunk_that_goes_back_to_the_model_asked_for_is_asked_again(world: World) -> None:
    world.budget(1, Action.DOWNGRADE)
    world.submit(20_000)
    world.plan()
    (chunk,) = world.chunks()
    assert chunk.model == "small"
    with world.db.write() as tx:  # its try on the smaller model failed
        values = {"state": "waiting", "error": "it cannot", "region": None, "window_at": None, "placement_id": None}
        tx.execute(tables.chunks.update().values(**values))
        values = {
            "chunk_id": chunk.chunk_id,
            "token": chunk.token - 1,
            "attempt": 1,
            "worker_id": "w",
            "region": "north",
        }
        times = {"started_at": world.clock.now(), "machine_started_at": world.clock.now()}
        tx.execute(tables.attempts.insert().values(**values, **times, outcome="failed"))
        restored = downgrade.restore(
            tx, models=world.models, regions=(NORTH, SOUTH), now=world.clock.now(), factor=world.clock.factor
        )
    assert len(restored) == 1
    world.plan()
    last = next(one for one in world.chunks() if one.chunk_id in restored)
    assert (last.model, last.state, last.held_by is not None) == ("words", "waiting", True)
    assert world.status().reserved_g == 0


def test_plans_and_submits_at_once_never_let_more_go_than_fits(world: World) -> None:
    world.budget(4, Action.QUEUE)
    world.budget(100, Action.REJECT, level=Level.PRODUCT_LINE, name="search")
    for number in range(8):
        world.submit(10_000, deadline_at=hours(world, 2 + number))
    world.jobs.chunk()
    keepers = [world.new_keeper() for _ in range(3)]
    start = threading.Barrier(4)

    def tick(keeper: Keeper) -> None:
        start.wait()
        for _ in range(3):
            keeper.tick()
            plan.plan_waiting(
                world.db,
                world.clock,
                models=world.models,
                worker_alive_s=86_400.0,
                max_stale_s=86_400.0,
                is_forced=True,
            )

    def more() -> None:
        start.wait()
        for _ in range(4):
            world.submit(10_000)

    with ThreadPoolExecutor(4) as pool:
        for done in [*(pool.submit(tick, one) for one in keepers), pool.submit(more)]:
            done.result()
    world.plan()
    found = world.status()
    assert found.reserved_g == 4
    assert [one.state for one in world.chunks()].count("placed") == 4
    assert found.waiting_chunks > 0
    assert world.status("search").reserved_g == 12  # accepted work keeps its reservation while it waits


def test_a_chunk_larger_than_its_budget_is_cut_to_what_fits(world: World) -> None:
    world.budget(3, Action.QUEUE)
    job = world.submit(*[5_000] * 10)  # one chunk of 5 g
    world.plan()
    waiting, placed = sorted(world.chunks(), key=lambda one: one.state, reverse=True)
    assert (placed.state, placed.items_count, placed.est_tokens) == ("placed", 6, 30_000)
    assert (waiting.state, waiting.items_count, waiting.est_tokens) == ("waiting", 4, 20_000)
    assert (world.status().reserved_g, world.status().left_g, world.status().waiting_chunks) == (3, 0, 1)
    world.run(placed.chunk_id)
    world.pass_on(hours=16, minutes=1)  # midnight: the rest fits
    world.foresee(north=["100"])
    world.plan()
    assert sorted(one.state for one in world.chunks()) == ["done", "placed"]
    assert world.jobs.job(job.job_id).items_succeeded == 6


def sizes(world: World) -> list[tuple[str, str, int, int]]:
    """Model, state, items and tokens of the chunks."""
    return sorted((one.model, one.state, one.items_count, one.est_tokens) for one in world.chunks())


def test_of_a_chunk_too_large_for_the_smaller_model_too_a_part_goes_there(world: World) -> None:
    world.budget(1, Action.DOWNGRADE)
    world.submit(*[5_000] * 10)  # one chunk of 5 g, or 1.25 g on the smaller model
    world.plan()
    assert sizes(world) == [("small", "placed", 8, 40_000), ("words", "waiting", 2, 10_000)]
    moved = next(one for one in world.chunks() if one.model == "small")
    assert (moved.downgraded, moved.held_by) == ("budget", None)
    assert (world.status().reserved_g, world.status().left_g, world.status().waiting_chunks) == (1, 0, 1)
    world.plan()
    assert world.status().reserved_g == 1  # nothing more goes
    world.budget("1.3", Action.DOWNGRADE)
    world.plan()
    assert [one.model for one in world.chunks()] == ["small", "small"]  # the rest, where there is room
    assert world.status().reserved_g == Decimal("1.25")


@pytest.mark.parametrize("may", [False, None])
def test_only_what_may_not_be_downgraded_is_cut_on_the_model_asked_for(world: World, may: bool | None) -> None:
    world.budget(1, Action.DOWNGRADE)
    world.submit(*[5_000] * 10, may_downgrade=may)
    if may is None:
        with world.db.write() as tx:  # jobs allow it, but an operator holds the smaller model
            holds.put(tx, HeldKind.MODEL, "small", RegionState.PAUSED)
    world.plan()
    world.plan()
    assert sizes(world) == [("words", "placed", 2, 10_000), ("words", "waiting", 8, 40_000)]
    assert world.status().reserved_g == 1


@pytest.mark.parametrize(("uj_per_token", "model"), [(UJ_PER_TOKEN, "small"), (UJ_PER_TOKEN + 1, "words")])
def test_a_smaller_model_of_which_nothing_is_learned(
    database: Database, tmp_path: Path, uj_per_token: int, model: str
) -> None:
    small = replace(MODELS["small"], uj_per_token=uj_per_token)
    world = World(database, tmp_path, models={**MODELS, "small": small})
    world.foresee(north=["100"])
    world.budget(1, Action.DOWNGRADE)
    world.submit(*[5_000] * 10)
    world.plan()
    assert [one.model for one in world.chunks() if one.state == "placed"] == [model]
    assert world.status().reserved_g == 1  # the cap holds all the same


def test_room_for_a_crumb_cuts_nothing(world: World) -> None:
    world.budget("2.1", Action.QUEUE)
    world.submit(20_000, deadline_at=hours(world, 3))
    world.submit(*[1_000] * 20)  # 2 g; 0.1 g is left
    world.plan()
    assert [one.items_count for one in world.chunks()] == [1, 20]
    assert world.status().waiting_chunks == 1

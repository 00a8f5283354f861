"""What budgets say of a job when it is submitted, and what they reserve of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from carbonq.budget import Action, Book, Level
from carbonq.errors import CarbonBudgetExceeded
from carbonq.model import LatePolicy
from carbonq.services import budget
from carbonq.services.cancel import cancel
from carbonq.services.group_commit import GroupStore, Waiting
from carbonq.services.standing import Standing
from carbonq.store import tables
from carbonq.store.database import Database
from carbonq.terms import Terms
from tests.services import batching
from tests.services.budget_world import MODELS, NORTH, SOUTH, World
from tests.services.grouped import checked
from tests.services.jobs import request


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    made = World(database, tmp_path)
    made.foresee(north=["100"])
    return made


def job_count(world: World) -> int:
    with world.db.read() as tx:
        return tx.execute(select(func.count()).select_from(tables.jobs)).scalar_one()


def test_a_job_is_reserved_of_its_budgets(world: World) -> None:
    world.budget(10)
    world.budget(10, level=Level.PRODUCT_LINE, name="search", action=Action.WARN)
    world.budget(10, name="other")
    world.submit(10_000, 20_000)  # 3 g at 100 g/kWh
    assert world.status().reserved_g == world.status("search").reserved_g == 3
    assert world.status("other").reserved_g == 0
    assert world.status().left_g == 7
    world.plan()
    assert world.status().reserved_g == 3  # placed, in cells that are as clean


def test_the_best_cell_before_the_deadline_is_what_counts(world: World) -> None:
    world.foresee(north=["200", "50"], south=["400"], hours=4)
    world.budget(10)
    assert world.submit(10_000, deadline_at=world.clock.now() + timedelta(hours=3)).impact_pg_per_token == 50_000_000
    assert world.submit(10_000, deadline_at=world.clock.now() + timedelta(hours=1)).impact_pg_per_token == 200_000_000
    far = world.clock.now() + timedelta(hours=3)
    assert world.submit(10_000, regions=("south",), deadline_at=far).impact_pg_per_token == 400_000_000


def test_what_does_not_fit_is_refused_with_the_figures(world: World) -> None:
    world.budget(4)
    world.submit(30_000)
    with pytest.raises(CarbonBudgetExceeded) as refused:
        world.submit(20_000)
    error = refused.value
    assert (error.cap_g, error.spent_g, error.reserved_g, error.adds_g) == (4, 0, 3, 2)
    assert error.ends_at == world.status().ends_at
    assert "'backfill'" in error.message
    assert job_count(world) == 1
    assert world.status().reserved_g == 3
    assert world.submit(10_000).infeasible is None


def test_work_that_ends_gives_its_reservation_back(world: World) -> None:
    world.budget(4)
    first = world.submit(30_000)
    with pytest.raises(CarbonBudgetExceeded):
        world.submit(30_000)
    cancel(world.db, first.job_id, "acme", world.clock)
    assert world.status().reserved_g == 0
    world.submit(30_000)
    assert world.status().reserved_g == 3


def test_what_ran_is_spent_and_not_reserved_any_more(world: World) -> None:
    world.budget(4)
    world.submit(10_000, 20_000)
    world.plan()
    (chunk,) = world.chunks()
    world.run(chunk.chunk_id, part_of=0.5)  # one of two items, at 100 g/kWh
    found = world.status()
    assert found.spent_g == world.ledger_g()
    assert found.spent_g + found.reserved_g == 3
    assert found.spent_g in (1, 2)
    with pytest.raises(CarbonBudgetExceeded):
        world.submit(20_000)


def test_an_unknown_rate_is_unknown_and_only_refused_where_nothing_is_left(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    world.budget(1)
    job = world.submit(1_000_000)
    assert job.impact_pg_per_token is None
    found = world.status()
    assert (found.reserved_g, found.unknown_reserved) == (0, 1)
    world.foresee(north=["100"])
    world.submit(10_000)
    with pytest.raises(CarbonBudgetExceeded):
        world.submit(1_000, regions=("south",))


def test_the_inventory_book_asks_average_rates_only(world: World) -> None:
    world.budget(1, book=Book.INVENTORY)
    job = world.submit(1_000_000)
    assert job.impact_pg_per_token == 100_000_000
    assert job.inventory_pg_per_token is None  # no average rate is known
    assert world.status().unknown_reserved == 1


def test_an_item_over_its_cap_is_named(world: World) -> None:
    world.budget("0.5", level=Level.ITEM, name="*")
    world.submit(5_000, 5_000)
    with pytest.raises(CarbonBudgetExceeded) as refused:
        world.submit(100, 6_000, 200)
    assert (refused.value.line, refused.value.adds_g, refused.value.ends_at) == (2, Decimal("0.6"), None)
    assert "item 2 ('doc-1')" in refused.value.message
    world.budget("0.5", level=Level.ITEM, name="*", action=Action.QUEUE)
    assert "cleaner window" in str(world.submit(100, 6_000, 200).infeasible)


def test_a_queue_that_ends_after_the_deadline_is_said_or_refused(world: World) -> None:
    world.budget(2, Action.QUEUE)
    assert world.submit(10_000).infeasible is None
    late = world.submit(20_000)
    assert "a budget's cap comes before a deadline" in str(late.infeasible)
    with pytest.raises(CarbonBudgetExceeded, match="expire before it"):
        world.submit(20_000, late_policy=LatePolicy.EXPIRE)
    tomorrow = world.clock.now() + timedelta(hours=20)
    assert world.submit(20_000, deadline_at=tomorrow).infeasible is None
    assert world.status().reserved_g == 0  # reserved when it is let go


@pytest.mark.parametrize("action", [Action.QUEUE, Action.DOWNGRADE, Action.REJECT])
@pytest.mark.parametrize("late_policy", list(LatePolicy))
def test_a_job_whose_items_are_all_over_the_whole_cap_is_refused(
    world: World, action: Action, late_policy: LatePolicy
) -> None:
    world.budget(1, action)
    with pytest.raises(CarbonBudgetExceeded) as refused:
        world.submit(60_000, 50_000, late_policy=late_policy)  # 5 g, or 1.25 g on the smaller model
    error = refused.value
    needs_g = Decimal("1.25") if action is Action.DOWNGRADE else 5
    assert (error.line, error.adds_g, error.cap_g, error.ends_at) == (2, needs_g, 1, None)
    assert "item 2 ('doc-1')" in error.message
    assert "the whole cap of the budget of workload 'backfill' is 1 gCO2e a day" in error.message
    assert job_count(world) == 0
    world.budget(5, Action.WARN)
    world.submit(60_000, late_policy=late_policy)


def test_an_item_that_fits_a_later_window_or_a_smaller_model_is_taken(world: World) -> None:
    world.budget(1, Action.DOWNGRADE)
    world.submit(30_000)
    with pytest.raises(CarbonBudgetExceeded):
        world.submit(30_000, may_downgrade=False)
    world.budget(1, Action.QUEUE)
    world.foresee(north=["100", "20"])  # clean in a day, after the deadline
    world.submit(30_000)
    with pytest.raises(CarbonBudgetExceeded):
        world.submit(30_000, late_policy=LatePolicy.EXPIRE)
    assert job_count(world) == 2


def test_a_longer_item_that_can_never_run_is_told_of(world: World) -> None:
    world.budget(1, Action.QUEUE)
    job = world.submit(1_000, 20_000)
    assert str(job.infeasible).startswith("item 2 ('doc-1') is expected to emit 2 gCO2e at the best that is foreseen")


def test_nobody_asks_where_no_budget_is(world: World) -> None:
    assert world.submit(10_000).impact_pg_per_token is None
    world.budget(1, tenant="rival")
    assert world.submit(1_000_000).impact_pg_per_token == 100_000_000  # known, and nobody refuses


def test_of_many_at_once_as_many_as_fit_are_taken(world: World) -> None:
    world.budget(7)
    gates = [world.new_gate() for _ in range(4)]  # four processes
    start = threading.Barrier(20)

    def one(number: int) -> bool:
        mine = World.__new__(World)
        mine.__dict__ |= world.__dict__ | {"gate": gates[number % 4], "jobs": type(world.jobs)(**_fields(world))}
        start.wait()
        try:
            mine.submit(10_000)
        except CarbonBudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        taken = sum(pool.map(one, range(20)))
    assert taken == 7
    assert world.status().reserved_g == 7
    assert job_count(world) == 7


def _fields(world: World) -> dict[str, Any]:
    return {name: getattr(world.jobs, name) for name in world.jobs.__dataclass_fields__}


def test_a_group_takes_what_fits_and_refuses_the_others(world: World) -> None:
    world.budget(3)
    store = GroupStore(
        world.db,
        world.jobs.blobs,
        world.clock,
        Standing(world.db, world.clock, world.models),
        home_region="north",
        regions=lambda: (NORTH, SOUTH),
        gate=world.gate,
    )
    line = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"words","input":"%s"}}\n'
    data = line % (b"a" * 40_000)
    group = [Waiting(checked(world.jobs, data, request(tenant="acme", workload="backfill")), data) for _ in range(5)]
    for one in group:
        one.future.set_running_or_notify_cancel()
    store.settle(group)
    refused = [one for one in group if one.future.exception() is not None]
    assert [type(one.future.exception()) for one in refused] == [CarbonBudgetExceeded] * 2
    assert world.status().reserved_g == 3 == job_count(world)


def test_a_kept_count_is_never_below_what_is_counted(world: World) -> None:
    world.budget(100)
    for _ in range(3):
        world.submit(10_000)
    with world.db.read() as tx:
        kept = tx.execute(select(tables.budget_counts)).one()
    assert kept.reserved_ug == 3_000_000
    assert budget.statuses(world.db, world.clock.now())[0].reserved_g == 3


def test_a_batch_that_does_not_fit_fails_and_says_why(world: World) -> None:
    world.budget(3, tenant="default")
    line = b'{"custom_id":"%d","method":"POST","url":"/v1/embeddings","body":{"model":"words","input":"%s"}}\n'
    data = b"".join(line % (number, b"a" * 80_000) for number in range(2))  # 4 g
    terms = Terms(workload="backfill")
    refused, taken = batching.add(world.jobs, data, terms), batching.add(world.jobs, data[: len(data) // 2], terms)
    assert batching.read(world.jobs, gate=world.gate) == 2
    failed = batching.get(world.jobs, refused)
    assert (failed.state, batching.errors(failed)) == ("failed", [("carbon_budget_exceeded", None, None)])
    (job,) = batching.jobs_of(world.jobs, taken)
    assert job.impact_pg_per_token == 100_000_000
    assert world.status().reserved_g == 2


def test_a_batch_that_is_late_anyway_is_asked_all_the_same(database: Database, tmp_path: Path) -> None:
    slow = {name: replace(one, tokens_per_s=10.0) for name, one in MODELS.items()}
    world = World(database, tmp_path, models=slow)
    world.foresee(north=["100"])
    soon = world.clock.now() + timedelta(hours=1)
    for _ in range(8):  # more than all slots can do in time
        world.submit(20_000, workload="other", tenant="other", deadline_at=soon)
    line = b'{"custom_id":"0","method":"POST","url":"/v1/embeddings","body":{"model":"words","input":"%s"}}\n'
    data = line % (b"a" * 80_000)
    late = batching.add(world.jobs, data, Terms(workload="backfill", deadline=soon))
    batching.read(world.jobs, gate=world.gate)
    assert batching.jobs_of(world.jobs, late)[0].infeasible is not None
    world.budget(1, Action.QUEUE, tenant="default")
    refused = batching.add(world.jobs, data, Terms(workload="backfill", deadline=soon))
    batching.read(world.jobs, gate=world.gate)
    failed = batching.get(world.jobs, refused)
    assert (failed.state, batching.errors(failed)) == ("failed", [("carbon_budget_exceeded", None, None)])

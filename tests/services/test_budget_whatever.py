"""Whatever happens in whatever order: spent is what the ledger says, reserved what is open, and no cap is passed."""

from __future__ import annotations

import itertools
import shutil
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from carbonq.budget import Action, BudgetStatus
from carbonq.errors import CarbonBudgetExceeded
from carbonq.model import LatePolicy
from carbonq.services import budget_spent, expire
from carbonq.services.cancel import cancel
from carbonq.services.settle import settle
from carbonq.store import tables
from carbonq.store.database import Database
from carbonq.testing import FakeClock
from tests.databases import opened
from tests.services.booked import observe
from tests.services.budget_world import World
from tests.store.rows import T0

_RATE = st.sampled_from(["40", "100", "250"])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.lists(st.integers(1, 30), min_size=1, max_size=3), st.sampled_from([2, 5, 20])),
        st.tuples(st.just("submit"), st.lists(st.integers(1, 30), min_size=1, max_size=3), st.sampled_from([2, 5, 20])),
        st.tuples(st.just("plan"), st.none(), st.none()),
        st.tuples(st.just("plan"), st.none(), st.none()),
        st.tuples(st.just("run"), st.integers(0, 3), _RATE),
        st.tuples(st.just("run_some"), st.integers(0, 3), _RATE),
        st.tuples(st.just("cancel"), st.integers(0, 3), st.none()),
        st.tuples(st.just("settle"), _RATE, st.none()),
        st.tuples(st.just("expire"), st.none(), st.none()),
        st.tuples(st.just("pass"), st.sampled_from([5, 60, 600]), st.none()),
        st.tuples(st.just("foresee"), st.lists(_RATE, min_size=1, max_size=3), st.none()),
        st.tuples(st.just("fold"), st.none(), st.none()),
    ),
    min_size=4,
    max_size=14,
)


@pytest.fixture(scope="session")
def fresh(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    count = itertools.count()

    def make() -> World:
        folder = tmp_path_factory.mktemp(f"budgets{next(count)}")
        path = folder / "carbonq.db"
        shutil.copy(sqlite_template, path)
        return World(opened(f"sqlite:///{path}"), folder, FakeClock(T0))

    return make


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([Action.REJECT, Action.QUEUE, Action.DOWNGRADE]), st.integers(1, 8), _STEPS)
def test_no_order_of_events_makes_a_budget_lie(fresh: Any, action: Action, cap: int, steps: list[Any]) -> None:
    world = fresh()
    world.foresee(north=["100"])
    world.budget(cap, action)
    try:
        for step in steps:
            before = world.status()
            was_taken = act(world, *step)
            after = world.status()
            check(world, after)
            used = after.spent_g + after.reserved_g
            # Only what truly ran may pass the cap, and moves of what was accepted by a budget that refuses.
            if step[0] == "submit" and was_taken and action is Action.REJECT:
                assert used <= cap, (step, before, after)
            if step[0] == "plan" and action is not Action.REJECT and after.reserved_g > before.reserved_g:
                event("let go")
                assert used <= cap, (step, before, after)
            if step[0] == "submit" and not was_taken:
                event("refused")
                assert after == before
    finally:
        world.db.dispose()


def act(world: World, kind: str, what: Any, how: Any) -> bool:
    if kind == "submit":
        late = LatePolicy.FINISH_LATE if how != 5 else LatePolicy.EXPIRE
        deadline_at = world.clock.now() + timedelta(hours=how)
        try:
            world.submit(*(1_000 * one for one in what), deadline_at=deadline_at, late_policy=late)
        except CarbonBudgetExceeded:
            return False
    elif kind == "plan":
        world.plan()
    elif kind in ("run", "run_some"):
        found = [one for one in world.chunks() if one.state in ("waiting", "placed") and one.held_by is None]
        if found:
            part_of = 0.5 if kind == "run_some" else 1.0
            world.run(found[what % len(found)].chunk_id, g_per_kwh=how, part_of=part_of)
    elif kind == "cancel":
        with world.db.read() as tx:
            jobs = list(tx.execute(select(tables.jobs.c.job_id).order_by(tables.jobs.c.job_id)).scalars())
        if jobs:
            cancel(world.db, jobs[what % len(jobs)], "acme", world.clock)
    elif kind == "settle":
        with world.db.read() as tx:
            at = tx.execute(select(tables.unsettled.c.window_at).limit(1)).scalar()
        if at is not None:
            for zone in ("zn", "zs"):
                _say(world.db, zone, at, what)
            settle(world.db, at + timedelta(hours=1), settle_after_s=0)
    elif kind == "expire":
        expire.expire(world.db, world.clock)
    elif kind == "pass":
        world.pass_on(minutes=what)
        world.foresee(north=["100"])
    elif kind == "foresee":
        world.foresee(north=what, hours=6)
    else:
        budget_spent.fold(world.db, world.clock.now())
    return True


def _say(db: Database, zone: str, at: Any, value: str) -> None:
    with db.read() as tx:
        mine = (tables.observations.c.zone == zone, tables.observations.c.window_at == at)
        known = len(tx.execute(select(tables.observations.c.revision).where(*mine)).all())
    observe(db, zone, at, value, revision=known + 1)


def check(world: World, found: BudgetStatus) -> None:
    assert found.spent_g == world.ledger_g()
    assert found.provisional_g == _provisional(world)
    ug, chunks = _open_ug(world, found)
    assert 0 <= found.reserved_g * 1_000_000 - ug <= chunks  # each chunk is rounded up
    with world.db.read() as tx:
        kept = tx.execute(select(tables.budget_counts)).one_or_none()
    if kept is not None and kept.started_at == found.started_at:
        assert Decimal(kept.reserved_ug) / 1_000_000 >= found.reserved_g - Decimal("0.001")


def _provisional(world: World) -> Decimal:
    start = world.clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
    newer = tables.entries.alias()
    is_current = ~(
        select(newer.c.entry_id)
        .where(newer.c.entry_id == tables.entries.c.entry_id, newer.c.revision > tables.entries.c.revision)
        .exists()
    )
    statement = select(tables.entries.c.emission_g).where(
        tables.entries.c.window_at >= start, tables.entries.c.moer_status == "provisional", is_current
    )
    with world.db.read() as tx:
        return sum(tx.execute(statement).scalars(), Decimal(0))


def _open_ug(world: World, found: BudgetStatus) -> tuple[Decimal, int]:
    """Add up what items that have not ended are expected to emit, one by one, by what is noted beside them."""
    source = tables.items.join(tables.jobs, tables.jobs.c.job_id == tables.items.c.job_id).outerjoin(
        tables.chunks, tables.chunks.c.chunk_id == tables.items.c.chunk_id
    )
    chunks = tables.chunks.c
    columns = (
        tables.items.c.est_tokens,
        tables.items.c.chunk_id,
        tables.jobs.c.impact_pg_per_token,
        chunks.impact_pg_per_token.label("chunk_pg"),
        chunks.state,
        chunks.held_by,
        chunks.window_at,
    )
    with world.db.read() as tx:
        rows = tx.execute(select(*columns).select_from(source).where(tables.items.c.state == "waiting")).all()
    total, seen = Decimal(0), set[str]()
    is_holding = found.budget.is_holding
    for row in rows:
        is_later = row.state == "placed" and row.window_at >= found.ends_at
        if is_later or (is_holding and (row.chunk_id is None or row.held_by is not None)):
            continue
        rate = row.impact_pg_per_token if row.chunk_id is None else row.chunk_pg
        if rate is not None:
            total += Decimal(row.est_tokens * rate) / 1_000_000
            seen.add(row.chunk_id or f"{len(seen)}")
    return total, len(seen) + len(rows)

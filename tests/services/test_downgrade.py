"""Waiting work goes to the next smaller model once, whole or by the item, and never where that would be late."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from carbonq.model import (
    AttemptOutcome,
    Chunk,
    ChunkState,
    DowngradeReason,
    Endpoint,
    HeldKind,
    Model,
    Region,
    RegionState,
    Signal,
    Treatment,
)
from carbonq.plan import policy
from carbonq.services import downgrade as service
from carbonq.store import chunks, downgrades, holds, leases, placements, regions, tables, throughputs
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.placements import Placed
from carbonq.tiers import OFF
from tests.services.jobs import World, line
from tests.store.rows import T0

HOUR = timedelta(hours=1)
BIG = Model("big", "x", Endpoint.CHAT, 100, 4.0, 10.0, 200, 1000, 10, tier=3, max_output_tokens=8, smaller="small")
SMALL = replace(BIG, name="small", tokens_per_s=40.0, uj_per_token=50, tier=2, smaller="tiny")
TINY = replace(BIG, name="tiny", tokens_per_s=90.0, uj_per_token=10, tier=1, smaller=None)
MODELS = {model.name: model for model in (BIG, SMALL, TINY)}
REGIONS = (
    Region("north", "zn", 2, Decimal("1.1"), "stated", "cpu", models=("big",)),
    Region("south", "zs", 1, Decimal("1.1"), "stated", "gpu"),
)


class Bench(World):
    """A world of tiers."""

    def __init__(self, db: Database, folder: Path, models: dict[str, Model] = MODELS) -> None:
        super().__init__(db, folder, models=models, regions=REGIONS)
        with db.write() as tx:
            regions.sync(tx, list(self.regions))

    def items(self, *texts: str, model: str = "big", **changes: Any) -> list[Chunk]:
        """Store a job of some texts and cut it into chunks."""
        before = {one.chunk_id for one in self.chunks()}
        body = [{"model": model, "messages": [{"role": "user", "content": text}]} for text in texts]
        data = b"".join(line(n, url="/v1/chat/completions", body=one) for n, one in enumerate(body))
        self.submit(data, **{"endpoint": Endpoint.CHAT, "model": model, **changes})
        self.chunk()
        return [one for one in self.chunks() if one.chunk_id not in before]

    def downgrade(self, found: Sequence[Chunk], reason: DowngradeReason = DowngradeReason.BUDGET) -> set[str]:
        with self.db.write() as tx:
            return service.downgrade(
                tx,
                [one.chunk_id for one in found],
                models=self.models,
                regions=self.regions,
                now=self.clock.now(),
                factor=self.clock.factor,
                reason=reason,
            )

    def restore(self) -> list[str]:
        with self.db.write() as tx:
            return service.restore(
                tx, models=self.models, regions=self.regions, now=self.clock.now(), factor=self.clock.factor
            )

    def get(self, chunk_id: str) -> Chunk:
        with self.db.read() as tx:
            return chunks.get(tx, chunk_id)

    def held(self) -> dict[str, list[str]]:
        """Return the custom ids in each chunk."""
        found: dict[str, list[str]] = {}
        with self.db.read() as tx:
            columns = (tables.items.c.chunk_id, tables.items.c.custom_id)
            for chunk_id, custom_id in tx.execute(select(*columns).order_by(tables.items.c.item_id)):
                found.setdefault(chunk_id, []).append(custom_id)
        return found

    def change(self, chunk_id: str, **values: Any) -> None:
        with self.db.write() as tx:
            tx.execute(update(tables.chunks).where(tables.chunks.c.chunk_id == chunk_id).values(**values))

    def place(self, found: Sequence[Chunk], window_at: datetime = T0, rate: str | None = "300") -> None:
        count = len(found)
        placed = Placed(
            [one.chunk_id for one in found],
            ["north"] * count,
            [window_at] * count,
            [None if rate is None else Decimal(rate)] * count,
            [T0] * count,
            ["carbon"] * count,
        )
        with self.db.write() as tx:
            placements.place(tx, "pln_1", placed, created_at=T0, signal=Signal.MOER)


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Bench:
    return Bench(database, tmp_path)


def test_a_placed_chunk_waits_again_for_the_smaller_model(world: Bench) -> None:
    with world.db.write() as tx:
        throughputs.learn(tx, "small", "gpu", 100, 2.0, 3000)
    found = world.items("one", "two", "three")
    world.place(found)
    (before,) = (world.get(one.chunk_id) for one in found)
    assert (before.state, before.region) == (ChunkState.PLACED, "north")
    world.change(before.chunk_id, error="it failed on the big one")
    assert world.downgrade(found) == {before.chunk_id}
    after = world.get(before.chunk_id)
    assert after == replace(
        before,
        model="small",
        # As learned on the only hardware that serves it.
        est_duration_s=before.est_tokens / 50,
        est_energy_uj=before.est_tokens * 30,
        latest_start_at=policy.latest_safe_start(before.deadline_at, before.est_tokens / 50, 1.0),
        state=ChunkState.WAITING,
        region=None,
        window_at=None,
        placement_id=None,
        downgraded=DowngradeReason.BUDGET,
    )
    with world.db.read() as tx:
        assert downgrades.failed(tx) == []
        assert downgrades.requested_models(tx, [before.chunk_id]) == {before.chunk_id: "big"}


def test_twice_goes_down_one_tier(world: Bench) -> None:
    found = world.items("one")
    assert world.downgrade(found) == {found[0].chunk_id}
    assert world.downgrade(found, DowngradeReason.POLICY) == set()
    after = world.get(found[0].chunk_id)
    assert (after.model, after.downgraded) == ("small", DowngradeReason.BUDGET)


def test_of_two_at_once_one_moves_it(world: Bench) -> None:
    found = [one for n in range(4) for one in world.items(f"{n}", deadline_at=T0 + (5 + n) * HOUR)]
    results: list[set[str]] = []
    ready = threading.Barrier(2)

    def move(order: Sequence[Chunk], reason: DowngradeReason) -> None:
        ready.wait()
        results.append(world.downgrade(order, reason))

    threads = [
        threading.Thread(target=move, args=(found, DowngradeReason.BUDGET)),
        threading.Thread(target=move, args=(found[::-1], DowngradeReason.POLICY)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results, key=len) == [set(), {one.chunk_id for one in found}]
    assert {world.get(one.chunk_id).model for one in found} == {"small"}


def test_what_has_a_ticket_or_runs_stays(world: Bench) -> None:
    found = [one for n in range(3) for one in world.items(f"{n}", deadline_at=T0 + (5 + n) * HOUR)]
    world.place(found)
    with world.db.write() as tx:
        at = machine_now(tx)
    for one in found[:2]:
        world.change(one.chunk_id, dispatched_at=at)
    with world.db.write() as tx:
        assert leases.claim(tx, found[1].chunk_id, worker_id="w", region="north", lease_s=60, now=T0) is not None
    assert world.downgrade(found) == {found[2].chunk_id}
    assert [world.get(one.chunk_id).model for one in found] == ["big", "big", "small"]


@pytest.mark.parametrize("treatment", [Treatment.OBSERVED, Treatment.HELD_OUT])
def test_what_runs_as_without_carbonq_stays(world: Bench, treatment: Treatment) -> None:
    found = world.items("one")
    world.change(found[0].chunk_id, treatment=treatment.value)
    assert world.downgrade(found) == set()


def test_a_job_that_refuses_stays_and_shares_no_chunk_with_others(world: Bench) -> None:
    body = {"model": "big", "messages": [{"role": "user", "content": "a"}]}
    data = line(0, url="/v1/chat/completions", body=body)
    for said in (None, False, True):
        world.submit(data, endpoint=Endpoint.CHAT, model="big", may_downgrade=said)
    assert world.chunk() == 3
    found = world.chunks()
    moved = world.downgrade(found)
    assert moved == {one.chunk_id for one in found if one.may_downgrade is not False}
    assert len(moved) == 2


def test_only_where_the_smaller_model_is_served(world: Bench) -> None:
    found = world.items("one", regions=("north",))
    assert world.downgrade(found) == set()
    assert world.get(found[0].chunk_id) == found[0]


@pytest.mark.parametrize("state", [RegionState.PAUSED, RegionState.DRAINING])
def test_not_to_a_model_that_an_operator_holds(world: Bench, state: RegionState) -> None:
    found = world.items("one")
    with world.db.write() as tx:
        holds.put(tx, HeldKind.MODEL, "small", state)
    assert world.downgrade(found) == set()


def test_not_where_the_deadline_would_be_missed_by_it(world: Bench) -> None:
    with world.db.write() as tx:
        throughputs.learn(tx, "small", "gpu", 1, 3600.0, 3000)  # slower than the larger one, whatever its reason
    found = world.items("one")
    assert world.downgrade(found) == set()
    # One that is late on both is not held back by that.
    late = found[0]
    world.clock.advance((late.deadline_at - T0).total_seconds() + 1)
    assert world.downgrade(found) == {late.chunk_id}


def test_items_too_long_for_the_smaller_model_stay_behind(database: Database, tmp_path: Path) -> None:
    short = replace(SMALL, max_input_tokens=60)
    world = Bench(database, tmp_path, models={**MODELS, "small": short})
    (chunk,) = world.items("x" * 40, "x" * 300, "x" * 44, "x" * 120)  # estimated 22, 87, 23 and 42 tokens
    moved = world.downgrade([chunk])
    assert len(moved) == 1
    (part,) = (world.get(chunk_id) for chunk_id in moved)
    left = world.get(chunk.chunk_id)
    assert part.chunk_id != chunk.chunk_id
    assert world.held() == {part.chunk_id: ["a-0", "a-2"], left.chunk_id: ["a-1", "a-3"]}
    assert (part.model, part.downgraded, part.items_count, part.est_tokens) == ("small", DowngradeReason.BUDGET, 2, 45)
    assert (left.model, left.downgraded, left.items_count, left.est_tokens) == ("big", None, 2, 129)
    assert part.est_tokens + left.est_tokens == chunk.est_tokens
    assert part.est_duration_s == pytest.approx(45 / 40)
    assert left.est_duration_s == pytest.approx(129 / 10)
    assert (part.deadline_at, part.baseline_window_at) == (chunk.deadline_at, chunk.baseline_window_at)
    assert world.downgrade([left, part]) == set()


def test_a_chunk_whose_items_are_all_too_long_stays(database: Database, tmp_path: Path) -> None:
    world = Bench(database, tmp_path, models={**MODELS, "small": replace(SMALL, max_input_tokens=20)})
    (chunk,) = world.items("x" * 200, "x" * 300)
    assert world.downgrade([chunk]) == set()
    assert world.get(chunk.chunk_id) == chunk


def _try(world: Bench, chunk_id: str, outcome: AttemptOutcome, *, is_counted: bool = True) -> None:
    """Let a worker take a chunk and give it back."""
    with world.db.write() as tx:
        values = {"state": ChunkState.PLACED.value, "region": "south", "dispatched_at": machine_now(tx)}
        tx.execute(update(tables.chunks).where(tables.chunks.c.chunk_id == chunk_id).values(**values))
        claim = leases.claim(tx, chunk_id, worker_id="w", region="south", lease_s=60, now=T0)
        assert claim is not None
        error = None if outcome is AttemptOutcome.YIELDED else "it did not go well"
        leases.give_back(tx, chunk_id, claim.token, is_counted=is_counted, outcome=outcome, now=T0, error=error)


def test_what_failed_on_the_smaller_model_goes_back_to_the_one_asked_for(world: Bench) -> None:
    (chunk,) = world.items("one", "two")
    _try(world, chunk.chunk_id, AttemptOutcome.FAILED)  # on the big one, which says nothing of the small one
    world.downgrade([chunk])
    assert world.restore() == []
    _try(world, chunk.chunk_id, AttemptOutcome.FAILED, is_counted=False)
    (again,) = world.restore()
    assert world.restore() == []
    assert world.get(chunk.chunk_id).state is ChunkState.DONE
    after = world.get(again)
    assert (after.model, after.downgraded, after.attempt, after.state) == ("big", None, 0, ChunkState.WAITING)
    assert (after.est_tokens, after.est_duration_s) == (chunk.est_tokens, pytest.approx(chunk.est_duration_s))
    assert world.held() == {again: ["a-0", "a-1"]}
    # It is not sent back and forth.
    assert world.downgrade([after]) == set()


def test_it_goes_back_though_the_settings_name_no_smaller_model_any_more(world: Bench) -> None:
    (chunk,) = world.items("one")
    world.downgrade([chunk])
    _try(world, chunk.chunk_id, AttemptOutcome.FAILED)
    models = {"big": replace(BIG, smaller=None), "small": replace(SMALL, smaller=None)}
    service.Tiering(world.db, world.clock, models=models, regions=REGIONS, policy=OFF).tidy()
    assert [one.model for one in world.chunks()] == ["big"]


def test_what_was_given_back_for_another_reason_stays_on_the_smaller_model(world: Bench) -> None:
    (chunk,) = world.items("one", "two")
    world.downgrade([chunk])
    _try(world, chunk.chunk_id, AttemptOutcome.YIELDED, is_counted=False)
    assert world.restore() == []
    _try(world, chunk.chunk_id, AttemptOutcome.LOST)
    assert world.restore() == []
    # Two workers in a row fell silent over it: it may be the model.
    _try(world, chunk.chunk_id, AttemptOutcome.LOST)
    assert len(world.restore()) == 1


def test_the_halves_of_a_chunk_stay_where_it_was_moved(world: Bench) -> None:
    (chunk,) = world.items("one", "two", may_downgrade=True)
    world.downgrade([chunk])
    world.start(chunk.chunk_id)
    with world.db.write() as tx:
        halves = leases.split(tx, chunk.chunk_id, attempt=3, now=T0)
    found = [world.get(half) for half in halves]
    assert {(one.model, one.downgraded, one.may_downgrade) for one in found} == {
        ("small", DowngradeReason.BUDGET, True)
    }


def test_nothing_is_written_for_nothing(world: Bench) -> None:
    assert world.downgrade([]) == set()
    assert world.downgrade(world.items("one", model="tiny")) == set()

"""Move waiting work to the next smaller model, and back where that one fails.

Only what no worker has and no ticket is out for: rows are locked in the order of every locker, and the planner places
what was moved like new work. Twice is as good as once: what was downgraded is left alone, so that nothing goes down two
tiers. Deadlines come first: nothing moves that would be late by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from carbonq import chunking, estimate, ids, tiers
from carbonq.clock import Clock
from carbonq.model import Chunk, DowngradeReason, HeldKind, Item, Model, NewChunk, Region, Throughput
from carbonq.plan import policy
from carbonq.store import chunks, downgrades, holds, items, throughputs
from carbonq.store.database import Database, Tx
from carbonq.store.downgrades import Change
from carbonq.tiers import TierPolicy
from carbonq.units import WINDOW


def downgrade(
    tx: Tx,
    chunk_ids: Sequence[str],
    *,
    models: Mapping[str, Model],
    regions: Sequence[Region],
    now: datetime,
    factor: float,
    reason: DowngradeReason,
) -> set[str]:
    """Move those of some chunks that may to the next smaller model; return the chunks that are on it now.

    ``regions`` are the configured ones, ``now`` is grid time, ``factor`` grid seconds for each machine second. A chunk
    stays where its model has no smaller one, its jobs refuse it (``tiers.smaller_of``), no region that it may use
    serves the smaller one or an operator holds that, its deadline would not be kept, or it was downgraded before.
    Where only some of its items fit the smaller model, these go to a new chunk: its id is in the result, and what stays
    keeps the old one, which is not. So ``set(chunk_ids) - downgrade(...)`` are the chunks that run what was asked for.
    One batch of writes, and one of inserts for the chunks that are cut. Linear, 60 us a chunk on SQLite: give pages.
    """
    mover = _Mover(tx, models, regions, now, factor)
    found = [(chunk, smaller) for chunk in downgrades.lock(tx, chunk_ids) if (smaller := mover.smaller_of(chunk))]
    is_shorter = [(chunk, smaller) for chunk, smaller in found if _is_shorter(smaller, models[chunk.model])]
    longest = downgrades.longest_items(tx, [chunk.chunk_id for chunk, _ in is_shorter]) if is_shorter else {}
    whole: list[Change] = []
    parts: list[NewChunk] = []
    for chunk, smaller in found:
        if tiers.fits(longest.get(chunk.chunk_id, 0), models[chunk.model], smaller):
            moved = mover.on(chunk, smaller, chunk.est_tokens)
            if moved is not None:
                whole.append(moved.change(chunk.chunk_id, reason))
            continue
        part = mover.part(chunk, smaller, reason)
        if part is not None:
            parts.append(part)
    downgrades.change(tx, whole)
    _cut_off(tx, parts, now)
    return {one.chunk_id for one in whole} | {one.chunk_id for one in parts}


def downgrade_parts(
    tx: Tx,
    tokens: Mapping[str, int],
    *,
    models: Mapping[str, Model],
    regions: Sequence[Region],
    now: datetime,
    factor: float,
    reason: DowngradeReason,
) -> dict[str, str]:
    """Move the shortest items of some chunks, of at most so many tokens each, to the next smaller model.

    Returns the new chunk of each one that was cut; what stays keeps the old id. A chunk that may not move, as with
    ``downgrade``, is left alone and not in the result. One batch of inserts.
    """
    mover = _Mover(tx, models, regions, now, factor)
    made: dict[str, NewChunk] = {}
    for chunk in downgrades.lock(tx, sorted(tokens)):
        smaller = mover.smaller_of(chunk)
        part = None if smaller is None else mover.part(chunk, smaller, reason, at_most=tokens[chunk.chunk_id])
        if part is not None:
            made[chunk.chunk_id] = part
    _cut_off(tx, list(made.values()), now)
    return {chunk_id: one.chunk_id for chunk_id, one in made.items()}


def restore(
    tx: Tx, *, models: Mapping[str, Model], regions: Sequence[Region], now: datetime, factor: float
) -> list[str]:
    """Give what is left of downgraded chunks whose try failed back to the model asked for; return the new chunks.

    An item must not fail, or be late, because a smaller model was chosen for it. The new chunks are not downgraded
    again. Idempotent.
    """
    chunk_ids = downgrades.failed(tx)
    if not chunk_ids:
        return []
    mover = _Mover(tx, models, regions, now, factor)
    found = [chunk for chunk in downgrades.lock(tx, chunk_ids) if chunk.downgraded is not None]
    asked = downgrades.requested_models(tx, [chunk.chunk_id for chunk in found])
    parts: list[NewChunk] = []
    for chunk in found:
        model = models.get(asked.get(chunk.chunk_id, ""))
        left = items.of_chunk(tx, chunk.chunk_id)
        moved = None if model is None or not left else mover.on(chunk, model, _tokens(left), is_pressing=True)
        if moved is not None:
            parts.append(replace(moved.child(chunk, left, None), may_downgrade=False))
    _cut_off(tx, parts, now)
    return [one.chunk_id for one in parts]


class Tiering:
    """What the plan tick does about tiers: before it plans, and where it places."""

    def __init__(
        self, db: Database, clock: Clock, *, models: Mapping[str, Model], regions: Sequence[Region], policy: TierPolicy
    ) -> None:
        """Take the settings. Without a model that has a smaller one nothing is moved."""
        self._db, self._clock, self._policy = db, clock, policy
        self._models, self._regions = models, regions
        self._larger = sorted(model.name for model in models.values() if model.smaller is not None)
        self._moved = 0

    def tidy(self) -> None:
        """Give back what failed on a smaller model, and move what is about to start. Raises StoreUnavailable."""
        with self._db.read() as tx:
            is_idle = not downgrades.failed(tx) and not self._dirty(tx)
        if is_idle:
            return
        with self._db.write() as tx:
            now, factor = self._clock.now(), self._clock.factor
            restore(tx, models=self._models, regions=self._regions, now=now, factor=factor)
            self.on_placed(tx)
        self.take_moved()  # the plan that follows places them

    def on_placed(self, tx: Tx) -> None:
        """Move chunks that were placed where the policy's limit is exceeded, if they are about to start there.

        Not those of later windows: they may yet find a cleaner one, and a downgrade is not undone.
        """
        dirty = self._dirty(tx)
        if dirty:
            moved = downgrade(
                tx,
                dirty,
                models=self._models,
                regions=self._regions,
                now=self._clock.now(),
                factor=self._clock.factor,
                reason=DowngradeReason.POLICY,
            )
            self._moved += len(moved)

    def take_moved(self) -> int:
        """Return how many chunks were moved since this was asked last: they wait for a place."""
        moved, self._moved = self._moved, 0
        return moved

    def _dirty(self, tx: Tx) -> list[str]:
        limit = self._policy.above_g_per_kwh
        if limit is None or not self._larger:
            return []
        found = downgrades.about_to_start(tx, self._larger, self._clock.now() + WINDOW)
        return [chunk_id for chunk_id, rate in found if float(rate) > limit]


def _is_shorter(smaller: Model, model: Model) -> bool:
    return smaller.max_input_tokens < model.max_input_tokens


def _tokens(found: Sequence[Item]) -> int:
    return sum(item.est_tokens for item in found)


def _cut_off(tx: Tx, parts: Sequence[NewChunk], now: datetime) -> None:
    """Store new chunks with items of their parents, and bring these in line: ended where nothing is left."""
    chunks.insert_many(tx, parts, created_at=now)
    chunks.shrink(tx, [str(one.parent_chunk_id) for one in parts], at=now)


#: What a chunk takes over from the one that it was cut off, where it does not say something else.
_INHERITED = [one.name for one in fields(NewChunk) if one.name in Chunk.__dataclass_fields__]


@dataclass(frozen=True, slots=True)
class _Moved:
    """What some tokens of a chunk take on another model."""

    model: str
    est_tokens: int
    est_duration_s: float
    est_energy_uj: int
    latest_start_at: datetime

    def change(self, chunk_id: str, reason: DowngradeReason) -> Change:
        return Change(chunk_id, self.model, self.est_duration_s, self.est_energy_uj, self.latest_start_at, reason)

    def child(self, parent: Chunk, held: Sequence[Item], reason: DowngradeReason | None) -> NewChunk:
        values: dict[str, Any] = {name: getattr(parent, name) for name in _INHERITED}
        values |= {
            "chunk_id": ids.new("chk"),
            "model": self.model,
            "item_ids": [item.item_id for item in held],
            "est_tokens": self.est_tokens,
            "est_duration_s": self.est_duration_s,
            "est_energy_uj": self.est_energy_uj,
            "latest_start_at": self.latest_start_at,
            "parent_chunk_id": parent.chunk_id,
            "downgraded": reason,
            "longest_item": max(item.est_tokens for item in held),
            "impact_pg_per_token": None,  # another model's; budgets look at it anew
            "inventory_pg_per_token": None,
        }
        return NewChunk(**values)


class _Mover:
    """Knows which models there are, where they run, and what was learned of them."""

    def __init__(
        self, tx: Tx, models: Mapping[str, Model], regions: Sequence[Region], now: datetime, factor: float
    ) -> None:
        self._tx, self._models, self._regions, self._now, self._factor = tx, models, regions, now, factor
        self._learned: Mapping[tuple[str, str], Throughput] = throughputs.get_all(tx)
        self._held = {one.name for one in holds.get_all(tx) if one.kind is HeldKind.MODEL}

    def smaller_of(self, chunk: Chunk) -> Model | None:
        """Return the model that a chunk may be moved to."""
        if chunk.downgraded is not None:
            return None
        smaller = tiers.smaller_of(
            self._models.get(chunk.model), self._models, asked=chunk.may_downgrade, treatment=chunk.treatment
        )
        return None if smaller is None or smaller.name in self._held else smaller

    def on(self, chunk: Chunk, model: Model, tokens: int, *, is_pressing: bool = False) -> _Moved | None:
        """Return what some tokens of a chunk take on a model; None where nothing serves it, or it would be late then.

        ``is_pressing``: late or not. Tokens stay as they were counted for the model that was asked for.
        """
        allowed = estimate.allowed_regions(self._regions, chunk.regions, model.name)
        if not allowed:
            return None
        lane = estimate.worst_speed(model, allowed, self._learned)
        margin = policy.duration_margin(model.name, [region.hardware for region in allowed], self._learned)
        duration_s = estimate.duration_s(tokens, lane.tokens_per_s)
        latest_at = policy.latest_safe_start(chunk.deadline_at, duration_s, self._factor, margin)
        could_be_in_time = chunk.latest_start_at is None or self._now <= chunk.latest_start_at
        if latest_at < self._now and could_be_in_time and not is_pressing:
            return None
        energy_uj = estimate.energy_uj(tokens, lane.uj_per_token)
        return _Moved(model.name, tokens, duration_s, energy_uj, latest_at)

    def part(
        self, chunk: Chunk, smaller: Model, reason: DowngradeReason, *, at_most: int | None = None
    ) -> NewChunk | None:
        """Return a chunk of the items that fit the smaller model; None where there is none, or it would be late.

        ``at_most``: of the shortest ones, of so many tokens together.
        """
        model = self._models[chunk.model]
        fitting = [
            item for item in items.of_chunk(self._tx, chunk.chunk_id) if tiers.fits(item.est_tokens, model, smaller)
        ]
        if at_most is not None:
            fitting = chunking.shortest(fitting, at_most)
        moved = self.on(chunk, smaller, _tokens(fitting)) if fitting else None
        return None if moved is None else moved.child(chunk, fitting, reason)

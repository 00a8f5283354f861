"""Cut new jobs into chunks: full where small jobs can share, short enough for a window, with baseline and latest start.

Runs in the plan tick. One transaction for each group of jobs; doing it twice, or in two processes, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

from carbonq import chunking, estimate, ids, tiers
from carbonq.budget import Budget
from carbonq.chunking import Kind, Piece
from carbonq.clock import Clock
from carbonq.model import DowngradeReason, HeldKind, Job, Model, NewChunk, Region, Throughput
from carbonq.plan import policy
from carbonq.services import budget_chunks
from carbonq.services.apart import each
from carbonq.store import budgets, chunks, holds, items, jobs, throughputs
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now
from carbonq.tiers import TierPolicy
from carbonq.units import WINDOW_S, window_of

#: Most items one transaction chunks; with more, SQLite's write lock would be held for longer than others should wait.
MAX_ITEMS_AT_ONCE = 50_000


class _OutrunError(Exception):
    """Jobs or items changed between looking and writing; the next run sees them as they are."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """What all groups of one run have in common."""

    models: Mapping[str, Model]
    regions: Sequence[Region]
    learned: Mapping[tuple[str, str], Throughput]
    max_chunk_items: int
    chunk_fill: float
    factor: float
    now: datetime
    tiers: TierPolicy
    held: frozenset[str]
    budgets: Sequence[Budget]

    def lane(self, model: Model, kind: Kind, downgraded: DowngradeReason | None = None) -> _Lane | None:
        """Return what is sure of a model; None where no region that a kind may use serves it."""
        allowed = estimate.allowed_regions(self.regions, kind.regions, model.name)
        if not allowed:
            return None
        # The planner may choose any allowed region: a chunk must fit the slowest, and its energy is the hungriest's.
        speed = estimate.worst_speed(model, allowed, self.learned)
        margin = policy.duration_margin(model.name, [region.hardware for region in allowed], self.learned)
        return _Lane(model, speed, margin, downgraded)

    def easy_lane(self, model: Model, kind: Kind) -> _Lane | None:
        """Return the smaller model that short items go to by the policy; None where they stay."""
        if self.tiers.easy_tokens is None:
            return None
        smaller = tiers.smaller_of(model, self.models, asked=kind.may_downgrade, treatment=kind.treatment)
        if smaller is None or smaller.name in self.held:
            return None
        return self.lane(smaller, kind, DowngradeReason.POLICY)


@dataclass(frozen=True, slots=True)
class _Lane:
    """What is sure of a model in the regions that a kind may use, and why it runs if another one was asked for."""

    model: Model
    speed: estimate.Speed
    margin: float
    downgraded: DowngradeReason | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """Jobs whose items may share chunks, oldest first."""

    kind: Kind
    jobs: Sequence[Job]


def chunk_jobs(
    db: Database,
    clock: Clock,
    *,
    models: Mapping[str, Model],
    regions: Sequence[Region],
    max_chunk_items: int,
    chunk_fill: float,
    chunk_wait_s: float,
    isolate_tenants: bool,
    factor: float,
    tier_policy: TierPolicy = tiers.OFF,
) -> int:
    """Put the items of all new jobs into chunks; return how many chunks were made.

    ``chunk_wait_s`` (machine seconds) lets small jobs wait for others to share a chunk with, unless their deadline is
    near. ``factor`` is grid seconds for each machine second. Jobs whose model or regions left the settings wait. Items
    that are easy by ``tier_policy`` get chunks of their own, on the smaller model. Raises StoreUnavailable.
    """
    now = clock.now()
    with db.read() as tx:
        found = jobs.unchunked(tx)
        learned = throughputs.get_all(tx)
        machine_at = machine_now(tx)
        held = frozenset(one.name for one in holds.get_all(tx) if one.kind is HeldKind.MODEL)
        owned = budgets.list_(tx) if found else []
    rules = _Rules(models, regions, learned, max_chunk_items, chunk_fill, factor, now, tier_policy, held, owned)
    ages = {job.job_id: (machine_at - came_at).total_seconds() for job, came_at in found}

    def cut(group: _Group) -> int:
        if (
            not estimate.allowed_regions(regions, group.kind.regions, group.kind.model)
            or group.kind.model not in models
        ):
            return 0
        may_wait = all(ages[job.job_id] < chunk_wait_s for job in group.jobs)
        return _chunk_group(db, group, rules, may_wait=may_wait)

    lined = {one.tenant for one in owned}
    return each(_groups([job for job, _ in found], now, lined, isolate_tenants=isolate_tenants), cut)


def _groups(found: Sequence[Job], now: datetime, lined: Set[str], *, isolate_tenants: bool) -> Iterator[_Group]:
    """Group jobs alike, each group in the order its oldest job came and within the size of one transaction."""
    alike: dict[Kind, list[Job]] = {}
    for job in found:
        kind = chunking.kind_of(job, now, isolate_tenants=isolate_tenants, is_lined=job.tenant in lined)
        alike.setdefault(kind, []).append(job)
    for kind, members in alike.items():
        part: list[Job] = []
        size = 0
        for job in members:
            if part and size + job.items_total > MAX_ITEMS_AT_ONCE:
                yield _Group(kind, part)
                part, size = [], 0
            part.append(job)
            size += job.items_total
        yield _Group(kind, part)


def _chunk_group(db: Database, group: _Group, rules: _Rules, *, may_wait: bool) -> int:
    by_id = {job.job_id: job for job in group.jobs}
    with db.read() as tx:
        pieces = [Piece(*row) for row in items.unchunked(tx, sorted(by_id))]
    kind, model = group.kind, rules.models[group.kind.model]
    lane = rules.lane(model, kind)
    if lane is None:
        return 0
    left_s = (min(job.deadline_at for job in group.jobs) - rules.now).total_seconds()
    guard_s = policy.guard_s(0.0, rules.factor)
    longest_s = chunking.budget_s(left_s, guard_s, chunk_fill=rules.chunk_fill, factor=rules.factor)
    is_urgent = longest_s < rules.chunk_fill * WINDOW_S / rules.factor
    parts = _parts(pieces, lane, rules.easy_lane(model, kind), rules.tiers, is_urgent=is_urgent)
    is_full = any(
        sum(piece.est_tokens for piece in part) >= longest_s * one.speed.tokens_per_s
        or len(part) >= rules.max_chunk_items
        for one, part in parts
    )
    if may_wait and not is_full and not is_urgent:
        return 0
    drafts = [
        budget_chunks.noted(_draft(cut, by_id, kind, one, factor=rules.factor), cut, by_id, rules.budgets, rules.now)
        for one, part in parts
        for cut in chunking.cut(part, max_tokens=longest_s * one.speed.tokens_per_s, max_items=rules.max_chunk_items)
    ]
    drafts.sort(key=lambda draft: draft.release_at)  # the baseline serves first who came first
    try:
        with db.write() as tx:
            _insert(tx, group, drafts, model, rules)
    except _OutrunError:
        return 0
    return len(drafts)


def _parts(
    pieces: Sequence[Piece], lane: _Lane, easy: _Lane | None, policy: TierPolicy, *, is_urgent: bool
) -> list[tuple[_Lane, Sequence[Piece]]]:
    """Part the short items that go to the smaller model from the others; all stay where that might be late by it."""
    if easy is None or (is_urgent and easy.speed.tokens_per_s < lane.speed.tokens_per_s):
        return [(lane, pieces)]
    is_short = [
        tiers.is_easy(piece.est_tokens, policy) and tiers.fits(piece.est_tokens, lane.model, easy.model)
        for piece in pieces
    ]
    short = [piece for piece, is_mine in zip(pieces, is_short, strict=True) if is_mine]
    rest = [piece for piece, is_mine in zip(pieces, is_short, strict=True) if not is_mine]
    return [(one, part) for one, part in ((easy, short), (lane, rest)) if part]


def _insert(tx: Tx, group: _Group, drafts: Sequence[NewChunk], model: Model, rules: _Rules) -> None:
    by_id = {job.job_id for job in group.jobs}
    if jobs.take_unchunked(tx, sorted(by_id)) != by_id:
        raise _OutrunError  # another process was faster with some of them
    placed = _with_baseline(tx, drafts, group.kind.home_region, model, rules)
    if chunks.insert_many(tx, placed, created_at=rules.now) != sum(len(draft.item_ids) for draft in drafts):
        raise _OutrunError  # an item was cancelled or expired since it was read


def _draft(
    pieces: Sequence[Piece],
    by_id: Mapping[str, Job],
    kind: Kind,
    lane: _Lane,
    *,
    factor: float,
) -> NewChunk:
    held = [by_id[job_id] for job_id in {piece.job_id for piece in pieces}]
    deadline_at = min(job.deadline_at for job in held)
    release_at = max(job.created_at for job in held)
    tokens = sum(piece.est_tokens for piece in pieces)
    duration_s = estimate.duration_s(tokens, lane.speed.tokens_per_s)
    return NewChunk(
        chunk_id=ids.new("chunk"),
        tenant=kind.tenant,
        model=lane.model.name,
        endpoint=kind.endpoint,
        regions=kind.regions,
        release_at=release_at,
        deadline_at=deadline_at,
        item_ids=[piece.item_id for piece in pieces],
        est_tokens=tokens,
        est_duration_s=duration_s,
        est_energy_uj=estimate.energy_uj(tokens, lane.speed.uj_per_token),
        baseline_region=kind.home_region,
        baseline_window_at=window_of(release_at),
        treatment=kind.treatment,
        downgraded=lane.downgraded,
        may_downgrade=kind.may_downgrade,
        latest_start_at=policy.latest_safe_start(deadline_at, duration_s, factor, lane.margin),
    )


def _with_baseline(tx: Tx, drafts: Sequence[NewChunk], home_region: str, model: Model, rules: _Rules) -> list[NewChunk]:
    """Say for each chunk when the home region's slots would have run it, first come first served."""
    home = next((region for region in rules.regions if region.name == home_region), None)
    if home is None or not drafts:  # it left the settings: nothing is known of its slots
        return list(drafts)
    rate = estimate.speed(model, home.hardware, rules.learned).tokens_per_s
    free_at = chunks.baseline_queue(tx, home.name, home.slots, drafts[0].release_at)
    placed: list[NewChunk] = []
    for draft in drafts:
        grid_s = estimate.duration_s(draft.est_tokens, rate) * rules.factor
        start_at = chunking.queue_up(free_at, draft.release_at, grid_s)
        placed.append(replace(draft, baseline_window_at=window_of(start_at)))
    chunks.set_baseline_queue(tx, home.name, free_at)
    return placed

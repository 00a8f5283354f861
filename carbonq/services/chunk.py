"""Cut new jobs into chunks: full where small jobs can share, short enough for a window, with baseline and latest start.

Runs in the plan tick. One transaction for each group of jobs; doing it twice, or in two processes, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from carbonq import chunking, estimate, ids
from carbonq.chunking import Kind, Piece
from carbonq.clock import Clock
from carbonq.model import Job, Model, NewChunk, Region, Throughput
from carbonq.plan import policy
from carbonq.services.apart import each
from carbonq.store import chunks, items, jobs, throughputs
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now
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
) -> int:
    """Put the items of all new jobs into chunks; return how many chunks were made.

    ``chunk_wait_s`` (machine seconds) lets small jobs wait for others to share a chunk with, unless their deadline is
    near. ``factor`` is grid seconds for each machine second. Jobs whose model or regions left the settings wait.
    Raises StoreUnavailable.
    """
    now = clock.now()
    with db.read() as tx:
        found = jobs.unchunked(tx)
        learned = throughputs.get_all(tx)
        machine_at = machine_now(tx)
    rules = _Rules(models, regions, learned, max_chunk_items, chunk_fill, factor, now)
    ages = {job.job_id: (machine_at - came_at).total_seconds() for job, came_at in found}

    def cut(group: _Group) -> int:
        if (
            not estimate.allowed_regions(regions, group.kind.regions, group.kind.model)
            or group.kind.model not in models
        ):
            return 0
        may_wait = all(ages[job.job_id] < chunk_wait_s for job in group.jobs)
        return _chunk_group(db, group, rules, may_wait=may_wait)

    return each(_groups([job for job, _ in found], now, isolate_tenants=isolate_tenants), cut)


def _groups(found: Sequence[Job], now: datetime, *, isolate_tenants: bool) -> Iterator[_Group]:
    """Group jobs alike, each group in the order its oldest job came and within the size of one transaction."""
    alike: dict[Kind, list[Job]] = {}
    for job in found:
        alike.setdefault(chunking.kind_of(job, now, isolate_tenants=isolate_tenants), []).append(job)
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
    model = rules.models[group.kind.model]
    allowed = estimate.allowed_regions(rules.regions, group.kind.regions, model.name)
    # The planner may choose any allowed region, so that a chunk must fit the slowest; its energy is the hungriest's.
    lane = estimate.worst_speed(model, allowed, rules.learned)
    margin = policy.duration_margin(model.name, [region.hardware for region in allowed], rules.learned)
    left_s = (min(job.deadline_at for job in group.jobs) - rules.now).total_seconds()
    guard_s = policy.guard_s(0.0, rules.factor)
    longest_s = chunking.budget_s(left_s, guard_s, chunk_fill=rules.chunk_fill, factor=rules.factor)
    max_tokens = longest_s * lane.tokens_per_s
    is_full = sum(piece.est_tokens for piece in pieces) >= max_tokens or len(pieces) >= rules.max_chunk_items
    is_urgent = longest_s < rules.chunk_fill * WINDOW_S / rules.factor
    if may_wait and not is_full and not is_urgent:
        return 0
    cuts = chunking.cut(pieces, max_tokens=max_tokens, max_items=rules.max_chunk_items)
    drafts = [_draft(cut, by_id, group.kind, lane, factor=rules.factor, margin=margin) for cut in cuts]
    drafts.sort(key=lambda draft: draft.release_at)  # the baseline serves first who came first
    try:
        with db.write() as tx:
            _insert(tx, group, drafts, model, rules)
    except _OutrunError:
        return 0
    return len(drafts)


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
    lane: estimate.Speed,
    *,
    factor: float,
    margin: float,
) -> NewChunk:
    held = [by_id[job_id] for job_id in {piece.job_id for piece in pieces}]
    deadline_at = min(job.deadline_at for job in held)
    release_at = max(job.created_at for job in held)
    tokens = sum(piece.est_tokens for piece in pieces)
    duration_s = estimate.duration_s(tokens, lane.tokens_per_s)
    return NewChunk(
        chunk_id=ids.new("chunk"),
        tenant=kind.tenant,
        model=kind.model,
        endpoint=kind.endpoint,
        regions=kind.regions,
        release_at=release_at,
        deadline_at=deadline_at,
        item_ids=[piece.item_id for piece in pieces],
        est_tokens=tokens,
        est_duration_s=duration_s,
        est_energy_uj=estimate.energy_uj(tokens, lane.uj_per_token),
        baseline_region=kind.home_region,
        baseline_window_at=window_of(release_at),
        treatment=kind.treatment,
        may_downgrade=kind.may_downgrade,
        latest_start_at=policy.latest_safe_start(deadline_at, duration_s, factor, margin),
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

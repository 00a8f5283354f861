"""Group items into chunks. Pure: no clock, no database; durations are machine seconds on one slot.

Items of similar length share a chunk, so that engine batches pad little; a chunk is bounded by tokens (what one slot
does in its part of a window) and by items. Every item lands in exactly one chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from math import ceil
from typing import NamedTuple

from carbonq.budget import Line
from carbonq.model import Endpoint, Item, Job, Treatment
from carbonq.units import WINDOW_S, window_index


class Piece(NamedTuple):
    """An item to be grouped: its id, its job and its estimated tokens."""

    item_id: int
    job_id: str
    est_tokens: int


class Kind(NamedTuple):
    """What items must have in common to share a chunk."""

    model: str
    endpoint: Endpoint
    regions: tuple[str, ...] | None
    home_region: str
    deadline_class: int
    tenant: str | None
    cap: tuple[str, Decimal] | None  # a job with a carbon cap keeps its chunks to itself
    treatment: Treatment = Treatment.PLANNED
    may_downgrade: bool | None = None
    line: Line | None = None  # where budgets tell work apart


def kind_of(job: Job, now: datetime, *, isolate_tenants: bool, is_lined: bool = False) -> Kind:
    """Return what items of a job may be grouped by; ``is_lined``: only with work of its product line and workload."""
    return Kind(
        model=job.model,
        endpoint=job.endpoint,
        regions=None if job.regions is None else tuple(sorted(job.regions)),
        home_region=job.home_region,
        deadline_class=deadline_class(job.deadline_at, now),
        tenant=job.tenant if isolate_tenants else None,
        cap=None if job.max_carbon_g is None else (job.job_id, job.max_carbon_g),
        treatment=job.treatment,
        may_downgrade=job.may_downgrade,
        line=Line(job.tenant, job.product_line, job.workload) if is_lined else None,
    )


def deadline_class(deadline_at: datetime, now: datetime) -> int:
    """Return a number that deadlines share when their items may share a chunk.

    A chunk takes the earliest deadline of its items, so classes are narrow when the deadline is near (one window) and
    at most an hour wide when it is more than six hours away: sharing costs a job little of its freedom.
    """
    left_s = (deadline_at - now).total_seconds()
    width = 1 if left_s < 3600 else 3 if left_s < 6 * 3600 else 12
    # The width is part of the number, or windows of two classes could be mistaken for each other.
    return window_index(deadline_at) // width * 100 + width


def budget_s(left_s: float, guard_s: float, *, chunk_fill: float, factor: float) -> float:
    """Return the longest duration a chunk may have: ``chunk_fill`` of a window, or of the usable time if that is less.

    Usable are the ``left_s`` grid seconds before the deadline less the ``guard_s`` that a start takes, but never less
    than a tenth of a window: crumbs would make a job that is late anyway later. ``factor`` is grid seconds for each
    machine second.
    """
    return chunk_fill * min(WINDOW_S, max(WINDOW_S / 10, left_s - guard_s)) / factor


def cut(pieces: Sequence[Piece], *, max_tokens: float, max_items: int) -> list[list[Piece]]:
    """Cut pieces into groups of similar length, none over the limits but for a single piece that is alone over them.

    Groups are balanced: ten full chunks and a crumb would be eleven about equal ones. Same input, same cut.
    """
    if max_items < 1:
        raise ValueError(f"max_items {max_items} is below 1")
    ordered = sorted(pieces, key=lambda piece: (piece.est_tokens, piece.item_id))
    groups: list[list[Piece]] = []
    left_tokens = sum(piece.est_tokens for piece in ordered)
    start = 0
    while start < len(ordered):
        left_items = len(ordered) - start
        by_tokens = ceil(left_tokens / max_tokens) if max_tokens >= 1 else left_items
        parts = max(1, by_tokens, ceil(left_items / max_items))
        share = left_tokens / parts
        end, tokens = start, 0
        while end < len(ordered) and end - start < max_items:
            following = tokens + ordered[end].est_tokens
            is_full = following > max_tokens or (parts > 1 and tokens >= share)
            if end > start and is_full:
                break
            tokens, end = following, end + 1
        groups.append(ordered[start:end])
        left_tokens -= tokens
        start = end
    return groups


def queue_up(free_at: list[datetime], release_at: datetime, duration_s: float) -> datetime:
    """Put a chunk into a first-come-first-served queue and return when it starts; changes ``free_at`` in place.

    ``free_at`` holds the time each slot is free; ``duration_s`` is *grid* seconds.
    """
    slot = min(range(len(free_at)), key=free_at.__getitem__)
    start_at = max(release_at, free_at[slot])
    free_at[slot] = start_at + timedelta(seconds=duration_s)
    return start_at


def shortest(found: Sequence[Item], tokens: int) -> list[Item]:
    """Return the shortest of some items, as many as have so many tokens together at most. O(n log n)."""
    ordered = sorted(found, key=lambda one: (one.est_tokens, one.item_id))
    sums = itertools.accumulate(item.est_tokens for item in ordered)
    return [item for item, total in zip(ordered, sums, strict=True) if total <= tokens]

"""What the API shows of chunks, placements and plans: reading only, and only what a tenant's own jobs touch.

Chunks may be shared between tenants, so counts are of the asked job's items, never of the whole chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, case, exists, func, or_, select

from carbonq.errors import InvalidRequest
from carbonq.model import ChunkState, ItemState
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.placements import BESIDE
from carbonq.store.tables import chunks, items, jobs, placements, plans

#: Open chunks shown of one plan at most, nearest window first.
PLAN_LIMIT = 1_000


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """A chunk and the placement in force. ``dispatched_at`` is machine time, the other times grid time.

    ``held_by`` is the budget that holds it back.
    """

    chunk_id: str
    model: str
    state: ChunkState
    region: str | None
    window_at: datetime | None
    latest_start_at: datetime | None
    deadline_at: datetime
    dispatched_at: datetime | None
    est_duration_s: float
    attempt: int
    error: str | None
    g_per_kwh: Decimal | None
    issued_at: datetime | None
    reason: str | None
    signal: str | None
    baseline_region: str
    baseline_window_at: datetime
    held_by: str | None = None


@dataclass(frozen=True, slots=True)
class JobChunk:
    """A chunk of one job, with how many of that job's items it holds and how many of them have ended."""

    chunk: PlacedChunk
    items: int
    items_ended: int


@dataclass(frozen=True, slots=True)
class ShownItem:
    """An item of a job and how it ended; ``finished_at`` is grid time."""

    idx: int
    custom_id: str
    state: ItemState
    chunk_id: str | None
    est_tokens: int
    error_code: str | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class PlacedCell:
    """How many chunks are placed in a cell."""

    region: str
    window_at: datetime
    chunks: int


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A plan as stored. ``created_at`` is grid time; the objective and its lower bound are grams."""

    plan_id: str
    created_at: datetime
    is_overlay: bool
    objective_g: float | None
    lower_bound_g: float | None
    note: str | None
    signal: str | None


_CHUNK_COLUMNS = (
    chunks.c.chunk_id,
    chunks.c.model,
    chunks.c.state,
    chunks.c.region,
    chunks.c.window_at,
    chunks.c.latest_start_at,
    chunks.c.deadline_at,
    chunks.c.dispatched_at,
    chunks.c.est_duration_s,
    chunks.c.attempt,
    chunks.c.error,
    placements.c.g_per_kwh,
    placements.c.issued_at,
    placements.c.reason,
    placements.c.signal,
    chunks.c.baseline_region,
    chunks.c.baseline_window_at,
    chunks.c.held_by,
)

_WITH_PLACEMENT = chunks.outerjoin(placements, placements.c.placement_id == chunks.c.placement_id)


def job_chunks(tx: Tx, job_id: str) -> list[JobChunk]:
    """Return the chunks of a job, by window; those without one last."""
    is_ended = case((items.c.state != ItemState.WAITING, 1), else_=0)
    held = (
        select(items.c.chunk_id, func.count().label("held"), func.sum(is_ended).label("ended"))
        .where(items.c.job_id == job_id, items.c.chunk_id.is_not(None))
        .group_by(items.c.chunk_id)
        .subquery()
    )
    rows = tx.execute(
        select(*_CHUNK_COLUMNS, held.c.held, held.c.ended)
        .select_from(_WITH_PLACEMENT.join(held, held.c.chunk_id == chunks.c.chunk_id))
        .order_by(chunks.c.window_at.is_(None), chunks.c.window_at, chunks.c.region, chunks.c.chunk_id)
    )
    return [JobChunk(_chunk(row[:-2]), int(row.held), int(row.ended)) for row in rows]


def items_of(
    tx: Tx, job_id: str, *, states: Sequence[ItemState] = (), after: str | None = None, limit: int
) -> list[ShownItem]:
    """Return a job's items in the order of its lines, behind the one named ``after``; of some states, or all.

    Raises InvalidRequest for an unknown ``after``.
    """
    statement = select(*(items.c[name] for name in ShownItem.__dataclass_fields__)).where(items.c.job_id == job_id)
    if states:
        statement = statement.where(items.c.state.in_(list(states)))
    if after is not None:
        place = tx.execute(
            select(items.c.idx).where(items.c.job_id == job_id, items.c.custom_id == after)
        ).scalar_one_or_none()
        if place is None:
            raise InvalidRequest(
                f"after: the job has no item {after!r}; pass the last id of the page before", param="after"
            )
        statement = statement.where(items.c.idx > place)
    found: list[ShownItem] = []
    for row in tx.execute(statement.order_by(items.c.idx).limit(limit)).mappings():
        values: dict[str, Any] = {**row, "state": ItemState(row["state"])}
        found.append(ShownItem(**values))
    return found


def is_chunked(tx: Tx, job_id: str) -> bool:
    """Say whether a job's items are in chunks by now."""
    return bool(tx.execute(select(jobs.c.is_chunked).where(jobs.c.job_id == job_id)).scalar_one_or_none())


def chunk_ids(tx: Tx, job_id: str) -> list[str]:
    """Return the ids of a job's chunks. Takes a pass over the job's items."""
    statement = select(items.c.chunk_id).where(items.c.job_id == job_id, items.c.chunk_id.is_not(None)).distinct()
    return sorted(tx.execute(statement).scalars())


def placed(tx: Tx, ids: Sequence[str]) -> list[PlacedChunk]:
    """Return chunks by window; those without one last."""
    rows = tx.execute(
        select(*_CHUNK_COLUMNS)
        .select_from(_WITH_PLACEMENT)
        .where(is_any_of(tx, chunks.c.chunk_id, ids))
        .order_by(chunks.c.window_at.is_(None), chunks.c.window_at, chunks.c.region, chunks.c.chunk_id)
    )
    return [_chunk(row) for row in rows]


def open_chunks(tx: Tx, tenant: str, *, limit: int = PLAN_LIMIT) -> list[PlacedChunk]:
    """Return the chunks that are not done and hold an item of the tenant's, by window; those without one last."""
    rows = tx.execute(
        select(*_CHUNK_COLUMNS)
        .select_from(_WITH_PLACEMENT)
        .where(*_open_of(tenant))
        .order_by(chunks.c.window_at.is_(None), chunks.c.window_at, chunks.c.region, chunks.c.chunk_id)
        .limit(limit)
    )
    return [_chunk(row) for row in rows]


def open_by_cell(tx: Tx, tenant: str) -> list[PlacedCell]:
    """Count the placed chunks that are not done and hold an item of the tenant's, by cell; all there are."""
    rows = tx.execute(
        select(chunks.c.region, chunks.c.window_at, func.count())
        .where(*_open_of(tenant), chunks.c.region.is_not(None), chunks.c.window_at.is_not(None))
        .group_by(chunks.c.region, chunks.c.window_at)
        .order_by(chunks.c.window_at, chunks.c.region)
    )
    return [PlacedCell(region, at, int(count)) for region, at, count in rows]


def run_by_cell(tx: Tx, tenant: str, start_at: datetime) -> list[PlacedCell]:
    """Count the chunks that are done and hold an item of the tenant's, by cell, of windows from ``start_at`` on."""
    rows = tx.execute(
        select(chunks.c.region, chunks.c.window_at, func.count())
        .where(
            chunks.c.state == ChunkState.DONE,
            chunks.c.finished_at >= start_at,  # indexed, and never before its window
            chunks.c.window_at >= start_at,
            chunks.c.region.is_not(None),
            *_holds_items_of(tenant),
        )
        .group_by(chunks.c.region, chunks.c.window_at)
    )
    return [PlacedCell(region, at, int(count)) for region, at, count in rows]


def _open_of(tenant: str) -> tuple[ColumnElement[bool], ...]:
    return (chunks.c.state != ChunkState.DONE, *_holds_items_of(tenant))


def _holds_items_of(tenant: str) -> tuple[ColumnElement[bool], ...]:
    is_theirs = exists().where(
        items.c.chunk_id == chunks.c.chunk_id, jobs.c.job_id == items.c.job_id, jobs.c.tenant == tenant
    )
    return (or_(chunks.c.tenant.is_(None), chunks.c.tenant == tenant), is_theirs)


def latest_plan(tx: Tx) -> PlanRow | None:
    """Return the newest plan of all that waited, not one that only put new chunks beside; None before the first."""
    columns = (plans.c[name] for name in PlanRow.__dataclass_fields__)
    is_whole = plans.c.trigger.is_distinct_from(BESIDE)
    row = tx.execute(
        select(*columns).where(is_whole).order_by(plans.c.recorded_at.desc(), plans.c.plan_id.desc()).limit(1)
    ).first()
    return None if row is None else PlanRow(*row)


def _chunk(row: tuple[object, ...]) -> PlacedChunk:
    values = dict(zip(PlacedChunk.__dataclass_fields__, row, strict=True))
    values["state"] = ChunkState(str(values["state"]))
    return PlacedChunk(**values)  # pyright: ignore[reportArgumentType] - the columns have the fields' types

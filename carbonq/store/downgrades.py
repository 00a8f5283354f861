"""Chunks that change the model they run on. Only such as no worker has, and no ticket is out for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal

from sqlalchemy import func, select

from carbonq.model import AttemptOutcome, Chunk, ChunkState, DowngradeReason, ItemState, Signal
from carbonq.store import placements as placement_rows
from carbonq.store.bulk import update_columns
from carbonq.store.chunks import COLUMNS, from_row
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.tables import attempts, chunks, items, jobs, placements

#: Which chunks may still change, in SQL for statements that bind by column.
_MAY_CHANGE = "state IN ('waiting', 'placed') AND dispatched_at IS NULL"


@dataclass(frozen=True, slots=True)
class Change:
    """What a chunk becomes on another model; ``est_duration_s`` is machine seconds, ``latest_start_at`` grid time."""

    chunk_id: str
    model: str
    est_duration_s: float
    est_energy_uj: int
    latest_start_at: datetime
    downgraded: DowngradeReason | None


def lock(tx: Tx, chunk_ids: Sequence[str]) -> list[Chunk]:
    """Lock those of some chunks that wait or are placed with no ticket out until the transaction ends; return them."""
    # Looked at once they are locked: on PostgreSQL what another transaction has just changed is seen then.
    there = placement_rows.still_plannable(tx, chunk_ids)
    if not there:
        return []
    statement = select(*COLUMNS).where(is_any_of(tx, chunks.c.chunk_id, sorted(there)))
    return [from_row(row) for row in tx.execute(statement.order_by(chunks.c.chunk_id)).mappings()]


def longest_items(tx: Tx, chunk_ids: Sequence[str]) -> dict[str, int]:
    """Return the estimated tokens of each chunk's longest item that waits."""
    statement = (
        select(items.c.chunk_id, func.max(items.c.est_tokens))
        .where(is_any_of(tx, items.c.chunk_id, chunk_ids), items.c.state == ItemState.WAITING)
        .group_by(items.c.chunk_id)
    )
    return {chunk_id: int(tokens) for chunk_id, tokens in tx.execute(statement)}


def change(tx: Tx, changes: Sequence[Change]) -> None:
    """Give locked chunks another model in one batch; they wait for a place again, and no try has failed there."""
    if not changes:
        return
    none = [None] * len(changes)
    values = {one.name: [getattr(change, one.name) for change in changes] for one in fields(Change)}
    values |= {"region": none, "window_at": none, "placement_id": none, "error": none}
    # What was expected was of the other model; budgets look at it anew.
    values |= {"impact_pg_per_token": none, "inventory_pg_per_token": none}
    update_columns(tx, chunks, "chunk_id", values, where=_MAY_CHANGE, state=ChunkState.WAITING.value)


def about_to_start(tx: Tx, models: Sequence[str], before: datetime) -> list[tuple[str, Decimal]]:
    """Return (chunk, marginal rate of its cell in gCO2e/kWh) of chunks placed before a grid time, of some models.

    Only of those with no ticket out that run what was asked for and do not refuse another, and whose rate is known.
    """
    statement = (
        select(chunks.c.chunk_id, placements.c.g_per_kwh)
        .join(placements, placements.c.placement_id == chunks.c.placement_id)
        .where(
            chunks.c.state == ChunkState.PLACED.value,
            chunks.c.window_at < before,
            chunks.c.dispatched_at.is_(None),
            chunks.c.downgraded.is_(None),
            chunks.c.may_downgrade.is_(None) | chunks.c.may_downgrade.is_(True),
            is_any_of(tx, chunks.c.model, models),
            placements.c.g_per_kwh.is_not(None),
            func.coalesce(placements.c.signal, Signal.MOER.value) == Signal.MOER.value,
        )
    )
    return [(row.chunk_id, row.g_per_kwh) for row in tx.execute(statement)]


def failed(tx: Tx) -> list[str]:
    """Return the downgraded chunks that wait for another try because the last one failed, or two or more were lost.

    One worker that falls silent says nothing against the model.
    """
    last = (attempts.c.chunk_id == chunks.c.chunk_id) & (attempts.c.token == chunks.c.token - 1)
    statement = (
        select(chunks.c.chunk_id)
        .join(attempts, last)
        .where(
            chunks.c.state.in_((ChunkState.WAITING.value, ChunkState.PLACED.value)),
            chunks.c.dispatched_at.is_(None),
            chunks.c.downgraded.is_not(None),
            chunks.c.error.is_not(None),
            (attempts.c.outcome == AttemptOutcome.FAILED.value) | (chunks.c.attempt > 1),
        )
    )
    return list(tx.execute(statement).scalars())


def requested_models(tx: Tx, chunk_ids: Sequence[str]) -> dict[str, str]:
    """Return the model that the items of each chunk asked for; all of a chunk asked for the same."""
    statement = (
        select(items.c.chunk_id, func.min(jobs.c.model))
        .join(jobs, jobs.c.job_id == items.c.job_id)
        .where(is_any_of(tx, items.c.chunk_id, chunk_ids))
        .group_by(items.c.chunk_id)
    )
    return {chunk_id: model for chunk_id, model in tx.execute(statement)}


def items_of_job(tx: Tx, job_id: str) -> dict[str, int]:
    """Count a job's items that run, or ran, on a smaller model than it asked for, by reason (``DowngradeReason``)."""
    statement = (
        select(chunks.c.downgraded, func.count())
        .select_from(items)
        .join(chunks, chunks.c.chunk_id == items.c.chunk_id)
        .where(items.c.job_id == job_id, chunks.c.downgraded.is_not(None))
        .group_by(chunks.c.downgraded)
    )
    return {reason: int(count) for reason, count in tx.execute(statement)}

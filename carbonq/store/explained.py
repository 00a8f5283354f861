"""What is read of a job's chunks to explain their placements: reading only, counts of the asked job's items alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from sqlalchemy import exists, func, select

from carbonq.model import ChunkState
from carbonq.store.database import Tx
from carbonq.store.tables import attempts, budgets, chunks, items, placements


class HeldBy(NamedTuple):
    """A budget that holds a chunk back: its level and name, and when its next period begins (None: it has none)."""

    level: str
    name: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """A chunk and the placement in force; ``items`` are the asked job's. Times are grid times, durations machine s.

    ``has_run`` says that a worker took it at least once: what is cancelled or expires before that is done too;
    ``error`` why its last try gave it back, ``downgraded`` why a smaller model runs it than was asked for, ``held_by``
    which budget holds it back.
    """

    chunk_id: str
    model: str
    regions: tuple[str, ...] | None
    home: str
    release_at: datetime
    deadline_at: datetime
    est_tokens: int
    est_duration_s: float
    est_energy_uj: int
    state: ChunkState
    has_ticket: bool
    region: str | None
    window_at: datetime | None
    latest_start_at: datetime | None
    g_per_kwh: Decimal | None
    issued_at: datetime | None
    reason: str | None
    planned_at: datetime | None
    signal: str | None
    items: int
    has_run: bool
    error: str | None
    downgraded: str | None = None
    held_by: HeldBy | None = None


def of_job(tx: Tx, job_id: str) -> list[ChunkFacts]:
    """Return the chunks that hold items of a job, by window; those without one last."""
    held = (
        select(items.c.chunk_id, func.count().label("held"))
        .where(items.c.job_id == job_id, items.c.chunk_id.is_not(None))
        .group_by(items.c.chunk_id)
        .subquery()
    )
    statement = (
        select(
            chunks.c.chunk_id,
            chunks.c.model,
            chunks.c.regions,
            chunks.c.baseline_region,
            chunks.c.release_at,
            chunks.c.deadline_at,
            chunks.c.est_tokens,
            chunks.c.est_duration_s,
            chunks.c.est_energy_uj,
            chunks.c.state,
            chunks.c.dispatched_at.is_not(None),
            chunks.c.region,
            chunks.c.window_at,
            chunks.c.latest_start_at,
            placements.c.g_per_kwh,
            placements.c.issued_at,
            placements.c.reason,
            placements.c.created_at,
            placements.c.signal,
            held.c.held,
            exists().where(attempts.c.chunk_id == chunks.c.chunk_id),
            chunks.c.error,
            chunks.c.downgraded,
            budgets.c.level,
            budgets.c.name,
            chunks.c.held_until,
        )
        .select_from(
            chunks.join(held, held.c.chunk_id == chunks.c.chunk_id)
            .outerjoin(placements, placements.c.placement_id == chunks.c.placement_id)
            .outerjoin(budgets, budgets.c.budget_id == chunks.c.held_by)
        )
        .order_by(chunks.c.window_at.is_(None), chunks.c.window_at, chunks.c.region, chunks.c.chunk_id)
    )
    found: list[ChunkFacts] = []
    for row in tx.execute(statement):
        values = list(row)
        level, *by = values[-3:]
        values[-3:] = [None if level is None else HeldBy(level, *by)]
        values[2] = None if values[2] is None else tuple(values[2])
        values[9] = ChunkState(values[9])
        values[10], values[20] = bool(values[10]), bool(values[20])
        found.append(ChunkFacts(*values))
    return found

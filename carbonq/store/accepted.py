"""What accepted work holds of each cell, summed up by the database: reading only, and no word of whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, case, func, select

from carbonq.model import ChunkState
from carbonq.store.database import Tx
from carbonq.store.tables import baseline_slots, chunks


@dataclass(frozen=True, slots=True)
class CellSum:
    """Chunks in one cell: how many are above a length, and the summed machine seconds of the others."""

    region: str
    window_at: datetime
    above: int
    other_s: float


@dataclass(frozen=True, slots=True)
class Placed:
    """One chunk's placement and its estimated machine seconds."""

    region: str
    window_at: datetime
    est_duration_s: float


def by_cell(
    tx: Tx, *, start: datetime, end: datetime, above_s: float, longest_s: float, with_ended: bool = False
) -> list[CellSum]:
    """Return what is placed in each cell whose window starts in ``[start, end)``, of chunks up to ``longest_s``.

    Lengths are machine seconds. Chunks that run or have a ticket out are left out, for they hold slots now, whatever
    their window was; ``with_ended`` counts every chunk that has or had its window there.
    """
    is_above = chunks.c.est_duration_s > above_s
    statement = (
        select(
            chunks.c.region,
            chunks.c.window_at,
            func.sum(case((is_above, 1), else_=0)),
            func.sum(case((is_above, 0.0), else_=chunks.c.est_duration_s)),
        )
        .where(*_in(start, end, with_ended=with_ended), chunks.c.est_duration_s <= longest_s)
        .group_by(chunks.c.region, chunks.c.window_at)
    )
    return [CellSum(region, at, int(count), float(seconds)) for region, at, count, seconds in tx.execute(statement)]


def longer(tx: Tx, *, start: datetime, end: datetime, longest_s: float, with_ended: bool = False) -> list[Placed]:
    """Return the placed chunks of more than ``longest_s`` machine seconds, one by one."""
    statement = select(chunks.c.region, chunks.c.window_at, chunks.c.est_duration_s).where(
        *_in(start, end, with_ended=with_ended), chunks.c.est_duration_s > longest_s
    )
    return [Placed(*row) for row in tx.execute(statement)]


def due(tx: Tx, now: datetime) -> list[Placed]:
    """Return the chunks whose window has come and that wait for the next free slot, with no ticket out."""
    statement = select(chunks.c.region, chunks.c.window_at, chunks.c.est_duration_s).where(
        chunks.c.state == ChunkState.PLACED.value, chunks.c.dispatched_at.is_(None), chunks.c.window_at <= now
    )
    return [Placed(*row) for row in tx.execute(statement)]


def waiting(tx: Tx) -> list[tuple[float, datetime]]:
    """Return (machine seconds, deadline) of the chunks that have no place yet, most urgent first."""
    statement = (
        select(chunks.c.est_duration_s, chunks.c.deadline_at)
        .where(chunks.c.state == ChunkState.WAITING.value)
        .order_by(chunks.c.deadline_at)
    )
    return [(seconds, at) for seconds, at in tx.execute(statement)]


def baseline_free_at(tx: Tx, region: str, slots: int, start_at: datetime) -> list[datetime]:
    """Return when each slot of a home region's virtual queue is free; locks nothing (``chunks.baseline_queue`` does).

    Slots it has not used yet are free from ``start_at`` on.
    """
    statement = select(baseline_slots.c.slot, baseline_slots.c.free_at).where(baseline_slots.c.region == region)
    known = {slot: at for slot, at in tx.execute(statement)}
    return [known.get(slot, start_at) for slot in range(slots)]


def _in(start: datetime, end: datetime, *, with_ended: bool) -> tuple[ColumnElement[bool], ...]:
    conditions: tuple[ColumnElement[bool], ...] = (
        chunks.c.region.is_not(None),
        chunks.c.window_at >= start,
        chunks.c.window_at < end,
    )
    if with_ended:
        return conditions
    return (*conditions, chunks.c.state == ChunkState.PLACED.value, chunks.c.dispatched_at.is_(None))

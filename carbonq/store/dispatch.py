"""Which chunks are due, and sending them off. Grid times, but for ``dispatched_at`` and ``not_before``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Text, bindparam, case, func, insert, or_, select, update

from carbonq.model import ChunkState, Treatment
from carbonq.store import holds
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of, machine_now, skip_locked
from carbonq.store.tables import chunks, placements

_OPEN = (ChunkState.WAITING.value, ChunkState.PLACED.value)

#: ``plan_id`` of placements that the dispatcher made because a latest safe start had come.
DISPATCHER = "dispatcher"


@dataclass(frozen=True, slots=True)
class Due:
    """A chunk whose time has come; ``is_urgent`` once its latest safe start has come. Durations are machine seconds."""

    chunk_id: str
    model: str
    regions: tuple[str, ...] | None
    region: str | None
    window_at: datetime | None
    is_urgent: bool
    est_duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A chunk that gets a ticket; ``placement_id`` is new where the dispatcher chose the region itself."""

    chunk_id: str
    region: str
    window_at: datetime
    placement_id: str | None


def occupied(tx: Tx) -> Counter[str]:
    """Count the slots of each region that are taken: by running chunks, and by those that have a ticket out."""
    statement = (
        select(chunks.c.region, func.count())
        .where(chunks.c.state != ChunkState.DONE.value, chunks.c.region.is_not(None))
        .where((chunks.c.state == ChunkState.RUNNING.value) | chunks.c.dispatched_at.is_not(None))
        .group_by(chunks.c.region)
    )
    return Counter({region: int(count) for region, count in tx.execute(statement)})


def urgent(tx: Tx, now: datetime, *, limit: int) -> list[Due]:
    """Return and lock undispatched chunks whose latest safe start has come, the most pressing first."""
    return _due(tx, now, (_latest_start() <= now) & chunks.c.dispatched_at.is_(None), limit)


def pressing(tx: Tx, now: datetime, chunk_ids: Sequence[str]) -> list[Due]:
    """Return those of some locked chunks with a ticket out whose latest safe start has come."""
    which = is_any_of(tx, chunks.c.chunk_id, chunk_ids) & (_latest_start() <= now)
    return _due(tx, now, which, len(chunk_ids))


def due(tx: Tx, region: str, now: datetime, *, limit: int) -> list[Due]:
    """Return and lock chunks placed in ``region`` whose window has come, the most pressing first.

    Before them come those that run at once (observed or held out), in the order in which they were released.
    """
    placed = (chunks.c.state == ChunkState.PLACED.value) & (chunks.c.region == region) & (chunks.c.window_at <= now)
    is_at_once = chunks.c.treatment.in_((Treatment.OBSERVED.value, Treatment.HELD_OUT.value))
    # A chunk without a treatment is from before there was one.
    order = (case((is_at_once, 0), else_=1), case((is_at_once, chunks.c.release_at)))
    return _due(tx, now, placed & chunks.c.dispatched_at.is_(None), limit, order)


def _latest_start() -> ColumnElement[datetime]:
    return func.coalesce(chunks.c.latest_start_at, chunks.c.deadline_at)


def _due(
    tx: Tx, now: datetime, which: ColumnElement[bool], limit: int, first: Sequence[ColumnElement[Any]] = ()
) -> list[Due]:
    columns = (
        chunks.c.chunk_id,
        chunks.c.model,
        chunks.c.regions,
        chunks.c.region,
        chunks.c.window_at,
        chunks.c.latest_start_at,
        chunks.c.deadline_at,
        chunks.c.est_duration_s,
    )
    statement = (
        select(*columns)
        .where(chunks.c.state.in_(_OPEN), which, holds.may_run())
        .where(or_(chunks.c.not_before.is_(None), chunks.c.not_before <= machine_now(tx)))
        .order_by(*first, _latest_start(), chunks.c.window_at, chunks.c.chunk_id)
        .limit(limit)
        .with_for_update(skip_locked=skip_locked(tx))
    )
    return [
        Due(
            chunk_id=row.chunk_id,
            model=row.model,
            regions=None if row.regions is None else tuple(row.regions),
            region=row.region,
            window_at=row.window_at,
            is_urgent=(row.latest_start_at or row.deadline_at) <= now,
            est_duration_s=row.est_duration_s,
        )
        for row in tx.execute(statement)
    ]


def unclaimed(tx: Tx, *, redispatch_after_s: float) -> list[tuple[str, str]]:
    """Return and lock (region, chunk) of tickets that nobody took within ``redispatch_after_s`` machine seconds."""
    before = machine_now(tx) - timedelta(seconds=redispatch_after_s)
    statement = (
        select(chunks.c.region, chunks.c.chunk_id)
        .where(chunks.c.state.in_(_OPEN), chunks.c.dispatched_at <= before)
        .order_by(chunks.c.dispatched_at, chunks.c.chunk_id)
        .with_for_update(skip_locked=skip_locked(tx))
    )
    return [(row.region, row.chunk_id) for row in tx.execute(statement)]


def sizes(tx: Tx, chunk_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return model and number of items of some chunks."""
    statement = select(chunks.c.chunk_id, chunks.c.model, chunks.c.items_count)
    found = tx.execute(statement.where(is_any_of(tx, chunks.c.chunk_id, chunk_ids)))
    return {row.chunk_id: (row.model, row.items_count) for row in found}


def is_anything_due(tx: Tx, now: datetime, *, redispatch_after_s: float) -> bool:
    """Say without locking whether there may be something to send, so that an idle system writes nothing."""
    machine = machine_now(tx)
    resend = chunks.c.dispatched_at <= machine - timedelta(seconds=redispatch_after_s)
    ready = or_(chunks.c.not_before.is_(None), chunks.c.not_before <= machine) & or_(
        _latest_start() <= now, chunks.c.window_at <= now
    )
    statement = (
        select(chunks.c.chunk_id)
        .where(chunks.c.state.in_(_OPEN), or_(resend, chunks.c.dispatched_at.is_(None) & ready), holds.may_run())
        .limit(1)
    )
    return tx.execute(statement).first() is not None


# Spelled out, because a list cannot be bound in a batch.
_IS_OPEN = or_(chunks.c.state == ChunkState.WAITING.value, chunks.c.state == ChunkState.PLACED.value)

_SEND = (
    update(chunks)
    .where(chunks.c.chunk_id == bindparam("chunk"), _IS_OPEN, chunks.c.dispatched_at.is_(None))
    .values(
        state=ChunkState.PLACED.value,
        region=bindparam("to_region"),
        window_at=bindparam("to_window"),
        placement_id=func.coalesce(bindparam("placement", type_=Text), chunks.c.placement_id),
        dispatched_at=bindparam("at"),
        ticket_at=bindparam("at"),
        tickets_sent=1,
    )
)


def mark_sent(tx: Tx, sent: Sequence[Sent], *, now: datetime, reason: str) -> None:
    """Note that tickets go out for locked chunks; a region the dispatcher chose itself becomes a placement."""
    if not sent:
        return
    at = machine_now(tx)
    chosen = [
        {
            "placement_id": one.placement_id,
            "chunk_id": one.chunk_id,
            "plan_id": DISPATCHER,
            "region": one.region,
            "window_at": one.window_at,
            "g_per_kwh": None,
            "issued_at": None,
            "reason": reason,
            "created_at": now,
        }
        for one in sent
        if one.placement_id is not None
    ]
    if chosen:
        tx.execute(insert(placements), chosen)
    changes = [
        {
            "chunk": one.chunk_id,
            "to_region": one.region,
            "to_window": one.window_at,
            "placement": one.placement_id,
            "at": at,
        }
        for one in sent
    ]
    tx.execute(_SEND, changes)


def mark_resent(tx: Tx, chunk_ids: Sequence[str]) -> None:
    """Note that the tickets of locked chunks go out once more."""
    tx.execute(
        update(chunks)
        .where(is_any_of(tx, chunks.c.chunk_id, chunk_ids), chunks.c.state.in_(_OPEN))
        .values(dispatched_at=machine_now(tx), tickets_sent=chunks.c.tickets_sent + 1)
    )


def withdraw(tx: Tx, chunk_ids: Sequence[str]) -> None:
    """Give locked chunks whose region went away back to the planner; their tickets come to nothing."""
    tx.execute(
        update(chunks)
        .where(is_any_of(tx, chunks.c.chunk_id, chunk_ids), chunks.c.state.in_(_OPEN))
        .values(state=ChunkState.WAITING.value, region=None, window_at=None, placement_id=None, dispatched_at=None)
    )

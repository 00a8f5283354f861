"""Silences of workers: who fell silent and is not booked yet, what its meters last told, who came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, insert, select, update

from carbonq.ratebook import Row
from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.ledger import is_current
from carbonq.store.tables import engine_batches, entries, gaps, workers


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker that ended without a word. ``since`` is machine time: when it was heard of last."""

    worker_id: str
    region: str
    since: datetime
    software_version: str


def silent(tx: Tx, *, silent_s: float, back: timedelta, limit: int = 100) -> list[Silence]:
    """Return workers that have been silent for ``silent_s`` machine seconds, but not for ``back``, and are not booked.

    One that ended in order is not silent. The caller sees to it that nobody else books at the same time.
    """
    now = machine_now(tx)
    is_booked = (
        select(gaps.c.worker_id)
        .where(gaps.c.worker_id == workers.c.worker_id, gaps.c.silent_since == workers.c.last_seen_at)
        .exists()
    )
    statement = (
        select(workers.c.worker_id, workers.c.region, workers.c.last_seen_at, workers.c.software_version)
        .where(
            workers.c.stopped_at.is_(None),
            workers.c.last_seen_at < now - timedelta(seconds=silent_s),
            workers.c.last_seen_at > now - back,
            ~is_booked,
        )
        .order_by(workers.c.last_seen_at)
        .limit(limit)
    )
    return [Silence(*row) for row in tx.execute(statement)]


def successor_at(tx: Tx, silence: Silence) -> datetime | None:
    """Return when (machine time) the first worker began that took the silent one's devices over; None: none did.

    It is one of the same region and host; where both name GPUs, one that shares a GPU. What it has booked may begin
    before it was entered.
    """
    mine = tx.execute(select(workers.c.host, workers.c.gpus).where(workers.c.worker_id == silence.worker_id)).one()
    others = tx.execute(
        select(workers.c.host, workers.c.gpus, workers.c.started_at)
        .where(
            workers.c.region == silence.region,
            workers.c.worker_id != silence.worker_id,
            workers.c.started_at > silence.since,
        )
        .order_by(workers.c.started_at)
    )
    for host, gpus, started_at in others:
        is_same = bool(set(gpus) & set(mine.gpus)) if gpus and mine.gpus else host == mine.host
        if is_same:
            began: datetime = started_at
            return began
    return None


def last_rows(tx: Tx, worker_id: str, *, since: datetime) -> list[Row]:
    """Return what was booked of a worker in windows from ``since`` (grid time) on, the latest end last."""
    mine = (engine_batches.c.window_at >= since, engine_batches.c.worker_id == worker_id)
    rows = tx.execute(select(engine_batches).where(*mine).order_by(engine_batches.c.ended_at)).mappings()
    return [{str(name): value for name, value in row.items()} for row in rows]


def note(tx: Tx, silence: Silence, engine_batch_id: str) -> None:
    """Note that a silence is booked."""
    row = {"worker_id": silence.worker_id, "silent_since": silence.since, "engine_batch_id": engine_batch_id}
    tx.execute(insert(gaps).values(**row, booked_at=machine_now(tx)))


def returned(tx: Tx, *, limit: int = 100) -> list[str]:
    """Return the engine batches of silences whose worker was heard of again, and note that it was."""
    is_back = and_(workers.c.worker_id == gaps.c.worker_id, workers.c.last_seen_at > gaps.c.silent_since)
    statement = (
        select(gaps.c.worker_id, gaps.c.silent_since, gaps.c.engine_batch_id)
        .select_from(gaps.join(workers, is_back))
        .where(gaps.c.returned_at.is_(None))
        .limit(limit)
    )
    found: list[str] = []
    for worker_id, since, engine_batch_id in tx.execute(statement).all():
        mine = (gaps.c.worker_id == worker_id, gaps.c.silent_since == since)
        tx.execute(update(gaps).where(*mine).values(returned_at=machine_now(tx)))
        found.append(engine_batch_id)
    return found


def current_entries(tx: Tx, batch_ids: Sequence[str]) -> list[Row]:
    """Return the current entries of some engine batches."""
    rows = tx.execute(select(entries).where(entries.c.engine_batch_id.in_(batch_ids), is_current())).mappings()
    return [{str(name): value for name, value in row.items()} for row in rows]

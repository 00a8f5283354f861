"""Rows of ``events``: what happened to jobs, in order; webhooks and progress streams read them.

Readers resume by ``event_id`` alone. On SQLite, which has one writer, numbers become visible in their order. On
PostgreSQL a lower one can become visible after a higher one, so readers go no farther than ``advance`` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select

from carbonq.events import BATCH_FINAL, JOB_FINAL, PUBLIC
from carbonq.store import bulk
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_columns, is_any_of, running_transactions, take_transaction_id, write_now
from carbonq.store.tables import events, jobs


@dataclass(frozen=True, slots=True)
class NewEvent:
    """Something that happened. ``at`` is grid time; ``type`` is like ``job.completed``; ``data`` is JSON."""

    type: str
    at: datetime
    tenant: str | None = None
    job_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Event:
    """A stored event. ``recorded_at`` is machine time; ``event_id`` grows.

    ``batch_id`` is the batch that its job belongs to, or that it is about.
    """

    event_id: int
    recorded_at: datetime
    at: datetime
    tenant: str | None
    job_id: str | None
    type: str
    data: Mapping[str, Any]
    batch_id: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """How far readers may go: every event up to ``settled`` is there to be read, and no other will come before it.

    None where that is not known yet. ``pending`` will be settled once every transaction below ``fence`` has ended.
    """

    settled: int | None
    pending: int = 0
    fence: int = 0


_COLUMNS = tuple(events.c[name] for name in Event.__dataclass_fields__)


def append_many(tx: Tx, rows: Sequence[NewEvent]) -> None:
    """Store events in the transaction that made them happen."""
    if rows:
        recorded_at = write_now(tx)
        _append(tx, rows, recorded_at, _batches_of(tx, [row.job_id for row in rows if row.job_id is not None]))


def append_of_new(tx: Tx, rows: Sequence[NewEvent], recorded_at: datetime) -> None:
    """Store events of new jobs that are in no batch; ``recorded_at`` is what ``dialect.write_now`` said before.

    Two ways to the database and back less than ``append_many``: small jobs wait for each of them.
    """
    _append(tx, rows, recorded_at, {})


def _append(tx: Tx, rows: Sequence[NewEvent], recorded_at: datetime, of_job: Mapping[str, str]) -> None:
    columns: dict[str, list[Any]] = {
        "recorded_at": [recorded_at] * len(rows),
        "at": [row.at for row in rows],
        "tenant": [row.tenant for row in rows],
        "job_id": [row.job_id for row in rows],
        "type": [row.type for row in rows],
        "data": [dict(row.data) for row in rows],
        "batch_id": [
            row.data.get("id") if row.type.startswith("batch.") else of_job.get(row.job_id or "") for row in rows
        ],
    }
    # One statement for all: those of a group of new jobs, or of a checkpoint, are many.
    insert_columns(tx, events, {name: bulk.bound(tx, events, name, values) for name, values in columns.items()})


def _batches_of(tx: Tx, job_ids: Sequence[str]) -> dict[str, str]:
    if not job_ids:
        return {}
    statement = select(jobs.c.job_id, jobs.c.batch_id).where(
        is_any_of(tx, jobs.c.job_id, sorted(set(job_ids))), jobs.c.batch_id.is_not(None)
    )
    return {job_id: batch_id for job_id, batch_id in tx.execute(statement)}


def after(tx: Tx, tenant: str | None, job_id: str | None = None, event_id: int = 0, limit: int = 1_000) -> list[Event]:
    """Return the events after ``event_id``, oldest first; of one tenant and job, or of all where None."""
    statement = _select(event_id, limit)
    if tenant is not None:
        statement = statement.where(events.c.tenant == tenant)
    if job_id is not None:
        statement = statement.where(events.c.job_id == job_id)
    return [Event(*row) for row in tx.execute(statement)]


def advance(tx: Tx, mark: Mark | None = None) -> Mark:
    """Return how far readers may go now; ``mark`` is what this returned last, to the same reader.

    Whoever appends has its transaction's id before it draws a number, and a number that is seen was drawn before. So
    once every transaction with an id below one that is taken now has ended, no lower number can appear. (The snapshot's
    own upper end would not do: it ends before transactions that run and are younger than all that have ended.) Another
    transaction of the same server that writes for long holds readers up for as long, whatever it writes.
    """
    newest = select(func.coalesce(func.max(events.c.event_id), 0)).scalar_subquery()
    running = running_transactions(tx)
    if running is None:
        seen = tx.execute(select(newest)).scalar_one()
        return Mark(seen, seen)
    row: Any = tx.execute(select(newest, *running)).one()
    seen, oldest, upcoming = row
    before = mark or Mark(None)
    if before.fence and before.fence <= oldest:
        before = Mark(before.pending)
    elif before.fence < upcoming and before.fence:
        return before
    elif before.fence:  # ids began anew: the server was made from a backup
        before = Mark(before.settled)
    if before.settled == seen:
        return before
    fence = take_transaction_id(tx)
    oldest = tx.execute(select(running[0])).scalar_one()  # of a later moment than the id
    return Mark(seen) if fence <= oldest else Mark(before.settled, seen, fence)


def between(tx: Tx, event_id: int, upto: int, *, limit: int) -> list[Event]:
    """Return what tenants may see of the events after ``event_id`` and up to a settled one, oldest first."""
    statement = _select(event_id, limit).where(*_is_public(upto), events.c.tenant.is_not(None))
    return [Event(*row) for row in tx.execute(statement)]


def of_topic(
    tx: Tx,
    tenant: str,
    event_id: int,
    upto: int,
    *,
    job_id: str | None = None,
    batch_id: str | None = None,
    limit: int,
) -> list[Event]:
    """Return what a tenant may see of its events after ``event_id`` and up to a settled one, oldest first.

    Of one job, or one batch and its jobs, where that is given.
    """
    statement = _select(event_id, limit).where(*_is_public(upto), events.c.tenant == tenant)
    if job_id is not None:
        statement = statement.where(events.c.job_id == job_id)
    if batch_id is not None:
        statement = statement.where(events.c.batch_id == batch_id)
    return [Event(*row) for row in tx.execute(statement)]


def final_of(tx: Tx, tenant: str, *, job_id: str | None = None, batch_id: str | None = None) -> int | None:
    """Return the number of the event that ended a job or batch, settled or not; None where there is none."""
    statement = select(func.max(events.c.event_id)).where(events.c.tenant == tenant)
    if job_id is not None:
        statement = statement.where(events.c.job_id == job_id, events.c.type.in_(JOB_FINAL))
    else:
        statement = statement.where(events.c.batch_id == batch_id, events.c.type.in_(BATCH_FINAL))
    return tx.execute(statement).scalar_one()


def finals_of(tx: Tx, tenant: str, job_ids: Sequence[str]) -> dict[str, Event]:
    """Return the events that ended some of a tenant's jobs, by job; of jobs that go on, or whose is gone, none."""
    terms = (is_any_of(tx, events.c.job_id, job_ids), events.c.tenant == tenant, events.c.type.in_(JOB_FINAL))
    rows = tx.execute(select(*_COLUMNS).where(*terms).order_by(events.c.event_id))
    return {event.job_id or "": event for event in (Event(*row) for row in rows)}


def told(event: Event) -> dict[str, Any]:
    """Return an event's data as clients get it: whose it is first."""
    data = dict(event.data)
    if event.job_id is not None:
        data = {"id": event.job_id, **data}
        if event.batch_id is not None:
            data["batch_id"] = event.batch_id
    return data


def _select(event_id: int, limit: int) -> Select[Any]:
    statement = select(*_COLUMNS).where(events.c.event_id > event_id)
    return statement.order_by(events.c.event_id).limit(limit)


def _is_public(upto: int) -> tuple[ColumnElement[bool], ...]:
    return (events.c.event_id <= upto, events.c.type.in_(PUBLIC))

"""Rows of ``events``: what happened to jobs, in order; webhooks and progress streams read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select

from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.tables import events


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
    """A stored event. ``recorded_at`` is machine time; ``event_id`` grows."""

    event_id: int
    recorded_at: datetime
    at: datetime
    tenant: str | None
    job_id: str | None
    type: str
    data: Mapping[str, Any]


_COLUMNS = tuple(events.c[name] for name in Event.__dataclass_fields__)


def append_many(tx: Tx, rows: Sequence[NewEvent]) -> None:
    """Store events in the transaction that made them happen."""
    if not rows:
        return
    recorded_at = machine_now(tx)
    tx.execute(
        insert(events),
        [
            {
                "recorded_at": recorded_at,
                "at": row.at,
                "tenant": row.tenant,
                "job_id": row.job_id,
                "type": row.type,
                "data": dict(row.data),
            }
            for row in rows
        ],
    )


def after(tx: Tx, tenant: str | None, job_id: str | None = None, event_id: int = 0, limit: int = 1_000) -> list[Event]:
    """Return the events after ``event_id``, oldest first; of one tenant and job, or of all where None."""
    statement = select(*_COLUMNS).where(events.c.event_id > event_id).order_by(events.c.event_id).limit(limit)
    if tenant is not None:
        statement = statement.where(events.c.tenant == tenant)
    if job_id is not None:
        statement = statement.where(events.c.job_id == job_id)
    return [Event(*row) for row in tx.execute(statement)]

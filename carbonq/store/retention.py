"""Delete what has been kept long enough, a short batch at a time, so that nobody waits for a lock. Never the ledger.

Entries, rates, facts and engine batches stay for ever, and so does every placement that an entry may refer to; a job's
own row stays too. Times are grid times unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, func, select, update

from carbonq.model import ChunkState, JobState
from carbonq.store import results
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.tables import (
    attempts,
    batches,
    chunks,
    events,
    items,
    jobs,
    placements,
    plans,
    segments,
    webhook_deliveries,
)


def has_jobs(tx: Tx, *, before: datetime) -> bool:
    """Say whether any job finished before ``before`` still has files or items."""
    due = select(jobs.c.job_id).where(*_is_due(before)).limit(1)
    return tx.execute(due).first() is not None


def retire_jobs(tx: Tx, *, before: datetime, at: datetime, limit: int) -> list[str]:
    """Put the files and items of jobs that finished before ``before`` out of reach; return those not yet purged.

    Includes jobs whose purge was cut off earlier.
    """
    due = select(jobs.c.job_id).where(*_is_due(before))
    found = list(tx.execute(due.order_by(jobs.c.finished_at).limit(limit)).scalars())
    if found:
        tx.execute(
            update(jobs)
            .where(is_any_of(tx, jobs.c.job_id, found), jobs.c.retired_at.is_(None))
            .values(retired_at=at, output_blob=None, error_blob=None)
        )
    return found


def _is_due(before: datetime) -> tuple[ColumnElement[bool], ...]:
    # What one job of a batch has done is kept until the last one has ended: the batch's files are made of it.
    is_of_open_batch = exists().where(batches.c.batch_id == jobs.c.batch_id, batches.c.finished_at.is_(None))
    return (jobs.c.finished_at < before, jobs.c.purged_at.is_(None), ~is_of_open_batch)


def input_of(tx: Tx, job_id: str) -> str:
    """Return the blob that holds a job's input."""
    return str(tx.execute(select(jobs.c.input_blob).where(jobs.c.job_id == job_id)).scalar_one())


def is_input_free(tx: Tx, blob: str, first: str, last: str) -> bool:
    """Say whether no job from ``first`` to ``last`` (by id) whose files are kept names a blob as its input."""
    kept = select(jobs.c.job_id).where(
        jobs.c.job_id.between(first, last), jobs.c.input_blob == blob, jobs.c.retired_at.is_(None)
    )
    return tx.execute(kept.limit(1)).first() is None


def jobs_with_segments(tx: Tx, *, before: datetime, limit: int) -> list[str]:
    """Return jobs whose files were assembled before ``before`` and whose segments are still there.

    A failed job keeps its segments: its files could not be assembled.
    """
    is_done = (jobs.c.finished_at < before, jobs.c.state != JobState.FAILED.value)
    found = select(segments.c.job_id).join(jobs, jobs.c.job_id == segments.c.job_id).where(*is_done)
    return list(tx.execute(found.distinct().limit(limit)).scalars())


def delete_items(tx: Tx, job_id: str, *, limit: int) -> int:
    """Delete up to ``limit`` items of a job."""
    some = select(items.c.item_id).where(items.c.job_id == job_id).order_by(items.c.item_id).limit(limit)
    return _delete(tx, items.c.item_id, some)


def purge_job(tx: Tx, job_id: str, *, at: datetime) -> None:
    """Note that nothing but the row of a retired job is left."""
    results.delete_segments(tx, job_id)
    tx.execute(update(jobs).where(jobs.c.job_id == job_id).values(purged_at=at))


def delete_chunks(tx: Tx, *, before: datetime, limit: int) -> int:
    """Delete up to ``limit`` done chunks without items, their attempts, and the placements they never ran under.

    A chunk that was claimed once ran under its last placement; of one that was claimed more often all placements stay,
    because entries of any attempt may refer to them.
    """
    has_items = exists().where(items.c.chunk_id == chunks.c.chunk_id)
    some = (
        select(chunks.c.chunk_id, chunks.c.placement_id, chunks.c.token)
        .where(chunks.c.state == ChunkState.DONE.value, chunks.c.finished_at < before, ~has_items)
        .order_by(chunks.c.finished_at)
        .limit(limit)
    )
    rows = tx.execute(some).all()
    if not rows:
        return 0
    gone = [row.chunk_id for row in rows]
    once = [row.chunk_id for row in rows if row.token <= 1]
    last = [row.placement_id for row in rows if row.placement_id is not None]
    is_last = is_any_of(tx, placements.c.placement_id, last)
    tx.execute(delete(placements).where(is_any_of(tx, placements.c.chunk_id, once), ~is_last))
    tx.execute(delete(attempts).where(is_any_of(tx, attempts.c.chunk_id, gone)))
    tx.execute(delete(chunks).where(is_any_of(tx, chunks.c.chunk_id, gone)))
    return len(gone)


def delete_events(tx: Tx, *, before: datetime, limit: int) -> int:
    """Delete up to ``limit`` events recorded before machine time ``before``, oldest first, but never the newest."""
    newest = select(func.max(events.c.event_id)).scalar_subquery()  # SQLite would give its number again
    oldest = select(events.c.event_id, events.c.recorded_at).where(events.c.event_id < newest)
    oldest = oldest.order_by(events.c.event_id).limit(limit)
    # The oldest by number, so that the primary key serves: numbers grow with time.
    gone = [row.event_id for row in tx.execute(oldest) if row.recorded_at < before]
    tx.execute(delete(events).where(is_any_of(tx, events.c.event_id, gone)))
    return len(gone)


def delete_deliveries(tx: Tx, *, before: datetime, limit: int) -> int:
    """Delete up to ``limit`` messages of webhooks made before machine time ``before``, those that wait as well."""
    # Of an endpoint that was disabled all that time: whoever enables it again is not told what is months old.
    key = webhook_deliveries.c.delivery_id
    oldest = select(key, webhook_deliveries.c.recorded_at).order_by(key).limit(limit)
    gone = [row.delivery_id for row in tx.execute(oldest) if row.recorded_at < before]
    tx.execute(delete(webhook_deliveries).where(is_any_of(tx, key, gone)))
    return len(gone)


def delete_plans(tx: Tx, *, before: datetime, limit: int) -> int:
    """Delete up to ``limit`` plans recorded before machine time ``before``, but never the newest plan."""
    newest = select(plans.c.plan_id).order_by(plans.c.recorded_at.desc()).limit(1).scalar_subquery()
    old = select(plans.c.plan_id).where(plans.c.recorded_at < before, plans.c.plan_id != newest)
    return _delete(tx, plans.c.plan_id, old.order_by(plans.c.recorded_at).limit(limit))


def _delete(tx: Tx, key: Any, some: Select[Any]) -> int:
    gone: Sequence[Any] = tx.execute(some).scalars().all()
    if gone:
        tx.execute(delete(key.table).where(is_any_of(tx, key, gone)))
    return len(gone)

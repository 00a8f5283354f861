"""Remove what has been kept as long as the settings say: files and items of old jobs, events, plans, old grid values.

A tick's worth at a time, in short transactions; restartable, because each step begins with what is still there. The
ledger is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from carbonq.blobs import BlobStore
from carbonq.clock import Clock
from carbonq.services import files, inputs, quota
from carbonq.services.apart import each
from carbonq.store import forecasts, quotas, results, retention
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now

#: Rows deleted in one transaction: on SQLite about 50 ms of its one write lock.
BATCH_ROWS = 2_000

#: How long the segments of a finished job stay beside its files: a backup of the blobs that is completed within this
#: time after the database's dump holds every segment that the dump knows (docs/operations.md).
SEGMENTS_KEPT = timedelta(hours=1)

#: Jobs put out of reach in one tick.
TICK_JOBS = 50

#: Transactions for each kind of row in one tick, so that the tick ends.
TICK_BATCHES = 50


@dataclass(frozen=True, slots=True)
class Keep:
    """Days that things are kept; None: for ever."""

    results_days: float | None = None
    events_days: float | None = None
    plans_days: float | None = None
    forecasts_days: float | None = None
    thin_forecasts_after_days: float | None = None
    observations_days: float | None = None


def retire(db: Database, blobs: BlobStore, clock: Clock, keep: Keep, *, batch_rows: int = BATCH_ROWS) -> int:
    """Remove a tick's worth of what is older than ``keep`` says and return how many rows went.

    Idempotent; safe beside another one. Raises StoreUnavailable, and the first of what else went wrong with one kind of
    thing or one job, once all others had their turn.
    """
    now = clock.now()
    with db.read() as tx:
        machine = machine_now(tx)

    def old(delete: Callable[..., int], before: datetime | None) -> Callable[[], int]:
        def step() -> int:
            if before is None:
                return 0
            return _drain(db, lambda tx: delete(tx, before=before, limit=batch_rows))

        return step

    results_before, events_before = _before(now, keep.results_days), _before(machine, keep.events_days)
    plans_before, observed_before = _before(machine, keep.plans_days), _before(now, keep.observations_days)
    forecasts_before, thin_before = _before(now, keep.forecasts_days), _before(now, keep.thin_forecasts_after_days)

    def old_forecasts() -> int:
        if forecasts_before is None and thin_before is None:
            return 0
        return _drain(
            db, lambda tx: forecasts.retire(tx, before=forecasts_before, thin_before=thin_before, limit=batch_rows)
        )

    steps: list[Callable[[], int]] = [
        lambda: _segments(db, blobs, now - SEGMENTS_KEPT),
        lambda: files.retire(db, blobs, now),
        lambda: _days(db, now),
        lambda: 0 if results_before is None else _jobs(db, blobs, results_before, now, batch_rows),
        old(retention.delete_chunks, results_before),
        old(retention.delete_events, events_before),
        old(retention.delete_deliveries, events_before),
        old(retention.delete_plans, plans_before),
        old_forecasts,
        old(forecasts.retire_observations, observed_before),
    ]
    return each(steps, lambda step: step())


def _days(db: Database, now: datetime) -> int:
    """Remove counts of tokens of days to which no open job can belong any more."""
    before = quota.day_of(now - quota.DAYS_KEPT)
    with db.read() as tx:
        if not quotas.has_days(tx, before=before):
            return 0
    with db.write() as tx:
        return quotas.forget_days(tx, before=before)


def _segments(db: Database, blobs: BlobStore, before: datetime) -> int:
    """Remove segments whose bytes are in their job's files, with what killed workers wrote and never committed."""
    with db.read() as tx:
        due = retention.jobs_with_segments(tx, before=before, limit=TICK_JOBS)

    def remove(job_id: str) -> int:
        blobs.delete_folder(results.segment_folder(job_id))
        with db.write() as tx:
            results.delete_segments(tx, job_id)
        return 1

    return each(due, remove)


def _jobs(db: Database, blobs: BlobStore, before: datetime, now: datetime, batch_rows: int) -> int:
    with db.read() as tx:
        if not retention.has_jobs(tx, before=before):
            return 0  # the usual case takes no write lock
    with db.write() as tx:
        due = retention.retire_jobs(tx, before=before, at=now, limit=TICK_JOBS)

    def purge(job_id: str) -> int:
        # Files first: a job whose rows are gone would leave files that nobody knows.
        for folder in (f"jobs/{job_id}", results.segment_folder(job_id)):
            blobs.delete_folder(folder)
        _shared_input(db, blobs, job_id)
        removed = _drain(db, lambda tx: retention.delete_items(tx, job_id, limit=batch_rows))
        if removed < batch_rows * TICK_BATCHES:  # else the rest at the next tick
            with db.write() as tx:
                retention.purge_job(tx, job_id, at=now)
        return removed

    return each(due, purge)


def _shared_input(db: Database, blobs: BlobStore, job_id: str) -> None:
    """Remove an input that a job shares with others once the last of them is out of reach.

    All of them were put out of reach before, each in a transaction of its own: whoever comes last sees the others.
    """
    with db.read() as tx:
        key = retention.input_of(tx, job_id)
        span = inputs.sharers(key)
        is_free = span is not None and retention.is_input_free(tx, key, *span)
    if is_free:
        blobs.delete(key)


def _before(now: datetime, days: float | None) -> datetime | None:
    return None if days is None else now - timedelta(days=days)


def _drain(db: Database, act: Callable[[Tx], int]) -> int:
    """Act in short transactions until nothing is left, or the tick has done enough; return the rows."""
    total = 0
    for _ in range(TICK_BATCHES):
        with db.write() as tx:
            count = act(tx)
        total += count
        if count == 0:
            break
    return total

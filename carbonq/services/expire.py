"""Expire what is unfinished at the deadline of jobs that asked for it, and sweep what cancelled jobs still hold.

Items that a worker holds at the deadline are left to it: they are delivered if it commits them, and expire if it gives
them back. Jobs of late policy ``finish_late`` are never touched.
"""

from __future__ import annotations

from carbonq.clock import Clock
from carbonq.services.apart import each
from carbonq.services.cancel import sweep
from carbonq.store import jobs
from carbonq.store.database import Database


def expire(db: Database, clock: Clock) -> int:
    """End overdue and cancelled items that no worker holds; return how many. Idempotent. Raises StoreUnavailable."""
    now = clock.now()
    with db.read() as tx:
        cancelled = jobs.cancel_requested(tx)
        overdue = [job_id for job_id in jobs.past_deadline(tx, now) if job_id not in cancelled]

    def end(job: tuple[str, bool]) -> int:
        with db.write() as tx:  # one job a transaction: others must not wait for a long list
            return sweep(tx, job[0], now, is_cancelled=job[1])

    return each([*((job_id, True) for job_id in cancelled), *((job_id, False) for job_id in overdue)], end)

"""Expire what is unfinished at the deadline of jobs that asked for it, and sweep what cancelled jobs still hold.

Items that a worker holds at the deadline are left to it: they are delivered if it commits them, and expire if it gives
them back. Jobs of late policy ``finish_late`` are never touched.
"""

from __future__ import annotations

from carbonq.clock import Clock
from carbonq.services.cancel import sweep
from carbonq.store import jobs
from carbonq.store.database import Database


def expire(db: Database, clock: Clock) -> int:
    """End overdue and cancelled items that no worker holds; return how many. Idempotent. Raises StoreUnavailable."""
    now = clock.now()
    with db.read() as tx:
        cancelled = jobs.cancel_requested(tx)
        overdue = [job_id for job_id in jobs.past_deadline(tx, now) if job_id not in cancelled]
    count = 0
    for job_ids, is_cancelled in ((cancelled, True), (overdue, False)):
        for job_id in job_ids:
            with db.write() as tx:  # one job a transaction: others must not wait for a long list
                count += sweep(tx, job_id, now, is_cancelled=is_cancelled)
    return count

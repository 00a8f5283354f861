"""End a job's items before they ran: on the client's request here, past the deadline in ``expire``.

Items that no worker holds end at once. A worker that holds some learns of it when it renews its lease and stops at the
next engine batch; what it gives back is swept by the next ``expire`` tick. Times are grid times.
"""

from __future__ import annotations

from datetime import datetime

from carbonq.clock import Clock
from carbonq.model import ItemState, Job, JobState
from carbonq.services import progress
from carbonq.store import chunks, events, items, jobs
from carbonq.store.database import Database, Tx
from carbonq.store.events import NewEvent


def cancel(db: Database, job_id: str, tenant: str | None, clock: Clock) -> Job:
    """Cancel a tenant's job and return it; one that has ended already comes back unchanged.

    Idempotent. Raises NotFound (also for another tenant's job), StoreUnavailable.
    """
    now = clock.now()
    with db.write() as tx:
        jobs.get(tx, job_id, tenant)
        if jobs.request_cancel(tx, job_id):
            job = jobs.get(tx, job_id)
            events.append_many(tx, [NewEvent("job.cancelling", now, job.tenant, job_id)])
        if jobs.cancel_requested(tx, [job_id]):
            sweep(tx, job_id, now, is_cancelled=True)
        return jobs.get(tx, job_id)


def sweep(tx: Tx, job_id: str, now: datetime, *, is_cancelled: bool) -> int:
    """Cancel (or else expire) a job's waiting items that no worker holds, and what depends on them; return how many.

    Counters, chunks and, now and then, an event follow in the same transaction.
    """
    job = jobs.lock(tx, job_id)  # before chunks and items, as the chunker does
    if job.is_final or job.state is JobState.FINISHING:
        return 0
    state = ItemState.CANCELLED if is_cancelled else ItemState.EXPIRED
    count, touched = items.end_idle(tx, job_id, state, at=now)
    if not count:
        return 0
    jobs.bump(tx, job_id, cancelled=count if is_cancelled else 0, expired=0 if is_cancelled else count)
    chunks.shrink(tx, sorted(touched), at=now)
    progress.tell(tx, [job_id], now)
    return count

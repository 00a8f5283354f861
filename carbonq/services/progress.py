"""Tell of a job's progress now and then: an event for each of thousands of checkpoints would help nobody."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from carbonq.store import events, jobs
from carbonq.store.database import Tx
from carbonq.store.events import NewEvent

#: Events of progress of one job are at least so far apart, in machine seconds.
PERIOD_S = 5.0


def tell(tx: Tx, job_ids: Sequence[str], at: datetime) -> None:
    """Store an event of progress for jobs whose items just ended, in that transaction, where it is time for one.

    ``at`` is grid time. The figures are those of the whole job.
    """
    if not job_ids:
        return
    due = jobs.due_progress(tx, job_ids, period_s=PERIOD_S)
    events.append_many(tx, [_event(one, at) for one in due])


def _event(one: jobs.Progress, at: datetime) -> NewEvent:
    data = {
        "total": one.total,
        "succeeded": one.succeeded,
        "failed": one.failed,
        "expired": one.expired,
        "cancelled": one.cancelled,
    }
    return NewEvent("job.progress", at, one.tenant, one.job_id, data)

"""Progress is told at most once in a while for each job, and never instead of its end."""

from __future__ import annotations

import pytest

from carbonq.services import progress
from carbonq.store import events, jobs
from carbonq.store.database import Database
from tests.store.rows import T0, store_job


def _told(database: Database, *job_ids: str, succeeded: int) -> list[tuple[str | None, int]]:
    with database.write() as tx:
        for job_id in job_ids:
            jobs.bump(tx, job_id, succeeded=succeeded)
        before = max((one.event_id for one in events.after(tx, None)), default=0)
        progress.tell(tx, job_ids, T0)
        return [(one.job_id, one.data["succeeded"]) for one in events.after(tx, None, event_id=before)]


def test_many_checkpoints_are_one_event(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (store_job(database, items_total=10).job_id for _ in range(2))
    assert _told(database, one, succeeded=2) == [(one, 2)]
    assert _told(database, one, two, succeeded=2) == [(two, 2)]
    monkeypatch.setattr(progress, "PERIOD_S", 0.0)
    assert _told(database, one, two, succeeded=3) == [(one, 7), (two, 5)]
    assert _told(database, one, two, succeeded=3) == [(two, 8)], "the end of a job is another event's"
    assert _told(database, succeeded=1) == []

"""Jobs on both databases."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from carbonq.errors import Conflict, InvalidRequest, NotFound
from carbonq.model import JobState, LatePolicy
from carbonq.store import jobs
from carbonq.store.database import Database
from tests.store.rows import T0, job, store_job


def test_a_job_comes_back_as_it_was_stored(database: Database) -> None:
    stored = store_job(
        database,
        regions=("north", "south"),
        max_carbon_g=Decimal("5.000000000000000001"),
        metadata={"a": "ü"},
        late_policy=LatePolicy.EXPIRE,
    )
    with database.read() as tx:
        assert jobs.get(tx, stored.job_id) == stored
        assert jobs.get(tx, stored.job_id, "default") == stored


def test_another_tenants_job_is_not_found(database: Database) -> None:
    stored = store_job(database)
    with database.read() as tx:
        assert jobs.find(tx, stored.job_id, "other") is None
        with pytest.raises(NotFound, match=stored.job_id):
            jobs.get(tx, stored.job_id, "other")
        with pytest.raises(InvalidRequest, match="after"):
            jobs.page(tx, "other", stored.job_id)


def test_pages_are_newest_first_and_complete(database: Database) -> None:
    made = [store_job(database, created_at=T0 + timedelta(seconds=n // 2)) for n in range(7)]
    store_job(database, tenant="other")
    seen: list[str] = []
    after = None
    with database.read() as tx:
        while page := jobs.page(tx, "default", after, 2):
            seen += [one.job_id for one in page]
            after = seen[-1]
        assert len(jobs.page(tx, None, limit=100)) == 8
        assert jobs.page(tx, "default", states=(JobState.COMPLETED,)) == []
    expected = sorted(made, key=lambda one: (one.created_at, one.job_id), reverse=True)
    assert seen == [one.job_id for one in expected]


def test_an_idempotency_key_is_unique_per_tenant(database: Database) -> None:
    first = job()
    with database.write() as tx:
        jobs.insert_job(tx, first, source="jobs", machine_created_at=T0, idempotency_key="k", body_fingerprint="f")
    with database.read() as tx:
        assert jobs.find_repeated(tx, "default", "k") == (first, "f")
        assert jobs.find_repeated(tx, "other", "k") is None
    with database.write() as tx:
        with pytest.raises(Conflict, match="'k'"):
            jobs.insert_job(tx, job(), source="jobs", machine_created_at=T0, idempotency_key="k")
        jobs.insert_job(tx, job(tenant="other"), source="jobs", machine_created_at=T0, idempotency_key="k")


def test_a_job_is_taken_for_chunking_once(database: Database) -> None:
    stored = store_job(database)
    with database.write() as tx:
        assert [found.job_id for found, _ in jobs.unchunked(tx)] == [stored.job_id]
        assert jobs.take_unchunked(tx, [stored.job_id, "job_unknown"]) == {stored.job_id}
        assert jobs.take_unchunked(tx, [stored.job_id]) == set()
        assert jobs.unchunked(tx) == []


def test_the_states_of_a_job(database: Database) -> None:
    stored, waits = store_job(database), store_job(database)
    at = T0 + timedelta(minutes=1)
    with database.write() as tx:
        jobs.mark_running(tx, [stored.job_id], at)
        jobs.mark_running(tx, [stored.job_id], at + timedelta(minutes=1))
        assert jobs.get(tx, stored.job_id).started_at == at
        assert jobs.ended(tx) == []
        jobs.bump_many(tx, {stored.job_id: jobs.Ended(succeeded=1, failed=1), "job_unknown": jobs.Ended(failed=1)})
        jobs.bump(tx, stored.job_id, cancelled=1)
        assert [found.job_id for found in jobs.ended(tx)] == [stored.job_id]
        arguments = {"output_blob": "o", "error_blob": None, "error": None, "at": at}
        assert not jobs.finish(tx, stored.job_id, JobState.COMPLETED, **arguments)
        jobs.mark_finishing(tx, stored.job_id)
        assert not jobs.request_cancel(tx, stored.job_id)
        assert jobs.finish(tx, stored.job_id, JobState.COMPLETED, **arguments)
        assert not jobs.finish(tx, stored.job_id, JobState.COMPLETED, **arguments)
        final = jobs.get(tx, stored.job_id)
        assert final.is_final
        assert jobs.final_among(tx, [stored.job_id, waits.job_id, "job_unknown"]) == {stored.job_id}
        assert jobs.final_among(tx, []) == set()
        assert final.items_ended == 3
        assert [found.job_id for found in jobs.open_jobs(tx)] == [waits.job_id]
        assert jobs.counts_by_state(tx, "default") == {JobState.COMPLETED: 1, JobState.WAITING: 1}


def test_cancel_is_asked_once_and_overdue_jobs_are_found(database: Database) -> None:
    stored = store_job(database, late_policy=LatePolicy.EXPIRE, deadline_at=T0)
    store_job(database, deadline_at=T0)
    with database.write() as tx:
        assert jobs.past_deadline(tx, T0 - timedelta(seconds=1)) == []
        assert jobs.past_deadline(tx, T0) == [stored.job_id]
        assert jobs.request_cancel(tx, stored.job_id)
        assert not jobs.request_cancel(tx, stored.job_id)
        assert jobs.cancel_requested(tx) == [stored.job_id]
        assert jobs.cancel_requested(tx, ["job_unknown"]) == []

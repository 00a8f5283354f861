"""Cancelling and expiring end what no worker holds, and leave the rest to its worker."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from carbonq.errors import NotFound
from carbonq.model import ItemState, JobState, LatePolicy
from carbonq.services import cancel, expire, finish
from carbonq.store import events, items
from carbonq.store.database import Database
from tests.services.jobs import World
from tests.store.rows import T0


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


def counts(world: World, job_id: str) -> tuple[int, int, int]:
    job = world.job(job_id)
    with world.db.read() as tx:
        by_state = items.counts(tx, job_id)
    assert by_state.get(ItemState.CANCELLED, 0) == job.items_cancelled
    assert by_state.get(ItemState.EXPIRED, 0) == job.items_expired
    return job.items_cancelled, job.items_expired, by_state.get(ItemState.WAITING, 0)


def test_a_job_is_cancelled_before_it_is_chunked(world: World) -> None:
    job, _ = world.submit(3)
    cancelled = cancel.cancel(world.db, job.job_id, "default", world.clock)
    assert (cancelled.is_cancel_requested, cancelled.items_cancelled) == (True, 3)
    assert cancel.cancel(world.db, job.job_id, "default", world.clock) == cancelled
    with world.db.read() as tx:
        types = [event.type for event in events.after(tx, "default", job.job_id)]
    assert types == ["job.created", "job.cancelling"]
    assert world.chunk() == 0
    finish.finish_jobs(world.db, world.blobs, world.clock)
    final = cancel.cancel(world.db, job.job_id, "default", world.clock)
    assert final.state == JobState.CANCELLED


def test_another_tenants_job_cannot_be_cancelled(world: World) -> None:
    job, _ = world.submit(3)
    with pytest.raises(NotFound):
        cancel.cancel(world.db, job.job_id, "other", world.clock)
    assert counts(world, job.job_id) == (0, 0, 3)


def test_chunks_that_others_share_shrink_and_empty_ones_end(world: World) -> None:
    job, _ = world.submit(3)
    other, _ = world.submit(2)
    alone, _ = world.submit(2, deadline_at=T0 + timedelta(hours=20))
    assert world.chunk() == 2
    cancel.cancel(world.db, job.job_id, None, world.clock)
    cancel.cancel(world.db, alone.job_id, None, world.clock)
    assert [(chunk.items_count, chunk.est_tokens) for chunk in world.chunks()] == [(2, 6)]
    assert counts(world, other.job_id) == (0, 0, 2)


def test_what_a_worker_holds_is_left_to_it_and_swept_when_given_back(world: World) -> None:
    job, _ = world.submit(4)
    world.chunk(max_chunk_items=2)
    held = world.chunks()[0].chunk_id
    world.start(held)
    assert cancel.cancel(world.db, job.job_id, None, world.clock).items_cancelled == 2
    assert expire.expire(world.db, world.clock) == 0
    assert counts(world, job.job_id) == (2, 0, 2)
    world.give_back(held)
    assert expire.expire(world.db, world.clock) == 2
    assert expire.expire(world.db, world.clock) == 0
    assert counts(world, job.job_id) == (4, 0, 0)
    assert world.chunks() == []


def test_only_overdue_jobs_that_asked_for_it_expire(world: World) -> None:
    strict, _ = world.submit(4, late_policy=LatePolicy.EXPIRE)
    lenient, _ = world.submit(4)
    later, _ = world.submit(4, late_policy=LatePolicy.EXPIRE, deadline_at=T0 + timedelta(hours=7))
    assert expire.expire(world.db, world.clock) == 0
    world.clock.advance(6 * 3600)
    assert expire.expire(world.db, world.clock) == 4
    assert expire.expire(world.db, world.clock) == 0
    assert counts(world, strict.job_id) == (0, 4, 0)
    assert counts(world, lenient.job_id) == counts(world, later.job_id) == (0, 0, 4)


def test_a_cancelled_job_past_its_deadline_is_cancelled_not_expired(world: World) -> None:
    job, _ = world.submit(2, late_policy=LatePolicy.EXPIRE)
    world.chunk()
    held = world.chunks()[0].chunk_id
    world.start(held)
    cancel.cancel(world.db, job.job_id, None, world.clock)
    world.give_back(held)
    world.clock.advance(7 * 3600)
    assert expire.expire(world.db, world.clock) == 2
    assert counts(world, job.job_id) == (2, 0, 0)

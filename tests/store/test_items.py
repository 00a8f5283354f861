"""Items and chunks on both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import ChunkState, ItemState
from carbonq.store import chunks, items, overview
from carbonq.store.database import Database, Tx
from carbonq.store.tables import chunks as chunk_table
from tests.store.rows import T0, chunk, store_job


def _run(tx: Tx, chunk_id: str) -> None:
    tx.execute(
        update(chunk_table)
        .where(chunk_table.c.chunk_id == chunk_id)
        .values(state=ChunkState.RUNNING, lease_until=T0, token=1)
    )


def test_items_go_into_chunks_once(database: Database) -> None:
    first, second = store_job(database), store_job(database)
    with database.write() as tx:
        free = items.unchunked(tx, [first.job_id, second.job_id])
        assert [(job_id, tokens) for _, job_id, tokens in free] == [(first.job_id, 10)] * 3 + [(second.job_id, 10)] * 3
        made = chunk([item_id for item_id, _, _ in free])
        assert chunks.insert_many(tx, [made], created_at=T0) == 6
        assert items.assign(tx, "chunk_other", made.item_ids) == 0
        assert items.unchunked(tx, [first.job_id, second.job_id]) == []
        stored = chunks.get(tx, made.chunk_id)
        assert (stored.items_count, stored.state, stored.regions) == (6, ChunkState.WAITING, ("north",))
        assert [item.custom_id for item in items.of_chunk(tx, made.chunk_id)] == ["a-0", "a-1", "a-2"] * 2
        assert chunks.of_job(tx, second.job_id) == chunks.open_chunks(tx) == [stored]
        with pytest.raises(NotFound):
            chunks.get(tx, "chunk_unknown")


def test_a_child_chunk_takes_only_its_parents_items(database: Database) -> None:
    job = store_job(database)
    with database.write() as tx:
        ids = [item_id for item_id, _, _ in items.unchunked(tx, [job.job_id])]
        parent = chunk(ids)
        chunks.insert_many(tx, [parent], created_at=T0)
        child = chunk(ids[:1], parent_chunk_id=parent.chunk_id)
        assert chunks.insert_many(tx, [child], created_at=T0) == 1
        assert chunks.insert_many(tx, [chunk(ids[:1], parent_chunk_id=parent.chunk_id)], created_at=T0) == 0
        assert chunks.insert_many(tx, [], created_at=T0) == 0
        assert len(items.of_chunk(tx, parent.chunk_id)) == 2


def test_an_item_ends_once(database: Database) -> None:
    job = store_job(database)
    with database.write() as tx:
        ids = [item_id for item_id, _, _ in items.unchunked(tx, [job.job_id])]
        assert items.end_many(tx, ids[:2], ItemState.FAILED, at=T0, error_code="bad") == ids[:2]
        assert items.end_many(tx, ids, ItemState.SUCCEEDED, at=T0) == ids[2:]
        assert items.end_many(tx, [], ItemState.SUCCEEDED, at=T0) == []
        assert items.counts(tx, job.job_id) == {ItemState.FAILED: 2, ItemState.SUCCEEDED: 1}
        assert items.error_codes(tx, job.job_id) == [("bad", 2)]
        failed = items.unanswered(tx, job.job_id, [ItemState.FAILED])
        assert failed == [(0, "a-0", ItemState.FAILED, "bad"), (1, "a-1", ItemState.FAILED, "bad")]
        assert items.unanswered(tx, job.job_id, [ItemState.FAILED], after_idx=0, limit=5) == failed[1:]


def test_ending_idle_items_leaves_running_chunks_alone_and_shrinks_shared_ones(database: Database) -> None:
    job, other = store_job(database, items_total=4), store_job(database, items_total=1)
    with database.write() as tx:
        ids = [item_id for item_id, _, _ in items.unchunked(tx, [job.job_id])]
        others = [item_id for item_id, _, _ in items.unchunked(tx, [other.job_id])]
        alone, shared, running = chunk(ids[:1]), chunk(ids[1:2] + others), chunk(ids[2:3])
        chunks.insert_many(tx, [alone, shared, running], created_at=T0)
        _run(tx, running.chunk_id)
    with database.write() as tx:
        count, touched = items.end_idle(tx, job.job_id, ItemState.CANCELLED, at=T0, error_code="batch_cancelled")
        assert count == 3
        assert touched == {alone.chunk_id, shared.chunk_id}
        assert chunks.shrink(tx, sorted(touched), at=T0) == 1
        assert chunks.get(tx, alone.chunk_id).state == ChunkState.DONE
        left = chunks.get(tx, shared.chunk_id)
        assert (left.state, left.items_count, left.est_tokens) == (ChunkState.WAITING, 1, 10)
        assert left.est_duration_s == pytest.approx(1.0)
        assert left.est_energy_uj == 500
        assert chunks.get(tx, running.chunk_id).items_count == 1
        assert len(items.of_chunk(tx, running.chunk_id)) == 1


def test_a_chunk_that_another_transaction_holds_is_left_for_the_next_sweep(postgres_database_url: str) -> None:
    from carbonq.store import schema

    database = Database(postgres_database_url)
    schema.upgrade(database)
    job = store_job(database)
    with database.write() as tx:
        made = chunk([item_id for item_id, _, _ in items.unchunked(tx, [job.job_id])])
        chunks.insert_many(tx, [made], created_at=T0)
    with database.write() as claim:
        _run(claim, made.chunk_id)
        with database.write() as tx:
            assert items.end_idle(tx, job.job_id, ItemState.CANCELLED, at=T0) == (0, set())
    database.dispose()


def test_the_baseline_queue_remembers_its_slots(database: Database) -> None:
    later = T0 + timedelta(minutes=7)
    with database.write() as tx:
        assert chunks.baseline_queue(tx, "north", 2, T0) == [T0, T0]
        chunks.set_baseline_queue(tx, "north", [later, T0, later])
    with database.write() as tx:
        assert chunks.baseline_queue(tx, "north", 2, T0) == [later, T0]
        assert chunks.baseline_queue(tx, "north", 3, T0) == [later, T0, T0]


def test_items_as_they_are_shown(database: Database) -> None:
    job, other = store_job(database), store_job(database)
    with database.write() as tx:
        ids = [item_id for item_id, _, _ in items.unchunked(tx, [job.job_id])]
        items.end_many(tx, ids[1:2], ItemState.FAILED, at=T0, error_code="bad")
        found = overview.items_of(tx, job.job_id, limit=2)
        assert [(one.idx, one.custom_id, one.state) for one in found] == [
            (0, "a-0", ItemState.WAITING),
            (1, "a-1", ItemState.FAILED),
        ]
        assert (found[1].error_code, found[1].finished_at, found[0].chunk_id) == ("bad", T0, None)
        assert [one.idx for one in overview.items_of(tx, job.job_id, after="a-1", limit=2)] == [2]
        states = (ItemState.WAITING,)
        assert [one.idx for one in overview.items_of(tx, job.job_id, states=states, limit=9)] == [0, 2]
        assert overview.items_of(tx, job.job_id, states=states, after="a-2", limit=9) == []
        with pytest.raises(InvalidRequest, match="no item 'a-9'"):
            overview.items_of(tx, other.job_id, after="a-9", limit=1)

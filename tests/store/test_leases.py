"""Leases on both databases: one holder, growing tokens, refusal of late finishers, halves of a chunk."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from carbonq.errors import LeaseLost
from carbonq.model import AttemptOutcome, ChunkState, Claim, ItemState, RegionState
from carbonq.store import items as item_rows
from carbonq.store import jobs as job_rows
from carbonq.store import leases, regions
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import attempts, chunks, items
from tests.services.running import Bench


@pytest.fixture
def bench(database: Database, tmp_path: Path) -> Bench:
    return Bench(database, tmp_path)


def claim(bench: Bench, chunk_id: str, worker: str = "w1", region: str = "fr") -> Claim | None:
    with bench.db.write() as tx:
        return leases.claim(tx, chunk_id, worker_id=worker, region=region, lease_s=60, now=bench.clock.now())


def held(bench: Bench, chunk_id: str) -> Claim:
    found = claim(bench, chunk_id)
    assert found is not None
    return found


def test_a_claim_hands_out_a_token_and_a_lease(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(3))
    found = held(bench, chunk_id)
    assert (found.token, found.attempt, found.region) == (1, 1, "fr")
    chunk = bench.one(chunk_id)
    assert chunk == found.chunk
    assert chunk.state is ChunkState.RUNNING
    assert chunk.lease_until is not None
    with bench.db.read() as tx:
        left = chunk.lease_until - machine_now(tx)
    assert timedelta(seconds=50) < left <= timedelta(seconds=60)
    (attempt,) = bench.rows(attempts)
    assert (attempt.token, attempt.worker_id, attempt.outcome) == (1, "w1", None)


def test_only_one_of_many_claims_succeeds(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(3))
    won: list[Claim] = []
    barrier = threading.Barrier(6)

    def race(name: str) -> None:
        barrier.wait()
        found = claim(bench, chunk_id, name)
        if found is not None:
            won.append(found)

    threads = [threading.Thread(target=race, args=(f"w{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_claim_waits_for_a_dispatcher_that_publishes_before_it_commits(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(1))
    with bench.db.write() as tx:
        tx.execute(update(chunks).values(dispatched_at=None, region=None, state="waiting"))
    locked, answers = threading.Event(), []

    def early() -> None:
        locked.wait(5)
        answers.append(claim(bench, chunk_id))

    thread = threading.Thread(target=early)
    thread.start()
    with bench.db.write() as tx:
        tx.execute(update(chunks).values(dispatched_at=machine_now(tx), region="fr", state="placed"))
        locked.set()
        thread.join(0.3)
        assert not answers
    thread.join(10)
    assert answers[0] is not None


@pytest.mark.parametrize("change", [{"region": "se"}, {"dispatched_at": None}, {"state": "done"}])
def test_a_ticket_that_no_longer_holds_claims_nothing(bench: Bench, change: dict[str, object]) -> None:
    chunk_id = bench.chunk(bench.job(1))
    if "state" in change:
        change = {**change, "finished_at": bench.clock.now()}
    with bench.db.write() as tx:
        tx.execute(update(chunks).values(**change))
    assert claim(bench, chunk_id) is None


@pytest.mark.parametrize("state", [RegionState.PAUSED, RegionState.DRAINING])
def test_a_region_that_takes_nothing_returns_the_chunk(bench: Bench, state: RegionState) -> None:
    chunk_id = bench.chunk(bench.job(1))
    with bench.db.write() as tx:
        regions.set_state(tx, "fr", state)
    assert claim(bench, chunk_id) is None
    chunk = bench.one(chunk_id)
    assert (chunk.state, chunk.region, chunk.dispatched_at) == (ChunkState.WAITING, None, None)


def test_renewing_brings_back_pause_and_cancel_and_keeps_the_report(bench: Bench) -> None:
    job_id = bench.job(1)
    chunk_id = bench.chunk(job_id)
    found = held(bench, chunk_id)
    with bench.db.write() as tx:
        renewal = leases.renew(tx, chunk_id, found.token, lease_s=60, pending={"burnt": []}, job_ids=[job_id])
    assert not renewal.is_paused
    assert not renewal.cancelled_jobs
    with bench.db.write() as tx:
        regions.set_state(tx, "fr", RegionState.PAUSED)
        job_rows.request_cancel(tx, job_id)
    with bench.db.write() as tx:
        renewal = leases.renew(tx, chunk_id, found.token, lease_s=60, pending=None, job_ids=[job_id])
    assert renewal.is_paused
    assert renewal.cancelled_jobs == {job_id}


def test_a_stale_token_is_refused_everywhere(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(2))
    found = held(bench, chunk_id)
    with bench.db.write() as tx:
        leases.release(tx, chunk_id, is_counted=True, now=bench.clock.now())
    bench.dispatch(chunk_id)
    again = held(bench, chunk_id)
    assert again.token > found.token
    with bench.db.write() as tx:
        assert not leases.is_held(tx, chunk_id, found.token)
        assert leases.is_held(tx, chunk_id, again.token)
    with pytest.raises(LeaseLost), bench.db.write() as tx:
        leases.fence(tx, chunk_id, found.token, lease_s=60)
    with pytest.raises(LeaseLost), bench.db.write() as tx:
        leases.renew(tx, chunk_id, found.token, lease_s=60, pending=None, job_ids=[])


def test_a_lease_that_ran_out_unnoticed_still_counts(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(1))
    found = held(bench, chunk_id)
    bench.silence(chunk_id)
    with bench.db.write() as tx:
        leases.fence(tx, chunk_id, found.token, lease_s=60)
        assert leases.expired_ids(tx) == leases.expired(tx, among=[chunk_id]) == []


def test_finishing_ends_chunk_and_attempt(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(1))
    found = held(bench, chunk_id)
    with bench.db.write() as tx:
        leases.fence(tx, chunk_id, found.token, lease_s=60)
        leases.finish(tx, chunk_id, found.token, outcome=AttemptOutcome.COMMITTED, now=bench.clock.now())
    assert bench.one(chunk_id).state is ChunkState.DONE
    assert bench.one(chunk_id).lease_until is None
    assert [row.outcome for row in bench.rows(attempts)] == ["committed"]


@pytest.mark.parametrize(("is_counted", "attempt"), [(True, 1), (False, 0)])
def test_giving_back_keeps_what_is_left(bench: Bench, is_counted: bool, attempt: int) -> None:
    chunk_id = bench.chunk(bench.job(4))
    found = held(bench, chunk_id)
    with bench.db.write() as tx:
        first = tx.execute(select(items.c.item_id).order_by(items.c.item_id)).scalars().first()
        assert first is not None
        item_rows.end_many(tx, [first], ItemState.SUCCEEDED, at=bench.clock.now())
        is_open = leases.give_back(
            tx,
            chunk_id,
            found.token,
            is_counted=is_counted,
            outcome=AttemptOutcome.YIELDED,
            now=bench.clock.now(),
            backoff_s=30,
            error="why",
        )
    assert is_open
    chunk = bench.one(chunk_id)
    assert (chunk.state, chunk.attempt, chunk.items_count, chunk.est_tokens) == (ChunkState.WAITING, attempt, 3, 6)
    assert (chunk.region, chunk.window_at, chunk.dispatched_at, chunk.lease_until) == (None, None, None, None)
    assert chunk.est_duration_s == pytest.approx(0.75)
    (row,) = bench.rows(chunks)
    assert row.error == "why"
    with bench.db.read() as tx:
        assert row.not_before > machine_now(tx)


def test_giving_back_nothing_ends_the_chunk(bench: Bench) -> None:
    job_id = bench.job(2)
    chunk_id = bench.chunk(job_id)
    found = held(bench, chunk_id)
    with bench.db.write() as tx:
        item_ids = list(tx.execute(select(items.c.item_id)).scalars())
        item_rows.end_many(tx, item_ids, ItemState.EXPIRED, at=bench.clock.now())
        assert not leases.has_open_items(tx, chunk_id)
        is_open = leases.give_back(
            tx, chunk_id, found.token, is_counted=False, outcome=AttemptOutcome.CANCELLED, now=bench.clock.now()
        )
    assert not is_open
    assert bench.one(chunk_id).state is ChunkState.DONE


def test_expired_leases_are_found_with_their_report(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(1))
    found = held(bench, chunk_id)
    with bench.db.write() as tx:
        leases.report(tx, chunk_id, found.token, {"burnt": []})
        assert leases.expired_ids(tx) == leases.expired(tx, among=[chunk_id]) == []
    bench.silence(chunk_id)
    with bench.db.write() as tx:
        assert leases.expired_ids(tx) == [chunk_id] and leases.expired(tx, among=["another"]) == []
        (lost,) = leases.expired(tx, among=[chunk_id])
    assert lost.chunk.chunk_id == chunk_id
    assert lost.pending == {"burnt": []}
    assert lost.claimed_at == bench.clock.now()


def test_splitting_moves_every_open_item_into_one_half(bench: Bench) -> None:
    job_id = bench.job(5)
    chunk_id = bench.chunk(job_id)
    held(bench, chunk_id)
    with bench.db.write() as tx:
        halves = leases.split(tx, chunk_id, attempt=3, now=bench.clock.now())
    assert bench.one(chunk_id).state is ChunkState.DONE
    counts = [bench.one(half).items_count for half in halves]
    assert counts == [2, 3]
    for half in halves:
        chunk = bench.one(half)
        assert (chunk.state, chunk.attempt, chunk.token) == (ChunkState.WAITING, 3, 0)
        assert chunk.latest_start_at == bench.one(chunk_id).latest_start_at
        with bench.db.read() as tx:
            assert len(item_rows.of_chunk(tx, half)) == chunk.items_count


def test_a_lost_attempt_can_turn_fenced_but_a_committed_one_stays(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(1))
    found = held(bench, chunk_id)
    now = bench.clock.now()
    with bench.db.write() as tx:
        leases.end_attempt(tx, chunk_id, found.token, AttemptOutcome.LOST, now=now)
        leases.end_attempt(tx, chunk_id, found.token, AttemptOutcome.FENCED, now=now)
        leases.end_attempt(tx, chunk_id, found.token, AttemptOutcome.LOST, now=now)
    assert [row.outcome for row in bench.rows(attempts)] == ["fenced"]

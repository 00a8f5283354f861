"""Quotas of tenants: each at its limit, given back on every final state, and not passed by many at once."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from carbonq.blobs.folder import FolderStore
from carbonq.errors import QuotaExceeded
from carbonq.model import ItemState, Job, NewItem, Quota, Usage
from carbonq.services import admin, cancel, finish, quota, retire
from carbonq.store import items, jobs, quotas
from carbonq.store.database import Database, Tx
from carbonq.store.tables import items as item_rows
from carbonq.testing import FakeClock
from tests.store import rows

NOON = datetime.fromisoformat("2026-03-02T12:00Z")


@pytest.fixture
def blobs(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "blobs")


def reserve(tx: Tx, limits: Quota, *, tenant: str = "acme", **asked: Any) -> None:
    given: dict[str, Any] = {"items": 10, "input_bytes": 1000, "tokens": 100, "now": NOON, **asked}
    quota.reserve(tx, tenant, limits=limits, **given)


def store(tx: Tx, limits: Quota, *, tenant: str = "acme", count: int = 10, input_bytes: int = 1000) -> Job:
    """Store a job with ten tokens an item, as a submit does."""
    job = rows.job(tenant=tenant, items_total=count, est_tokens=10 * count, input_bytes=input_bytes, created_at=NOON)
    reserve(tx, limits, tenant=tenant, items=count, input_bytes=input_bytes, tokens=10 * count)
    jobs.insert_job(tx, job, source="jobs", machine_created_at=NOON)
    items.insert_many(tx, job.job_id, [NewItem(n, f"a-{n}", n * 50, 49, 10) for n in range(count)])
    return job


@pytest.mark.parametrize(
    ("limits", "code", "sentence"),
    [
        (
            Quota(open_jobs=2),
            "quota_exceeded",
            r"'acme' has 2 open jobs and this would add 1; its limit is 2: .*cancel",
        ),
        (Quota(items_waiting=20), "quota_exceeded", r"has 20 items waiting and this would add 10; its limit is 20"),
        (Quota(bytes_waiting=2000), "quota_exceeded", r"has 2,000 bytes waiting and this would add 1,000; .* 2,000"),
        (
            Quota(tokens_per_day=200),
            "token_limit_exceeded",
            r"used 200 tokens since 2026-03-02T00:00Z .*limit is 200 a",
        ),
    ],
)
def test_each_limit_is_reached_and_not_passed(database: Database, limits: Quota, code: str, sentence: str) -> None:
    for _ in range(2):
        with database.write() as tx:
            store(tx, limits)
    with pytest.raises(QuotaExceeded, match=sentence) as refused, database.write() as tx:
        store(tx, limits)
    assert refused.value.code == code
    assert refused.value.retry_after_s == (12 * 3600 if code == "token_limit_exceeded" else quota.RETRY_S)
    with database.write() as tx:
        store(tx, limits, tenant="rival")  # whose limits are its own
    with database.read() as tx, pytest.raises(QuotaExceeded, match=sentence):
        quota.check(tx, "acme", items=10, input_bytes=1000, tokens=100, now=NOON, limits=limits)


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Quota(items_waiting=9), "10 items waiting"),
        (Quota(bytes_waiting=999), "1,000 bytes waiting"),
        (Quota(tokens_per_day=99), "100 tokens a day"),
        (Quota(open_jobs=0), "1 open jobs"),
    ],
)
def test_what_can_never_fit_is_said_so(sqlite_database: Database, limits: Quota, name: str) -> None:
    sentence = f"{name} and tenant 'acme' may have .* in all"
    with pytest.raises(QuotaExceeded, match=sentence) as refused, sqlite_database.write() as tx:
        reserve(tx, limits)
    assert refused.value.retry_after_s is None


def test_a_refusal_writes_nothing_and_no_limit_asks_nothing(sqlite_database: Database) -> None:
    quota.reserve(None, "acme", items=1, input_bytes=1, tokens=1, now=NOON, limits=Quota())  # type: ignore[arg-type]
    limits = Quota(items_waiting=10, tokens_per_day=100)
    with sqlite_database.write() as tx:
        store(tx, limits)
        with pytest.raises(QuotaExceeded):
            reserve(tx, limits)
        reserve(tx, limits, tenant="rival")  # the transaction lives on
    with sqlite_database.read() as tx:
        assert quotas.counted(tx, "acme") == (Usage(1, 10, 1000), NOON)
        assert quotas.tokens_of(tx, "acme", "2026-03-02") == 100


def test_jobs_that_are_stored_together_are_counted_together(sqlite_database: Database) -> None:
    limits = Quota(open_jobs=2, items_waiting=20)
    with sqlite_database.write() as tx, pytest.raises(QuotaExceeded, match=r"3 open jobs .* may have 2 in all"):
        reserve(tx, limits, jobs=3, items=3)
    with sqlite_database.write() as tx:
        reserve(tx, limits, jobs=2, items=20)
        assert quotas.counted(tx, "acme") == (Usage(2, 20, 1000), NOON)


def test_a_day_ends_and_its_tokens_with_it(sqlite_database: Database) -> None:
    limits = Quota(tokens_per_day=100)
    with sqlite_database.write() as tx:
        reserve(tx, limits)
        with pytest.raises(QuotaExceeded, match="come back after 2026-03-03T00:00Z") as refused:
            reserve(tx, limits, factor=60.0)
        assert refused.value.retry_after_s == 720  # twelve grid hours on a clock that is sixty times as fast
        reserve(tx, limits, now=NOON + timedelta(hours=12))


def test_days_long_past_are_forgotten(sqlite_database: Database, blobs: FolderStore) -> None:
    limits, clock = Quota(tokens_per_day=100), FakeClock(NOON)
    with sqlite_database.write() as tx:
        reserve(tx, limits)
    clock.advance(60 * 86_400)
    assert retire.retire(sqlite_database, blobs, clock, retire.Keep()) == 0
    clock.advance(86_400)
    assert retire.retire(sqlite_database, blobs, clock, retire.Keep()) == 1
    with sqlite_database.read() as tx:
        assert quotas.tokens_of(tx, "acme", "2026-03-02") is None


def test_a_limit_set_in_the_middle_of_a_day_counts_what_came_before(sqlite_database: Database) -> None:
    with sqlite_database.write() as tx:
        store(tx, Quota())
    with sqlite_database.write() as tx, pytest.raises(QuotaExceeded, match="used 100 tokens"):
        reserve(tx, Quota(tokens_per_day=199))


def test_a_tenants_own_limits_lie_over_the_settings(sqlite_database: Database) -> None:
    defaults = Quota(open_jobs=5, items_waiting=7)
    admin.limit_tenant(sqlite_database, "acme", {"open_jobs": None, "tokens_per_day": 3}, actor="anna@host")
    with sqlite_database.read() as tx:
        assert quota.limits_of(tx, "acme", defaults) == Quota(items_waiting=7, tokens_per_day=3)
        assert quota.limits_of(tx, "rival", defaults) == defaults
    admin.limit_tenant(sqlite_database, "acme", {"open_jobs": "default", "tokens_per_day": "default"}, actor="anna@h")
    with sqlite_database.read() as tx:
        assert quota.limits_of(tx, "acme", defaults) == defaults
        assert quotas.all_limits(tx) == {}


@pytest.mark.parametrize("is_minute_over", [False, True])
def test_what_came_while_a_limit_was_off_counts_when_it_is_on_again(
    sqlite_database: Database, is_minute_over: bool
) -> None:
    limits = Quota(items_waiting=25, tokens_per_day=250)
    for _ in range(2):  # the second one while the tenant had no limit
        with sqlite_database.write() as tx:
            store(tx, limits)
        limits = Quota()
    if not is_minute_over:  # else the count is too old by itself
        admin.limit_tenant(sqlite_database, "acme", {"items_waiting": 25, "tokens_per_day": 250}, actor="anna@host")
    now = NOON + timedelta(seconds=60 if is_minute_over else 0)
    with sqlite_database.write() as tx, pytest.raises(QuotaExceeded, match="has 20 items waiting"):
        reserve(tx, Quota(items_waiting=25), now=now)
    if not is_minute_over:
        with sqlite_database.write() as tx, pytest.raises(QuotaExceeded, match="used 200 tokens"):
            reserve(tx, Quota(tokens_per_day=250))


@dataclass
class Life:
    """A job as the test knows it."""

    job: Job
    ended: int = 0
    unrun: int = 0
    is_final: bool = False


LIMITS = Quota(open_jobs=3, items_waiting=12, bytes_waiting=1000, tokens_per_day=200)

ACTS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 8), st.integers(1, 500)),
    st.tuples(st.sampled_from(["run", "fail"]), st.integers(0, 9), st.integers(1, 8)),
    st.tuples(st.sampled_from(["cancel", "expire"]), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("finish"), st.just(0), st.just(0)),
)


# Without shrinking: each example takes some forty transactions.
@settings(
    max_examples=20,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(acts=st.lists(ACTS, min_size=4, max_size=16))
def test_what_is_reserved_is_what_is_open(
    sqlite_database: Database, blobs: FolderStore, acts: list[tuple[str, int, int]]
) -> None:
    """Whatever becomes of jobs: a submit fits exactly when there is room, and every final state gives back."""
    tenant, clock = f"t-{uuid.uuid4().hex[:8]}", FakeClock(NOON)
    lives: list[Life] = []
    for act, first, second in acts:
        if act == "submit":
            _submit(sqlite_database, tenant, lives, first, second)
        elif act == "finish":
            finish.finish_jobs(sqlite_database, blobs, clock)
            for life in lives:
                life.is_final |= life.ended == life.job.items_total
        elif lives:
            _end(sqlite_database, clock, lives[first % len(lives)], act, second)
        with sqlite_database.read() as tx:
            assert quotas.count_open(tx, tenant) == _open(lives)
            kept = quotas.counted(tx, tenant)
            assert kept is None or kept[0].open_jobs >= _open(lives).open_jobs  # at least what is open
            assert (quotas.tokens_of(tx, tenant, "2026-03-02") or 0) == _tokens(lives)
            assert quotas.count_tokens(tx, tenant, NOON.replace(hour=0)) == _tokens(lives)


def _submit(database: Database, tenant: str, lives: list[Life], count: int, size: int) -> None:
    held = _open(lives)
    has_room = held.open_jobs < 3 and held.items + count <= 12 and held.input_bytes + size <= 1000
    has_room &= _tokens(lives) + 10 * count <= 200
    try:
        with database.write() as tx:
            lives.append(Life(store(tx, LIMITS, tenant=tenant, count=count, input_bytes=size)))
    except QuotaExceeded:
        assert not has_room
    else:
        assert has_room


def _open(lives: list[Life]) -> Usage:
    held = [life for life in lives if not life.is_final]
    return Usage(
        len(held),
        sum(life.job.items_total - life.ended for life in held),
        sum(life.job.input_bytes for life in held),
    )


def _tokens(lives: list[Life]) -> int:
    return sum(life.job.est_tokens - (10 * life.unrun if life.is_final else 0) for life in lives)


def _end(database: Database, clock: FakeClock, life: Life, act: str, count: int) -> None:
    left = life.job.items_total - life.ended
    if act in {"cancel", "expire"}:
        if act == "cancel":
            cancel.cancel(database, life.job.job_id, None, clock)
        else:
            with database.write() as tx:
                cancel.sweep(tx, life.job.job_id, NOON, is_cancelled=False)
        life.ended += left
        life.unrun += left
        return
    count = min(count, left)
    state = ItemState.SUCCEEDED if act == "run" else ItemState.FAILED
    with database.write() as tx:
        span = item_rows.c.idx.between(life.ended, life.ended + count - 1)
        tx.execute(update(item_rows).where(item_rows.c.job_id == life.job.job_id, span).values(state=state.value))
        jobs.bump(tx, life.job.job_id, **{state.value: count})
    life.ended += count


def test_many_at_once_do_not_pass_a_limit(postgresql: Database) -> None:
    limits = Quota(items_waiting=100, tokens_per_day=1000)
    barrier = threading.Barrier(8)
    accepted: list[Job] = []

    def submit() -> None:
        barrier.wait()
        for _ in range(4):
            try:
                with postgresql.write() as tx:
                    job = store(tx, limits)
            except QuotaExceeded:
                continue
            accepted.append(job)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(accepted) == 10
    with postgresql.read() as tx:
        assert quotas.count_open(tx, "acme") == Usage(10, 100, 10_000)
        assert quotas.tokens_of(tx, "acme", "2026-03-02") == 1000

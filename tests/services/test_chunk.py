"""New jobs are cut into chunks once, whole, and short enough."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from carbonq.model import Chunk, ChunkState, Endpoint, ItemState, LatePolicy, Throughput, Treatment
from carbonq.plan import policy
from carbonq.plan.treatment import TreatmentRules
from carbonq.services import cancel
from carbonq.store import items, tables, throughputs
from carbonq.store.database import Database, Tx
from carbonq.testing import FakeClock
from tests.services.jobs import World
from tests.store.rows import T0

HOUR = timedelta(hours=1)


@pytest.fixture
def world(sqlite_database: Database, tmp_path: Path) -> World:
    return World(sqlite_database, tmp_path)


def held(world: World) -> dict[str, list[tuple[str, int]]]:
    """Return the (job_id, idx) each chunk holds, under None what is in none."""
    found: dict[str, list[tuple[str, int]]] = {}
    with world.db.read() as tx:
        for chunk_id, job_id, idx in tx.execute(select(*(tables.items.c[n] for n in ("chunk_id", "job_id", "idx")))):
            found.setdefault(chunk_id, []).append((job_id, idx))
    return found


def test_a_job_is_cut_into_chunks_of_at_most_a_part_of_a_window(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    job, _ = world.submit(b"".join(_varied(900)))
    assert world.chunk() == 1
    assert world.chunk() == 0
    with world.db.write() as tx:
        throughputs.learn(tx, "words", "gpu", 100, 1.0, 500)
    again, _ = world.submit(b"".join(_varied(900)), deadline_at=T0 + 5 * HOUR)
    # The slowest allowed region counts: 0.6 x 300 s x 100 tokens/s.
    expected = -(-again.est_tokens // 18_000)
    assert world.chunk() == expected
    found = held(world)
    assert sorted(pair for pairs in found.values() for pair in pairs) == sorted(
        (one.job_id, idx) for one in (job, again) for idx in range(900)
    )
    chunks: Sequence[Chunk] = [chunk for chunk in world.chunks() if chunk.deadline_at == again.deadline_at]
    assert len(chunks) == expected
    for chunk in chunks:
        assert len(found[chunk.chunk_id]) == chunk.items_count
        assert chunk.est_duration_s <= 180
        assert chunk.est_duration_s == pytest.approx(chunk.est_tokens / 100)
        assert chunk.est_energy_uj == chunk.est_tokens * 20
        assert (chunk.state, chunk.tenant, chunk.regions, chunk.release_at) == (ChunkState.WAITING, None, None, T0)
        assert chunk.latest_start_at == policy.latest_safe_start(chunk.deadline_at, chunk.est_duration_s, 1.0)
    assert sum(chunk.est_tokens for chunk in chunks) == again.est_tokens


def _varied(count: int) -> list[bytes]:
    from tests.services.jobs import line

    return [line(n, "x" * (n % 40 * 10)) for n in range(count)]


def test_small_jobs_alike_share_a_chunk_and_others_do_not(world: World) -> None:
    alike = [world.submit(3)[0] for _ in range(3)]
    tenant, _ = world.submit(3, tenant="other")
    others = [
        world.submit(3, regions=("north",))[0],
        world.submit(3, deadline_at=T0 + 9 * HOUR)[0],
        world.submit(3, max_carbon_g=Decimal(5))[0],
        world.submit(3, max_carbon_g=Decimal(5))[0],
    ]
    assert world.chunk() == 5
    groups = sorted(sorted({job_id for job_id, _ in pairs}) for pairs in held(world).values())
    assert groups == sorted([sorted(job.job_id for job in (*alike, tenant)), *([job.job_id] for job in others)])


def test_tenants_are_kept_apart_when_asked(world: World) -> None:
    world.submit(3)
    world.submit(3, tenant="other")
    assert world.chunk(isolate_tenants=True) == 2
    assert sorted(str(chunk.tenant) for chunk in world.chunks()) == ["default", "other"]


def test_chunks_hold_at_most_max_chunk_items(world: World) -> None:
    world.submit(25)
    assert world.chunk(max_chunk_items=10) == 3
    assert sorted(chunk.items_count for chunk in world.chunks()) == [8, 8, 9]


def test_a_chunk_takes_the_earliest_deadline_and_the_latest_release(world: World) -> None:
    world.submit(3, deadline_at=T0 + 8 * HOUR + timedelta(minutes=40))
    world.clock.advance(60)
    world.submit(3, deadline_at=T0 + 8 * HOUR + timedelta(minutes=20))
    assert world.chunk() == 1
    chunk = world.chunks()[0]
    assert (chunk.deadline_at, chunk.release_at) == (
        T0 + 8 * HOUR + timedelta(minutes=20),
        T0 + timedelta(minutes=1),
    )


def test_a_near_deadline_makes_short_chunks(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, clock=FakeClock(T0, factor=75.0))
    world.learned[("words", "cpu")] = world.learned[("words", "gpu")] = Throughput("words", "cpu", 4e5, 3, 9)
    with world.db.write() as tx:
        for hardware in ("cpu", "gpu"):
            throughputs.learn(tx, "words", hardware, 400_000, 1.0, 1_200_000)
    deadline_at = T0 + timedelta(seconds=310)  # 100 s are left after the 210 s that a start may take
    job, _ = world.submit(b"".join(_varied(400)), deadline_at=deadline_at)
    world.chunk()
    for chunk in world.chunks():
        assert chunk.est_duration_s * 75 <= 60
        assert chunk.latest_start_at is not None
        assert chunk.latest_start_at >= T0
    assert job.items_total == 400


def test_small_jobs_wait_for_company_unless_it_is_urgent(world: World) -> None:
    world.submit(3)
    assert world.chunk(chunk_wait_s=3600.0) == 0
    world.submit(3, deadline_at=T0 + timedelta(minutes=5))
    assert world.chunk(chunk_wait_s=3600.0) == 1
    assert world.chunk(chunk_wait_s=0.0) == 1


def test_a_full_chunk_does_not_wait(world: World) -> None:
    world.submit(20)
    assert world.chunk(chunk_wait_s=3600.0, max_chunk_items=10) == 2


def test_the_baseline_is_the_home_regions_queue(database: Database, tmp_path: Path) -> None:
    """Two slots of 'north' at 0.1 tokens/s: each of five one-item chunks of 30 tokens takes a window."""
    world = World(database, tmp_path)
    world.models = {"words": replace(world.models["words"], tokens_per_s=0.1)}
    late = {"deadline_at": T0 + timedelta(days=2)}
    from tests.services.jobs import line

    world.submit(b"".join(line(n, "x" * 120) for n in range(5)), **late)
    assert world.chunk() == 5
    starts = sorted(chunk.baseline_window_at for chunk in world.chunks())
    assert [(start - T0).total_seconds() for start in starts] == [0, 0, 300, 300, 600]
    assert {chunk.baseline_region for chunk in world.chunks()} == {"north"}
    world.clock.advance(60)
    world.submit(line(9, "x" * 120), **late)
    world.chunk()
    assert max(chunk.baseline_window_at for chunk in world.chunks()) == T0 + timedelta(seconds=600)


def test_a_job_whose_model_left_the_settings_waits(world: World) -> None:
    world.submit(3)
    models, world.models = world.models, {}
    assert world.chunk() == 0
    world.models = models
    assert world.chunk(regions=()) == 0
    assert world.chunk() == 1


def test_a_home_region_that_left_the_settings_has_no_queue(world: World) -> None:
    world.submit(3)
    assert world.chunk(regions=world.regions[1:]) == 1
    assert world.chunks()[0].baseline_window_at == T0


def test_a_late_job_is_still_cut(world: World) -> None:
    world.submit(3)
    world.clock.advance(7 * 3600)
    assert world.chunk() == 1


def test_items_that_ended_before_are_left_out(world: World) -> None:
    job, _ = world.submit(3)
    gone, _ = world.submit(3, late_policy=LatePolicy.EXPIRE)
    world.end(job, {"a-1": ItemState.FAILED})
    cancel.cancel(world.db, gone.job_id, None, world.clock)
    assert world.chunk() == 1
    assert world.chunks()[0].items_count == 2
    assert world.chunk() == 0


def test_an_item_that_ends_in_between_is_seen_at_the_next_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = world.submit(3)
    real = items.unchunked

    def unchunked(tx: Tx, job_ids: Sequence[str]) -> Any:
        found = real(tx, job_ids)
        monkeypatch.undo()
        world.end(job, {"a-1": ItemState.FAILED})
        return found

    monkeypatch.setattr(items, "unchunked", unchunked)
    assert world.chunk() == 0
    assert world.chunks() == []
    assert world.chunk() == 1
    assert world.chunks()[0].items_count == 2


def test_two_chunkers_at_once_chunk_each_item_once(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    for n in range(6):
        world.submit(20, deadline_at=T0 + (n + 2) * HOUR)
    made: list[int] = []
    threads = [threading.Thread(target=lambda: made.append(world.chunk(max_chunk_items=5))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 2
    world.chunk(max_chunk_items=5)
    assert sum(chunk.items_count for chunk in world.chunks()) == 120
    assert None not in held(world)
    assert all(len(pairs) == 5 for pairs in held(world).values())


def test_chat_items_are_cut_by_what_they_may_generate(world: World) -> None:
    import orjson

    body = {"model": "talk", "messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 6}
    source = b"".join(
        orjson.dumps({"custom_id": f"c{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}) + b"\n"
        for n in range(200)
    )
    job, _ = world.submit(source, model="talk", endpoint=Endpoint.CHAT)
    assert job.est_tokens == 200 * (4 + 10 + 6)
    assert world.chunk() == 3  # 1,800 tokens a chunk


def test_jobs_of_unlike_treatment_share_no_chunk(world: World) -> None:
    world.treatments = TreatmentRules(observed_tenants=frozenset({"watched"}))
    world.submit(2)
    world.submit(2, tenant="watched")
    assert world.chunk() == 2
    assert {(one.treatment, one.items_count) for one in world.chunks()} == {
        (Treatment.PLANNED, 2),
        (Treatment.OBSERVED, 2),
    }

"""Jobs whose items have all ended get their files and become final, once."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from carbonq.blobs.folder import FolderStore
from carbonq.errors import StoreUnavailable
from carbonq.model import ItemState, JobState, LatePolicy
from carbonq.services import cancel, expire, finish
from carbonq.services.retire import Keep, retire
from carbonq.store import events, jobs, results
from carbonq.store.database import Database
from tests.services.jobs import World
from tests.store.rows import T0

DONE, FAILED = ItemState.SUCCEEDED, ItemState.FAILED


@pytest.fixture
def world(sqlite_database: Database, tmp_path: Path) -> World:
    return World(sqlite_database, tmp_path)


def run(world: World) -> int:
    return finish.finish_jobs(world.db, world.blobs, world.clock)


def test_files_are_assembled_and_segments_removed_an_hour_later(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    job, _ = world.submit(4)
    assert run(world) == 0
    world.end(job, {"a-0": DONE, "a-1": FAILED, "a-2": DONE})
    assert run(world) == 0
    world.end(job, {"a-3": DONE})
    world.clock.advance(60)
    assert run(world) == 1
    assert run(world) == 0
    final = world.job(job.job_id)
    assert (final.state, final.finished_at, final.error) == (JobState.COMPLETED, T0 + timedelta(minutes=1), None)
    assert [line["custom_id"] for line in world.lines_of(final.output_blob)] == ["a-0", "a-2", "a-3"]
    assert world.lines_of(final.error_blob) == [{"custom_id": "a-1", "was": "error"}]
    assert len(world.files()) == 3 + 4
    world.clock.advance(3600)
    assert retire(world.db, world.blobs, world.clock, Keep()) == 0
    world.clock.advance(1)
    assert retire(world.db, world.blobs, world.clock, Keep()) == 1
    assert world.files() == sorted([final.input_blob, final.output_blob or "", final.error_blob or ""])
    with world.db.read() as tx:
        last = events.after(tx, None, job.job_id)[-1]
        assert results.segments_of(tx, job.job_id, "output") == []
    assert (last.type, last.data["succeeded"], last.data["failed"]) == ("job.completed", 3, 1)


def test_a_job_without_errors_has_no_error_file(world: World) -> None:
    job, _ = world.submit(1)
    world.end(job, {"a-0": DONE})
    assert run(world) == 1
    assert world.job(job.job_id).error_blob is None


def test_a_job_without_any_success_says_so(world: World) -> None:
    job, _ = world.submit(3)
    world.end(job, {"a-0": FAILED, "a-1": FAILED})
    world.end(job, {"a-2": FAILED}, lineless=frozenset({"a-2"}))
    assert run(world) == 1
    final = world.job(job.job_id)
    assert (final.state, final.output_blob) == (JobState.COMPLETED, None)
    assert final.error == "3 of 3 items failed; most common: bad (2); the error file says why for each"


def test_items_that_ended_without_a_line_get_one(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "_PAGE", 2)
    world = World(database, tmp_path)
    job, _ = world.submit(8, late_policy=LatePolicy.EXPIRE)
    world.end(job, {"a-0": DONE, "a-1": FAILED, "a-2": FAILED}, lineless=frozenset({"a-2"}))
    world.clock.advance(6 * 3600)
    assert expire.expire(world.db, world.clock) == 5
    assert run(world) == 1
    final = world.job(job.job_id)
    assert final.state == JobState.EXPIRED
    errors = {line["custom_id"]: line for line in world.lines_of(final.error_blob)}
    assert sorted(errors) == [f"a-{n}" for n in range(1, 8)]
    assert errors["a-2"]["error"]["code"] == "attempts_exhausted"
    late = errors["a-5"]
    assert (late["response"], late["error"]["code"]) == (None, "batch_expired")
    assert "2026-03-02T14:00" in late["error"]["message"]
    assert late["id"].startswith("batch_req_")


def test_a_cancelled_job_keeps_what_was_done(world: World) -> None:
    job, _ = world.submit(3)
    world.end(job, {"a-0": DONE})
    cancel.cancel(world.db, job.job_id, "default", world.clock)
    assert run(world) == 1
    final = world.job(job.job_id)
    assert final.state == JobState.CANCELLED
    assert [line["custom_id"] for line in world.lines_of(final.output_blob)] == ["a-0"]
    codes = [line["error"]["code"] for line in world.lines_of(final.error_blob)]
    assert codes == ["batch_cancelled"] * 2


def test_two_at_once_finish_a_job_once(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(database, tmp_path)
    job, _ = world.submit(2)
    world.end(job, {"a-0": DONE, "a-1": FAILED})
    both = threading.Barrier(2, timeout=20)
    real = finish._summary

    def summary(*arguments: Any) -> Any:
        both.wait()
        return real(*arguments)

    monkeypatch.setattr(finish, "_summary", summary)
    finished: list[int] = []
    threads = [threading.Thread(target=lambda: finished.append(run(world))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(finished) == [0, 1]
    final = world.job(job.job_id)
    assert len(world.lines_of(final.output_blob)) == len(world.lines_of(final.error_blob)) == 1
    with world.db.read() as tx:
        types = [event.type for event in events.after(tx, None, job.job_id)]
    assert types.count("job.completed") == 1


def test_a_crash_in_between_is_finished_by_the_next_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = world.submit(2)
    world.end(job, {"a-0": DONE, "a-1": FAILED})

    def crash(*_arguments: object, **_named: object) -> None:
        raise RuntimeError("killed")

    for module, name in ((finish, "_error_file"), (jobs, "finish"), (events, "append_many")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, crash)
            with pytest.raises(RuntimeError):
                run(world)
        assert world.job(job.job_id).state == JobState.FINISHING
    assert run(world) == 1
    assert world.job(job.job_id).state == JobState.COMPLETED


def test_a_full_disk_delays_one_job_and_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    full, _ = world.submit(1)
    fine, _ = world.submit(1)
    for job in (full, fine):
        world.end(job, {"a-0": DONE})
    real = FolderStore.put

    def put(self: FolderStore, key: str, data: Any) -> int:
        if full.job_id in key:
            raise StoreUnavailable("the disk is full")
        return real(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "put", put)
        assert run(world) == 1
        assert world.job(full.job_id).state == JobState.FINISHING
        assert world.job(fine.job_id).state == JobState.COMPLETED
    assert run(world) == 1
    assert world.job(full.job_id).state == JobState.COMPLETED


def test_a_lost_segment_fails_the_job_in_words(world: World) -> None:
    job, _ = world.submit(2)
    world.end(job, {"a-0": DONE, "a-1": DONE})
    world.blobs.delete(f"segments/{job.job_id}/a-0.output")
    assert run(world) == 1
    final = world.job(job.job_id)
    assert (final.state, final.output_blob) == (JobState.FAILED, None)
    assert "results are missing from the data folder" in (final.error or "")


def test_what_a_killed_worker_wrote_and_never_committed_is_removed(world: World) -> None:
    job, _ = world.submit(1)
    world.blobs.put(f"segments/{job.job_id}/chunk_1-1-1.output", b"never committed\n")
    world.end(job, {"a-0": DONE})
    assert run(world) == 1
    final = world.job(job.job_id)
    assert [line["custom_id"] for line in world.lines_of(final.output_blob)] == ["a-0"]
    world.clock.advance(3601)
    retire(world.db, world.blobs, world.clock, Keep())
    assert world.files() == sorted([final.input_blob, final.output_blob or ""])

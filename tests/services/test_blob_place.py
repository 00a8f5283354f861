"""A host whose blobs are not the installation's (a share that is not mounted) runs nothing and fails nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from carbonq.blobs.folder import FolderStore
from carbonq.errors import ConfigError, StoreUnavailable
from carbonq.model import ItemState, JobState
from carbonq.services import blob_place, finish
from carbonq.services.run import Result, run_chunk
from carbonq.services.site import Limits
from carbonq.store.database import Database
from carbonq.store.tables import attempts
from tests.services.jobs import World
from tests.services.running import Bench

GO = threading.Event()


@pytest.fixture
def bench(sqlite_database: Database, tmp_path: Path) -> Bench:
    return Bench(sqlite_database, tmp_path, limits=Limits(max_attempts=2, backoff_base_s=0.001, backoff_cap_s=0.002))


@pytest.fixture
def unmounted(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "unmounted")


def test_a_worker_in_the_wrong_place_uses_up_no_attempt(bench: Bench, unmounted: FolderStore) -> None:
    job_id = bench.job(3)
    chunk_id = bench.chunk(job_id)
    astray = replace(bench.site, blobs=unmounted, limits=replace(bench.limits, max_attempts=1))
    for _ in range(2):  # more often than there are attempts
        assert run_chunk(astray, chunk_id, GO) is Result.LOST
        assert bench.one(chunk_id).attempt == 0
        bench.dispatch(chunk_id)
    assert {row.error for row in bench.rows(attempts)} == {f"there is no stored file 'inputs/{job_id}.jsonl'"}
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert bench.states(job_id) == {"succeeded": 3}


def test_a_store_that_is_away_uses_up_no_attempt(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = bench.job(3)
    chunk_id = bench.chunk(job_id)

    def put(*_arguments: object) -> int:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "put", put)
        assert run_chunk(bench.site, chunk_id, GO) is Result.LOST
    assert bench.one(chunk_id).attempt == 0
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE


def test_a_lost_input_ends_its_own_items_after_the_last_attempt(bench: Bench) -> None:
    lost, fine = bench.job(2, prefix="lost"), bench.job(2, prefix="fine")
    chunk_id = bench.chunk(lost, fine)
    bench.blobs.delete(f"inputs/{lost}.jsonl")
    assert run_chunk(bench.site, chunk_id, GO) is Result.LOST
    assert bench.one(chunk_id).attempt == 1
    assert bench.states(lost) == {"waiting": 2}
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert bench.states(lost) == {"failed": 2}
    assert bench.states(fine) == {"succeeded": 2}
    lines = bench.lines(lost, "error")
    assert [line["response"]["body"]["error"]["code"] for line in lines] == ["input_lost"] * 2
    assert "submit it again" in lines[0]["response"]["body"]["error"]["message"]


def test_control_in_the_wrong_place_leaves_the_job_to_another(
    sqlite_database: Database, tmp_path: Path, unmounted: FolderStore
) -> None:
    world = World(sqlite_database, tmp_path)
    job, _ = world.submit(1)
    world.end(job, {"a-0": ItemState.SUCCEEDED})
    assert finish.finish_jobs(world.db, unmounted, world.clock) == 0
    assert world.job(job.job_id).state is JobState.FINISHING
    assert finish.finish_jobs(world.db, world.blobs, world.clock) == 1
    assert world.job(job.job_id).state is JobState.COMPLETED


def test_a_process_of_a_fleet_does_not_start_in_the_wrong_place(
    postgresql: Database, tmp_path: Path, unmounted: FolderStore, caplog: pytest.LogCaptureFixture
) -> None:
    blob_place.check_at_start(postgresql, unmounted)  # no job to tell by
    world = World(postgresql, tmp_path)
    first, _ = world.submit(1)
    with pytest.raises(ConfigError, match=rf"{unmounted.name} holds the input of none.*{first.input_blob}.*_BLOB_URL"):
        blob_place.check_at_start(postgresql, unmounted)
    blob_place.check_at_start(postgresql, unmounted, may_refuse=False)
    assert "holds the input of none of the newest jobs" in caplog.text
    blob_place.check_at_start(postgresql, world.blobs)
    newest, _ = world.submit(1)
    world.blobs.delete(newest.input_blob)
    blob_place.check_at_start(postgresql, world.blobs)  # one that is lost does not make the place wrong


def test_a_store_that_is_away_at_the_start_is_only_logged(
    postgresql: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(postgresql, tmp_path)
    world.submit(1)

    def info(*_arguments: object) -> None:
        raise StoreUnavailable("the bucket does not answer")

    monkeypatch.setattr(FolderStore, "info", info)
    blob_place.check_at_start(postgresql, world.blobs)
    assert "cannot tell yet" in caplog.text

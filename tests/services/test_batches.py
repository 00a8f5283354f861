"""Batches are made once however often a client repeats itself, cancelled, and finished with files of all their jobs."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from carbonq.blobs.folder import FolderStaged
from carbonq.errors import InvalidRequest, NotFound, QuotaExceeded, StoreUnavailable
from carbonq.model import ItemState, JobState, Quota
from carbonq.services import batches as service
from carbonq.services import files as file_service
from carbonq.services import finish, finish_batches
from carbonq.services.batches import RETRIES_FOR, Request
from carbonq.services.retire import Keep, retire
from carbonq.store import batches, events, files, jobs, regions, tables
from carbonq.store.batches import Batch, BatchState
from carbonq.store.database import Database
from carbonq.terms import Terms
from tests.services.batching import add, add_file, asked, finish_all, get, jobs_of, read
from tests.services.jobs import REGIONS, World, line
from tests.store.rows import T0

OK, BAD = ItemState.SUCCEEDED, ItemState.FAILED


def made(database: Database, folder: Path) -> World:
    with database.write() as tx:
        regions.sync(tx, REGIONS)
    return World(database, folder)


@pytest.fixture
def world(sqlite_database: Database, tmp_path: Path) -> World:
    return made(sqlite_database, tmp_path)


def started(world: World, data: bytes | int, **changes: Any) -> Batch:
    batch = add(world, data, **changes)
    assert read(world) == 1
    return get(world, batch)


def end(world: World, batch: Batch, states: dict[str, ItemState]) -> None:
    """End items by custom_id, whichever job they are in."""
    for job in jobs_of(world, batch):
        with world.db.read() as tx:
            names = set(tx.execute(select(tables.items.c.custom_id).filter_by(job_id=job.job_id)).scalars())
        world.end(job, {name: state for name, state in states.items() if name in names})


def lines_of(world: World, file_id: str | None) -> list[str]:
    assert file_id is not None
    with world.db.read() as tx:
        found = files.get(tx, file_id, "default", world.clock.now())
    assert world.blobs.info(found.blob).size == found.bytes
    names = [one["custom_id"] for one in world.lines_of(found.blob)]
    assert len(names) == found.lines
    return sorted(names)


def last_event(world: World) -> events.Event:
    with world.db.read() as tx:
        return events.after(tx, "default")[-1]


def test_files_of_all_jobs_are_one_and_everything_of_it_ends_at_once(database: Database, tmp_path: Path) -> None:
    world = made(database, tmp_path)
    batch = started(world, line(0) + line(1) + line(2, carbon={"deadline": "2h"}) + line(3, carbon={"workload": "w"}))
    end(world, batch, {"a-0": OK, "a-2": BAD})
    assert finish_all(world) == 0
    assert {job.is_final for job in jobs_of(world, batch)} == {True, False}
    world.clock.advance(60)
    end(world, batch, {"a-1": BAD, "a-3": OK})
    assert finish_all(world, keep_results_days=2) == 1
    assert finish_all(world) == 0
    done = get(world, batch)
    assert (done.state, done.finished_at, done.errors) == (BatchState.COMPLETED, T0 + timedelta(minutes=1), None)
    assert lines_of(world, done.output_file_id) == ["a-0", "a-3"]
    assert lines_of(world, done.error_file_id) == ["a-1", "a-2"]
    with world.db.read() as tx:
        file = files.get(tx, str(done.output_file_id), "default", world.clock.now())
    assert (file.purpose, file.expires_at) == ("batch_output", done.finished_at + timedelta(days=2))
    event = last_event(world)
    assert (event.type, event.tenant, event.job_id) == ("batch.completed", "default", None)
    assert event.data["id"] == batch.batch_id
    assert event.data["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    # one copy of the results is kept: the files'
    assert [(job.output_blob, job.error_blob) for job in jobs_of(world, batch)] == [(None, None)] * 3
    assert all(job.retired_at is not None for job in jobs_of(world, batch))
    assert [name for name in world.files() if not name.startswith("segments/")] == sorted(
        f"files/{one}.jsonl" for one in (done.input_file_id, done.output_file_id, done.error_file_id)
    )


def test_a_batch_expires_at_its_deadline_and_keeps_what_is_done(world: World) -> None:
    batch = started(world, 3)
    end(world, batch, {"a-0": OK})
    world.clock.advance(6 * 3600 - 1)
    assert finish_all(world) == 0
    world.clock.advance(1)
    assert finish_all(world) == 1
    done = get(world, batch)
    assert (done.state, done.finished_at) == (BatchState.EXPIRED, batch.expires_at)
    assert lines_of(world, done.output_file_id) == ["a-0"]
    with world.db.read() as tx:
        blob = files.blob_of(tx, str(done.error_file_id))
    assert [one["error"]["code"] for one in world.lines_of(blob)] == ["batch_expired"] * 2
    assert last_event(world).type == "batch.expired"


def test_an_item_that_outlives_its_deadline_is_delivered_where_that_was_asked(world: World) -> None:
    from carbonq.model import LatePolicy

    batch = started(world, 1, terms=Terms(late_policy=LatePolicy.FINISH_LATE))
    world.clock.advance(7 * 3600)
    assert finish_all(world) == 0
    end(world, batch, {"a-0": OK})
    assert finish_all(world) == 1
    assert get(world, batch).state is BatchState.COMPLETED


def test_when_every_line_failed_the_batch_says_so(world: World) -> None:
    batch = started(world, 2)
    end(world, batch, {"a-0": BAD, "a-1": BAD})
    assert finish_all(world) == 1
    done = get(world, batch)
    assert (done.state, done.output_file_id) == (BatchState.COMPLETED, None)
    assert lines_of(world, done.error_file_id) == ["a-0", "a-1"]
    assert done.errors is not None
    assert done.errors[0]["message"].startswith("2 of 2 items failed; most common: bad (2)")


def test_cancelling_keeps_what_is_done_and_may_be_repeated(database: Database, tmp_path: Path) -> None:
    world = made(database, tmp_path)
    batch = started(world, line(0) + line(1) + line(2, carbon={"workload": "w"}))
    end(world, batch, {"a-0": OK})
    for _ in range(2):
        assert service.cancel(world.db, batch.batch_id, "default", world.clock).state is BatchState.CANCELLING
    with pytest.raises(NotFound):
        service.cancel(world.db, batch.batch_id, "rival", world.clock)
    assert all(job.is_cancel_requested for job in jobs_of(world, batch))
    assert finish_all(world) == 1
    done = get(world, batch)
    assert (done.state, done.cancelling_at) == (BatchState.CANCELLED, T0)
    assert lines_of(world, done.output_file_id) == ["a-0"]
    assert lines_of(world, done.error_file_id) == ["a-1", "a-2"]
    assert service.cancel(world.db, batch.batch_id, "default", world.clock) == done
    assert last_event(world).type == "batch.cancelled"


def test_a_batch_cancelled_before_it_was_read_ends_without_files(world: World) -> None:
    batch = add(world, 2)
    service.cancel(world.db, batch.batch_id, "default", world.clock)
    assert read(world) == 0
    assert finish_all(world) == 1
    done = get(world, batch)
    assert (done.state, done.output_file_id, done.error_file_id) == (BatchState.CANCELLED, None, None)


def test_a_batch_whose_lines_all_ended_while_it_was_cancelled_is_cancelled_with_all_results(world: World) -> None:
    batch = started(world, 1)
    end(world, batch, {"a-0": OK})
    service.cancel(world.db, batch.batch_id, "default", world.clock)
    assert finish_all(world) == 1
    done = get(world, batch)
    assert (done.state, lines_of(world, done.output_file_id)) == (BatchState.CANCELLED, ["a-0"])


@pytest.mark.parametrize("where", ["concatenate", "insert_many", "append_many", "delete"])
def test_killed_anywhere_finishing_begins_anew_with_the_same_files(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    batch = started(world, 2)
    end(world, batch, {"a-0": OK, "a-1": BAD})
    finish.finish_jobs(world.db, world.blobs, world.clock)
    target: Any = {
        "concatenate": type(world.blobs),
        "insert_many": files,
        "append_many": events,
        "delete": type(world.blobs),
    }[where]

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(target, where, killed)
        finish_batches.finish_batches(world.db, world.blobs, world.clock, keep_results_days=None)
    before = get(world, batch)
    assert before.is_final is (where == "delete")
    assert before.output_file_id is not None
    assert finish_all(world) == (0 if where == "delete" else 1)
    done = get(world, batch)
    assert (done.output_file_id, done.error_file_id) == (before.output_file_id, before.error_file_id)
    assert lines_of(world, done.output_file_id) == ["a-0"]
    assert lines_of(world, done.error_file_id) == ["a-1"]
    with world.db.read() as tx:
        assert [one.type for one in events.after(tx, "default")].count("batch.completed") == 1
        assert len(files.page(tx, "default", world.clock.now(), after=None, limit=9)) == 3


def test_two_that_finish_the_same_batch_finish_it_once(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = made(database, tmp_path)
    batch = started(world, 2)
    end(world, batch, {"a-0": OK, "a-1": OK})
    finish.finish_jobs(world.db, world.blobs, world.clock)
    both = threading.Barrier(2, timeout=20)
    assemble = finish_batches._assemble  # pyright: ignore[reportPrivateUsage]

    def together(*given: Any) -> Any:
        found = assemble(*given)
        both.wait()
        return found

    monkeypatch.setattr(finish_batches, "_assemble", together)
    done: list[int] = []

    def run() -> None:
        done.append(finish_batches.finish_batches(world.db, world.blobs, world.clock, keep_results_days=None))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1]
    assert lines_of(world, get(world, batch).output_file_id) == ["a-0", "a-1"]


def test_a_store_that_is_away_leaves_the_batch_for_later_and_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = started(world, 1), started(world, 1)
    for batch in (first, second):
        end(world, batch, {"a-0": OK})
    finish.finish_jobs(world.db, world.blobs, world.clock)
    (job,) = jobs_of(world, first)
    joined = type(world.blobs).concatenate

    def away(self: Any, keys: Any, to_key: str) -> int:
        if job.output_blob in keys:
            raise StoreUnavailable("the disk is full")
        return joined(self, keys, to_key)

    monkeypatch.setattr(type(world.blobs), "concatenate", away)
    assert finish_all(world) == 1
    assert (get(world, first).state, get(world, second).state) == (BatchState.FINALIZING, BatchState.COMPLETED)
    monkeypatch.undo()
    assert finish_all(world) == 1


def test_results_that_are_lost_fail_the_batch_and_say_so(world: World) -> None:
    batch = started(world, 1)
    end(world, batch, {"a-0": OK})
    finish.finish_jobs(world.db, world.blobs, world.clock)
    (job,) = jobs_of(world, batch)
    world.blobs.delete(str(job.output_blob))
    assert finish_all(world) == 1
    done = get(world, batch)
    assert (done.state, done.output_file_id) == (BatchState.FAILED, None)
    assert done.errors is not None
    assert done.errors[0]["code"] == "results_missing"
    broken = started(world, 1)
    with world.db.write() as tx:
        change = update(tables.jobs).where(tables.jobs.c.batch_id == broken.batch_id)
        tx.execute(change.values(state=JobState.FAILED, finished_at=T0, error="the disk is lost"))
    finish_all(world)
    assert (get(world, broken).errors or [{}])[0]["message"] == "the disk is lost"


def test_what_one_job_of_a_batch_has_done_is_kept_until_the_last_has_ended(world: World) -> None:
    batch = started(world, line(0) + line(1, carbon={"deadline": "20d"}))
    end(world, batch, {"a-0": OK})
    finish_all(world)
    world.clock.advance(10 * 86_400.0)
    keep = Keep(results_days=1)
    retire(world.db, world.blobs, world.clock, keep)
    end(world, batch, {"a-1": OK})
    assert finish_all(world) == 1
    assert lines_of(world, get(world, batch).output_file_id) == ["a-0", "a-1"]
    world.clock.advance(2 * 86_400.0)
    retire(world.db, world.blobs, world.clock, keep)
    assert world.stored() == (2, 0)
    assert lines_of(world, get(world, batch).output_file_id) == ["a-0", "a-1"], "the batch's file goes by its own date"


def test_a_deleted_input_is_read_to_the_end_of_its_batch(world: World) -> None:
    batch = add(world, 2)
    with world.db.write() as tx:
        assert files.mark_deleted(tx, batch.input_file_id, "default", T0)
        assert not files.mark_deleted(tx, batch.input_file_id, "default", T0)
    blob = files.blob_key(batch.input_file_id)
    assert retire(world.db, world.blobs, world.clock, Keep()) == 0
    with pytest.raises(NotFound):
        service.create(world.db, asked(world, batch.input_file_id), Request("other"), world.clock)
    assert read(world) == 1
    end(world, batch, {"a-0": OK, "a-1": OK})
    assert retire(world.db, world.blobs, world.clock, Keep()) == 0
    assert blob in world.files()
    assert finish_all(world) == 1
    assert retire(world.db, world.blobs, world.clock, Keep()) == 1
    assert blob not in world.files()
    with world.db.read() as tx:
        assert not files.is_stored(tx, batch.input_file_id)


def test_expired_files_go_and_a_cut_off_removal_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = add_file(world, 1, expires_at=T0 + timedelta(seconds=61))
    gone = add_file(world, 1, expires_at=T0 + timedelta(seconds=60))
    world.clock.advance(60)
    with world.db.read() as tx:
        assert files.find(tx, gone.file_id, "default", world.clock.now()) is None
        assert files.find(tx, kept.file_id, "default", world.clock.now()) is not None

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files, "remove", killed)
        file_service.retire(world.db, world.blobs, world.clock.now())
    assert file_service.retire(world.db, world.blobs, world.clock.now()) == 1
    assert file_service.retire(world.db, world.blobs, world.clock.now()) == 0
    assert world.files() == [kept.blob]


def test_an_upload_whose_row_cannot_be_stored_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
        patch.setattr(files, "insert_many", away)
        add_file(world, 1)
    assert world.files() == []
    publish = FolderStaged.publish

    def lost(self: FolderStaged, key: str) -> None:
        publish(self, key)
        raise StoreUnavailable("the answer got lost")

    monkeypatch.setattr(FolderStaged, "publish", lost)
    with pytest.raises(StoreUnavailable):
        add_file(world, 1)
    assert world.files() == []


def test_a_repeated_request_makes_no_second_batch(database: Database, tmp_path: Path) -> None:
    world = made(database, tmp_path)
    new = asked(world, add_file(world, 1).file_id)

    def create(request: Request, **changes: Any) -> tuple[str, bool]:
        batch, is_new = service.create(world.db, replace(new, **changes), request, world.clock)
        return batch.batch_id, is_new

    first, is_new = create(Request("f"))
    assert is_new
    assert create(Request("f", retry_count=1)) == (first, False)
    assert create(Request("f", retry_count=2)) == (first, False)
    second, is_new = create(Request("f"))
    assert (is_new, second == first) == (True, False), "a new request is a new batch"
    for other in (
        create(Request("g", retry_count=1)),
        create(Request("f", retry_count=1), api_key_id="key_2"),
    ):
        assert other[1] is True, "another body, another key"
    with world.db.write() as tx:
        age = tables.batches.c.machine_created_at
        for row in tx.execute(select(tables.batches.c.batch_id, age)).all():
            change = update(tables.batches).where(tables.batches.c.batch_id == row.batch_id)
            tx.execute(change.values(machine_created_at=row.machine_created_at - RETRIES_FOR))
    assert create(Request("f", retry_count=1))[1] is True, "15 minutes are over"


def test_a_first_try_that_its_own_retry_overtook_makes_no_second_batch(world: World) -> None:
    new = asked(world, add_file(world, 1).file_id)
    made_by_retry, _ = service.create(world.db, new, Request("f", retry_count=1), world.clock)
    late, is_new = service.create(world.db, new, Request("f", came_s_ago=5.0), world.clock)
    assert (late.batch_id, is_new) == (made_by_retry.batch_id, False)
    _, is_new = service.create(world.db, new, Request("f", came_s_ago=-60.0), world.clock)
    assert is_new, "it came after the retry was answered"


def test_two_tries_at_once_make_one_batch(database: Database, tmp_path: Path) -> None:
    world = made(database, tmp_path)
    new = asked(world, add_file(world, 1).file_id)
    for request in (
        lambda number: Request(f"f{number % 1}", retry_count=number, came_s_ago=1.0),
        lambda _: Request("k", idempotency_key="once"),
    ):
        ids_made: list[str] = []
        both = threading.Barrier(4, timeout=20)

        def run(number: int, request: Any = request, both: Any = both, found: Any = ids_made) -> None:
            both.wait()
            found.append(service.create(world.db, new, request(number), world.clock)[0].batch_id)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids_made) == 4
        assert len(set(ids_made)) == 1


def test_an_idempotency_key_stands_for_one_request(world: World) -> None:
    new = asked(world, add_file(world, 1).file_id)
    first, _ = service.create(world.db, new, Request("f", idempotency_key="k"), world.clock)
    again, is_new = service.create(world.db, new, Request("f", idempotency_key="k"), world.clock)
    assert (again.batch_id, is_new) == (first.batch_id, False)
    with pytest.raises(InvalidRequest, match="with another body") as error:
        service.create(world.db, new, Request("g", idempotency_key="k"), world.clock)
    assert error.value.code == "idempotency_key_reused"


def test_only_a_file_of_requests_of_ones_own_is_taken(world: World) -> None:
    theirs = add_file(world, 1, tenant="rival")
    output = add_file(world, 1, purpose="batch_output")
    with pytest.raises(NotFound):
        service.create(world.db, asked(world, theirs.file_id), Request("f"), world.clock)
    with pytest.raises(InvalidRequest, match="is for batch_output") as error:
        service.create(world.db, asked(world, output.file_id), Request("f"), world.clock)
    assert error.value.param == "input_file_id"
    many = add_file(world, 3)
    with pytest.raises(QuotaExceeded, match="items waiting"):
        service.create(world.db, asked(world, many.file_id), Request("f"), world.clock, limits=Quota(items_waiting=2))
    with pytest.raises(QuotaExceeded, match="tokens a day") as refused:
        service.create(world.db, asked(world, many.file_id), Request("f"), world.clock, limits=Quota(tokens_per_day=2))
    assert refused.value.code == "token_limit_exceeded"
    with world.db.read() as tx:
        assert batches.page(tx, "default", None, 10) == []
        assert jobs.open_jobs(tx) == []

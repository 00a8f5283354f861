"""A batch's input becomes jobs, all of them or none; what is wrong is said of many lines, and nothing is done twice."""

from __future__ import annotations

import threading
import tracemalloc
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

from carbonq.errors import StoreUnavailable
from carbonq.model import Endpoint, HeldKind, LatePolicy, Quota, RegionState
from carbonq.services import batch_input, hold, submit, validate
from carbonq.services import batches as service
from carbonq.services import files as file_service
from carbonq.store import batches, events, files, regions
from carbonq.store.batches import Batch, BatchState
from carbonq.store.database import Database
from carbonq.terms import OnBudget, Terms
from tests.services.batching import add, errors, get, jobs_of, read
from tests.services.jobs import REGIONS, World, line, lines
from tests.store.rows import T0


def made(database: Database, folder: Path) -> World:
    with database.write() as tx:
        regions.sync(tx, REGIONS)
    return World(database, folder)


@pytest.fixture
def world(sqlite_database: Database, tmp_path: Path) -> World:
    return made(sqlite_database, tmp_path)


def failed(world: World, data: bytes, terms: Terms = Terms(), **changes: Any) -> Batch:  # noqa: B008 (frozen)
    batch = add(world, data, terms, **changes)
    assert read(world) == 1
    batch = get(world, batch)
    assert (batch.state, batch.finished_at) == (BatchState.FAILED, world.clock.now())
    assert jobs_of(world, batch) == []
    assert world.stored() == (0, 0)
    return batch


def test_lines_become_one_job_on_the_file_itself(database: Database, tmp_path: Path) -> None:
    world = made(database, tmp_path)
    asked = Terms(regions=("north",), product_line="search", max_gco2e=None)
    batch = add(world, b"\xef\xbb\xbf" + line(1) + b"\r\n" + line(2), asked, metadata={"team": "search"})
    world.clock.advance(30)
    assert read(world) == 1
    assert read(world) == 0
    found = get(world, batch)
    assert (found.state, found.model, found.items_total) == (BatchState.IN_PROGRESS, "words", 2)
    assert (found.created_at, found.in_progress_at) == (T0, T0 + timedelta(seconds=30))
    (job,) = jobs_of(world, batch)
    assert (job.batch_id, job.regions, job.product_line) == (batch.batch_id, ("north",), "search")
    assert (job.deadline_at, job.late_policy) == (batch.expires_at, LatePolicy.EXPIRE)
    assert (job.metadata, job.items_total) == ({"team": "search"}, 2)
    with world.db.read() as tx:
        assert job.input_blob == files.blob_of(tx, batch.input_file_id)
        assert [one.type for one in events.after(tx, None, job.job_id)] == ["job.created"]
        counts = batches.progress(tx, [batch.batch_id])[batch.batch_id]
    assert (counts.jobs, counts.total, counts.ended) == (1, 2, 0)
    world.chunk()
    spans = [(one.line_offset, one.line_bytes) for one in _items(world)]
    with world.blobs.open(job.input_blob) as stream:
        data = stream.read()
    assert [data[at : at + size] for at, size in spans] == [line(1).strip(), line(2).strip()]


def _items(world: World) -> list[Any]:
    from carbonq.store import items

    with world.db.read() as tx:
        return [one for chunk in world.chunks() for one in items.of_chunk(tx, chunk.chunk_id)]


def test_lines_with_terms_of_their_own_are_jobs_of_their_own(world: World) -> None:
    data = (
        line(0)
        + line(1, carbon={"deadline": "1h", "max_gco2e": 2})
        + line(2, carbon={"max_gco2e": 2, "deadline": "1h"})
        + line(3, carbon={"regions": "south"})
        + line(4, carbon={})
        + line(5, carbon={"downgrade": False})
    )
    batch = add(world, data, Terms(max_gco2e=Decimal(9), on_budget=OnBudget.WAIT, workload="w"))
    world.clock.advance(60)
    assert read(world) == 1
    assert sorted(job.items_total for job in jobs_of(world, batch)) == [1, 1, 2, 2]
    assert [job.items_total for job in jobs_of(world, batch) if job.may_downgrade is False] == [1]
    own = next(job for job in jobs_of(world, batch) if job.deadline_at == T0 + timedelta(hours=1))
    assert (own.items_total, own.max_carbon_g, own.workload) == (2, Decimal(4), "w")
    shared = [job for job in jobs_of(world, batch) if job is not own and job.deadline_at == batch.expires_at]
    assert sorted(job.items_total for job in shared) == [1, 1, 2]
    caps = [job.max_carbon_g for job in shared]
    assert sum(cap for cap in caps if cap is not None) == 9
    with world.db.read() as tx:
        counts = batches.progress(tx, [batch.batch_id])[batch.batch_id]
    assert (counts.jobs, counts.total) == (4, 6)
    later = add(world, line(0) + line(1, carbon={"deadline": "2d"}))
    assert read(world) == 1
    assert get(world, later).expires_at == later.created_at + timedelta(days=2)
    assert get(world, batch).expires_at == batch.expires_at


BAD = [
    (b"\n \n", [("empty_file", None, None)]),
    (line(1) + b"nonsense\n" + line(1), [("invalid_json_line", 2, None), ("duplicate_custom_id", 3, "custom_id")]),
    (line(1, url="/v1/chat/completions"), [("url_mismatch", 1, "url")]),
    (line(1) + line(2, body={"model": "talk", "input": "x"}), [("model_mismatch", 2, "body.model")]),
    (line(1, body={"model": "wrds", "input": "x"}) + line(2), [("model_not_found", 1, "body.model")]),
    (line(1, body={"input": "x"}), [("missing_required_parameter", 1, "body.model")]),
    (line(1, "x" * 700), [("context_length_exceeded", 1, "body.input")]),
    (line(1, carbon="6h"), [("invalid_value", 1, "carbon")]),
    (line(1, carbon={"deadlin": "1h"}), [("unknown_parameter", 1, "carbon.deadlin")]),
    (line(1, carbon={"deadline": "soon"}), [("invalid_request", 1, "carbon.deadline")]),
    (line(0) + line(1, carbon={"deadline": "2026-01-01T00:00:00Z"}), [("deadline_in_the_past", 2, "carbon.deadline")]),
    (line(1, carbon={"regions": ["east"]}), [("region_not_found", 1, "carbon.regions")]),
    (line(1, carbon={"deadline": "1s"}), [("infeasible", 1, "carbon.deadline")]),
]


@pytest.mark.parametrize(("data", "told"), BAD)
def test_what_is_wrong_ends_the_batch_and_is_told(world: World, data: bytes, told: list[Any]) -> None:
    batch = failed(world, data)
    assert errors(batch) == told
    with world.db.read() as tx:
        last = events.after(tx, "default")[-1]
    assert (last.type, last.data["id"]) == ("batch.failed", batch.batch_id)
    if told[0][1] is not None:
        assert batch.errors is not None
        assert batch.errors[0]["message"].startswith(f"line {told[0][1]}")


def test_errors_of_a_hundred_lines_are_told(world: World) -> None:
    for bad, count in ((100, 100), (150, 100), (99, 99)):
        batch = failed(world, b"{}\n" * bad)
        assert [one[1] for one in errors(batch)] == list(range(1, count + 1))


def test_limits_hold_at_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.limits = submit.Limits(max_items=3, max_line_bytes=2000)
    monkeypatch.setattr(batch_input, "MAX_TERMS", 2)
    monkeypatch.setattr(batch_input, "MAX_EMBEDDING_INPUTS", 4)
    good = [
        lines(3),
        line(1, carbon={"deadline": "1h"}) + line(2, carbon={"deadline": "2h"}),
        line(1, body={"model": "words", "input": ["a", "b", "c"]}) + line(2, body={"model": "words", "input": [1, 2]}),
    ]
    for data in good:
        batch = add(world, data)
        assert read(world) == 1
        assert get(world, batch).state is BatchState.IN_PROGRESS, get(world, batch).errors
    with world.db.write() as tx:
        for name in ("events", "items", "jobs", "batches"):
            tx.exec_driver_sql(f"DELETE FROM {name}")
    bad: list[tuple[bytes, str]] = [
        (lines(6), "too_many_tasks"),
        (line(0) + good[1] + line(3, carbon={"deadline": "3h"}), "too_many_terms"),
        (line(1, body={"model": "words", "input": list("abcde")}), "too_many_tasks"),
        (line(1, "x" * 2000), "line_too_long"),
    ]
    for data, code in bad:
        batch = failed(world, data)
        assert [one[0] for one in errors(batch)] == [code]


def test_a_batch_that_is_read_late_is_judged_as_of_its_creation_and_expires(world: World) -> None:
    batch = add(world, 2)
    world.clock.advance(7 * 3600)
    assert read(world) == 1
    assert get(world, batch).state is BatchState.IN_PROGRESS


def test_an_input_that_is_gone_fails_the_batch_and_a_store_that_is_away_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, other = add(world, 1), add(world, 1)
    with world.db.read() as tx:
        blob = files.blob_of(tx, batch.input_file_id)
    assert blob is not None
    opened = type(world.blobs).open

    def away(self: Any, key: str) -> Any:
        if key == blob:
            raise StoreUnavailable("the disk is away")
        return opened(self, key)

    monkeypatch.setattr(type(world.blobs), "open", away)
    assert read(world) == 1
    assert (get(world, batch).state, get(world, other).state) == (BatchState.VALIDATING, BatchState.IN_PROGRESS)
    monkeypatch.undo()
    world.blobs.delete(blob)
    assert read(world) == 1
    assert errors(get(world, batch)) == [("not_found", None, None)]


def test_killed_between_reading_and_storing_it_begins_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = add(world, 3)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for where in ("insert_job", "insert_many"):
        target = validate.jobs if where == "insert_job" else validate.items
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(target, where, killed)
            read(world)
        assert world.stored() == (0, 0)
        assert get(world, batch).state is BatchState.VALIDATING
    assert read(world) == 1
    assert world.stored() == (1, 3)


def test_a_batch_that_finds_a_defect_of_ours_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = add(world, 1), add(world, 1)
    reading = batch_input.read

    def defect(stream: Any, batch: Batch, *rest: Any) -> Any:
        return 1 // 0 if batch.batch_id == bad.batch_id else reading(stream, batch, *rest)

    monkeypatch.setattr(batch_input, "read", defect)
    with pytest.raises(ZeroDivisionError):
        read(world)
    assert (get(world, bad).state, get(world, good).state) == (BatchState.VALIDATING, BatchState.IN_PROGRESS)


def test_two_that_read_the_same_batch_make_its_jobs_once(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = made(database, tmp_path)
    add(world, 4)
    both = threading.Barrier(2, timeout=20)
    reading = batch_input.read

    def together(*given: Any) -> Any:
        found = reading(*given)
        both.wait()
        return found

    monkeypatch.setattr(batch_input, "read", together)
    done: list[int] = []
    threads = [threading.Thread(target=lambda: done.append(read(world))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1]
    assert world.stored() == (1, 4)


def test_a_batch_that_is_cancelled_while_it_is_read_gets_no_jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = add(world, 2)
    reading = batch_input.read

    def cancelled_meanwhile(*given: Any) -> Any:
        service.cancel(world.db, batch.batch_id, "default", world.clock)
        return reading(*given)

    monkeypatch.setattr(batch_input, "read", cancelled_meanwhile)
    assert read(world) == 0
    assert world.stored() == (0, 0)
    assert get(world, batch).state is BatchState.CANCELLING


@pytest.mark.parametrize("kind", ["tenant", "model"])
def test_a_draining_tenant_or_model_takes_no_batch(world: World, kind: str) -> None:
    name = {"tenant": "default", "model": "words"}[kind]
    hold.set_state(world.db, world.clock, HeldKind(kind), name, RegionState.DRAINING)
    if kind == "tenant":
        with pytest.raises(submit.InvalidRequest) as refused:
            add(world, 1)
        assert refused.value.code == "tenant_draining"
        return
    (error,) = errors(failed(world, lines(1)))
    assert error[0] == "model_draining"


def test_a_quota_is_kept_when_jobs_are_stored(world: World) -> None:
    limits = Quota(items_waiting=5)
    first, second = add(world, 3), add(world, 3)
    assert read(world, quota=limits) == 2
    assert get(world, first).state is BatchState.IN_PROGRESS
    refused = get(world, second)
    assert errors(refused) == [("quota_exceeded", None, None)]
    assert world.stored() == (1, 3)


def test_a_carbon_cap_that_cannot_be_kept_is_refused_with_the_best_there_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Foreseen:
        class asked:  # noqa: N801 (as the quote has it)
            class point:  # noqa: N801
                grams: float | None = 7.25

    monkeypatch.setattr(validate.quote, "quote", lambda *_, **__: Foreseen)
    batch = failed(world, lines(2), Terms(max_gco2e=Decimal("7.2")))
    assert errors(batch) == [("carbon_budget_infeasible", None, "carbon.max_gco2e")]
    assert batch.errors is not None
    assert "7.25 gCO2e" in batch.errors[0]["message"]
    for terms, kept in (
        (Terms(max_gco2e=Decimal("7.25")), Decimal("7.25")),
        (Terms(max_gco2e=Decimal(1), on_budget=OnBudget.WAIT), Decimal(1)),
        (Terms(max_gco2e=Decimal(1), on_budget=OnBudget.RUN_ANYWAY), None),
    ):
        batch = add(world, lines(1), terms)
        assert read(world) == 1
        (job,) = jobs_of(world, batch)
        assert job.max_carbon_g == kept
    monkeypatch.setattr(Foreseen.asked.point, "grams", None)  # no rate is known: nothing can be said against it
    batch = add(world, lines(1), Terms(max_gco2e=Decimal(1)))
    assert read(world) == 1
    assert get(world, batch).state is BatchState.IN_PROGRESS


def test_chat_batches_are_read_by_their_endpoint(world: World) -> None:
    body = {"model": "talk", "messages": [{"role": "user", "content": "hi"}]}
    data = orjson.dumps({"custom_id": "c", "method": "POST", "url": Endpoint.CHAT.value, "body": body}) + b"\n"
    batch = add(world, data, endpoint=Endpoint.CHAT)
    assert read(world) == 1
    assert get(world, batch).model == "talk"
    wrong = add(world, data.replace(b"/v1/chat/completions", b"/v1/embeddings"))
    assert read(world) == 1
    assert errors(get(world, wrong)) == [("invalid_request", 1, "body.model")]


def intake(world: World, data: bytes, size: int = 7, **limits: int) -> file_service.Intake:
    given = {"max_bytes": 1000, "max_lines": 3, "max_line_bytes": 200, **limits}
    with world.blobs.stage() as staged:
        taking = file_service.Intake(staged, **given)
        for start in range(0, len(data), size):
            taking.write(data[start : start + size])
        taking.finish()
        assert staged.size == len(data)
    return taking


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_an_upload_is_checked_in_whatever_pieces_it_comes(world: World, size: int) -> None:
    good = b"\xef\xbb\xbf" + line(1) + b"\r\n \n" + line(2).strip()
    assert intake(world, good, size).lines == 2
    cases: list[tuple[bytes, dict[str, int], str, int | None]] = [
        (lines(4), {}, "too_many_tasks", 4),
        (line(1) + b"{]\n", {}, "invalid_json_line", 2),
        (line(1) + b"[1]", {}, "invalid_json_line", 2),
        (line(1), {"max_bytes": len(line(1)) - 1}, "request_too_large", None),
        (line(1), {"max_line_bytes": len(line(1)) - 2}, "line_too_long", 1),
        (b"\n\n", {}, "empty_file", None),
        (b"", {}, "empty_file", None),
    ]
    for data, limits, code, number in cases:
        with pytest.raises(submit.InvalidRequest) as error:
            intake(world, data, size, **limits)
        assert (error.value.code, error.value.line) == (code, number), data
    assert intake(world, line(1), size, max_bytes=len(line(1)), max_line_bytes=len(line(1)) - 1, max_lines=1).lines == 1


def test_an_upload_takes_no_more_memory_the_longer_it_is(world: World) -> None:
    piece = b"".join(line(n, "x" * 3000) for n in range(160))
    tracemalloc.start()
    try:
        with world.blobs.stage() as staged:
            taking = file_service.Intake(staged, max_bytes=10**9, max_lines=10**9, max_line_bytes=4000)
            taking.write(piece)
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            for _ in range(20):
                taking.write(piece)
            after, peak = tracemalloc.get_traced_memory()
        assert staged.size == 21 * len(piece)
        assert after - before < 100_000
        assert peak - before < 3 * len(piece)
    finally:
        tracemalloc.stop()


def test_a_line_without_an_end_costs_no_more_memory_than_its_limit(world: World) -> None:
    with world.blobs.stage() as staged:
        taking = file_service.Intake(staged, max_bytes=10**9, max_lines=3, max_line_bytes=200)
        with pytest.raises(submit.InvalidRequest, match="line 1 is longer than 200"):
            for _ in range(10):
                taking.write(b"x" * 100)
        assert staged.size == 200

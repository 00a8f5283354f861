"""A job's whole way with its blobs in a bucket: submit, run, finish, download; and what must not happen on the way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import obstore
import pytest

from carbonq.blobs.objects import ObjectStore
from carbonq.errors import StoreUnavailable
from carbonq.model import ItemState
from carbonq.services import finish, run, submit
from carbonq.services.retire import Keep, retire
from carbonq.store import files, jobs, keys, regions
from carbonq.store.database import Database, Tx
from carbonq.testing import MemoryTickets
from tests.api.harness import build_api, serving
from tests.buckets import Wire, new_bucket, open_bucket, wire
from tests.services import batching
from tests.services.jobs import REGIONS, World, lines, request
from tests.services.running import MODEL, Bench


@pytest.fixture
def between() -> Iterator[Wire]:
    with wire() as made:
        yield made


@pytest.fixture
def blobs(tmp_path: Path, between: Wire) -> ObjectStore:
    return open_bucket(new_bucket(), tmp_path / "tmp", endpoint=between.url)


def objects(blobs: ObjectStore) -> list[str]:
    return sorted(meta["path"] for page in obstore.list(blobs.bucket) for meta in page)


def test_a_job_goes_its_way(sqlite_database: Database, tmp_path: Path, blobs: ObjectStore, between: Wire) -> None:
    bench = Bench(sqlite_database, tmp_path)
    bench.site = replace(bench.site, blobs=blobs)
    tickets = MemoryTickets()
    api = build_api(
        sqlite_database, tmp_path, clock=bench.clock, tickets=tickets, models={MODEL.name: MODEL}, blobs=blobs
    )
    with sqlite_database.write() as tx:
        _, key = keys.create(tx, "acme", "ci", False)
    count = 120
    body = b"".join(
        json.dumps({"custom_id": f"c-{index}", "body": {"input": f"text {index}"}}).encode() + b"\n"
        for index in range(count)
    )
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/x-ndjson"}
    query = {"endpoint": "/v1/embeddings", "model": MODEL.name, "deadline": "6h"}
    with serving(api) as url, httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
        sent = http.post("/v1/jobs", params=query, content=body)
        assert sent.status_code == 202, sent.text
        job_id = sent.json()["id"]
        assert objects(blobs) == [f"jobs/{job_id}/input.jsonl"]

        chunk_id = bench.chunk(job_id)
        between.requests.clear()
        assert run.run_chunk(bench.site, chunk_id, threading.Event()) is run.Result.DONE
        assert between.requests.count("GET") == 1, "a request for the chunk, not for each item or engine batch"
        assert finish.finish_jobs(sqlite_database, blobs, bench.clock) == 1
        assert objects(blobs)[:2] == [f"jobs/{job_id}/input.jsonl", f"jobs/{job_id}/output.jsonl"]

        whole = http.get(f"/v1/jobs/{job_id}/results")
        assert whole.status_code == 200 and whole.headers["accept-ranges"] == "bytes"
        answers: list[dict[str, Any]] = [json.loads(line) for line in whole.content.splitlines()]
        assert sorted(answer["custom_id"] for answer in answers) == sorted(f"c-{index}" for index in range(count))
        rest = http.get(
            f"/v1/jobs/{job_id}/results", headers={"Range": "bytes=100-", "If-Range": whole.headers["etag"]}
        )
        assert (rest.status_code, rest.content) == (206, whole.content[100:])
    bench.check_shares()
    assert not list((tmp_path / "tmp").iterdir())


def test_a_batch_goes_its_way(sqlite_database: Database, tmp_path: Path, blobs: ObjectStore) -> None:
    class Bucketed(World):
        @property
        def blobs(self) -> Any:
            return blobs

    with sqlite_database.write() as tx:
        regions.sync(tx, REGIONS)
    world = Bucketed(sqlite_database, tmp_path)
    batch = batching.add(world, 3)
    source, *others = objects(blobs)
    assert (source, others) == (f"files/{batch.input_file_id}.jsonl", [])
    assert batching.read(world) == 1
    (job,) = batching.jobs_of(world, batch)
    world.end(job, {"a-0": ItemState.SUCCEEDED, "a-1": ItemState.SUCCEEDED, "a-2": ItemState.FAILED})
    assert batching.finish_all(world) == 1
    done = batching.get(world, batch)
    made = [f"files/{file_id}.jsonl" for file_id in (done.output_file_id, done.error_file_id)]
    assert [one for one in objects(blobs) if not one.startswith("segments/")] == sorted([source, *made])
    assert [one["custom_id"] for one in world.lines_of(made[0])] == ["a-0", "a-1"]
    world.clock.advance(3601)
    with sqlite_database.write() as tx:
        files.mark_deleted(tx, batch.input_file_id, "default", world.clock.now())
    retire(world.db, blobs, world.clock, Keep())
    assert objects(blobs) == sorted(made)


def test_no_request_is_made_under_the_lock(
    sqlite_database: Database, tmp_path: Path, blobs: ObjectStore, between: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's write lock is everybody's: an upload of 200 MB under it would stop the installation."""
    seen: list[int] = []
    real = jobs.insert_job

    def insert_job(tx: Tx, *args: Any, **options: Any) -> None:
        seen.append(len(between.requests))
        real(tx, *args, **options)

    monkeypatch.setattr(jobs, "insert_job", insert_job)
    job, _ = _submit(World(sqlite_database, tmp_path), blobs)
    assert seen == [1] and len(between.requests) == 1
    assert objects(blobs) == [job.input_blob]


def test_a_refused_job_leaves_no_object(
    sqlite_database: Database, tmp_path: Path, blobs: ObjectStore, between: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(sqlite_database, tmp_path)
    first, _ = _submit(world, blobs, idempotency_key="k")
    real, looks = submit._first_of, []

    def first_of(tx: Tx, *args: Any) -> Any:  # as if the other request came in between
        looks.append(1)
        return None if len(looks) == 1 else real(tx, *args)

    monkeypatch.setattr(submit, "_first_of", first_of)
    assert _submit(world, blobs, idempotency_key="k") == (first, False)
    assert between.requests.count("PUT") == 2 and len(looks) == 2
    assert objects(blobs) == [first.input_blob]


def test_a_bucket_that_is_away_stores_no_job(
    sqlite_database: Database, tmp_path: Path, blobs: ObjectStore, between: Wire
) -> None:
    between.cut_at, between.cuts_left = 0, 1000
    with pytest.raises(StoreUnavailable, match="cannot use the blob store s3://"):
        _submit(World(sqlite_database, tmp_path), blobs)
    with sqlite_database.read() as tx:
        assert jobs.page(tx, "acme", None, 10) == []


def _submit(world: World, blobs: ObjectStore, **changes: Any) -> tuple[Any, bool]:
    staged = blobs.stage()
    staged.write(lines(3))
    return submit.submit(
        world.db,
        blobs,
        staged,
        replace(request(), **changes),
        models=world.models,
        regions=REGIONS,
        home_region="north",
        clock=world.clock,
        limits=world.limits,
        throughputs={},
    )

"""What workers and ticks do with batches, by hand: read inputs, end items, assemble files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import orjson
from sqlalchemy import select

from carbonq.model import ItemState
from carbonq.services import expire, finish, finish_batches, submit, validate
from carbonq.store import batches, items, jobs, results
from carbonq.store.tables import items as item_rows
from carbonq.store.tables import jobs as job_rows
from tests.api.harness import EMBEDDER, Harness

EMBED = {"endpoint": "/v1/embeddings", "completion_window": "24h"}


def line(custom_id: str = "a-1", text: Any = "some text", **changes: Any) -> bytes:
    body = {"model": EMBEDDER, "input": text}
    value = {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body, **changes}
    return orjson.dumps(value) + b"\n"


def lines(count: int) -> bytes:
    return b"".join(line(f"a-{number}") for number in range(1, count + 1))


def upload(http: httpx.Client, data: bytes, name: str = "requests.jsonl", **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/files", data={"purpose": "batch", **fields}, files={"file": (name, data)})
    assert answer.status_code == 200, answer.text
    return answer.json()


def create(http: httpx.Client, data: bytes, headers: Mapping[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    body = {"input_file_id": upload(http, data)["id"], **EMBED, **fields}
    answer = http.post("/v1/batches", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def look(http: httpx.Client, batch: Mapping[str, Any]) -> dict[str, Any]:
    answer = http.get(f"/v1/batches/{batch['id']}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def content(http: httpx.Client, file_id: str | None) -> list[dict[str, Any]]:
    answer = http.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200, answer.text
    return [orjson.loads(one) for one in answer.content.splitlines()]


def rules(harness: Harness, **changes: Any) -> validate.Rules:
    limits = submit.Limits(
        max_items=harness.api.limits.max_items,
        max_line_bytes=harness.api.limits.max_line_bytes,
        max_input_bytes=harness.api.limits.max_input_bytes,
    )
    given: dict[str, Any] = {"limits": limits, "worker_alive_s": 3600.0, "max_stale_s": 7200.0, **changes}
    return validate.Rules(models=harness.api.models, home_region=harness.api.home_region, **given)


def read_inputs(harness: Harness, **changes: Any) -> int:
    """Run the tick that makes jobs of batches."""
    return validate.validate(harness.db, harness.api.blobs, harness.clock, rules(harness, **changes))


def end(harness: Harness, batch: Mapping[str, Any], states: Mapping[str, ItemState]) -> None:
    """End items by custom_id as a worker would: with segments, states and counters."""
    now = harness.clock.now()
    with harness.db.write() as tx:
        found = tx.execute(
            select(item_rows.c.custom_id, item_rows.c.item_id, item_rows.c.job_id)
            .join(job_rows, job_rows.c.job_id == item_rows.c.job_id)
            .where(job_rows.c.batch_id == batch["id"], item_rows.c.custom_id.in_(list(states)))
        )
        for custom_id, item_id, job_id in found.all():
            is_good = states[custom_id] is ItemState.SUCCEEDED
            kind = "output" if is_good else "error"
            code = None if is_good else "bad"
            assert items.end_many(tx, [item_id], states[custom_id], at=now, error_code=code) == [item_id]
            body = {"ok": custom_id} if is_good else {"error": {"code": code}}
            response = {"status_code": 200 if is_good else 400, "request_id": "req_1", "body": body}
            data = orjson.dumps({"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None})
            key = f"segments/{job_id}/{custom_id}.{kind}"
            harness.api.blobs.put(key, data + b"\n")
            results.insert_segments(tx, [results.Segment(job_id, "chunk_x", kind, key, len(data) + 1, 1)])
            jobs.bump(tx, job_id, succeeded=int(is_good), failed=int(not is_good))


def finish_all(harness: Harness, keep_results_days: float | None = None) -> int:
    """Run the ticks that end what is overdue or cancelled and assemble files; return how many batches ended."""
    expire.expire(harness.db, harness.clock)
    finish.finish_jobs(harness.db, harness.api.blobs, harness.clock)
    return finish_batches.finish_batches(
        harness.db, harness.api.blobs, harness.clock, keep_results_days=keep_results_days
    )


def job_ids(harness: Harness, batch: Mapping[str, Any]) -> list[str]:
    with harness.db.read() as tx:
        return batches.job_ids(tx, batch["id"])

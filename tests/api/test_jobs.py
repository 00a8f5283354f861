"""The jobs API: submit in both forms, page, look, cancel, download; and that nothing half-written stays."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from sqlalchemy import func, insert, select, update

from carbonq.model import ChunkState, Endpoint, ItemState, JobState, NewChunk
from carbonq.store import chunks, jobs
from carbonq.store.tables import chunks as chunk_rows
from carbonq.store.tables import items as item_rows
from carbonq.store.tables import jobs as job_rows
from carbonq.store.tables import placements, plans
from carbonq.units import iso
from tests.api.harness import CHATTER, EMBEDDER, Harness, until

QUERY = {"endpoint": "/v1/embeddings", "model": EMBEDDER, "deadline": "6h"}
NDJSON = {"Content-Type": "application/x-ndjson"}


def lines(count: int, **body: Any) -> bytes:
    return b"".join(
        json.dumps({"custom_id": f"a-{n}", "body": {"input": f"text {n}", **body}}).encode() + b"\n"
        for n in range(1, count + 1)
    )


def submit(http: httpx.Client, count: int = 3, **query: Any) -> dict[str, Any]:
    response = http.post("/v1/jobs", params={**QUERY, **query}, content=lines(count), headers=NDJSON)
    assert response.status_code == 202, response.text
    return response.json()


def chunk_up(harness: Harness, job_id: str, *, window_in_s: int = 600) -> str:
    """Put a job's items into one placed chunk, as chunker and planner would."""
    now, chunk_id = harness.clock.now(), f"chunk_of_{job_id}"
    window_at = now + timedelta(seconds=window_in_s)
    with harness.db.write() as tx:
        ids = tx.execute(select(item_rows.c.item_id).where(item_rows.c.job_id == job_id)).scalars().all()
        new = NewChunk(
            chunk_id=chunk_id,
            tenant=None,
            model=EMBEDDER,
            endpoint=Endpoint.EMBEDDINGS,
            regions=None,
            release_at=now,
            deadline_at=now + timedelta(hours=6),
            item_ids=ids,
            est_tokens=10,
            est_duration_s=1.0,
            est_energy_uj=10,
            baseline_region="fr",
            baseline_window_at=now,
        )
        chunks.insert_many(tx, [new], created_at=now)
        tx.execute(
            insert(placements).values(
                placement_id=f"p_{chunk_id}",
                chunk_id=chunk_id,
                plan_id="plan_1",
                region="se",
                window_at=window_at,
                g_per_kwh=Decimal("123.40"),
                issued_at=now,
                reason="carbon",
                created_at=now,
            )
        )
        tx.execute(
            update(chunk_rows)
            .where(chunk_rows.c.chunk_id == chunk_id)
            .values(state=ChunkState.PLACED, region="se", window_at=window_at, placement_id=f"p_{chunk_id}")
        )
    return chunk_id


def finish(harness: Harness, job_id: str, output: bytes | None, errors: bytes | None = None) -> None:
    """End a job as the finisher would."""
    output_blob = error_blob = None
    if output is not None:
        output_blob = f"jobs/{job_id}/output.jsonl"
        harness.api.blobs.put(output_blob, output)
    if errors is not None:
        error_blob = f"jobs/{job_id}/errors.jsonl"
        harness.api.blobs.put(error_blob, errors)
    with harness.db.write() as tx:
        tx.execute(
            update(job_rows)
            .where(job_rows.c.job_id == job_id)
            .values(
                state=JobState.COMPLETED,
                finished_at=harness.clock.now(),
                output_blob=output_blob,
                error_blob=error_blob,
            )
        )


def test_a_streamed_submit_is_stored_and_shown(harness: Harness, http: httpx.Client) -> None:
    job = submit(http, region=["fr", "se"], product_line="search", workload="nightly", max_carbon_g="0.5")
    assert job["state"] == "waiting" and job["object"] == "job"
    assert job["progress"] == {"total": 3, "ended": 0, "succeeded": 0, "failed": 0, "expired": 0, "cancelled": 0}
    assert job["regions"] == ["fr", "se"] and job["max_carbon_g"] == "0.5"
    assert job["deadline_at"] == iso(harness.clock.now() + timedelta(hours=6))
    until(lambda: harness.tickets.nudges == ["plan"], "the nudge")
    found = http.get(f"/v1/jobs/{job['id']}")
    assert found.status_code == 200
    assert found.json()["phase"] == "being planned"
    assert found.json()["placement"]["chunks"] == 0
    with harness.db.read() as tx:
        stored = jobs.get(tx, job["id"], "acme")
    assert harness.api.blobs.info(stored.input_blob).size == stored.input_bytes == len(lines(3))
    assert stored.api_key_id is not None


def test_the_answer_names_its_place(http: httpx.Client) -> None:
    response = http.post("/v1/jobs", params=QUERY, content=lines(1), headers=NDJSON)
    assert http.get(response.headers["location"]).json()["id"] == response.json()["id"]


@pytest.mark.parametrize("media_type", ["application/jsonl", "text/plain; charset=utf-8", "application/octet-stream"])
def test_other_names_for_json_lines(http: httpx.Client, media_type: str) -> None:
    response = http.post("/v1/jobs", params=QUERY, content=lines(1), headers={"Content-Type": media_type})
    assert response.status_code == 202


def test_an_inline_submit(harness: Harness, http: httpx.Client) -> None:
    body = {
        "kind": "embeddings",
        "model": EMBEDDER,
        "deadline": "90m",
        "regions": ["fr"],
        "metadata": {"run": "7"},
        "items": ["a text", {"id": "b", "text": "another"}, {"custom_id": "c", "body": {"input": "third"}}],
    }
    response = http.post("/v1/jobs", json=body)
    assert response.status_code == 202, response.text
    job = response.json()
    assert job["progress"]["total"] == 3 and job["metadata"] == {"run": "7"}
    with harness.db.read() as tx:
        found = tx.execute(select(item_rows.c.custom_id).where(item_rows.c.job_id == job["id"])).scalars().all()
    assert sorted(found) == ["b", "c", "item-1"]


def test_an_inline_summary_job(http: httpx.Client) -> None:
    body = {"kind": "summarize", "model": CHATTER, "deadline": "9h", "items": [{"id": "a", "text": "long text"}]}
    response = http.post("/v1/jobs", json=body)
    assert response.status_code == 202, response.text
    assert response.json()["endpoint"] == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("query", "content", "code", "param", "words"),
    [
        ({"dealine": "6h"}, b"", "invalid_request", "dealine", "deadline"),
        ({"region": "mars"}, lines(1), None, None, "fr"),
        ({"deadline": "2020-01-01T00:00:00Z"}, lines(1), None, "deadline", "past"),
        ({}, b"", "empty_file", None, ""),
        ({}, lines(1) + b"{oops\n", "invalid_json_line", None, "line 2"),
        ({}, lines(1) + lines(1), "duplicate_custom_id", None, "line 2"),
    ],
)
def test_a_bad_submit_names_what_is_wrong_and_leaves_nothing(  # noqa: PLR0917 - one column of the table each
    harness: Harness, http: httpx.Client, query: Any, content: bytes, code: str | None, param: str | None, words: str
) -> None:
    response = http.post("/v1/jobs", params={**QUERY, **query}, content=content, headers=NDJSON)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"]
    assert code in {None, error["code"]}
    assert param in {None, error["param"]}
    if "line 2" in words:
        assert error["line"] == 2
    assert_nothing_stays(harness)


def test_bad_inline_items(harness: Harness, http: httpx.Client) -> None:
    for items_given in (None, [], "text", [3]):
        body = {**QUERY, "items": items_given}
        response = http.post("/v1/jobs", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "items")
    response = http.post("/v1/jobs", content=b"<xml/>", headers={"Content-Type": "application/xml"})
    assert response.status_code == 415
    assert_nothing_stays(harness)


def test_a_deadline_that_cannot_be_met_says_what_can(harness: Harness, http: httpx.Client) -> None:
    response = http.post("/v1/jobs", params={**QUERY, "deadline": "1s"}, content=lines(3), headers=NDJSON)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "infeasible"
    assert response.json()["error"]["best"]
    assert_nothing_stays(harness)


def assert_nothing_stays(harness: Harness) -> None:
    with harness.db.read() as tx:
        for table in (job_rows, item_rows):
            assert tx.execute(select(func.count()).select_from(table)).scalar_one() == 0
    root = harness.api.blobs.root
    assert not root.exists() or not [path for path in root.rglob("*") if path.is_file()]


def test_a_repeated_submit_returns_the_first_job(http: httpx.Client) -> None:
    headers = {**NDJSON, "Idempotency-Key": "k-1"}
    first = http.post("/v1/jobs", params=QUERY, content=lines(2), headers=headers)
    again = http.post("/v1/jobs", params=QUERY, content=lines(2), headers=headers)
    assert again.json()["id"] == first.json()["id"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    other = http.post("/v1/jobs", params=QUERY, content=lines(3), headers=headers)
    assert other.status_code == 422, other.text


def test_pages_are_newest_first_and_end_with_has_more_false(harness: Harness, http: httpx.Client) -> None:
    made = []
    for _ in range(5):
        made.append(submit(http, 1)["id"])
        harness.clock.advance(60)
    first = http.get("/v1/jobs", params={"limit": 2}).json()
    assert [job["id"] for job in first["data"]] == [made[4], made[3]]
    assert first["has_more"] is True and first["last_id"] == made[3]
    second = http.get("/v1/jobs", params={"limit": 3, "after": first["last_id"]}).json()
    assert [job["id"] for job in second["data"]] == made[2::-1]
    assert second["has_more"] is False
    assert http.get("/v1/jobs", params={"after": "job_none"}).status_code == 400
    assert http.get("/v1/jobs", params={"state": "completed"}).json()["data"] == []


def test_placement_phase_etag_and_chunks(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)["id"]
    chunk_id = chunk_up(harness, job_id)
    response = http.get(f"/v1/jobs/{job_id}")
    job = response.json()
    assert job["phase"] == "planned"
    assert job["placement"]["regions"] == {"se": 1} and job["placement"]["states"]["placed"] == 1
    assert job["placement"]["next_window_at"] == iso(harness.clock.now() + timedelta(seconds=600))
    assert response.headers["retry-after"] == "60"
    again = http.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": response.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    (chunk,) = http.get(f"/v1/jobs/{job_id}/chunks").json()["data"]
    assert chunk["id"] == chunk_id and chunk["items"] == 3 and chunk["items_ended"] == 0
    assert chunk["forecast_g_per_kwh"] == "123.40" and chunk["reason"] == "carbon"
    with harness.db.write() as tx:
        tx.execute(update(item_rows).where(item_rows.c.custom_id == "a-1").values(state=ItemState.SUCCEEDED))
    (chunk,) = http.get(f"/v1/jobs/{job_id}/chunks").json()["data"]
    assert chunk["items_ended"] == 1


def test_whether_a_smaller_model_may_run_it_is_stored_and_shown(harness: Harness, http: httpx.Client) -> None:
    assert submit(http)["downgrade"] is None
    refusing = submit(http, downgrade="false")
    assert refusing["downgrade"] is False
    with harness.db.read() as tx:
        assert jobs.get(tx, refusing["id"], "acme").may_downgrade is False
    body = {"kind": "embeddings", "model": EMBEDDER, "deadline": "6h", "items": ["a"]}
    for carried in ({"downgrade": True}, {"carbon": {"downgrade": True}}, {"metadata": {"carbonq_downgrade": "true"}}):
        answer = http.post("/v1/jobs", json=body | carried)
        assert (answer.status_code, answer.json()["downgrade"]) == (202, True)
    wrong = http.post("/v1/jobs", json=body | {"downgrade": "perhaps"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "downgrade")
    headers = {**NDJSON, "Idempotency-Key": "k-2"}
    http.post("/v1/jobs", params=QUERY, content=lines(2), headers=headers)
    other = http.post("/v1/jobs", params=dict(QUERY) | {"downgrade": "false"}, content=lines(2), headers=headers)
    assert other.json()["error"]["code"] == "idempotency_key_reused"


def test_items_on_a_smaller_model_are_counted_by_reason(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)["id"]
    chunk_id = chunk_up(harness, job_id)
    assert http.get(f"/v1/jobs/{job_id}").json()["downgraded"] == {}
    with harness.db.write() as tx:
        which = chunk_rows.c.chunk_id == chunk_id
        tx.execute(update(chunk_rows).where(which).values(model="short", downgraded="budget"))
    assert http.get(f"/v1/jobs/{job_id}").json()["downgraded"] == {"budget": 3}
    told = http.get(f"/v1/jobs/{job_id}/why").json()["summary"]
    assert f"3 items are for short instead of {EMBEDDER}: a carbon budget says to downgrade" in told
    with harness.db.write() as tx:
        tx.execute(update(job_rows).where(job_rows.c.job_id == job_id).values(retired_at=harness.clock.now()))
    assert http.get(f"/v1/jobs/{job_id}").json()["downgraded"] is None


def test_the_plan_shows_open_chunks_of_the_caller(harness: Harness, http: httpx.Client) -> None:
    assert http.get("/v1/plan").json()["plan"] is None
    job_id = submit(http)["id"]
    chunk_id = chunk_up(harness, job_id)
    with harness.db.write() as tx:
        tx.execute(
            insert(plans).values(
                plan_id="plan_1",
                created_at=harness.clock.now(),
                recorded_at=harness.clock.now(),
                chunks=1,
                moved=0,
                late=0,
                objective_g=2.0,
                lower_bound_g=1.9,
                is_overlay=False,
                duration_s=0.1,
            )
        )
    found = http.get("/v1/plan").json()
    assert [chunk["id"] for chunk in found["chunks"]] == [chunk_id]
    assert found["plan"]["max_gap_to_optimum_pct"] == 5.0
    assert found["clock"]["now"] == iso(harness.clock.now())


def test_cancel_is_idempotent(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)["id"]
    chunk_up(harness, job_id)
    job = http.post(f"/v1/jobs/{job_id}/cancel").json()
    assert job["progress"]["cancelled"] == 3 and job["is_cancel_requested"]
    again = http.post(f"/v1/jobs/{job_id}/cancel")
    assert again.status_code == 200 and again.json()["progress"]["cancelled"] == 3


def test_results_come_when_the_job_is_final(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)["id"]
    for what in ("results", "errors"):
        response = http.get(f"/v1/jobs/{job_id}/{what}")
        assert (response.status_code, response.json()["error"]["code"]) == (409, "job_not_final")
        assert "0 of 3 items" in response.json()["error"]["message"]
    finish(harness, job_id, b'{"custom_id":"a-1"}\n')
    response = http.get(f"/v1/jobs/{job_id}/results")
    assert response.content == b'{"custom_id":"a-1"}\n'
    assert f"{job_id}.results.jsonl" in response.headers["content-disposition"]
    part = http.get(f"/v1/jobs/{job_id}/results", headers={"Range": "bytes=2-10"})
    assert (part.status_code, part.content) == (206, b"custom_id")
    assert http.get(f"/v1/jobs/{job_id}/errors").content == b""
    job = http.get(f"/v1/jobs/{job_id}")
    assert job.json()["phase"] == "completed" and "retry-after" not in job.headers


def test_files_that_were_kept_long_enough_are_said_to_be_gone(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)["id"]
    now = harness.clock.now()
    with harness.db.write() as tx:
        final = {"state": JobState.COMPLETED.value, "finished_at": now, "retired_at": now}
        tx.execute(update(job_rows).where(job_rows.c.job_id == job_id).values(**final))
    assert http.get(f"/v1/jobs/{job_id}").json()["files_removed_at"] == iso(now)
    for what in ("results", "errors"):
        answer = http.get(f"/v1/jobs/{job_id}/{what}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "results_removed")

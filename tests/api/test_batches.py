"""The Batch API: created at once, read by a tick, finished with files; states, times and counts as OpenAI has them."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from carbonq.model import ChunkState, ItemState, Quality
from carbonq.services import summary
from carbonq.store import keys, ledger
from carbonq.store.tables import chunks as chunk_rows
from carbonq.store.tables import items as item_rows
from carbonq.store.tables import jobs as job_rows
from carbonq.store.tables import placements
from carbonq.units import iso
from tests.api import batching
from tests.api.batching import EMBED, content, create, end, finish_all, lines, look, read_inputs, upload
from tests.api.harness import EMBEDDER, Harness
from tests.api.test_jobs import chunk_up
from tests.unit.bookings import batch, book, item

OK, BAD = ItemState.SUCCEEDED, ItemState.FAILED


def test_a_batch_runs_to_its_end(harness: Harness, http: httpx.Client) -> None:
    made = create(http, lines(3), metadata={"team": "search"})
    now = int(harness.clock.now().timestamp())
    assert made["status"] == made["carbon"]["phase"] == "validating"
    assert (made["object"], made["endpoint"], made["completion_window"]) == ("batch", "/v1/embeddings", "24h")
    assert (made["created_at"], made["expires_at"]) == (now, now + 86_400)
    assert made["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert (made["output_file_id"], made["errors"], made["usage"]) == (None, None, None)
    assert made["metadata"] == {"team": "search"}
    assert read_inputs(harness) == 1
    running = look(http, made)
    assert (running["status"], running["model"], running["in_progress_at"]) == ("in_progress", EMBEDDER, now)
    assert running["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
    end(harness, made, {"a-1": OK})
    assert look(http, made)["request_counts"]["completed"] == 1
    assert finish_all(harness) == 0
    end(harness, made, {"a-2": OK, "a-3": BAD})
    assert finish_all(harness) == 1
    done = look(http, made)
    assert (done["status"], done["completed_at"], done["finalizing_at"]) == ("completed", now, now)
    assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert {one["custom_id"] for one in content(http, done["output_file_id"])} == {"a-1", "a-2"}
    assert [one["custom_id"] for one in content(http, done["error_file_id"])] == ["a-3"]
    file = http.get(f"/v1/files/{done['output_file_id']}").json()
    assert (file["purpose"], file["lines"], file["expires_at"]) == ("batch_output", 2, None)
    assert [one["id"] for one in http.get("/v1/batches").json()["data"]] == [made["id"]]
    (job_id,) = done["carbon"]["jobs"]
    assert http.get(f"/v1/jobs/{job_id}").json()["batch_id"] == made["id"]
    gone = http.get(f"/v1/jobs/{job_id}/results")
    assert refused(gone, 404, None, made["id"])["code"] == "results_in_batch"


def refused(answer: httpx.Response, status: int, param: str | None, words: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"], error
    return error


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"endpoint": None}, "endpoint", "is missing"),
    ({"endpoint": "/v1/responses"}, "endpoint", "/v1/embeddings, /v1/chat/completions"),
    ({"input_file_id": None}, "input_file_id", "POST /v1/files"),
    ({"input_file_id": 5}, "input_file_id", "POST /v1/files"),
    ({"completion_window": None}, "completion_window", "at most 31 days"),
    ({"completion_window": "32d"}, "completion_window", "at most 31 days"),
    ({"completion_window": "0h"}, "completion_window", "at most 31 days"),
    ({"completion_windw": "1h"}, "completion_windw", "did you mean 'completion_window'"),
    ({"metadata": ["x"]}, "metadata", "16 pairs"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", "16 pairs"),
    ({"metadata": {"k" * 65: "x"}}, f"metadata.{'k' * 64}", "a key may have 64"),
    ({"metadata": {"k": "x" * 513}}, "metadata.k", "a value 512"),
    ({"metadata": {"k": 1}}, "metadata.k", "must be text"),
    ({"metadata": {"carbonq_deadlin": "1h"}}, "metadata.carbonq_deadlin", "did you mean"),
    ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after", "created_at"),
    (
        {"output_expires_after": {"anchor": "created_at", "seconds": 2_592_001}},
        "output_expires_after.seconds",
        "3,600 to 2,592,000",
    ),
    ({"carbon": "6h"}, "carbon", "must be an object"),
    ({"carbon": {"deadlin": "6h"}}, "carbon.deadlin", "did you mean 'deadline'"),
    ({"carbon": {"regions": ["de"]}}, "carbon.regions", "known: fr, se"),
    ({"carbon": {"deadline": "2020-01-01T00:00:00Z"}}, "carbon.deadline", "in the past"),
    ({"carbon": {"slo_ms": 5}}, "carbon.slo_ms", "belongs to a call answered now"),
]


def test_what_is_wrong_with_a_create_is_named(http: httpx.Client) -> None:
    for changes, param, words in WRONG:
        body = {"input_file_id": "file-none", **EMBED, **changes}
        refused(http.post("/v1/batches", json={k: v for k, v in body.items() if v is not None}), 400, param, words)
    assert http.get("/v1/batches").json()["data"] == []


def test_limits_of_a_create_hold_at_the_limit(http: httpx.Client) -> None:
    metadata = {f"{n:064}": "x" * 512 for n in range(16)}
    made = create(
        http,
        lines(1),
        metadata=metadata,
        completion_window="31d",
        output_expires_after={"anchor": "created_at", "seconds": 2_592_000},
    )
    assert made["metadata"] == metadata
    assert made["expires_at"] == made["created_at"] + 31 * 86_400


def test_bodies_and_ids_that_are_none_are_refused(http: httpx.Client) -> None:
    assert refused(http.post("/v1/batches", content=b"{"), 400, None, "not JSON")["code"] == "invalid_json"
    assert refused(http.post("/v1/batches", content=b"[]"), 400, None, "JSON object")["code"] == "invalid_json"
    refused(http.post("/v1/batches", json={"x": "x" * 70_000}), 413, None, "65,536")
    refused(http.post("/v1/batches", json={"input_file_id": "file-none", **EMBED}), 404, None, "no file 'file-none'")
    refused(http.get("/v1/batches/batch_none"), 404, None, "no batch")
    refused(http.post("/v1/batches/batch_none/cancel"), 404, None, "no batch")
    refused(http.get("/v1/batches", params={"after": "batch_none"}), 400, "after", "no batch")
    refused(http.get("/v1/batches", params={"limit": 101}), 400, "limit", "100")


def test_the_deadline_comes_from_whoever_says_it_first(harness: Harness, http: httpx.Client) -> None:
    now = int(harness.clock.now().timestamp())
    headers = {"X-Carbonq-Deadline": "3h"}
    metadata = {"carbonq_deadline": "2h"}
    file_id = upload(http, lines(1), **{"carbon[deadline]": "4h"})["id"]

    def expires(headers: dict[str, str] | None = None, **fields: Any) -> float:
        body = {"input_file_id": file_id, **EMBED, **fields}
        return (http.post("/v1/batches", json=body, headers=headers).json()["expires_at"] - now) / 3600

    assert expires(headers, carbon={"deadline": "1h"}, metadata=metadata) == 1
    assert expires(headers, metadata=metadata) == 2
    assert expires(headers) == 3
    assert expires() == 4
    assert (create(http, lines(1), completion_window="30m")["expires_at"] - now) / 3600 == 0.5
    with harness.db.write() as tx:
        _, key = keys.create(tx, "acme", "ci", False, defaults={"deadline": "5h", "slo_ms": 5})
    by_default = {"Authorization": f"Bearer {key}"}
    assert expires(by_default) == 4
    file_id = upload(http, lines(1))["id"]
    assert expires(by_default) == 5
    assert expires(by_default | headers) == 3


def test_batches_are_listed_page_by_page(harness: Harness, http: httpx.Client) -> None:
    made: list[str] = []
    for _ in range(3):
        made.append(create(http, lines(1))["id"])
        harness.clock.advance(1)
    read_inputs(harness)
    first = http.get("/v1/batches", params={"limit": 2}).json()
    assert [one["id"] for one in first["data"]] == made[:0:-1]
    assert (first["object"], first["has_more"], first["last_id"]) == ("list", True, made[1])
    assert first["data"][0]["request_counts"]["total"] == 1
    rest = http.get("/v1/batches", params={"limit": 2, "after": made[1]}).json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == ([made[0]], False)


def test_a_retry_returns_the_first_batch(harness: Harness, http: httpx.Client) -> None:
    body = json.dumps({"input_file_id": upload(http, lines(1))["id"], **EMBED}).encode()

    def post(**headers: str) -> httpx.Response:
        return http.post("/v1/batches", content=body, headers={"Content-Type": "application/json", **headers})

    first = post()
    again = post(**{"X-Stainless-Retry-Count": "1"})
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert again.headers["Idempotency-Replayed"] == "true"
    assert post(**{"X-Stainless-Retry-Count": "0"}).json()["id"] != first.json()["id"]
    theirs = http.post(
        "/v1/batches",
        content=body,
        headers={"Content-Type": "application/json", "X-Stainless-Retry-Count": "1", **harness.headers("rival")},
    )
    refused(theirs, 404, None, "there is no file")
    keyed = post(**{"Idempotency-Key": "k"})
    assert post(**{"Idempotency-Key": "k"}).json()["id"] == keyed.json()["id"]
    other = http.post("/v1/batches", content=body + b" ", headers={"Idempotency-Key": "k"})
    assert refused(other, 422, "Idempotency-Key", "fresh key")["code"] == "idempotency_key_reused"
    refused(post(**{"Idempotency-Key": "k" * 256}), 400, "Idempotency-Key", "1 to 255")


def test_cancelling_is_harmless_at_any_time(harness: Harness, http: httpx.Client) -> None:
    made = create(http, lines(2))
    read_inputs(harness)
    end(harness, made, {"a-1": OK})
    for _ in range(2):
        answer = http.post(f"/v1/batches/{made['id']}/cancel").json()
        assert (answer["status"], answer["cancelled_at"]) == ("cancelling", None)
        assert answer["cancelling_at"] == answer["created_at"]
    assert finish_all(harness) == 1
    done = look(http, made)
    assert (done["status"], done["cancelled_at"]) == ("cancelled", done["created_at"])
    assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert content(http, done["error_file_id"])[0]["error"]["code"] == "batch_cancelled"
    assert http.post(f"/v1/batches/{made['id']}/cancel").json() == done


def test_a_failed_batch_tells_what_is_wrong(harness: Harness, http: httpx.Client) -> None:
    made = create(http, lines(1) + batching.line("a-1") + batching.line("b", url="/v1/chat/completions"))
    read_inputs(harness)
    done = look(http, made)
    assert (done["status"], done["failed_at"], done["completed_at"]) == ("failed", made["created_at"], None)
    assert done["errors"]["object"] == "list"
    assert [(one["code"], one["line"], one["param"]) for one in done["errors"]["data"]] == [
        ("duplicate_custom_id", 2, "custom_id"),
        ("url_mismatch", 3, "url"),
    ]
    assert done["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
    assert done["carbon"]["phase"] == "failed"


def place(harness: Harness, batch: dict[str, Any], *, g_per_kwh: str | None = "100") -> str:
    """Put half of a chunk's tokens, the batch's items, where a plan would."""
    (job_id,) = batching.job_ids(harness, batch)
    chunk_id = chunk_up(harness, job_id)
    with harness.db.write() as tx:
        tokens = tx.execute(select(func.sum(item_rows.c.est_tokens)).where(item_rows.c.job_id == job_id)).scalar_one()
        mine = chunk_rows.c.chunk_id == chunk_id
        tx.execute(update(chunk_rows).where(mine).values(est_tokens=2 * tokens, est_energy_uj=36 * 10**9))
        rate = None if g_per_kwh is None else Decimal(g_per_kwh)
        tx.execute(update(placements).where(placements.c.chunk_id == chunk_id).values(g_per_kwh=rate))
        tx.execute(update(job_rows).where(job_rows.c.job_id == job_id).values(is_chunked=True))
    return chunk_id


def test_carbon_says_where_it_waits_and_what_is_foretold(harness: Harness, http: httpx.Client) -> None:
    made = create(http, lines(2))
    read_inputs(harness)
    assert look(http, made)["carbon"]["phase"] == "planning"
    chunk_id = place(harness, made)
    harness.api.batch_figures.forget(made["id"])
    carbon = look(http, made)["carbon"]
    starts = harness.clock.now() + timedelta(seconds=600)
    assert (carbon["phase"], carbon["region"], carbon["regions"]) == ("waiting", "se", {"se": 1})
    assert carbon["window"] == {"start": iso(starts), "end": iso(starts + timedelta(minutes=5)), "region": "se"}
    assert carbon["eta"] == carbon["window"]["end"]
    # half of 10 Wh at PUE 1.1 and 100 g/kWh
    assert carbon["planned_gco2e"] == pytest.approx(0.005 * 1.1 * 100)
    assert carbon["reason"] == carbon["why"]["reason"] == "carbon"
    assert carbon["why"]["sentence"].startswith("the least carbon")
    assert (carbon["why"]["forecast_g_per_kwh"], carbon["why"]["planned_region"]) == (100.0, "se")
    assert carbon["why"]["forecast_issued_at"] == iso(harness.clock.now())
    assert carbon["baseline"] == {"region": "fr", "window": iso(harness.clock.now())}
    unknown = ("actual_gco2e", "saved_gco2e", "baseline_gco2e", "energy_wh", "facility_energy_wh", "inventory_gco2e")
    assert [carbon[name] for name in unknown] == [None] * len(unknown), "unknown is null"
    assert carbon["counts"] == {"total": 2, "succeeded": 0, "failed": 0, "expired": 0, "cancelled": 0}
    with harness.db.write() as tx:
        tx.execute(
            update(chunk_rows)
            .where(chunk_rows.c.chunk_id == chunk_id)
            .values(state=ChunkState.RUNNING, lease_until=harness.clock.now())
        )
        tx.execute(update(placements).values(g_per_kwh=None))
        tx.execute(update(job_rows).values(progress_at=harness.clock.now()))
    harness.api.batch_figures.forget(made["id"])
    carbon = look(http, made)["carbon"]
    assert (carbon["phase"], carbon["planned_gco2e"]) == ("running", None)
    assert carbon["last_progress_at"] == iso(harness.clock.now())


def test_usage_and_carbon_are_those_of_the_ledger(harness: Harness, http: httpx.Client) -> None:
    made = create(http, lines(2))
    read_inputs(harness)
    (job_id,) = batching.job_ids(harness, made)
    booked = book(batch([item(n, job_id=job_id) for n in range(2)]))
    with harness.db.write() as tx:
        ledger.insert_booking(tx, booked)
    seen = look(http, made)
    with harness.db.read() as tx:
        sums = summary.of_job(tx, job_id)
    assert sums is not None
    carbon, usage = seen["carbon"], seen["usage"]
    assert carbon["actual_gco2e"] == pytest.approx(float(sums["emission_g"]))
    assert carbon["energy_wh"] == pytest.approx(sums["energy_uj"] / 3.6e9)
    pue = float(booked.facts[0]["pue"])
    assert carbon["facility_energy_wh"] == pytest.approx(carbon["energy_wh"] * pue)
    assert carbon["inventory_gco2e"] == pytest.approx(float(sums["inventory_g"]))
    assert (carbon["saved_gco2e"], carbon["baseline_gco2e"]) == (float(sums["saved_g"]), float(sums["baseline_g"]))
    assert carbon["quality"] in list(Quality)
    assert usage["input_tokens"] == sum(entry["prompt_tokens"] for entry in booked.entries)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert set(usage["input_tokens_details"]) == {"cached_tokens"}
    assert set(usage["output_tokens_details"]) == {"reasoning_tokens"}
    assert usage["carbon"]["gco2e"] == carbon["actual_gco2e"]


def test_another_tenant_sees_nothing_of_it(harness: Harness, http: httpx.Client) -> None:
    made = create(http, lines(1))
    read_inputs(harness)
    end(harness, made, {"a-1": OK})
    finish_all(harness)
    done = look(http, made)
    http.headers.update(harness.headers("rival"))
    for method, path in (
        ("GET", f"/v1/batches/{made['id']}"),
        ("POST", f"/v1/batches/{made['id']}/cancel"),
        ("GET", f"/v1/files/{done['output_file_id']}"),
        ("GET", f"/v1/files/{done['output_file_id']}/content"),
        ("DELETE", f"/v1/files/{done['output_file_id']}"),
        ("GET", f"/v1/files/{done['input_file_id']}/content"),
    ):
        assert http.request(method, path).status_code == 404, path
    for path in ("/v1/batches", "/v1/files"):
        assert http.get(path).json()["data"] == []
    for path, after in (("/v1/batches", made["id"]), ("/v1/files", done["input_file_id"])):
        refused(http.get(path, params={"after": after}), 400, "after", "there is no")

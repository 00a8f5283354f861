"""Invariant 8: nothing outside a tenant's key can read, list or guess what is the tenant's."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.harness import Harness
from tests.api.test_jobs import chunk_up, finish, submit
from tests.api.test_ledger import book


@pytest.fixture
def rival(harness: Harness, url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers=harness.headers("rival"), trust_env=False) as client:
        yield client


def test_every_route_with_anothers_ids_gives_404(
    harness: Harness, url: str, http: httpx.Client, rival: httpx.Client
) -> None:
    job_id = submit(http)["id"]
    chunk_up(harness, job_id)
    finish(harness, job_id, b"secret\n", b"secret too\n")
    known = {"{job_id}": job_id, "{entry_id}": book(harness, "eb_1", tenant="acme", job_id=job_id)[0], "{name}": None}
    tried = 0
    for path, methods in httpx.get(f"{url}/openapi.json").json()["paths"].items():
        if "{" not in path:
            continue
        place = next(name for name in known if name in path)  # a route with a new kind of id must be added here
        if known[place] is None:
            continue  # models are the installation's, not a tenant's
        for method in methods:
            own = path.replace(place, str(known[place]))
            theirs = rival.request(method, own)
            unknown = rival.request(method, path.replace(place, "x_none"))
            assert theirs.status_code == unknown.status_code == 404, (method, own, theirs.text)
            # Not even the wording tells an id that exists from one that does not.
            assert theirs.json()["error"]["code"] == unknown.json()["error"]["code"]
            assert theirs.json()["detail"].replace(str(known[place]), "x_none") == unknown.json()["detail"]
            tried += 1
    assert tried >= 6
    assert not http.get(f"/v1/jobs/{job_id}").json()["is_cancel_requested"]  # the rival's POST did nothing


def test_lists_hold_the_callers_own_only(harness: Harness, http: httpx.Client, rival: httpx.Client) -> None:
    job_id = submit(http)["id"]
    chunk_id = chunk_up(harness, job_id)
    assert rival.get("/v1/jobs").json()["data"] == []
    assert rival.get("/v1/plan").json()["chunks"] == []
    assert [chunk["id"] for chunk in http.get("/v1/plan").json()["chunks"]] == [chunk_id]
    assert rival.get("/v1/jobs", params={"after": job_id}).status_code == 400
    assert job_id not in rival.get("/v1/ledger").text
    assert rival.get("/v1/ledger.csv").text.count("\n") == 1  # the header


def test_a_filter_by_anothers_job_finds_nothing(http: httpx.Client, rival: httpx.Client) -> None:
    job_id = submit(http)["id"]
    for path in ("/v1/ledger", "/v1/ledger.csv"):
        assert rival.get(path, params={"job_id": job_id}).status_code == 404
        assert http.get(path, params={"job_id": job_id}).status_code == 200


def test_an_idempotency_key_is_the_tenants(http: httpx.Client, rival: httpx.Client) -> None:
    query = {"endpoint": "/v1/embeddings", "model": "wordllama-256", "deadline": "6h"}
    headers = {"Idempotency-Key": "same", "Content-Type": "application/x-ndjson"}
    line = b'{"custom_id":"a","body":{"input":"x"}}\n'
    first = http.post("/v1/jobs", params=query, content=line, headers=headers)
    second = rival.post("/v1/jobs", params=query, content=line, headers=headers)
    assert first.status_code == second.status_code == 202
    assert first.json()["id"] != second.json()["id"]

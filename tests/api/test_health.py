"""Health, readiness and metrics."""

from __future__ import annotations

import re

import httpx
from prometheus_client.parser import text_string_to_metric_families

from carbonq.model import JobState
from tests.api.harness import EMBEDDER, Harness
from tests.api.test_jobs import submit


def test_readiness_names_what_is_missing(harness: Harness, http: httpx.Client) -> None:
    assert http.get("/readyz").json() == {
        "status": "ready",
        "checks": {"database": "ok", "broker": "ok"},
        "live_workers": {"fr": 1, "se": 1},
    }
    harness.tickets.is_down = True
    response = http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["checks"]["broker"] == "broker_unavailable"
    assert http.get("/healthz").status_code == 200


def test_metrics_count_by_route_template_and_hold_no_ids(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)["id"]
    http.get(f"/v1/jobs/{job_id}")
    http.get("/wp-admin/setup.php")
    http.post("/v1/embeddings", json={"model": EMBEDDER, "input": "x"})
    content = http.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(content)}
    ours = {name for name in families if name.startswith("carbonq")}
    assert all(re.fullmatch(r"carbonq_[a-z0-9_]+", name) for name in ours)
    routes = {sample.labels["route"] for sample in families["carbonq_api_requests"].samples}
    assert "/v1/jobs/{job_id}" in routes and "unknown" in routes
    jobs = {sample.labels["state"]: sample.value for sample in families["carbonq_jobs"].samples}
    assert set(jobs) == set(JobState) and jobs["waiting"] == 1
    workers = {sample.labels["region"]: sample.value for sample in families["carbonq_live_workers"].samples}
    assert {name: workers[name] for name in ("fr", "se")} == {"fr": 1, "se": 1}  # others are of tests before
    assert "carbonq_api_realtime_seconds" in ours
    assert families["carbonq_ledger_unsealed_age_seconds"].samples[0].value >= 0
    for secret in (job_id, "acme", "wp-admin", "key_"):
        assert secret not in content

"""Health, readiness and metrics."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert, select, update
from typer.testing import CliRunner

from carbonq.cli import main
from carbonq.clock import GridClock
from carbonq.model import JobState
from carbonq.store import clocks
from carbonq.store.database import Database
from carbonq.store.tables import engine_batches, facts, jobs
from tests.api.harness import EMBEDDER, Harness
from tests.api.test_jobs import submit
from tests.services.planning import add_chunks, change


def store_batch(
    db: Database, name: str, *, window_at: datetime, items: int, model: str = EMBEDDER, **more: Any
) -> None:
    """A part of an engine batch in region fr, of a second and 1,000 uJ."""
    with db.write() as tx:
        if tx.execute(select(facts)).first() is None:
            stated = {"fact_id": "f", "region": "fr", "pue": Decimal(1), "pue_source": "assumed"}
            tx.execute(insert(facts).values(**stated, hardware="cpu", ownership="owned"))
        values = {
            **{"engine_batch_id": name, "part": 1, "parts": 1, "items": items, "weight": 1, "class": "flexible"},
            **{"worker_id": "w", "fact_id": "f", "region": "fr", "device_ids": [], "model": model},
            **{"software_version": "0", "clock": "real", "window_at": window_at, "started_at": window_at},
            **{"ended_at": window_at, "duration_s": Decimal(1), "gpu_meter": "none", "cpu_meter": "cpu_time"},
            **{"dram_meter": "none", "quality": "estimated", "energy_uj": 1_000},
        }
        tx.execute(insert(engine_batches).values(**{**values, **more}))


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


def test_metrics_tell_how_engine_batches_went_and_what_is_late(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)["id"]
    names = add_chunks(harness.db, 2, prefix="x")
    change(harness.db, names[0], error="its engine is away")
    figures = {"ttft_us": 250_000, "output_token_us": 20_000, "capacity_items": 8, "tokens": 60, "padded_tokens": 80}
    ran_at = harness.clock.now() - timedelta(minutes=20)
    store_batch(harness.db, "eb_1", window_at=ran_at, items=6, **figures)
    store_batch(harness.db, "eb_2", window_at=ran_at, items=2, **{**figures, "ttft_us": None, "padded_tokens": 120})
    store_batch(harness.db, "eb_old", window_at=ran_at - timedelta(hours=1), items=8, **figures)
    with harness.db.write() as tx:
        tx.execute(update(jobs).where(jobs.c.job_id == job_id).values(deadline_at=ran_at))
    found = {
        (sample.name, sample.labels.get("region")): sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
    }
    assert found["carbonq_engine_fill_items_ratio", "fr"] == pytest.approx(8 / 16)
    assert found["carbonq_engine_fill_tokens_ratio", "fr"] == pytest.approx(120 / 200)
    assert found["carbonq_engine_ttft_seconds", "fr"] == pytest.approx(0.25)
    assert found["carbonq_engine_output_token_seconds", "fr"] == pytest.approx(0.02)
    assert found["carbonq_jobs_overdue", None] == 1
    assert found["carbonq_chunks_tried_again", None] == 1


def test_models_speed_shows_how_models_ran(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    ran_at = harness.clock.now() - timedelta(hours=3)
    store_batch(harness.db, "eb_1", window_at=ran_at, items=6, capacity_items=8, tokens=50, padded_tokens=80)
    store_batch(harness.db, "eb_2", window_at=ran_at, items=0, tokens=None)  # an idle window
    store_batch(harness.db, "eb_3", window_at=ran_at - timedelta(hours=30), items=6, model="of long ago")
    with harness.db.write() as tx:
        clocks.ensure(tx, GridClock.accelerated(harness.clock.now(), 1.0))
    monkeypatch.setenv("CARBONQ_DATABASE_URL", harness.db.url)
    result = CliRunner().invoke(main.app, ["models", "speed", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = orjson.loads(result.stdout)
    assert row == {
        **{"model": EMBEDDER, "region": "fr", "engine_batches": 1, "items": 6, "tokens": 50},
        **{"fill_items": 0.75, "fill_tokens": 0.625, "ttft_s": None, "output_token_s": None},
        **{"tokens_per_s": 50.0, "uj_per_token": 20.0},
    }
    shown = CliRunner().invoke(main.app, ["models", "speed", "--hours", "48"]).stdout
    assert "of long ago" in shown and "75 %" in shown and "62 %" in shown

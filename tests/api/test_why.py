"""GET /v1/jobs/{id}/why and ``carbonq jobs why`` on real chunks and real plans."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from sqlalchemy import delete, select, update
from typer.testing import CliRunner, Result

from carbonq.cli import main
from carbonq.errors import NotFound
from carbonq.model import RegionState, Signal
from carbonq.models import BUILTIN
from carbonq.services.chunk import chunk_jobs
from carbonq.services.plan import plan_waiting
from carbonq.services.refresh import refresh
from carbonq.store import regions as region_rows
from carbonq.store.tables import chunks, forecasts, jobs, observations, placements
from carbonq.testing import FakeGrid, RecordedSignal
from tests.api.harness import CHATTER, REGIONS, Harness
from tests.api.test_jobs import NDJSON
from tests.services.planning import add_chunks, place

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)

#: MOER by window from now on: fr is cleanest at 30 minutes, se (cleaner all along) at 60.
FR = [300.0] * 6 + [200.0] * 6 + [400.0] * 60
SE = [150.0] * 12 + [100.0] * 12 + [50.0] * 48


def feed(harness: Harness, fr: list[float], se: list[float]) -> None:
    start = harness.clock.now() - HOUR
    recorded = {
        zone: RecordedSignal(zone, start, [*[300.0] * 12, *values])
        for zone, values in (("ZONE_FR", fr), ("ZONE_SE", se))
    }
    grids = {(zone, Signal.MOER): (FakeGrid([one], name="grid"),) for zone, one in recorded.items()}
    refresh(harness.db, grids, harness.clock)


@pytest.fixture
def api(harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", harness.acme)
    monkeypatch.setenv("COLUMNS", "100")
    feed(harness, FR, SE)
    return harness


def submit(http: httpx.Client, count: int = 10, **query: Any) -> str:
    """A job of about 13 s an item."""
    body = {"messages": [{"role": "user", "content": "word " * 600}], "max_tokens": 64}
    lines = b"".join(json.dumps({"custom_id": f"a{i}", "body": body}).encode() + b"\n" for i in range(count))
    fields = {"kind": "summarize", "model": CHATTER, "deadline": "2h", **query}
    answer = http.post("/v1/jobs", params=fields, content=lines, headers=NDJSON)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def cut(harness: Harness) -> None:
    """Make the chunks of what came, and do not plan them."""
    chunk_jobs(
        harness.db,
        harness.clock,
        models=BUILTIN,
        regions=REGIONS,
        max_chunk_items=10_000,
        chunk_fill=0.6,
        chunk_wait_s=0,
        isolate_tenants=False,
        factor=1.0,
    )


def plan(harness: Harness) -> None:
    cut(harness)
    plan_waiting(harness.db, harness.clock, models=BUILTIN, worker_alive_s=3600)


def why(http: httpx.Client, job_id: str, **query: Any) -> dict[str, Any]:
    answer = http.get(f"/v1/jobs/{job_id}/why", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def passed(group: dict[str, Any]) -> dict[str, int]:
    return {one["why"]: one["cells"] for one in group["dirtiest"]["passed_over"]}


def test_a_planned_job_is_explained_by_the_outlook_of_its_plan(api: Harness, http: httpx.Client) -> None:
    job_id = submit(http)
    fresh = why(http, job_id)
    assert fresh["data"] == [] and "no chunks yet" in fresh["summary"]
    gone = submit(http)
    http.post(f"/v1/jobs/{gone}/cancel")
    assert "ended before any were made" in why(http, gone)["summary"]
    plan(api)
    found = why(http, job_id)
    (group,) = found["data"]
    dirtiest = group["dirtiest"]
    assert (group["region"], group["reason"], group["chunks"], group["items"]) == ("se", "carbon", 1, 10)
    assert (dirtiest["compared_with"], dirtiest["forecast_g_per_kwh"]) == ("outlook of the plan", "100.0")
    # 12 windows of 100 g/kWh from 13:00 on, the last ones too late to start; after it all is cleaner.
    assert passed(group) == {"after_deadline": 48}
    assert dirtiest["runner_up"]["g_per_kwh"] == 100 and dirtiest["runner_up"]["more_pct"] == 0
    assert "none causes less" in " ".join(group["sentences"])
    assert found["summary"].startswith("1 chunk in 1 group; reasons: carbon 1; regions: se 1; window 01 Jan 13:00Z")
    assert group["gco2e"] == pytest.approx(dirtiest["gco2e"])


def test_full_cells_regions_and_a_changed_forecast_are_told(api: Harness, http: httpx.Client) -> None:
    now = api.clock.now()
    theirs = {"tenant": "rival", "regions": ("se",), "release_at": now, "deadline_at": now + 126 * MINUTE}
    for number, name in enumerate(add_chunks(api.db, 25, prefix="secret", **theirs)):
        place(api.db, name, "se", now + 5 * number * MINUTE)  # se is full for two hours
    job_id = submit(http)
    plan(api)
    (group,) = why(http, job_id)["data"]
    assert group["region"] == "fr" and group["dirtiest"]["forecast_g_per_kwh"] == "200.0"
    assert passed(group)["full"] == 23 and "rival" not in json.dumps(group) and "secret" not in json.dumps(group)
    limited = submit(http, region="fr")
    plan(api)
    (other,) = why(http, limited)["data"]
    assert passed(other)["not_allowed"] > 24 and "full" not in passed(other)
    api.clock.advance(600)
    feed(api, [one + 60 for one in FR[2:]], SE[2:])
    (again,) = why(http, job_id)["data"]
    assert again["dirtiest"]["compared_with"] == "outlook of the plan"
    assert any("Since then its forecast went up from 200 to 260 g/kWh" in one for one in again["sentences"])
    assert again["dirtiest"]["forecast_now_g_per_kwh"] == 260


def test_a_chunk_that_stays_because_the_gain_is_below_the_margin(api: Harness, http: httpx.Client) -> None:
    job_id = submit(http, region="fr")
    plan(api)
    with api.db.write() as tx:  # it was decided by a rate that the kept forecasts do not tell
        tx.execute(update(placements).values(g_per_kwh=Decimal("205.0")))
    (group,) = why(http, job_id)["data"]
    assert group["dirtiest"]["compared_with"] == "outlook now" and passed(group)["below_margin"] == 5
    text = " ".join(group["sentences"])
    assert "moved only for more than 3 %" in text and "cannot be put together exactly any more" in text


def test_what_has_begun_is_not_compared_with_what_is_free_from_now_on(api: Harness, http: httpx.Client) -> None:
    job_id = submit(http, region="fr")
    plan(api)
    with api.db.write() as tx:
        tx.execute(update(placements).values(g_per_kwh=Decimal("205.0")))
        tx.execute(update(chunks).values(dispatched_at=api.clock.now()))
    (group,) = why(http, job_id)["data"]
    assert group["is_dispatched"] and group["dirtiest"]["compared_with"] is None
    assert any("cannot be told any more" in one for one in group["sentences"])


def test_the_price_is_told_apart(api: Harness, http: httpx.Client) -> None:
    job_id = submit(http)
    plan(api)
    with api.db.write() as tx:
        region_rows.sync(tx, [replace(one, price_per_kwh=Decimal("0.5")) for one in REGIONS])
    api.api.directory.refresh()
    assert why(http, job_id)["data"][0]["dirtiest"]["weighted_price_g"] == 0
    object.__setattr__(api.api, "price_weight_g", 100.0)
    dirtiest = why(http, job_id)["data"][0]["dirtiest"]
    # 0.5 x 100 g a kWh beside 100 g/kWh.
    assert dirtiest["weighted_price_g"] == pytest.approx(dirtiest["gco2e"] / 2, rel=1e-4)
    assert dirtiest["runner_up"]["more_weighted_price_g"] == 0


def test_past_windows_whose_forecasts_are_gone(api: Harness, http: httpx.Client) -> None:
    job_id = submit(http)
    plan(api)
    api.clock.advance(4 * 3600)
    with api.db.write() as tx:
        tx.execute(delete(forecasts))
        tx.execute(delete(observations))
    (group,) = why(http, job_id)["data"]
    assert group["dirtiest"]["compared_with"] is None and group["dirtiest"]["runner_up"] is None
    assert any("no longer kept" in one for one in group["sentences"])


def test_waiting_overlay_and_closed_regions_are_told(harness: Harness, http: httpx.Client) -> None:
    job_id = submit(http)
    with harness.db.write() as tx:
        for name in ("fr", "se"):
            region_rows.set_state(tx, name, RegionState.PAUSED)
    harness.api.directory.refresh()
    plan(harness)
    (waiting,) = why(http, job_id)["data"]
    assert "takes work now" in waiting["sentences"][0] and waiting["region"] is None
    with harness.db.write() as tx:
        for name in ("fr", "se"):
            region_rows.set_state(tx, name, RegionState.ACTIVE)
    harness.api.directory.refresh()
    assert "the planner runs every few seconds" in why(http, job_id)["data"][0]["sentences"][0]
    plan(harness)
    (group,) = why(http, job_id)["data"]
    assert group["reason"] == "overlay" and any("No carbon rate was known" in one for one in group["sentences"])


def test_what_was_cancelled_before_it_ran_is_not_said_to_have_run(api: Harness, http: httpx.Client) -> None:
    job_id = submit(http)
    plan(api)
    http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    found = why(http, job_id)
    count = sum(group["chunks"] for group in found["data"])
    assert found["summary"] == f"{count} chunk{'s'[: count != 1]} in 1 group; reasons: never run {count}."
    (group,) = found["data"]
    assert group["state"] == "done" and group["has_run"] is False
    (sentence,) = group["sentences"]
    assert "never ran: what" in sentence and "cancelled, or expired, before a worker took it" in sentence


def test_groups_are_paged(api: Harness, http: httpx.Client) -> None:
    job_id = submit(http, 400, deadline="90m")  # se alone does not hold it
    plan(api)
    whole = why(http, job_id)["data"]
    assert {one["region"] for one in whole} == {"fr", "se"}
    with api.db.read() as tx:
        count = len(tx.execute(select(chunks.c.chunk_id)).all())
    assert sum(one["chunks"] for one in whole) == count and sum(one["items"] for one in whole) == 400
    first = why(http, job_id, limit=1)
    second = why(http, job_id, limit=100, after=first["last_id"])
    assert first["has_more"] and not second["has_more"]
    assert [one["id"] for one in first["data"] + second["data"]] == [one["id"] for one in whole]
    assert http.get(f"/v1/jobs/{job_id}/why", params={"after": "chunk_x"}).status_code == 400
    assert http.get(f"/v1/jobs/{job_id}/why", params={"limit": 0}).status_code == 400
    shown = run(job_id, "--limit", "1")
    assert "there are more" in shown.stderr
    assert len(json.loads(run(job_id, "--json").stdout)["data"]) == len(whole)


def run(*words: str) -> Result:
    return CliRunner().invoke(main.app, ["jobs", "why", *words])


def test_the_command_speaks_in_sentences(api: Harness, http: httpx.Client) -> None:
    job_id = submit(http)
    plan(api)
    shown = run(job_id)
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0 and lines[0].startswith("1 chunk in 1 group") and lines[1] == ""
    assert lines[2].startswith("1 chunk is to run in se in the window of 01 Jan 13:00Z: 100 g/kWh MOER")
    assert all(len(line) <= 100 for line in lines)
    assert isinstance(run("job_none").exception, NotFound)


def test_what_holds_a_late_job_up_is_told(api: Harness, http: httpx.Client) -> None:
    job_id = submit(http)
    plan(api)
    with api.db.write() as tx:
        freed = {"state": "waiting", "region": None, "window_at": None, "placement_id": None}
        tx.execute(update(chunks).values(**freed, error="served: the server could not be reached."))
    (group,) = why(http, job_id)["data"]
    assert group["sentences"][1:] == ["Its last try failed: served: the server could not be reached."]
    api.clock.advance(3 * 3600)
    assert why(http, job_id)["data"][0]["sentences"][2].endswith("has passed: it goes on, late.")
    with api.db.write() as tx:
        tx.execute(update(jobs).values(late_policy="expire"))
    assert why(http, job_id)["data"][0]["sentences"][2].endswith("has passed: what waits of it expires.")


def test_a_job_that_a_budget_holds_back_is_not_said_to_be_planned(api: Harness, http: httpx.Client) -> None:
    def phases() -> tuple[str, ...]:
        with api.db.write() as tx:
            stored = sorted(tx.execute(select(chunks.c.chunk_id)).scalars())
            tx.execute(update(chunks).where(chunks.c.chunk_id == stored[0]).values(held_by="bgt_1"))
        return tuple(http.get(f"/v1/jobs/{name}").json()["phase"] for name in (held, free))

    held = submit(http)
    cut(api)
    free = submit(http)
    assert phases() == ("held by a budget", "being planned")
    assert [http.get(f"/v1/jobs/{name}").headers["Retry-After"] for name in (held, free)] == ["15", "1"]

"""Regions, rates and forecasts as the API shows them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import httpx
import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from carbonq.cli import main
from carbonq.model import Maintenance, Signal
from carbonq.store import forecasts, installation
from carbonq.store import regions as region_rows
from carbonq.store.tables import workers
from carbonq.testing import FakeGrid, RecordedSignal
from carbonq.units import WINDOW_S, iso
from tests.api.harness import REGIONS, Harness


def grid(harness: Harness, zone: str, *, signal: Signal = Signal.MOER) -> FakeGrid:
    return FakeGrid(
        [RecordedSignal(zone, harness.clock.now(), actual=[100, 200, 300], forecast=[Decimal("111.50"), 220, None])],
        signal=signal,
    )


def refresh(harness: Harness, source: FakeGrid, zone: str) -> None:
    now = harness.clock.now()
    issued = source.forecast(zone, now)
    with harness.db.write() as tx:
        if issued is not None:
            forecasts.add_forecast(tx, issued)
        forecasts.add_observations(tx, source.observations(zone, now - timedelta(hours=1), now, now))


def test_regions_say_what_they_are_and_missing_rates_stay_missing(http: httpx.Client) -> None:
    first, second = http.get("/v1/regions").json()["data"]
    assert (first["name"], first["zone"], first["state"], first["is_healthy"]) == ("fr", "ZONE_FR", "active", True)
    assert first["live_workers"] == 1 and first["slots"] == 2 and first["pue"] == "1.2"
    assert first["is_home"] and not second["is_home"]
    assert first["latency_ms"] == {"stated": 5.0, "measured": None}
    assert first["moer"] is None and first["aer"] is None


def test_a_maintenance_is_shown_until_it_is_over(
    harness: Harness, http: httpx.Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = harness.clock.now().replace(second=0, microsecond=0)
    spans = [Maintenance(now + timedelta(days=n), now + timedelta(days=n, hours=2), 1 + (n < 0)) for n in (1, 3, -1)]
    with harness.db.write() as tx:
        region_rows.sync(tx, [replace(REGIONS[0], maintenance=tuple(reversed(spans))), *REGIONS[1:]])
    harness.api.directory.refresh()
    first, second = http.get("/v1/regions").json()["data"]
    assert first["maintenance"][0] == {"start_at": iso(spans[0].start_at), "end_at": iso(spans[0].end_at), "slots": 1}
    assert (len(first["maintenance"]), second["maintenance"]) == (2, [])
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", harness.acme)
    shown = CliRunner().invoke(main.app, ["regions", "list"], env={"COLUMNS": "300"})
    assert f"{spans[0].start_at:%d %b %H:%MZ} to {spans[0].end_at:%d %b %H:%MZ}: 1 slot;" in shown.stdout, shown.output


def test_the_rate_of_now_comes_with_its_stamps(harness: Harness, http: httpx.Client) -> None:
    source = grid(harness, "ZONE_FR")
    issued_at = iso(harness.clock.now())
    refresh(harness, source, "ZONE_FR")
    harness.clock.advance(60)
    moer = http.get("/v1/regions").json()["data"][0]["moer"]
    assert moer["g_per_kwh"] == "111.50" and moer["kind"] == "forecast" and moer["status"] == "provisional"
    assert moer["issued_at"] == issued_at and moer["source"] == "fake-grid" and not moer["is_stale"]
    harness.clock.advance(WINDOW_S)
    moer = http.get("/v1/regions").json()["data"][0]["moer"]
    assert moer["g_per_kwh"] == "220"  # the same issue's next value
    harness.clock.advance(WINDOW_S)
    assert http.get("/v1/regions").json()["data"][0]["moer"] is None  # the source said nothing of this window


def test_the_two_books_are_apart(harness: Harness, http: httpx.Client) -> None:
    refresh(harness, grid(harness, "ZONE_FR", signal=Signal.AER), "ZONE_FR")
    first, second = http.get("/v1/regions").json()["data"]
    assert first["moer"] is None and first["aer"]["g_per_kwh"] == "111.50"
    assert second["moer"] is None and second["aer"] is None


def test_a_forecast_as_issued(harness: Harness, http: httpx.Client) -> None:
    start = harness.clock.now()
    refresh(harness, grid(harness, "ZONE_FR"), "ZONE_FR")
    found = http.get("/v1/forecasts", params={"zone": "ZONE_FR"}).json()
    assert found["values"] == ["111.50", "220", None] and found["step_s"] == WINDOW_S
    assert found["start_at"] == found["issued_at"] == iso(start)
    nothing = http.get("/v1/forecasts", params={"zone": "ZONE_SE"}).json()
    assert nothing["values"] == [] and nothing["issued_at"] is None and nothing["start_at"] == iso(start)


def test_a_zone_must_be_named_and_known(http: httpx.Client) -> None:
    assert http.get("/v1/forecasts").json()["error"]["param"] == "zone"
    response = http.get("/v1/forecasts", params={"zone": "MARS"})
    assert response.status_code == 404 and "ZONE_FR, ZONE_SE" in response.json()["detail"]
    bad = http.get("/v1/forecasts", params={"zone": "ZONE_FR", "signal": "percentile"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "signal")


def test_a_worker_is_shown_with_its_host_and_whether_its_settings_are_the_installations(
    harness: Harness, http: httpx.Client
) -> None:
    (worker,) = http.get("/v1/regions").json()["data"][0]["workers"]
    assert worker["host"] and worker["software_version"] and worker["agrees"] is None
    for digest, agrees in (("d", True), ("other", False)):
        with harness.db.write() as tx:
            tx.execute(update(workers).values(settings_digest="d", clock_offset_s=0.25, gpus=["GPU-a"]))
            installation.put(tx, {}, digest, software_version="1")
        harness.api.directory.refresh()
        (worker,) = http.get("/v1/regions").json()["data"][0]["workers"]
        assert (worker["agrees"], worker["clock_offset_s"], worker["gpus"]) == (agrees, 0.25, ["GPU-a"])

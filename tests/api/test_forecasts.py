"""Forecasts as the API shows them: by signal, source and time of issue, page by page, and the outlook beside them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest

from carbonq.errors import SignalUnavailable
from carbonq.model import Signal
from carbonq.services.refresh import Sources, refresh
from carbonq.testing import FakeGrid, RecordedSignal
from carbonq.units import WINDOW, WINDOW_S, iso
from tests.api.harness import Harness

FR = ("ZONE_FR", Signal.MOER)


def grid(harness: Harness, name: str, value: int, *, signal: Signal = Signal.MOER, horizon: int = 6) -> FakeGrid:
    start = harness.clock.now() - timedelta(hours=3)
    recorded = RecordedSignal("ZONE_FR", start, [value + i for i in range(300)])
    return FakeGrid([recorded], name=name, signal=signal, horizon=horizon)


def get(http: httpx.Client, path: str = "", **params: Any) -> Any:
    response = http.get(f"/v1/forecasts{path}", params={"zone": "ZONE_FR", **params})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_source_in_use_is_shown_with_the_state_of_all(harness: Harness, http: httpx.Client) -> None:
    first, second = grid(harness, "first", 100), grid(harness, "second", 500)
    sources: Sources = {FR: (first, second), ("ZONE_FR", Signal.AER): (grid(harness, "avg", 30, signal=Signal.AER),)}
    refresh(harness.db, sources, harness.clock)
    shown = get(http)
    assert (shown["source"], shown["values"][0], shown["signal"]) == ("first", "136", "moer")
    states = {one["source"]: one for one in shown["sources"]}
    assert [one["position"] for one in shown["sources"]] == [0, 1]
    assert (states["first"]["age_s"], states["first"]["is_stale"], states["first"]["failures"]) == (0.0, False, 0)
    assert (states["second"]["age_s"], states["second"]["is_stale"]) == (None, True)
    average = get(http, signal="aer")
    assert (average["source"], average["values"][0], len(average["sources"])) == ("avg", "66", 1)

    first.is_down = True
    harness.clock.advance(3 * 3600)
    refresh(harness.db, sources, harness.clock)
    shown = get(http)
    assert shown["source"] == "second"
    states = {one["source"]: one for one in shown["sources"]}
    assert (states["first"]["is_down"], states["first"]["failures"]) == (True, 1)
    assert "last_error" not in states["first"]  # a provider's own words are the operator's
    assert get(http, source="first")["values"][0] == "136"  # what it said then, with its own stamp
    unknown = http.get("/v1/forecasts", params={"zone": "ZONE_FR", "source": "third"})
    assert unknown.status_code == 404 and "it has first, second" in unknown.json()["detail"]


def test_the_forecast_in_force_at_a_time(harness: Harness, http: httpx.Client) -> None:
    start = harness.clock.now()
    source = grid(harness, "first", 100)
    for _ in range(3):
        refresh(harness.db, {FR: (source,)}, harness.clock)
        harness.clock.advance(WINDOW_S)
    at = start + WINDOW + timedelta(seconds=10)
    assert get(http, at=iso(at))["issued_at"] == iso(start + WINDOW)
    assert get(http, at=iso(start - WINDOW))["values"] == []
    bad = http.get("/v1/forecasts", params={"zone": "ZONE_FR", "at": "yesterday"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "at")


def test_issues_come_page_by_page_newest_first(harness: Harness, http: httpx.Client) -> None:
    start = harness.clock.now()
    first, second = grid(harness, "first", 100), grid(harness, "second", 500)
    for _ in range(5):
        refresh(harness.db, {FR: (first,)}, harness.clock)
        refresh(harness.db, {FR: (second,)}, harness.clock)  # the same times of issue: the pages must not lose one
        harness.clock.advance(WINDOW_S)
    seen: list[tuple[str, str]] = []
    after: dict[str, str] = {}
    while True:
        page = get(http, "/issues", limit=3, **after)
        assert page["object"] == "list" and len(page["data"]) <= 3
        seen += [(one["issued_at"], one["source"]) for one in page["data"]]
        assert all(len(one["values"]) == 6 for one in page["data"])
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    times = [iso(start + i * WINDOW) for i in reversed(range(5))]
    assert seen == [(at, source) for at in times for source in ("second", "first")]
    mine = get(http, "/issues", source="first", **{"from": times[3], "to": times[1]})
    assert [one["issued_at"] for one in mine["data"]] == times[2:4]
    for params, param in (({"after": "fc_x"}, "after"), ({"from": "never"}, "from"), ({"limit": 101}, "limit")):
        bad = http.get("/v1/forecasts/issues", params={"zone": "ZONE_FR", **params})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, param)


def test_the_outlook_names_signal_source_basis_and_spread(harness: Harness, http: httpx.Client) -> None:
    refresh(harness.db, {FR: (grid(harness, "first", 100),)}, harness.clock)
    shown = get(http, "/outlook", hours=1)
    assert (shown["signal"], shown["decides_by"], shown["source"]) == ("moer", "moer", "first")
    assert len(shown["values"]) == len(shown["spread"]) == len(shown["basis"]) == 12
    assert shown["start_at"] == iso(harness.clock.now()) and not shown["is_down"]
    assert set(shown["basis"]) <= {"held", "forecast", "seasonal", "blend"} and None not in shown["values"]
    nothing = get(http, "/outlook", hours=1, signal="aer")
    assert nothing["is_down"] and set(nothing["values"]) == {None} and set(nothing["basis"]) == {"none"}
    missing = http.get("/v1/forecasts/outlook")
    assert missing.json()["error"]["param"] == "zone"


def test_an_installation_with_average_rates_only_says_so(harness: Harness, http: httpx.Client) -> None:
    refresh(harness.db, {("ZONE_FR", Signal.AER): (grid(harness, "avg", 30, signal=Signal.AER),)}, harness.clock)
    listed = http.get("/v1/regions").json()
    assert listed["decides_by"] == "aer"
    first, second = listed["data"]
    assert first["sources"] == {"moer": [], "aer": [{"source": "avg", "is_stale": False}]}
    assert first["moer"] is None and first["aer"]["g_per_kwh"] == "66"
    assert second["sources"] == {"moer": [], "aer": []}
    assert get(http, "/outlook", hours=1)["signal"] == "aer"


def test_metrics_show_how_sources_do(harness: Harness, http: httpx.Client) -> None:
    first, second = grid(harness, "first", 100), grid(harness, "second", 500)
    other = FakeGrid([], name="other")
    with pytest.raises(SignalUnavailable):
        other.forecast("ZONE_SE", harness.clock.now())
    refresh(harness.db, {FR: (first, second), ("ZONE_SE", Signal.MOER): (other,)}, harness.clock)
    harness.clock.advance(60)
    text = http.get("/metrics").text
    assert 'carbonq_grid_stale_zones_ratio{signal="moer"} 0.5' in text
    assert 'carbonq_grid_zone_stale{signal="moer",zone="ZONE_SE"} 1.0' in text
    assert 'carbonq_grid_zone_stale{signal="moer",zone="ZONE_FR"} 0.0' in text
    assert 'carbonq_grid_source_age_seconds{signal="moer",source="first",zone="ZONE_FR"} 60.0' in text
    assert 'carbonq_grid_source_failures{signal="moer",source="other",zone="ZONE_SE"} 1.0' in text
    assert 'source="second",zone="ZONE_FR"} 0.0' in text and "source_age_seconds{" in text
    refresh(harness.db, {FR: (first,)}, harness.clock)
    assert 'source="second"' not in http.get("/metrics").text.partition("carbonq_grid_zone_stale")[2]

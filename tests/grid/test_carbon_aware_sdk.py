"""A Carbon Aware SDK WebAPI that plays its answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from carbonq.errors import SignalUnavailable
from carbonq.grid.carbon_aware_sdk import CarbonAwareSdkSource
from carbonq.model import Signal
from carbonq.units import parse_iso
from tests.grid.provider import Answer, Provider, Seen, json_answer, make_http, trace

NOW = datetime(2025, 5, 1, 10, 7, tzinfo=UTC)
STEP = timedelta(minutes=5)
AHEAD, PAST = "/emissions/forecasts/current", "/emissions/bylocation"


@pytest.fixture
def webapi(provider: Provider) -> Provider:
    provider.on(AHEAD, json_answer(trace("carbon_aware_sdk_forecast")))
    provider.on(PAST, json_answer(trace("carbon_aware_sdk_emissions")))
    return provider


def source(provider: Provider, **values: Any) -> CarbonAwareSdkSource:
    http = make_http(provider, named="webapi")
    settled: dict[str, Any] = {"zone": "east", "location": "eastus", "signal": Signal.MOER, "gas": "co2", **values}
    return CarbonAwareSdkSource(http, **settled)


def test_single_points_of_a_forecast_are_read(webapi: Provider, caplog: pytest.LogCaptureFixture) -> None:
    found = source(webapi).forecast("east", NOW)
    assert found is not None
    issued_at = datetime(2025, 5, 1, 10, 5, tzinfo=UTC)
    assert (found.issued_at, found.retrieved_at, found.start_at, found.step_s) == (issued_at, NOW, issued_at, 300)
    # -1 is a missing value, 0 a real one.
    assert found.values == [Decimal("352.1"), Decimal("349.2"), None, 0, Decimal("345.12345")]
    assert "gives -1 for 1 values: they count as missing" in caplog.text
    assert (found.source, found.signal, found.gas, found.may_settle) == ("carbon-aware-sdk", Signal.MOER, "co2", False)
    (asked,) = webapi.asked(AHEAD)
    assert asked.params == {"location": "eastus"}  # a windowSize would give rolling means
    assert source(webapi).forecast("east", issued_at - timedelta(minutes=6)) is None


def test_the_signal_is_as_stated(webapi: Provider) -> None:
    mine = source(webapi, signal=Signal.AER, gas="co2e", may_settle=True)
    assert mine.signal is Signal.AER
    found = mine.observations("east", NOW - timedelta(hours=1), NOW, NOW)
    assert {(one.signal, one.gas, one.may_settle) for one in found} == {(Signal.AER, "co2e", True)}


def test_observations_are_asked_for_by_time(webapi: Provider) -> None:
    found = source(webapi).observations("east", NOW - timedelta(hours=1), NOW, NOW)
    assert [(f"{one.window_at:%H:%M}", str(one.raw)) for one in found] == [
        ("09:45", "0"),
        ("09:50", "350"),
        ("10:00", "351.5"),
    ]
    (asked,) = webapi.asked(PAST)
    assert asked.params == {"location": "eastus", "time": "2025-05-01T09:07:00Z", "toTime": "2025-05-01T10:06:59Z"}


def test_a_webapi_that_ignores_the_times_is_found_out(webapi: Provider) -> None:
    start = NOW - timedelta(days=2)
    with pytest.raises(
        SignalUnavailable, match=r"2025-04-29T10:07:00Z to .* and answered for 2025-05-01T09:45:00Z: does"
    ):
        source(webapi).observations("east", start, start + timedelta(hours=1), NOW)
    # A day given whole is cut to what was asked for.
    found = source(webapi).observations("east", NOW - timedelta(minutes=10), NOW, NOW)
    assert [f"{one.window_at:%H:%M}" for one in found] == ["10:00"]
    # And nothing newer than what is known is no fault.
    later = NOW + timedelta(hours=2)
    assert source(webapi).observations("east", later - timedelta(hours=1), later, later) == []


def test_long_spans_are_cut(webapi: Provider) -> None:
    def answer(seen: Seen) -> Answer:
        at, end = parse_iso(seen.params["time"]), parse_iso(seen.params["toTime"])
        at = at.replace(minute=0)
        rows: list[Any] = []
        while at <= end:
            rows.append({"location": "PJM", "time": at.isoformat(), "rating": 300, "duration": "01:00:00"})
            at += timedelta(hours=1)
        return json_answer(rows)

    webapi.on(PAST, answer)
    start = datetime(2025, 4, 20, 10, 7, tzinfo=UTC)
    found = source(webapi).observations("east", start, NOW, NOW)
    assert [one.window_at for one in found] == [start.replace(minute=0) + i * timedelta(hours=1) for i in range(265)]
    assert len(webapi.asked(PAST)) == 2


@pytest.mark.parametrize(("duration", "step_s"), [("1.00:00:00", 86400), ("00:30:00.0000000", 1800), (60, 3600)])
def test_durations_are_read_in_both_forms(webapi: Provider, duration: Any, step_s: int) -> None:
    rows = [{"location": "PJM", "time": "2025-05-01T00:00:00Z", "rating": 1, "duration": duration}]
    webapi.on(PAST, json_answer(rows))
    (found,) = source(webapi).observations("east", datetime(2025, 5, 1, tzinfo=UTC), NOW, NOW)
    assert found.step_s == step_s


@pytest.mark.parametrize("duration", ["00:00:00", None, "an hour", True])
def test_points_without_a_duration_are_refused(webapi: Provider, duration: Any) -> None:
    rows = trace("carbon_aware_sdk_emissions")
    rows[0]["duration"] = duration
    webapi.on(PAST, json_answer(rows[:1]))
    with pytest.raises(SignalUnavailable, match="not one length: does its provider give single points"):
        source(webapi).observations("east", NOW - timedelta(hours=1), NOW, NOW)


def test_rolling_means_are_refused(webapi: Provider) -> None:
    body = trace("carbon_aware_sdk_forecast")
    for row in body[0]["forecastData"]:
        row["duration"] = 30
    webapi.on(AHEAD, json_answer(body))
    with pytest.raises(SignalUnavailable, match="points 0:05:00 apart are means of 30 min; single points are needed"):
        source(webapi).forecast("east", NOW)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"location": "westus"}, "carbon-aware-sdk eastus was answered for westus"),
        ({"generatedAt": None}, "generatedAt of row 1 is None"),
        ({"forecastData": None}, "forecastData is missing"),
        ({"forecastData": []}, "duration is missing"),
    ],
)
def test_an_answer_for_something_else_is_refused(webapi: Provider, change: dict[str, Any], words: str) -> None:
    body = trace("carbon_aware_sdk_forecast")
    body[0] |= change
    webapi.on(AHEAD, json_answer(body))
    with pytest.raises(SignalUnavailable, match=words):
        source(webapi).forecast("east", NOW)


def test_other_negatives_and_other_shapes_are_refused(webapi: Provider) -> None:
    rows = trace("carbon_aware_sdk_emissions")
    rows[1]["rating"] = -2
    webapi.on(PAST, json_answer(rows))
    with pytest.raises(SignalUnavailable, match="rating of row 2 is -2"):
        source(webapi).observations("east", NOW - timedelta(hours=1), NOW, NOW)
    webapi.on(AHEAD, json_answer([]))
    with pytest.raises(SignalUnavailable, match="answered with 0 forecasts, not with one"):
        source(webapi).forecast("east", NOW)


def test_problem_details_are_said(webapi: Provider) -> None:
    webapi.on(PAST, json_answer(trace("carbon_aware_sdk_problem"), 400))
    with pytest.raises(
        SignalUnavailable, match=r"InvalidOperation; One or more .*; location: Location 'eastuss' is not"
    ):
        source(webapi).observations("east", NOW - STEP, NOW, NOW)


def test_check_says_what_is_stated_and_what_is_not_known(webapi: Provider) -> None:
    notes = source(webapi).check("east", NOW)
    assert [(note.level.value, note.text) for note in notes] == [
        ("ok", "eastus is readable; you state that its values are marginal"),
        ("warn", "2 of its values are -1, which stands for a missing one; they count as missing"),
        ("warn", "the WebAPI does not mark estimates: entries do not settle by it (may_settle says otherwise)"),
    ]
    webapi.on(AHEAD, json_answer({"title": "NotImplemented", "status": 501}, 501))
    webapi.on(PAST, json_answer([]))
    notes = source(webapi, may_settle=True, signal=Signal.AER).check("east", NOW)
    assert [note.level.value for note in notes] == ["ok", "warn", "warn"]
    assert "values are average" in notes[0].text
    assert "it has no forecast: webapi: " in notes[1].text
    assert "no observation of the last 6 h" in notes[2].text

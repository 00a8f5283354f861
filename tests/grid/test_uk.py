"""GB Carbon Intensity against a provider that plays its answers."""

from __future__ import annotations

import itertools
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from carbonq.errors import SignalUnavailable
from carbonq.grid.uk import UkSource
from carbonq.model import Signal
from carbonq.units import parse_iso
from tests.grid.provider import Answer, Provider, Seen, json_answer, make_http, trace

NOW = datetime(2025, 5, 1, 10, 7, tzinfo=UTC)
HALF = timedelta(minutes=30)
AHEAD = "/intensity/2025-05-01T10:07Z/fw48h"


def source(provider: Provider, **values: Any) -> UkSource:
    return UkSource(make_http(provider, named="uk"), **{"zone": "gb", **values})


def test_the_forecast_begins_with_the_running_half_hour(provider: Provider) -> None:
    provider.on(AHEAD, json_answer(trace("uk_forecast")))
    found = source(provider).forecast("gb", NOW)
    assert found is not None
    assert (found.issued_at, found.retrieved_at) == (NOW, NOW)
    assert (found.start_at, found.step_s) == (NOW.replace(minute=0), 1800)
    assert found.values == [142, 140, 131, None, 120, 118, 0, 99, 105, 111, 117, 122]
    assert (found.signal, found.source, found.gas, found.method) == (Signal.AER, "uk-carbon-intensity", "co2", "direct")
    assert (found.is_estimated, found.may_settle) == (False, True)


def test_a_forecast_is_kept_for_ten_minutes_and_none_is_made_up_for_before(provider: Provider) -> None:
    provider.on(AHEAD, json_answer(trace("uk_forecast")))
    provider.on("/intensity/2025-05-01T10:17Z/fw48h", json_answer(trace("uk_forecast")))
    mine = source(provider)
    first = mine.forecast("gb", NOW)
    assert mine.forecast("gb", NOW + timedelta(minutes=9)) is first
    assert mine.forecast("gb", NOW - timedelta(microseconds=1)) is None
    assert len(provider.requests) == 1
    later = mine.forecast("gb", NOW + timedelta(minutes=10))
    assert later is not None
    assert later.issued_at == NOW + timedelta(minutes=10)


def test_what_failed_is_asked_again_at_once(provider: Provider) -> None:
    provider.on(AHEAD, json_answer({}), json_answer(trace("uk_forecast")))
    mine = source(provider)
    with pytest.raises(SignalUnavailable, match="uk-carbon-intensity answered without data: empty"):
        mine.forecast("gb", NOW)
    assert mine.forecast("gb", NOW) is not None


def test_observations_are_actual_values_alone(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    provider.on("/intensity/2025-05-01T07:00Z/2025-05-01T10:06Z", json_answer(trace("uk_actual")))
    start = datetime(2025, 5, 1, 7, 0, tzinfo=UTC)
    found = source(provider).observations("gb", start, NOW, NOW)
    # 07:30 was told twice with different values, 08:00 has a forecast but no actual.
    assert [(f"{one.window_at:%H:%M}", int(one.raw), one.may_settle) for one in found] == [
        ("07:00", 149, True),
        ("08:30", 0, True),
        ("09:00", 146, True),
        ("09:30", 140, True),
    ]
    assert {one.step_s for one in found} == {1800}
    assert "gives both 151 and 163 for 2025-05-01T07:30" in caplog.text


def half_hours(seen: Seen) -> Answer:
    """Actual values of the span asked for, at most 14 days, with the half-hour before as the API has it."""
    start, end = (parse_iso(one) for one in seen.path.split("/")[2:4])
    if end - start > timedelta(days=14):
        return json_answer(trace("uk_error"), 400)
    first = datetime.fromtimestamp(start.timestamp() // 1800 * 1800, UTC)
    rows: list[Any] = []
    at = first - HALF
    while at <= end:
        spans = (f"{one:%Y-%m-%dT%H:%MZ}" for one in (at, at + HALF))
        rows.append({**dict(zip(("from", "to"), spans, strict=True)), "intensity": {"forecast": 1, "actual": 200}})
        at += HALF
    return json_answer({"data": rows})


def test_long_spans_are_cut_and_no_half_hour_is_doubled_or_lost(provider: Provider) -> None:
    start = datetime(2025, 3, 28, 10, 0, tzinfo=UTC)  # over the night the clocks go forward
    cuts = [start, start + timedelta(days=13), start + timedelta(days=26), NOW]
    for first, last in itertools.pairwise(cuts):
        provider.on(f"/intensity/{first:%Y-%m-%dT%H:%MZ}/{last - timedelta(seconds=1):%Y-%m-%dT%H:%MZ}", half_hours)
    found = source(provider).observations("gb", start, NOW, NOW)
    assert [one.window_at for one in found] == [start + i * HALF for i in range(34 * 48 + 1)]
    assert len(provider.requests) == 3


def test_revisions_read_the_last_two_days_again(provider: Provider) -> None:
    provider.on("/intensity/2025-04-29T10:07Z/2025-05-01T10:06Z", json_answer(trace("uk_actual")))
    found = source(provider).revisions("gb", NOW - timedelta(hours=1), NOW)
    assert len(found) == 4


@pytest.mark.parametrize("shape", ["object", "list", "all"])
def test_a_region_is_read_from_every_nesting_and_never_settles(provider: Provider, shape: str) -> None:
    provider.on("/regional/intensity/2025-05-01T10:07Z/fw48h/regionid/13", json_answer(trace("uk_regional")[shape]))
    mine = source(provider, region_id=13)
    found = mine.forecast("gb", NOW)
    assert found is not None
    assert found.values == [96, 95, 93, 90]
    assert (found.source, found.may_settle) == ("uk-carbon-intensity-13", False)
    assert mine.observations("gb", NOW - timedelta(days=1), NOW, NOW) == []
    assert mine.revisions("gb", NOW - timedelta(days=1), NOW) == []
    assert len(provider.requests) == 1
    notes = mine.check("gb", NOW)
    assert [(note.level.value, note.text) for note in notes] == [
        ("ok", "readable without a key; its forecast covers 2 h"),
        (
            "warn",
            "region 13 has forecasts but no observations: entries of this zone cannot settle by it (the nation's do)",
        ),
    ]


@pytest.mark.parametrize("shape", ["object", "list", "all"])
def test_another_region_is_refused(provider: Provider, shape: str) -> None:
    provider.on("/regional/intensity/2025-05-01T10:07Z/fw48h/regionid/12", json_answer(trace("uk_regional")[shape]))
    with pytest.raises(SignalUnavailable, match=r"answered for region 13, not 12|answered without region 12"):
        source(provider, region_id=12).forecast("gb", NOW)


def test_the_nation_is_no_region(provider: Provider) -> None:
    provider.on("/regional/intensity/2025-05-01T10:07Z/fw48h/regionid/13", json_answer(trace("uk_forecast")))
    with pytest.raises(SignalUnavailable, match="answered for the nation, not for the region"):
        source(provider, region_id=13).forecast("gb", NOW)
    provider.on(AHEAD, json_answer(trace("uk_regional")["object"]))
    with pytest.raises(SignalUnavailable, match="answered for region 13, not None"):
        source(provider).forecast("gb", NOW)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (json_answer({"data": []}), "a forecast of 0 rows"),
        (json_answer({"data": "soon"}), "data is 'soon', not a list"),
        (json_answer([]), "is a list, not an object"),
        (json_answer(trace("uk_error"), 400), "answered 400 Bad Request: Please enter a valid date"),
        (json_answer(trace("uk_error"), 200), "answered without data: .*Please enter a valid date"),
    ],
)
def test_what_is_no_data_is_said(provider: Provider, answer: Answer, words: str) -> None:
    provider.on(AHEAD, answer)
    with pytest.raises(SignalUnavailable, match=words):
        source(provider).forecast("gb", NOW)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("to", "2025-05-01T11:30Z", "row 2 is no half-hour"),
        ("from", "2025-05-01 at ten", "from of row 2 is no time"),
        ("intensity", {"forecast": -1}, "forecast of row 2 is -1"),
        ("intensity", None, "intensity of row 2 is missing"),
    ],
)
def test_wrong_rows_are_refused(provider: Provider, field: str, value: Any, words: str) -> None:
    body = trace("uk_forecast")
    body["data"][1][field] = value
    provider.on(AHEAD, json_answer(body))
    with pytest.raises(SignalUnavailable, match=words):
        source(provider).forecast("gb", NOW)


def test_check_says_how_far_it_goes_and_what_lacks(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    provider.on(AHEAD, json_answer(trace("uk_forecast")))
    provider.on("/intensity/2025-05-01T04:07Z/2025-05-01T10:06Z", json_answer({"data": []}))
    notes = source(provider).check("gb", NOW)
    assert [note.text for note in notes] == [
        "readable without a key; its forecast covers 6 h",
        "it has no observation of the last 6 h",
    ]
    provider.on("/intensity/2025-05-01T04:07Z/2025-05-01T10:06Z", json_answer(trace("uk_error"), 500))
    (note,) = source(provider).check("gb", NOW)
    assert note.level == "fail"

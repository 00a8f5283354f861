"""Electricity Maps against a provider that plays its answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from carbonq.errors import SignalUnavailable
from carbonq.grid.electricity_maps import ElectricityMapsSource
from carbonq.grid.electricity_maps_account import REST_S, ElectricityMapsAccount, NotInPlan, permits
from carbonq.grid.http import Refused
from carbonq.model import Signal
from carbonq.units import parse_iso
from tests.grid.provider import Answer, Provider, Seen, json_answer, make_http, trace

TOKEN = "em-tok-123456"
NOW = datetime(2025, 5, 1, 10, 7, tzinfo=UTC)
HOUR = timedelta(hours=1)
AHEAD, RECENT, PAST = (f"/v4/carbon-intensity/{what}" for what in ("forecast", "history", "past-range"))


@pytest.fixture
def maps(provider: Provider) -> Provider:
    provider.on("/v4/zones", json_answer(trace("electricity_maps_zones")))
    provider.on(AHEAD, json_answer(trace("electricity_maps_forecast")))
    provider.on(RECENT, json_answer(trace("electricity_maps_history")))
    provider.on(PAST, json_answer(trace("electricity_maps_past_range")))
    return provider


def account(provider: Provider, **values: Any) -> ElectricityMapsAccount:
    return ElectricityMapsAccount(make_http(provider, named="maps"), token=TOKEN, **values)


def source(provider: Provider, **values: Any) -> ElectricityMapsSource:
    return ElectricityMapsSource(account(provider), **{"zone": "de", "area": "DE", **values})


def refusal(name: str) -> Answer:
    error = trace("electricity_maps_errors")[name]
    return json_answer(error["body"], error["status"])


def test_a_forecast_counts_as_issued_when_it_was_fetched(maps: Provider) -> None:
    found = source(maps).forecast("de", NOW)
    assert found is not None
    assert (found.issued_at, found.retrieved_at, found.start_at) == (NOW, NOW, NOW.replace(minute=0))
    assert found.values == [312, 305, Decimal("298.5"), None, 277, 281]
    assert (found.signal, found.source, found.step_s) == (Signal.AER, "electricity-maps-v4", 3600)
    assert (found.gas, found.method, found.is_estimated, found.may_settle) == ("co2e", "lifecycle", False, True)
    (asked,) = maps.asked(AHEAD)
    assert asked.params == {
        "zone": "DE",
        "emissionFactorType": "lifecycle",
        "temporalGranularity": "hourly",
        "disableCallerLookup": "true",
        "horizonHours": "72",
    }
    assert {one.headers["auth-token"] for one in maps.requests} == {TOKEN}


def test_v3_switches_the_look_up_off_in_its_own_way(maps: Provider) -> None:
    maps.on("/v3/zones", json_answer(trace("electricity_maps_zones")))
    maps.on("/v3/carbon-intensity/forecast", json_answer(trace("electricity_maps_forecast")))
    mine = source(maps, version="v3", factor="direct", horizon_h=24)
    found = mine.forecast("de", NOW)
    assert found is not None
    assert (found.source, found.method) == ("electricity-maps-v3", "direct")
    (asked,) = maps.asked("/v3/carbon-intensity/forecast")
    assert asked.params["shouldUseFallbackCallerLookup"] == "false"
    assert "disableCallerLookup" not in asked.params
    assert (asked.params["zone"], asked.params["emissionFactorType"], asked.params["horizonHours"]) == (
        "DE",
        "direct",
        "24",
    )


def test_forecasts_are_kept_a_while_and_earlier_ones_do_not_exist(maps: Provider) -> None:
    mine = source(maps)
    first = mine.forecast("de", NOW)
    assert mine.forecast("de", NOW + timedelta(minutes=9)) is first
    assert mine.forecast("de", NOW - timedelta(microseconds=1)) is None
    assert mine.forecast("de", NOW + timedelta(minutes=11)) is not first
    assert len(maps.asked(AHEAD)) == 2


def test_rows_that_are_still_estimates_are_marked(maps: Provider) -> None:
    found = source(maps).observations("de", NOW - timedelta(hours=8), NOW, NOW)
    assert [(f"{one.window_at:%H}", str(one.raw), one.is_estimated, one.may_settle) for one in found] == [
        ("03", "327.25", False, True),
        ("04", "330", False, True),
        ("05", "334", False, True),
        ("07", "0", False, True),
        # Of the two rows of 09 the one updated last counts; 08 has no value, 06 no row.
        ("09", "320", True, True),
        ("10", "315", True, True),
    ]
    assert not maps.asked(PAST)


@pytest.mark.parametrize("field", [{"isEstimated": None}, {"isEstimated": False, "estimationMethod": "X"}])
def test_a_row_that_says_nothing_certain_counts_as_an_estimate(maps: Provider, field: dict[str, Any]) -> None:
    body = trace("electricity_maps_history")
    body["history"] = [{**body["history"][0], **field}]
    maps.on(RECENT, json_answer(body))
    (found,) = source(maps).observations("de", NOW - timedelta(hours=8), NOW, NOW)
    assert found.is_estimated


def hours(seen: Seen) -> Answer:
    """Rows of the span asked for, at most ten days, as past-range has it."""
    start, end = parse_iso(seen.params["start"]), parse_iso(seen.params["end"])
    if end - start > timedelta(days=10):
        return json_answer({"error": "too long"}, 400)
    rows: list[Any] = []
    while start <= end:
        row = {"carbonIntensity": 300, "datetime": start.isoformat(), "isEstimated": False, "estimationMethod": None}
        rows.append({**row, "zone": "DE", "updatedAt": "2025-04-02T00:00:00.000Z"})
        start += HOUR
    return json_answer({"zone": "DE", "data": rows, "temporalGranularity": "hourly"})


def test_what_lies_before_a_day_is_asked_for_in_pieces_of_ten(maps: Provider) -> None:
    maps.on(PAST, hours)
    start = datetime(2025, 3, 29, 10, 30, tzinfo=UTC)  # the night the clocks go forward is in it
    found = source(maps).observations("de", start, NOW, NOW)
    times = [one.window_at for one in found]
    before = [at for at in times if at < NOW - timedelta(hours=25)]
    assert before == [start.replace(minute=0) + i * HOUR for i in range(len(before))]
    assert before[-1] == datetime(2025, 4, 30, 9, tzinfo=UTC)
    assert len(times) == len(set(times)) == len(before) + 6
    spans = [(parse_iso(one.params["start"]), parse_iso(one.params["end"])) for one in maps.asked(PAST)]
    assert [end - start + timedelta(seconds=1) for start, end in spans] == [timedelta(days=10)] * 3 + [
        timedelta(days=2)
    ]


def test_revisions_are_rows_updated_since(maps: Provider) -> None:
    maps.on(PAST, hours)
    found = source(maps).revisions("de", datetime(2025, 5, 1, 9, 44, tzinfo=UTC), NOW)
    assert [f"{one.window_at:%d %H}" for one in found] == ["01 05", "01 07", "01 09", "01 10"]
    assert len(maps.asked(PAST)) == 1
    # History is the same answer as the observations' of that minute.
    mine = source(maps, area="DE")
    mine.observations("de", NOW - HOUR, NOW, NOW)
    mine.revisions("de", NOW - HOUR, NOW)
    assert len(maps.asked(RECENT)) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"zone": "DK-DK2"}, "electricity-maps-v4 DE was answered for zone DK-DK2; set area"),
        ({"zone": None}, "was answered for zone None"),
        ({"temporalGranularity": "daily"}, "temporalGranularity is 'daily', not one of"),
        ({"history": {}}, "history is an object, not a list"),
        ({"history": [{"datetime": "2025-05-01T09:00:00Z", "carbonIntensity": -1}]}, "carbonIntensity of row 1 is -1"),
        ({"history": [{"datetime": None, "carbonIntensity": 1}]}, "datetime of row 1 is None"),
        ({"history": [{"zone": "FR"}]}, "was answered for zone FR"),
        ({"history": [{"emissionFactorType": "direct"}]}, "answered with direct emission factors, not lifecycle ones"),
    ],
)
def test_an_answer_for_something_else_is_refused(maps: Provider, change: dict[str, Any], words: str) -> None:
    maps.on(RECENT, json_answer({**trace("electricity_maps_history"), **change}))
    with pytest.raises(SignalUnavailable, match=words):
        source(maps).observations("de", NOW - HOUR, NOW, NOW)


def test_a_coarser_step_than_asked_for_is_read_and_said(maps: Provider) -> None:
    mine = source(maps, granularity="5_minutes")
    found = mine.forecast("de", NOW)
    assert found is not None
    assert found.step_s == 3600
    assert maps.asked(AHEAD)[0].params["temporalGranularity"] == "5_minutes"
    text = "asked for granularity 5_minutes, it answers hourly; does the plan include finer?"
    assert text in [note.text for note in mine.check("de", NOW)]
    body = trace("electricity_maps_forecast")
    del body["temporalGranularity"]
    maps.on(AHEAD, json_answer(body))
    with pytest.raises(SignalUnavailable, match="temporalGranularity is None"):
        source(maps, granularity="15_minutes").forecast("de", NOW)
    assert source(maps).forecast("de", NOW) is not None


def test_a_bad_token_is_said_once_and_not_tried_again(maps: Provider) -> None:
    clock = [0.0]
    mine = account(maps, monotonic=lambda: clock[0])
    maps.on(RECENT, refusal("token"))
    maps.on("/v4/zones", refusal("token"))
    words = (
        r"refused the token with 401 \(Invalid auth-token\); set accounts\.electricity_maps\.token\. Asked again in 15"
    )
    for area in ("DE", "FR"):
        with pytest.raises(Refused, match=words) as caught:
            ElectricityMapsSource(mine, zone=area).observations(area, NOW - HOUR, NOW, NOW)
        assert TOKEN not in str(caught.value)
    assert len(maps.requests) == 1
    clock[0] = REST_S + 1
    maps.on("/v4/zones", json_answer(trace("electricity_maps_zones")))
    maps.on(RECENT, json_answer(trace("electricity_maps_history")))
    assert ElectricityMapsSource(mine, zone="DE").observations("DE", NOW - HOUR, NOW, NOW)


def test_a_plan_without_an_endpoint_is_no_bad_token(maps: Provider, caplog: pytest.LogCaptureFixture) -> None:
    maps.on(PAST, refusal("plan"))  # the list of zones promised it
    mine = source(maps)
    found = mine.observations("de", NOW - timedelta(days=3), NOW, NOW)
    assert len(found) == 6
    assert (
        "the plan of this token does not include /v4/carbon-intensity/past-range (Request unauthorized" in caplog.text
    )
    mine.observations("de", NOW - timedelta(days=3), NOW + timedelta(minutes=6), NOW + timedelta(minutes=6))
    assert len(maps.asked(PAST)) == 1
    mine.observations("de", NOW - timedelta(days=3), NOW + HOUR, NOW + HOUR)
    assert len(maps.asked(PAST)) == 2
    maps.on(RECENT, refusal("plan"))
    with pytest.raises(NotInPlan, match="does not include /v4/carbon-intensity/history"):
        source(maps).observations("de", NOW - HOUR, NOW, NOW)
    maps.on(AHEAD, refusal("plan"))
    mine = source(maps)
    assert mine.forecast("de", NOW) is None
    assert mine.forecast("de", NOW + timedelta(minutes=1)) is None
    assert len(maps.asked(AHEAD)) == 1


def test_what_the_plan_lacks_is_not_asked_for(maps: Provider) -> None:
    mine = source(maps, area="DK-DK2")
    assert mine.forecast("de", NOW) is None
    assert not maps.asked(AHEAD)
    assert len(maps.asked("/v4/zones")) == 1
    with pytest.raises(
        NotInPlan, match="includes neither carbon-intensity/history nor carbon-intensity/past-range of PL"
    ):
        source(maps, area="PL").observations("de", NOW - HOUR, NOW, NOW)


def test_without_the_list_of_zones_everything_is_tried(maps: Provider) -> None:
    maps.on("/v4/zones", Answer(500))
    mine = source(maps)
    assert mine.forecast("de", NOW) is not None
    asked = len(maps.asked("/v4/zones"))
    assert mine.observations("de", NOW - HOUR, NOW, NOW)
    assert len(maps.asked("/v4/zones")) == asked  # not again for ten minutes
    assert mine.check("de", NOW)[0].text == "the list of zones could not be read, so the plan is not known"


def test_too_many_calls_are_waited_out(maps: Provider) -> None:
    maps.on(AHEAD, refusal("limit"), json_answer(trace("electricity_maps_forecast")))
    assert source(maps).forecast("de", NOW) is not None
    assert len(maps.asked(AHEAD)) == 2


def test_check_says_what_the_plan_reads(maps: Provider) -> None:
    notes = source(maps).check("de", NOW)
    text = "the plan reads carbon-intensity/forecast, carbon-intensity/history, carbon-intensity/past-range of DE"
    assert [(note.level.value, note.text) for note in notes] == [("ok", text)]


def test_check_warns_of_what_lacks_and_of_estimates(maps: Provider) -> None:
    body = trace("electricity_maps_history")
    body["zone"] = "FR"
    body["history"] = [{**one, "zone": "FR", "isEstimated": True} for one in body["history"]]
    maps.on(RECENT, json_answer(body))
    maps.on(AHEAD, json_answer({**trace("electricity_maps_forecast"), "zone": "FR"}))
    notes = source(maps, area="FR").check("de", NOW)
    assert [note.level.value for note in notes] == ["ok", "warn", "warn"]
    assert "only the last 24 h" in notes[1].text
    assert "all 6 values of the last 24 h are estimates; entries settle only by those that are not" in notes[2].text


@pytest.mark.parametrize(
    ("area", "words"),
    [
        ("D", "Electricity Maps has no zone D; did you mean DE?"),
        ("PL", "the plan may not read carbon-intensity/history of PL; change the plan, or the zone's area"),
    ],
)
def test_check_fails_for_a_zone_that_cannot_be_read(maps: Provider, area: str, words: str) -> None:
    (note,) = source(maps, area=area).check("de", NOW)
    assert (note.level.value, note.text) == ("fail", words)
    assert not maps.asked(RECENT)


def test_permissions_are_read_in_every_form() -> None:
    for access in (
        ["carbon-intensity/forecast"],
        ["/v3/carbon-intensity/forecast"],
        ["*"],
        ["carbon-intensity/*"],
        None,
    ):
        assert permits(access, "carbon-intensity/forecast")
    for access in ([], ["carbon-intensity-level/forecast"], ["carbon-intensity/latest"], ["power-breakdown/*"]):
        assert not permits(access, "carbon-intensity/forecast")


def test_without_history_the_last_day_comes_from_past_range(maps: Provider) -> None:
    zones = trace("electricity_maps_zones")
    zones["DE"]["access"] = ["carbon-intensity/past-range"]
    maps.on("/v4/zones", json_answer(zones))
    maps.on(PAST, hours)
    found = source(maps).observations("de", NOW - timedelta(hours=3), NOW, NOW)
    assert [f"{one.window_at:%H}" for one in found] == ["07", "08", "09"]
    assert not maps.asked(RECENT)

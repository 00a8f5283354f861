"""WattTime v3 against a provider that plays its answers."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from carbonq.errors import ConfigError, SignalUnavailable
from carbonq.grid.account import Account
from carbonq.grid.watttime import WattTimeSource
from carbonq.model import Signal
from carbonq.units import parse_iso
from tests.grid.provider import Answer, Provider, Seen, json_answer, make_http, trace

NOW = datetime(2025, 5, 1, 10, 7, tzinfo=UTC)
ISSUED = datetime(2025, 5, 1, 10, 5, tzinfo=UTC)
STEP = timedelta(minutes=5)
LB = Decimal("0.45359237")


@pytest.fixture
def watttime(provider: Provider) -> Provider:
    provider.needs_token()
    return provider


def account(provider: Provider) -> Account:
    http = make_http(provider, named="watttime")
    return Account(http, username="ada", password="s3cret-w0rd", setting="accounts.watttime")


def source(provider: Provider, **values: Any) -> WattTimeSource:
    return WattTimeSource(account(provider), **{"zone": "north", "area": "CAISO_NORTH", **values})


def test_a_forecast_is_read_as_issued(watttime: Provider) -> None:
    watttime.on("/v3/forecast", json_answer(trace("watttime_forecast")))
    found = source(watttime).forecast("north", NOW)
    assert found is not None
    assert (found.issued_at, found.retrieved_at, found.start_at, found.step_s) == (ISSUED, NOW, ISSUED, 300)
    assert (found.zone, found.signal, found.source) == ("north", Signal.MOER, "watttime-v3")
    assert (found.model, found.gas, found.method, found.raw_unit) == ("2024-01-15", "co2", None, "lb/MWh")
    assert len(found.values) == 12
    assert (found.values[0], found.values[3], found.values[9]) == (Decimal("812.4") * LB, 0, Decimal("0.5") * LB)
    assert (found.is_estimated, found.may_settle) == (False, True)
    (asked,) = watttime.asked("/v3/forecast")
    assert asked.params == {"region": "CAISO_NORTH", "signal_type": "co2_moer", "horizon_hours": "72"}


def test_model_and_horizon_are_asked_for(watttime: Provider) -> None:
    watttime.on("/v3/forecast", json_answer(trace("watttime_forecast")))
    source(watttime, model="2023-03-01", horizon_h=24).forecast("north", NOW)
    (asked,) = watttime.asked("/v3/forecast")
    assert (asked.params["model"], asked.params["horizon_hours"]) == ("2023-03-01", "24")


def test_substituted_data_are_estimated_and_said(watttime: Provider, caplog: pytest.LogCaptureFixture) -> None:
    watttime.on("/v3/forecast", json_answer(trace("watttime_forecast_substituted")))
    watttime.on("/v3/my-access", json_answer(trace("watttime_my_access")))
    mine = source(watttime)
    found = mine.forecast("north", NOW)
    assert found is not None
    assert found.is_estimated
    warning = "SUBSTITUTED_DATA: Upstream data are missing; a substitute is used"
    assert f"watttime-v3 CAISO_NORTH came with a warning: {warning}" in caplog.text
    assert f"WattTime warns: {warning}" in [note.text for note in mine.check("north", NOW)]


def test_a_warning_of_something_else_does_not_make_estimates(watttime: Provider) -> None:
    body = trace("watttime_forecast")
    body["meta"]["warnings"] = [{"type": "DEPRECATION", "message": "model 2023-03-01 retires in June"}]
    watttime.on("/v3/forecast", json_answer(body))
    found = source(watttime).forecast("north", NOW)
    assert found is not None
    assert not found.is_estimated


def test_an_earlier_issue_is_found_in_the_history(watttime: Provider) -> None:
    watttime.on("/v3/forecast", json_answer(trace("watttime_forecast")))
    watttime.on("/v3/forecast/historical", json_answer(trace("watttime_forecast_historical")))
    mine = source(watttime)
    newest = mine.forecast("north", NOW)
    assert newest is not None
    earlier = mine.forecast("north", newest.issued_at - timedelta(microseconds=1))
    assert earlier is not None
    assert earlier.issued_at == ISSUED - STEP
    assert earlier.values == [Decimal(one) * LB for one in (710, 711, 712, 713)]
    (asked,) = watttime.asked("/v3/forecast/historical")
    assert asked.params["start"] == "2025-05-01T09:34:59Z"
    assert asked.params["end"] == "2025-05-01T10:04:59Z"
    assert len(watttime.asked("/v3/forecast")) == 1
    # The clock went on: the newest is asked for again.
    mine.forecast("north", NOW + STEP)
    assert len(watttime.asked("/v3/forecast")) == 2


def test_a_clock_that_runs_behind_a_little_still_gets_the_present_forecast(watttime: Provider) -> None:
    watttime.on("/v3/forecast", json_answer(trace("watttime_forecast")))
    watttime.on("/v3/forecast/historical", json_answer(trace("watttime_forecast_historical")))
    found = source(watttime).forecast("north", ISSUED - timedelta(minutes=2))
    assert found is not None
    assert found.issued_at == ISSUED
    found = source(watttime).forecast("north", ISSUED - timedelta(minutes=6))
    assert found is not None
    assert found.issued_at == ISSUED - 3 * STEP


def every_five_minutes(seen: Seen) -> Answer:
    """Observations of the span asked for, both ends inclusive, at most 32 days, as WattTime has it."""
    start, end = parse_iso(seen.params["start"]), parse_iso(seen.params["end"])
    if end - start > timedelta(days=32):
        return json_answer({"error": "too long", "message": "at most 32 days"}, 400)
    first = datetime.fromtimestamp(-(-start.timestamp() // 300) * 300, UTC)
    count = int((end - first) // STEP) + 1
    rows = [{"point_time": (first + i * STEP).isoformat(), "value": 500} for i in range(count)]
    return json_answer({"data": rows, "meta": trace("watttime_historical")["meta"]})


def test_long_spans_are_cut_without_doubled_or_lost_points(watttime: Provider) -> None:
    watttime.on("/v3/historical", every_five_minutes)
    start = NOW - timedelta(days=70)
    found = source(watttime).observations("north", start, NOW, NOW)
    times = [one.window_at for one in found]
    assert times[0] == datetime(2025, 2, 20, 10, 5, tzinfo=UTC)  # it covers the beginning
    assert times[-1] == datetime(2025, 5, 1, 10, 5, tzinfo=UTC)
    assert all(after - before == STEP for before, after in itertools.pairwise(times))
    assert len(watttime.asked("/v3/historical")) == 3
    assert watttime.logins == 1


def test_observations_keep_what_each_row_says(watttime: Provider) -> None:
    watttime.on("/v3/historical", json_answer(trace("watttime_historical")))
    start = datetime(2025, 5, 1, 8, 0, tzinfo=UTC)
    found = source(watttime).observations("north", start, NOW, NOW)
    assert [(f"{one.window_at:%H:%M}", str(one.raw), one.is_estimated) for one in found] == [
        ("08:00", "700.5", False),
        ("08:05", "701.25", False),
        ("08:10", "0", False),
        ("08:20", "650", True),
        ("08:30", "610.0", False),
        ("08:35", "605.5", False),
    ]
    assert found[0].g_per_kwh == Decimal("700.5") * LB
    assert {one.model for one in found} == {"2024-01-15"}
    (asked,) = watttime.asked("/v3/historical")
    assert asked.params["include_imputed_marker"] == "true"
    assert asked.params["end"] == "2025-05-01T10:06:59Z"


def test_the_future_is_not_asked_for(watttime: Provider) -> None:
    watttime.on("/v3/historical", every_five_minutes)
    source(watttime).observations("north", NOW - STEP, NOW + timedelta(hours=5), NOW)
    assert [one.params["end"] for one in watttime.asked("/v3/historical")] == ["2025-05-01T10:06:59Z"]


def test_the_night_the_clocks_go_back_has_every_window_once(watttime: Provider) -> None:
    watttime.on("/v3/historical", json_answer(trace("watttime_historical_dst")))
    start = datetime(2025, 11, 2, 7, 30, tzinfo=UTC)
    end = start + timedelta(hours=3)
    found = source(watttime).observations("north", start, end, end)
    assert [one.window_at for one in found] == [start + i * STEP for i in range(36)]
    assert [one.raw for one in found] == list(range(500, 536))


def test_revisions_are_what_was_updated_since(watttime: Provider) -> None:
    watttime.on("/v3/historical", json_answer(trace("watttime_historical")))
    since = NOW - timedelta(hours=1)
    found = source(watttime, revised_days=40).revisions("north", since, NOW)
    assert len(found) == 12  # the same six rows for each of two pieces
    asked = watttime.asked("/v3/historical")
    assert {one.params["updated_since"] for one in asked} == {"2025-05-01T09:07:00Z"}
    assert [one.params["start"] for one in asked] == ["2025-03-22T10:07:00Z", "2025-04-22T10:07:00Z"]


def test_nothing_updated_is_no_error(watttime: Provider) -> None:
    watttime.on("/v3/historical", json_answer({**trace("watttime_historical"), "data": []}))
    assert source(watttime).revisions("north", NOW - STEP, NOW) == []


def test_earlier_issues_come_in_order_a_day_at_a_time(watttime: Provider) -> None:
    watttime.on("/v3/forecast/historical", json_answer(trace("watttime_forecast_historical")))
    found = list(source(watttime).issues("north", NOW - timedelta(hours=30), NOW, NOW))
    assert [one.issued_at for one in found[:3]] == [ISSUED - k * STEP for k in (4, 3, 1)]
    asked = watttime.asked("/v3/forecast/historical")
    spans = [(parse_iso(one.params["start"]), parse_iso(one.params["end"])) for one in asked]
    assert [end - start for start, end in spans] == [timedelta(hours=24, seconds=-1), timedelta(hours=6, seconds=-1)]
    assert spans[1][0] - spans[0][1] == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("region", "PJM_DC", "watttime-v3 CAISO_NORTH was answered for region PJM_DC"),
        ("signal_type", "co2_aoer", "was answered for signal_type co2_aoer"),
        ("units", "percentile", "is in percentile: a relative figure"),
        ("units", "usd/mwh", "damage in money"),
        ("units", None, "names no unit"),
        ("data_point_period_seconds", "often", "data_point_period_seconds is 'often'"),
        ("data_point_period_seconds", 60, "a step of 60 s"),
        ("generated_at", None, "generated_at of row 1 is None, not a time"),
    ],
)
def test_an_answer_for_something_else_is_refused(watttime: Provider, field: str, value: Any, words: str) -> None:
    body = trace("watttime_forecast")
    body["meta"][field] = value
    watttime.on("/v3/forecast", json_answer(body))
    with pytest.raises(SignalUnavailable, match=words):
        source(watttime).forecast("north", NOW)


def test_the_signal_index_is_refused_by_name(watttime: Provider) -> None:
    watttime.on("/v3/forecast", json_answer(trace("watttime_signal_index")))
    with pytest.raises(SignalUnavailable, match="percentile"):
        source(watttime).forecast("north", NOW)
    index = Account(
        make_http(f"{watttime.url}/v3/signal-index"), username="a", password="b", setting="accounts.watttime"
    )
    with pytest.raises(ConfigError, match="signal index, a percentile"):
        WattTimeSource(index, zone="north")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "meta is missing, not an object; has the API changed"),
        ([], "CAISO_NORTH is a list, not an object"),
        ({"meta": trace("watttime_forecast")["meta"]}, "data is missing, not a list"),
    ],
)
def test_an_answer_of_another_shape_is_refused(watttime: Provider, body: Any, words: str) -> None:
    watttime.on("/v3/forecast", json_answer(body))
    with pytest.raises(SignalUnavailable, match=words):
        source(watttime).forecast("north", NOW)


def test_rows_are_checked_by_number(watttime: Provider) -> None:
    body = trace("watttime_forecast")
    body["data"][4]["value"] = -1
    watttime.on("/v3/forecast", json_answer(body))
    with pytest.raises(SignalUnavailable, match="watttime-v3 CAISO_NORTH: value of row 5 is -1"):
        source(watttime).forecast("north", NOW)


def test_errors_say_what_watttime_says(watttime: Provider) -> None:
    errors = trace("watttime_errors")
    mine = source(watttime)
    watttime.on("/v3/forecast", json_answer(errors["parameter"]["body"], errors["parameter"]["status"]))
    with pytest.raises(SignalUnavailable, match=r"answered 422 .*query\.horizon_hours: Input should be less"):
        mine.forecast("north", NOW)
    watttime.on("/v3/forecast", json_answer(errors["unknown_region"]["body"], errors["unknown_region"]["status"]))
    with pytest.raises(SignalUnavailable, match="answered 400 Bad Request: region NOWHERE is not known"):
        mine.forecast("north", NOW)


def test_a_plan_without_forecasts_still_gives_observations(
    watttime: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    error = trace("watttime_errors")["scope"]
    watttime.on("/v3/forecast", json_answer(error["body"], error["status"]))
    watttime.on("/v3/historical", every_five_minutes)
    mine = source(watttime)
    assert mine.forecast("north", NOW) is None
    assert "may not read /v3/forecast of CAISO_NORTH (" in caplog.text
    assert "free accounts read CAISO_NORTH only" in caplog.text
    assert len(mine.observations("north", NOW - timedelta(hours=1), NOW, NOW)) == 13
    # It is not asked in vain every minute, but again in an hour.
    assert mine.forecast("north", NOW + STEP) is None
    assert len(watttime.asked("/v3/forecast")) == 1
    watttime.on("/v3/forecast", json_answer(trace("watttime_forecast")))
    assert mine.forecast("north", NOW + timedelta(hours=1)) is not None


def test_a_plan_without_the_region_says_so(watttime: Provider) -> None:
    error = trace("watttime_errors")["scope"]
    watttime.on("/v3/historical", json_answer(error["body"], error["status"]))
    with pytest.raises(SignalUnavailable, match=r"may not read /v3/historical of DE \(Invalid scope; Inv"):
        source(watttime, area="DE").observations("north", NOW - STEP, NOW, NOW)


def test_all_zones_share_one_login(watttime: Provider) -> None:
    def answer(seen: Seen) -> Answer:
        body = trace("watttime_forecast")
        body["meta"]["region"] = seen.params["region"]
        return json_answer(body)

    watttime.on("/v3/forecast", answer)
    mine = account(watttime)
    for area in ("A", "B", "C"):
        assert WattTimeSource(mine, zone=area).forecast(area, NOW) is not None
    assert watttime.logins == 1


def test_another_zone_is_none_of_its_business(watttime: Provider) -> None:
    with pytest.raises(SignalUnavailable, match="gives the rates of north, not of south"):
        source(watttime).forecast("south", NOW)


def answer_access(seen: Seen) -> Answer:
    body = trace("watttime_my_access")
    for signal in body["signal_types"]:
        wanted = seen.params.get("region")
        signal["regions"] = [one for one in signal["regions"] if wanted in {None, one["region"]}]
    return json_answer(body)


def test_check_says_what_the_account_reads(watttime: Provider) -> None:
    watttime.on("/v3/forecast", json_answer(trace("watttime_forecast")))
    watttime.on("/v3/my-access", answer_access)
    notes = source(watttime).check("north", NOW)
    text = "the account reads co2_moer of CAISO_NORTH: every 300 s, model 2024-01-15"
    assert [(note.level.value, note.text) for note in notes] == [("ok", text)]


def test_check_fails_for_a_region_the_account_may_not_read(watttime: Provider) -> None:
    watttime.on("/v3/my-access", answer_access)
    (note,) = source(watttime, area="DE").check("north", NOW)
    assert note.level == "fail"
    assert note.text == (
        "the WattTime account may not read co2_moer of DE; it may read CAISO_NORTH, ZZ_PROXY (free accounts read "
        "CAISO_NORTH only): change the plan, or the zone's area"
    )
    # A signal of another type is no access.
    (note,) = source(watttime, area="PJM_ELSEWHERE").check("north", NOW)
    assert note.level == "fail"
    assert not watttime.asked("/v3/forecast")


def test_check_warns_of_proxies_and_missing_endpoints(watttime: Provider) -> None:
    watttime.on("/v3/my-access", answer_access)
    watttime.on("/v3/forecast", json_answer({"error": "Invalid scope"}, 403))
    notes = source(watttime, area="ZZ_PROXY").check("north", NOW)
    assert [note.level.value for note in notes] == ["ok", "warn", "warn"]
    assert "reads no forecast of ZZ_PROXY; carbonq makes its own" in notes[1].text
    assert "a model of type proxy" in notes[2].text


def test_check_fails_for_a_model_that_does_not_exist(watttime: Provider) -> None:
    watttime.on("/v3/my-access", answer_access)
    notes = source(watttime, model="2019-01-01").check("north", NOW)
    assert [note.text for note in notes if note.level == "fail"] == [
        "CAISO_NORTH has no model 2019-01-01; it has 2023-03-01, 2024-01-15"
    ]


def test_check_never_raises(watttime: Provider) -> None:
    watttime.on("/login", json_answer({"error": "no"}, 401))
    (note,) = source(watttime).check("north", NOW)
    assert note.level == "fail"
    assert "set accounts.watttime.username and .password" in note.text


def test_check_warns_of_values_that_look_like_an_index(watttime: Provider) -> None:
    body = trace("watttime_forecast")
    for i, row in enumerate(body["data"]):
        row["value"] = 3 * i
    watttime.on("/v3/forecast", json_answer(body))
    watttime.on("/v3/my-access", answer_access)
    notes = source(watttime).check("north", NOW)
    assert "all 12 values lie within 0 and 100" in notes[-1].text

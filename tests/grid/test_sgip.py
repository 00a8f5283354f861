"""SGIP Signal against a provider that plays its answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from carbonq.errors import SignalUnavailable
from carbonq.grid.account import Account
from carbonq.grid.sgip import SgipSource
from carbonq.model import Signal
from carbonq.units import parse_iso
from tests.grid.provider import Answer, Provider, Seen, json_answer, make_http, trace

AREA = "SGIP_CAISO_PGE"
NOW = datetime(2025, 5, 1, 10, 22, tzinfo=UTC)
STEP = timedelta(minutes=5)


@pytest.fixture
def sgip(provider: Provider) -> Provider:
    provider.needs_token()
    return provider


def source(provider: Provider, area: str | None = AREA) -> SgipSource:
    http = make_http(provider, named="sgip")
    mine = Account(http, username="ada", password="s3cret-w0rd", setting="accounts.sgip")
    return SgipSource(mine, zone="pge", area=area)


def test_a_forecast_begins_after_its_issue(sgip: Provider) -> None:
    sgip.on("/sgipforecast", json_answer(trace("sgip_forecast")))
    found = source(sgip).forecast("pge", NOW)
    assert found is not None
    issued_at = datetime(2025, 5, 1, 10, 20, tzinfo=UTC)
    assert (found.issued_at, found.start_at, found.retrieved_at) == (issued_at, issued_at + STEP, NOW)
    assert found.values == [400, 410, 420, 430, 440, 450]
    assert (found.signal, found.source, found.model) == (Signal.MOER, "sgip-signal", "2.0-1.0.0")
    assert (found.gas, found.raw_unit, found.raw_per_g_per_kwh) == ("co2", "kg/kWh", Decimal("0.001"))
    (asked,) = sgip.asked("/sgipforecast")
    assert asked.params == {"ba": AREA}


def test_the_issue_before_is_found_for_the_running_window(sgip: Provider) -> None:
    sgip.on("/sgipforecast", json_answer(trace("sgip_forecast")), json_answer(trace("sgip_forecasts")))
    mine = source(sgip)
    newest = mine.forecast("pge", NOW)
    assert newest is not None
    earlier = mine.forecast("pge", newest.issued_at - timedelta(microseconds=1))
    assert earlier is not None
    assert earlier.issued_at == datetime(2025, 5, 1, 10, 15, tzinfo=UTC)
    assert earlier.start_at == newest.issued_at
    assert earlier.values == [400, 410, 420]
    assert [one.params for one in sgip.asked("/sgipforecast")][1:] == [
        {"ba": AREA, "starttime": "2025-05-01T09:49:59Z", "endtime": "2025-05-01T10:19:59Z"}
    ]


def test_observations_come_in_any_order_as_text_or_number(sgip: Provider) -> None:
    sgip.on("/sgipmoer", json_answer(trace("sgip_moer")))
    found = source(sgip).observations("pge", NOW - timedelta(hours=1), NOW, NOW)
    assert [(f"{one.window_at:%H:%M}", str(one.raw)) for one in found] == [
        ("09:55", "0.399"),
        ("10:05", "0.0"),
        ("10:15", "0.5123456789012345"),
        ("10:20", "0.40125"),
    ]
    assert [str(one.g_per_kwh) for one in found] == ["399.000", "0.0", "512.3456789012345000", "401.25000"]
    assert {(one.model, one.is_estimated, one.may_settle) for one in found} == {("2.0", False, True)}


def test_a_single_point_is_an_object(sgip: Provider) -> None:
    sgip.on("/sgipmoer", json_answer(trace("sgip_moer_now")))
    (found,) = source(sgip).observations("pge", NOW - STEP, NOW, NOW)
    assert found.g_per_kwh == Decimal("401.25")


def test_where_two_versions_overlap_the_later_counts(sgip: Provider) -> None:
    rows = trace("sgip_moer")
    older = [{**row, "version": "1.0", "moer": "0.9"} for row in rows[:2]]
    sgip.on(
        "/sgipmoer", json_answer([*older, *rows, {**rows[0], "point_time": "2025-05-01T09:50:00Z", "version": "1.0"}])
    )
    found = source(sgip).observations("pge", NOW - timedelta(hours=1), NOW, NOW)
    assert [(f"{one.window_at:%H:%M}", one.model) for one in found] == [
        ("09:50", "1.0"),
        ("09:55", "2.0"),
        ("10:05", "2.0"),
        ("10:15", "2.0"),
        ("10:20", "2.0"),
    ]


def test_long_spans_are_cut_to_a_month(sgip: Provider) -> None:
    def answer(seen: Seen) -> Answer:
        start, end = parse_iso(seen.params["starttime"]), parse_iso(seen.params["endtime"])
        if end - start > timedelta(days=31):
            return json_answer({"error": "more than 31 days"}, 400)
        count = int((end - start) // STEP) + 1
        rows = [{"point_time": (start + i * STEP).isoformat(), "moer": "0.4"} for i in range(count)]
        return json_answer([{**row, "freq": 300, "version": "2.0", "ba": AREA} for row in rows])

    sgip.on("/sgipmoer", answer)
    start = datetime(2025, 3, 1, tzinfo=UTC)
    found = source(sgip).observations("pge", start, NOW, NOW)
    assert len(found) == -(-(NOW - start) // STEP)
    assert len({one.window_at for one in found}) == len(found)
    assert len(sgip.asked("/sgipmoer")) == 2


def test_issues_of_several_days_take_a_call_each(sgip: Provider) -> None:
    sgip.on("/sgipforecast", json_answer(trace("sgip_forecasts")))
    found = list(source(sgip).issues("pge", NOW - timedelta(hours=40), NOW, NOW))
    assert [f"{one.issued_at:%H:%M}" for one in found] == ["10:10", "10:15"] * 2
    asked = sgip.asked("/sgipforecast")
    assert [(one.params["starttime"], one.params["endtime"]) for one in asked] == [
        ("2025-04-29T18:22:00Z", "2025-04-30T18:21:59Z"),
        ("2025-04-30T18:22:00Z", "2025-05-01T10:21:59Z"),
    ]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("ba", "SGIP_LADWP", "sgip-signal SGIP_CAISO_PGE was answered for SGIP_LADWP in row 2"),
        ("moer", "-1", "moer of row 2 is -1"),
        ("freq", 600, "freq is .'300', '600'., not one step"),
        ("point_time", "2025-05-01T10:15:00", "no time with a zone"),
    ],
)
def test_wrong_rows_are_refused(sgip: Provider, field: str, value: Any, words: str) -> None:
    rows = trace("sgip_moer")
    rows[1][field] = value
    sgip.on("/sgipmoer", json_answer(rows))
    with pytest.raises(SignalUnavailable, match=words):
        source(sgip).observations("pge", NOW - timedelta(hours=1), NOW, NOW)


@pytest.mark.parametrize("body", [[], {"generated_at": "2025-05-01T10:20:00Z", "forecast": []}])
def test_an_empty_answer_is_no_forecast(sgip: Provider, body: Any) -> None:
    sgip.on("/sgipforecast", json_answer(body))
    with pytest.raises(SignalUnavailable, match=r"answered without a forecast|a forecast of versions none"):
        source(sgip).forecast("pge", NOW)


def test_check_says_what_is_there(sgip: Provider) -> None:
    sgip.on("/sgipforecast", json_answer(trace("sgip_forecast")))
    sgip.on("/sgipmoer", json_answer(trace("sgip_moer")), json_answer([]))
    mine = source(sgip)
    (note,) = mine.check("pge", NOW)
    assert (note.level, note.text) == ("ok", f"{AREA} is readable; its forecast is of version 2.0-1.0.0")
    notes = mine.check("pge", NOW)
    assert [one.level.value for one in notes] == ["ok", "warn"]
    sgip.on("/sgipforecast", json_answer({"error": "ba is not valid"}, 400))
    (note,) = mine.check("pge", NOW + STEP)
    assert note.level == "fail"
    assert "ba is not valid" in note.text


def test_nothing_is_revised_and_closing_twice_is_harmless(sgip: Provider) -> None:
    mine = source(sgip, area=None)
    assert mine.revisions("pge", NOW, NOW) == ()
    mine.close()
    mine.close()
    with pytest.raises(SignalUnavailable, match="rates of pge, not of sce"):
        mine.observations("sce", NOW, NOW, NOW)

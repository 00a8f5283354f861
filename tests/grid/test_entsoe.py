"""ENTSO-E: documents into series, series into intensities, and the source against a provider that plays its answers."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from carbonq.errors import SignalUnavailable
from carbonq.grid import entsoe_mix
from carbonq.grid.entsoe import BAN_S, MOST_CALLS, RETRY, EntsoeAccount, EntsoeSource
from carbonq.grid.entsoe_documents import NoData, parse
from carbonq.grid.http import Refused
from carbonq.model import Signal
from tests.grid.provider import TRACES, Answer, Provider, Seen, make_http, xml_answer

AREA = "10Y1001A1001A82H"
TOKEN = "7e11c0de-feed-4bad-9000-0123456789ab"
NOW = datetime(2025, 5, 1, 10, 7, tzinfo=UTC)
START = datetime(2025, 5, 1, 7, 0, tzinfo=UTC)
QUARTER = timedelta(minutes=15)


def text(name: str) -> str:
    return (TRACES / f"{name}.xml").read_text(encoding="utf-8")


def play(provider: Provider, **documents: Answer) -> None:
    """Answer by documentType; 401 without the token."""

    def answer(seen: Seen) -> Answer:
        if seen.params.get("securityToken") != TOKEN:
            return Answer(401, b"<html><title>Unauthorized</title></html>")
        return documents[seen.params["documentType"]]

    provider.on("/api", answer)


@pytest.fixture
def platform(provider: Provider) -> Provider:
    play(
        provider,
        A75=xml_answer("entsoe_generation"),
        A65=xml_answer("entsoe_load"),
        A69=xml_answer("entsoe_wind_solar"),
    )
    return provider


def account(provider: Provider, **values: Any) -> EntsoeAccount:
    retry = RETRY.copy_with(backoff_factor=0.0005)
    http = make_http(f"{provider.url}/api", named="entsoe", retry=retry)
    return EntsoeAccount(http, **{"token": TOKEN, **values})


def source(provider: Provider, **values: Any) -> EntsoeSource:
    return EntsoeSource(account(provider, **values), zone="de", area=AREA)


def document(points: str, *, start: str, end: str, resolution: str = "PT60M", curve: str = "A01") -> str:
    """A document of one type with the points of one period."""
    return f"""<GL_MarketDocument xmlns="urn:x"><TimeSeries>
      <inBiddingZone_Domain.mRID>{AREA}</inBiddingZone_Domain.mRID>
      <quantity_Measure_Unit.name>MAW</quantity_Measure_Unit.name><curveType>{curve}</curveType>
      <MktPSRType><psrType>B04</psrType></MktPSRType>
      <Period><timeInterval><start>{start}</start><end>{end}</end></timeInterval>
      <resolution>{resolution}</resolution>{points}</Period></TimeSeries></GL_MarketDocument>"""


def points(*given: tuple[object, object]) -> str:
    return "".join(f"<Point><position>{at}</position><quantity>{mw}</quantity></Point>" for at, mw in given)


def test_every_step_has_the_mean_of_what_was_generated(platform: Provider) -> None:
    found = source(platform).observations("de", START, NOW, NOW)
    # 07:30 lacks the wind, 08:15 has two values of it; oil made next to nothing and may be missing; a plant that draws
    # generates nothing; nuclear is hourly; storage, both ways, and what plants draw are left out.
    assert [(f"{one.window_at:%H:%M}", one.g_per_kwh) for one in found] == [
        ("07:00", Decimal("135.297")),  # (1000 x 469 + 1000 x 12 + 2000 x 16 + 40 x 840) / 4040
        ("07:15", Decimal("136.561")),
        ("07:45", Decimal("136.561")),  # gas repeated: curve A03
        ("08:00", Decimal("119.513")),
        ("08:30", Decimal("119.513")),
        ("08:45", Decimal("145.486")),  # (800.5 x 469 + 2000 x 16) / 2800.5
    ]
    assert {(one.step_s, one.is_estimated, one.may_settle) for one in found} == {(900, False, True)}
    first = found[0]
    assert (first.signal, first.source, first.model, first.gas) == (Signal.AER, "entsoe", "IPCC 2011 medians", "co2e")
    assert first.method == "lifecycle, imports ignored"
    (asked,) = platform.requests
    assert asked.params == {
        "securityToken": TOKEN,
        "documentType": "A75",
        "processType": "A16",
        "in_Domain": AREA,
        "periodStart": "202504291000",
        "periodEnd": "202505011100",
    }


def test_the_rest_of_the_load_is_shared_as_of_late(platform: Provider) -> None:
    found = source(platform).forecast("de", NOW)
    assert found is not None
    # Gas and nuclear (and little oil) shared 07:00 to 09:00, complete steps only: 5,800.5 : 12,000 : 40 MW.
    gas, nuclear, oil = Decimal("5800.5"), Decimal(12000), Decimal(40)
    mix = (gas * 469 + nuclear * 16 + oil * 840) / (gas + nuclear + oil)
    assert found.values[0] == ((1000 * 12 + 1000 * 46 + 2000 * mix) / 4000).quantize(Decimal("0.001"))
    assert found.values[1] == ((1000 * 12 + 3000 * mix) / 4000).quantize(Decimal("0.001"))
    assert found.values[2] == ((1000 * 12 + 4000 * mix) / 5000).quantize(Decimal("0.001"))
    assert found.values[3] is None  # no sun told of at 11:30
    assert found.values[6] == Decimal("34.667")  # more sun and wind than load: nothing else runs
    assert len(found.values) == 8
    assert (found.start_at, found.step_s, found.issued_at) == (NOW.replace(minute=0), 1800, NOW)
    assert (found.is_estimated, found.may_settle) == (True, True)
    assert found.method == "lifecycle, imports ignored, rest of load as of late"
    asked = {one.params["documentType"]: one.params for one in platform.requests}
    assert (asked["A65"]["processType"], asked["A65"]["outBiddingZone_Domain"]) == ("A01", AREA)
    assert (asked["A69"]["in_Domain"], asked["A69"]["periodStart"], asked["A69"]["periodEnd"]) == (
        AREA,
        "202505011000",
        "202505031000",
    )


def test_documents_are_kept_a_while(platform: Provider) -> None:
    mine = source(platform)
    first = mine.forecast("de", NOW)
    mine.observations("de", NOW - timedelta(hours=1), NOW, NOW + timedelta(minutes=4))
    mine.revisions("de", NOW - timedelta(hours=1), NOW + timedelta(minutes=4))
    assert mine.forecast("de", NOW + timedelta(minutes=14)) is first
    assert mine.forecast("de", NOW - timedelta(microseconds=1)) is None
    assert len(platform.requests) == 3
    mine.observations("de", NOW - timedelta(days=10), NOW, NOW + timedelta(minutes=4))
    assert [one.params["periodEnd"] for one in platform.requests[3:]] == ["202504281000", "202505011100"]


@pytest.mark.parametrize("status", [200, 400])
def test_no_data_is_an_empty_answer_with_a_reason(provider: Provider, status: int) -> None:
    nothing = xml_answer("entsoe_no_data", status)
    play(provider, A75=nothing, A65=nothing, A69=nothing)
    mine = source(provider)
    assert list(mine.observations("de", START, NOW, NOW)) == []
    assert mine.forecast("de", NOW) is None
    notes = mine.check("de", NOW)
    assert [note.level.value for note in notes] == ["fail", "warn", "warn"]
    assert f"no generation by type of {AREA} in the last 48 h (entsoe {AREA}: " in notes[0].text
    assert "No matching data found for Data item AGGREGATED_GENERATION_PER_TYPE_R3 [16.1.B" in notes[0].text


def test_a_forecast_needs_all_its_parts(platform: Provider) -> None:
    nothing = xml_answer("entsoe_no_data")
    play(platform, A75=xml_answer("entsoe_generation"), A65=xml_answer("entsoe_load"), A69=nothing)
    mine = source(platform)
    assert mine.forecast("de", NOW) is None
    assert [note.text for note in mine.check("de", NOW)] == [
        f"generation by type of {AREA} is read, 1.1 h late, by IPCC 2011 medians",
        "imports and storage are left out: rates are of the area's own generation",
        f"it has no forecast ({mine._reason})",
    ]
    play(platform, A75=nothing, A65=xml_answer("entsoe_load"), A69=xml_answer("entsoe_wind_solar"))
    assert source(platform).forecast("de", NOW) is None


def test_a_refused_token_is_named_and_rests(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    play(provider)
    clock = [0.0]
    mine = account(provider, token="wrong-" + TOKEN, monotonic=lambda: clock[0])
    words = (
        r"refused the token with 401 \(an HTML page, 'Unauthorized'\); set accounts\.entsoe\.token\. Asked again in 15"
    )
    for area in (AREA, "10YFR-RTE------C"):
        with pytest.raises(SignalUnavailable, match=words) as caught:
            EntsoeSource(mine, zone="z", area=area).observations("z", START, NOW, NOW)
        assert TOKEN not in str(caught.value)
    assert len(provider.requests) == 1
    assert TOKEN not in caplog.text


def test_an_answer_that_repeats_the_token_does_not_show_it(provider: Provider) -> None:
    echo = text("entsoe_no_data").replace("No matching data found", f"Bad request: securityToken={TOKEN}")
    for status in (200, 400):
        play(provider, A75=Answer(status, echo.encode(), kind="text/xml"))
        with pytest.raises(SignalUnavailable, match=r"Bad request: securityToken=\*\*\*") as caught:
            source(provider).observations("de", START, NOW, NOW)
        assert TOKEN not in str(caught.value)


def test_a_ban_is_waited_out_and_not_prolonged(provider: Provider) -> None:
    play(provider, A75=Answer(429, b"<html><title>Too Many Requests</title></html>"))
    clock = [0.0]
    mine = account(provider, monotonic=lambda: clock[0])
    for _ in range(3):
        with pytest.raises(
            SignalUnavailable, match=r"takes no more calls of this token for now .429.. Asked again in 10"
        ):
            EntsoeSource(mine, zone="de", area=AREA).observations("de", START, NOW, NOW)
    assert len(provider.requests) == 1
    clock[0] = BAN_S + 1
    play(provider, A75=xml_answer("entsoe_generation"))
    assert EntsoeSource(mine, zone="de", area=AREA).observations("de", START, NOW, NOW)


def test_calls_of_all_zones_stay_below_the_limit(provider: Provider) -> None:
    play(provider, A75=xml_answer("entsoe_no_data"))
    clock = [0.0]
    mine = account(provider, most_calls=5, monotonic=lambda: clock[0])
    params = {"documentType": "A75"}
    for _ in range(5):
        with pytest.raises(NoData):
            mine.series(params, AREA, "entsoe")
        clock[0] += 5
    with pytest.raises(SignalUnavailable, match=r"entsoe: 5 calls in a minute are enough.*asked again in 35 s"):
        mine.series(params, AREA, "entsoe")
    assert len(provider.requests) == 5
    assert MOST_CALLS < 400
    clock[0] = 60.5
    with pytest.raises(NoData):
        mine.series(params, AREA, "entsoe")


def test_errors_of_the_platform_are_said(provider: Provider) -> None:
    body = text("entsoe_no_data").replace(
        "No matching data found for", "amount of requested data exceeds allowed limit"
    )
    play(provider, A75=Answer(400, body.encode(), kind="application/xml"))
    with pytest.raises(Refused, match="answered 400 Bad Request: amount of requested data exceeds allowed limit"):
        source(provider).observations("de", START, NOW, NOW)


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [
        ("2025-03-29T23:00Z", "2025-03-30T22:00Z", 23),  # the clocks go forward
        ("2025-10-25T22:00Z", "2025-10-26T23:00Z", 25),  # and back
    ],
)
def test_days_when_clocks_change_have_every_hour_once(start: str, end: str, count: int) -> None:
    (found,) = parse(document(points(*((i + 1, i) for i in range(count))), start=start, end=end), AREA, "entsoe")
    times = list(found.megawatts)
    assert times == [times[0] + i * timedelta(hours=1) for i in range(count)]
    assert list(found.megawatts.values()) == list(range(count))


def test_gaps_are_repeated_under_a03_alone_and_never_before_the_first_point() -> None:
    span = {"start": "2025-05-01T07:00Z", "end": "2025-05-01T12:00Z"}
    (found,) = parse(document(points((2, 10), (4, 20)), curve="A03", **span), AREA, "entsoe")
    assert list(found.megawatts.values()) == [None, 10, 10, 20, 20]
    (found,) = parse(document(points((4, 20), (2, 10)), **span), AREA, "entsoe")
    assert list(found.megawatts.values()) == [None, 10, None, 20, None]
    (found,) = parse(document(points((1, ""), (2, "1e2")), curve="A03", **span), AREA, "entsoe")
    assert list(found.megawatts.values()) == [None, 100, 100, 100, 100]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("MAW", "MWH"), r"B04 is in MWH, not in MAW"),
        ((AREA, "10YFR-RTE------C"), "answered for area 10YFR-RTE------C, not"),
        (("PT60M", "P1D"), "resolution P1D is none of PT5M, PT15M"),
        ((">A01<", ">A02<"), "curve type A02; known are A01 and A03"),
        (("<position>2", "<position>7"), "position 7 of 5 in a period"),
        (("<position>2", "<position>-2"), "position -2 of 5"),
        ((">10<", ">ten<"), "B04, position 2: quantity 'ten' is no number"),
        ((">10<", ">NaN<"), "quantity NaN is no number of megawatts"),
        (("12:00Z", "12:20Z"), "is no whole number of PT60M"),
        (("12:00Z", "06:00Z"), "is no whole number of PT60M"),
        (("2025-05-01T12:00Z", "2027-05-01T12:00Z"), "is no whole number of PT60M"),
        (("07:00Z", "07:00"), "start is no time with a zone: 2025-05-01T07:00"),
        (("GL_MarketDocument", "Publication_MarketDocument"), "answered a Publication_MarketDocument"),
        (("</TimeSeries>", ""), "answered no XML"),
        (("<GL_Market", "<!DOCTYPE x [<!ENTITY a 'b'>]><GL_Market"), "XML with a DTD or entities"),
    ],
)
def test_documents_that_do_not_fit_are_refused(change: tuple[str, str], words: str) -> None:
    body = document(points((2, 10), (4, 20)), start="2025-05-01T07:00Z", end="2025-05-01T12:00Z")
    assert change[0] in body
    with pytest.raises(SignalUnavailable, match=words):
        parse(body.replace(*change), AREA, "entsoe")


def test_nothing_generated_is_no_intensity_and_a_day_without_a_type_is_missing() -> None:
    span = {"start": "2025-05-01T07:00Z", "end": "2025-05-01T09:00Z"}
    found = entsoe_mix.generation(parse(document(points((1, 0), (2, 5)), **span), AREA, "entsoe"))
    assert found is not None
    assert [one.raw for one in entsoe_mix.intensities(found)] == [None, 469]
    assert entsoe_mix.generation([]) is None


def test_an_unknown_type_counts_as_other_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    body = document(points((1, 5)), start="2025-05-01T07:00Z", end="2025-05-01T08:00Z").replace("B04", "B77")
    found = entsoe_mix.generation(parse(body, AREA, "entsoe"))
    assert found is not None
    assert [one.raw for one in entsoe_mix.intensities(found)] == [770]
    assert "names the production type B77, which is unknown; it counts as Other" in caplog.text


def test_every_type_but_storage_has_a_factor() -> None:
    table = entsoe_mix.factors()
    assert {f"B{i:02}" for i in range(1, 21)} | {"B25"} == set(table)
    assert {kind for kind, one in table.items() if one.g_per_kwh is None} == {"B10", "B25"}
    assert {kind for kind, one in table.items() if one.role is entsoe_mix.Role.FORECAST} == {"B16", "B18", "B19"}
    assert max(one.g_per_kwh or 0 for one in table.values()) == 1001

"""What holds for every grid source: the protocol, no filled gap, no negative value, no secret in a message."""

from __future__ import annotations

import ast
import base64
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import carbonq.grid
from carbonq.errors import SignalUnavailable
from carbonq.grid.account import Account
from carbonq.grid.annual import AnnualSource
from carbonq.grid.carbon_aware_sdk import CarbonAwareSdkSource
from carbonq.grid.csv_file import CsvSource
from carbonq.grid.electricity_maps import ElectricityMapsSource
from carbonq.grid.electricity_maps_account import ElectricityMapsAccount
from carbonq.grid.entsoe import EntsoeAccount, EntsoeSource
from carbonq.grid.generic_http import HttpSource
from carbonq.grid.protocol import GridSource
from carbonq.grid.recorded import RecordedSource
from carbonq.grid.sgip import SgipSource
from carbonq.grid.uk import UkSource
from carbonq.grid.watttime import WattTimeSource
from carbonq.model import Signal
from carbonq.signals import NoteLevel
from carbonq.units import window_of
from tests.grid.provider import Answer, Provider, Script, Seen, json_answer, make_http, trace, xml_answer

NOW = datetime(2025, 5, 1, 10, 7, tzinfo=UTC)
START = NOW - timedelta(hours=8)
#: Long enough to be told from other text, and one for each place that a provider takes a secret at.
SECRETS = ("us3r-name-1", "p4ss-word-2", "t0ken-abcdef-3", "h3ader-xyz-4", "par4m-xyz-5", "url-us3r-6")
TOKEN = SECRETS[2]


@dataclass(frozen=True, slots=True)
class Case:
    """One source: how it is made, what its provider answers, and an observed time for which nothing was told."""

    make: Callable[[Provider, Path], GridSource]
    zone: str = "zone"
    answers: dict[str, Script] | None = None
    gap: datetime | None = None
    foreseen_gap: datetime | None = None
    signal: Signal = Signal.AER
    now: datetime = NOW


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2025, 5, 1, hour, minute, tzinfo=UTC)


def login(provider: Provider, name: str) -> Account:
    return Account(
        make_http(provider, named=name), username=SECRETS[0], password=SECRETS[1], setting=f"accounts.{name}"
    )


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def by_document(seen: Seen) -> Answer:
    names = {"A75": "entsoe_generation", "A65": "entsoe_load", "A69": "entsoe_wind_solar"}
    return xml_answer(names[seen.params["documentType"]])


def half_hours(column: str) -> Callable[[Seen], Answer]:
    return lambda _: json_answer(trace(column))


def generic(provider: Provider, _: Path) -> GridSource:
    address = provider.url.replace("://", f"://{SECRETS[5]}@")
    return HttpSource(
        make_http(provider, named="mine"),
        zone="zone",
        signal=Signal.MOER,
        name="mine",
        url=f"{address}/past?key={TOKEN}",
        forecast_url=f"{address}/next",
        params={"p": SECRETS[4]},
        headers={"X-Key": SECRETS[3]},
        rows="$[*]",
        unit="lb/MWh",
        gas="co2",
        step_s=3600,
    )


ROWS = [
    {"time": "2025-05-01T08:00:00Z", "value": 900},
    {"time": "2025-05-01T09:00:00Z", "value": None},
    {"time": "2025-05-01T12:00:00+02:00", "value": "850.5"},
]
MAPS = {
    "/zones": json_answer(trace("electricity_maps_zones")),
    "/carbon-intensity/forecast": json_answer(trace("electricity_maps_forecast")),
    "/carbon-intensity/history": json_answer(trace("electricity_maps_history")),
    "/carbon-intensity/past-range": json_answer(trace("electricity_maps_past_range")),
}


def electricity_maps(version: str) -> Case:
    def make(provider: Provider, _: Path) -> GridSource:
        account = ElectricityMapsAccount(make_http(provider, named="maps"), token=TOKEN)
        return ElectricityMapsSource(account, zone="zone", area="DE", version=version)

    answers: dict[str, Script] = {f"/{version}{path}": answer for path, answer in MAPS.items()}
    return Case(make, answers=answers, gap=at(8), foreseen_gap=at(13))


CASES: dict[str, Case] = {
    "recorded": Case(lambda _, __: RecordedSource(timedelta(weeks=203)), zone="SGIP_CAISO_PGE", signal=Signal.MOER),
    "csv": Case(
        lambda _, folder: CsvSource(
            write(
                folder / "a.csv",
                "time_utc,g_per_kwh\n2025-05-01T07:00Z,1\n2025-05-01T08:00Z,\n2025-05-01T09:00Z,2\n2025-05-01T10:00Z,2\n2025-05-01T12:00Z,3\n",
            ),
            "zone",
            Signal.AER,
        ),
        gap=at(8),
        foreseen_gap=at(11),
    ),
    "annual": Case(
        lambda _, folder: AnnualSource(
            write(folder / "f.csv", "zone,year,value,unit,reference\nzone,2023,0.5,kg/kWh,x\n"), "zone", Signal.AER
        )
    ),
    "watttime": Case(
        lambda provider, _: WattTimeSource(login(provider, "watttime"), zone="zone", area="CAISO_NORTH"),
        answers={
            "/login": json_answer({"token": TOKEN}),
            "/v3/forecast": json_answer(trace("watttime_forecast")),
            "/v3/historical": json_answer(trace("watttime_historical")),
            "/v3/my-access": json_answer(trace("watttime_my_access")),
        },
        gap=at(8, 15),
        signal=Signal.MOER,
    ),
    "sgip": Case(
        lambda provider, _: SgipSource(login(provider, "sgip"), zone="zone", area="SGIP_CAISO_PGE"),
        answers={
            "/login": json_answer({"token": TOKEN}),
            "/sgipforecast": json_answer(trace("sgip_forecasts")),
            "/sgipmoer": json_answer(trace("sgip_moer")),
        },
        gap=at(10),
        signal=Signal.MOER,
        now=at(10, 22),
    ),
    "electricity_maps_v4": electricity_maps("v4"),
    "electricity_maps_v3": electricity_maps("v3"),
    "uk": Case(
        lambda provider, _: UkSource(make_http(provider, named="uk"), zone="zone"),
        answers={
            "/intensity/2025-05-01T10:07Z/fw48h": half_hours("uk_forecast"),
            "/intensity/2025-05-01T02:07Z/2025-05-01T10:06Z": half_hours("uk_actual"),
            "/intensity/2025-05-01T04:07Z/2025-05-01T10:06Z": half_hours("uk_actual"),
            "/intensity/2025-04-29T10:07Z/2025-05-01T10:06Z": half_hours("uk_actual"),
        },
        gap=at(8),
        foreseen_gap=at(11, 30),
    ),
    "uk_region": Case(
        lambda provider, _: UkSource(make_http(provider, named="uk"), zone="zone", region_id=13),
        answers={"/regional/intensity/2025-05-01T10:07Z/fw48h/regionid/13": json_answer(trace("uk_regional")["list"])},
    ),
    "carbon_aware_sdk": Case(
        lambda provider, _: CarbonAwareSdkSource(
            make_http(provider, named="webapi"), zone="zone", location="eastus", signal=Signal.AER, gas="co2e"
        ),
        answers={
            "/emissions/forecasts/current": json_answer(trace("carbon_aware_sdk_forecast")),
            "/emissions/bylocation": json_answer(trace("carbon_aware_sdk_emissions")),
        },
        gap=at(9, 55),
        foreseen_gap=at(10, 15),
    ),
    "entsoe": Case(
        lambda provider, _: EntsoeSource(
            EntsoeAccount(make_http(f"{provider.url}/api", named="entsoe"), token=TOKEN),
            zone="zone",
            area="10Y1001A1001A82H",
        ),
        answers={"/api": by_document},
        gap=at(7, 30),
        foreseen_gap=at(11, 30),
    ),
    "http": Case(
        generic,
        answers={"/past": json_answer(ROWS), "/next": json_answer(ROWS)},
        gap=at(9),
        foreseen_gap=at(9),
        signal=Signal.MOER,
    ),
}


LIVE = [name for name, one in CASES.items() if one.answers is not None]


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def source(case: Case, provider: Provider, tmp_path: Path) -> Iterator[GridSource]:
    for path, answer in (case.answers or {}).items():
        provider.on(path, answer)
    made = case.make(provider, tmp_path)
    yield made
    made.close()
    made.close()  # twice is harmless


def windows(start: datetime, step_s: int, count: int) -> Iterator[datetime]:
    return (start + i * timedelta(seconds=step_s) for i in range(count))


def test_no_source_is_left_out() -> None:
    folder = Path(carbonq.grid.__file__).parent
    classes = {
        node.name
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Source") and node.name != "GridSource"
    }
    tried = {"RecordedSource", "CsvSource", "AnnualSource", "WattTimeSource", "SgipSource", "ElectricityMapsSource"}
    assert classes == tried | {"UkSource", "CarbonAwareSdkSource", "EntsoeSource", "HttpSource"}


def test_forecasts_are_of_the_zone_and_never_negative(case: Case, source: GridSource) -> None:
    found = source.forecast(case.zone, case.now)
    assert found is not None
    assert (found.zone, found.signal, found.source) == (case.zone, case.signal, source.name)
    assert source.signal is case.signal
    assert found.issued_at <= found.retrieved_at == case.now
    assert found.issued_at.tzinfo is found.start_at.tzinfo is UTC
    assert window_of(found.start_at) == found.start_at
    assert found.step_s % 300 == 0
    assert found.gas in {"co2", "co2e"}
    assert all(value is None or 0 <= value <= 10_000 for value in found.values)
    assert any(value is not None for value in found.values)
    if case.foreseen_gap is not None:
        values = dict(zip(windows(found.start_at, found.step_s, len(found.values)), found.values, strict=True))
        assert values[case.foreseen_gap] is None


def test_observations_are_in_the_span_once_each_in_order_and_gaps_stay_gaps(case: Case, source: GridSource) -> None:
    found: Sequence[Any] = source.observations(case.zone, START, case.now, case.now)
    again: Sequence[Any] = source.revisions(case.zone, START, case.now)
    for one in (*found, *again):
        assert (one.zone, one.signal, one.source) == (case.zone, case.signal, source.name)
        assert 0 <= one.g_per_kwh <= 10_000
        assert one.window_at <= case.now
        assert one.retrieved_at <= case.now
        assert window_of(one.window_at) == one.window_at
        assert one.gas in {"co2", "co2e"}
    times = [one.window_at for one in found]
    assert all(one.window_at < case.now and one.window_at + timedelta(seconds=one.step_s) > START for one in found)
    assert all(before < after for before, after in itertools.pairwise(times))
    if case.gap is not None:
        assert times
        assert times[0] < case.gap < times[-1]
        assert case.gap not in times
        assert case.gap not in {one.window_at for one in again}


def test_another_zone_is_none_of_its_business(case: Case, source: GridSource) -> None:
    with pytest.raises(SignalUnavailable):
        source.forecast("elsewhere", NOW)
    try:
        assert not source.observations("elsewhere", START, NOW, NOW)
    except SignalUnavailable as error:
        assert "elsewhere" in error.message


def test_a_look_gives_notes(case: Case, source: GridSource) -> None:
    notes = source.check(case.zone, case.now)
    assert notes or case.answers is None
    assert all(note.level is not NoteLevel.FAIL and note.text for note in notes)


def echo(status: int, kind: str) -> Callable[[Seen], Answer]:
    """Answer with everything that was sent, as careless providers do."""

    def answer(seen: Seen) -> Answer:
        scheme, _, code = seen.headers.get("Authorization", "").partition(" ")
        login = base64.b64decode(code).decode() if scheme == "Basic" else ""
        sent = f"you sent {unquote(seen.target)} with {json.dumps(dict(seen.headers))} {login}"
        if kind == "xml":
            return Answer(
                status, f"<?xml version='1.0'?><X_MarketDocument><text>{sent}</text></X_MarketDocument>".encode()
            )
        if kind == "json":
            return json_answer({"error": {"message": sent}}, status)
        return Answer(status, sent.encode(), kind="text/plain")

    return answer


@pytest.mark.parametrize("case", LIVE, indirect=True)
@pytest.mark.parametrize(
    "careless",
    [(200, "json"), (200, "xml"), (302, "text"), (400, "xml"), (401, "json"), (403, "text"), (500, "json")],
    ids=str,
)
def test_secrets_are_in_no_message_and_no_log(
    case: Case, source: GridSource, provider: Provider, careless: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for path in case.answers or {}:
        if path != "/login" or careless[0] != 200:
            provider.on(path, echo(*careless))
    texts: list[str] = []
    for ask in (
        lambda: source.forecast(case.zone, NOW),
        lambda: source.observations(case.zone, START, NOW, NOW),
        lambda: source.revisions(case.zone, START, NOW),
    ):
        try:
            ask()
        except SignalUnavailable as error:
            texts.append(f"{error} {error.message} {getattr(error, 'said', '')}")
    texts += [note.text for note in source.check(case.zone, NOW)]
    assert provider.requests
    shown = " ".join([*texts, caplog.text])
    assert [secret for secret in SECRETS if secret in shown] == []


@pytest.mark.parametrize(
    "answer",
    [Answer(200, b""), Answer(200, b"[]"), Answer(200, b"{}"), Answer(200, b"[[[1]]]")],
    ids=["nothing", "list", "object", "nested"],
)
@pytest.mark.parametrize("case", LIVE, indirect=True)
def test_an_answer_of_nothing_is_a_sentence_or_nothing(
    case: Case, source: GridSource, provider: Provider, answer: Answer
) -> None:
    for path in case.answers or {}:
        provider.on(path, answer)
    with pytest.raises(SignalUnavailable):
        source.forecast(case.zone, NOW)
    try:
        assert not source.observations(case.zone, START, NOW, NOW)
    except SignalUnavailable as error:
        assert error.message
    assert source.check(case.zone, NOW)


@pytest.mark.parametrize("case", LIVE, indirect=True)
def test_a_provider_that_is_away_is_a_note_and_an_error(case: Case, tmp_path: Path, provider: Provider) -> None:
    provider.close()
    source = case.make(provider, tmp_path)
    with pytest.raises(SignalUnavailable, match="could not be reached"):
        source.forecast(case.zone, NOW)
    (note,) = source.check(case.zone, NOW)
    assert note.level is NoteLevel.FAIL
    source.close()

"""Units, numbers, times and rows: what is taken, what is refused, and with which words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq.errors import ConfigError, SignalUnavailable
from carbonq.grid.readings import (
    UNITS,
    Origin,
    Reading,
    forecast_of,
    number,
    observations_of,
    refuse_index,
    scale_note,
    settled,
    time_of,
    unit_of,
)
from carbonq.grid.replies import Json
from carbonq.model import Signal
from carbonq.verify import UNITS as CHECKERS_UNITS

T = datetime(2025, 5, 1, 10, 0, tzinfo=UTC)
STEP = timedelta(minutes=5)
ORIGIN = Origin("zone", Signal.AER, "src", "m1", "co2e", "lifecycle")
GRAMS = unit_of("g/kWh", "src zone")


@pytest.mark.parametrize(
    ("text", "name", "factor", "gas"),
    [
        ("g/kWh", "g/kWh", "1", None),
        ("gCO2eq/kWh", "g/kWh", "1", "co2e"),
        ("gCO₂/kWh", "g/kWh", "1", "co2"),
        ("g CO2e per kWh", "g/kWh", "1", "co2e"),
        ("gCO2eq kWh⁻¹", "g/kWh", "1", "co2e"),
        ("kg/kWh", "kg/kWh", "1000", None),
        ("kg CO2/MWh", "kg/MWh", "1", "co2"),
        ("t/MWh", "t/MWh", "1000", None),
        ("tonnes CO2 per MWh", "t/MWh", "1000", "co2"),
        ("tCO2/GWh", "t/GWh", "1", "co2"),
        ("lb/MWh", "lb/MWh", "0.45359237", None),
        ("lbs_co2_per_mwh", "lb/MWh", "0.45359237", "co2"),
        ("LBS CO2/MWh", "lb/MWh", "0.45359237", "co2"),
        ("lb/kWh", "lb/kWh", "453.59237", None),
    ],
)
def test_units_are_known_by_any_usual_spelling(text: str, name: str, factor: str, gas: str | None) -> None:
    unit = unit_of(text, "src")
    assert (unit.name, unit.g_per_kwh, unit.gas) == (name, Decimal(factor), gas)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("percentile", "src is in percentile: a relative figure"),
        ("Percent", "a relative figure"),
        ("%", "a relative figure"),
        ("index", "a relative figure"),
        ("health_damage", "damage in money"),
        ("USD/MWh", "damage in money"),
        ("tons/MWh", "ambiguous"),
        ("furlong", "src is in 'furlong', which is unknown; known are g/kWh, g/MWh, .*lb/MWh"),
        ("MW", "unknown"),
        ("", "names no unit"),
        (None, "names no unit"),
        (300, "names no unit"),
    ],
)
def test_other_units_are_refused_by_name(text: Json, words: str) -> None:
    with pytest.raises(SignalUnavailable, match=words):
        unit_of(text, "src")


def test_the_checker_reads_units_as_sources_write_them() -> None:
    for name, factor in CHECKERS_UNITS.items():
        assert unit_of(name, "src").name == name
        assert unit_of(name, "src").g_per_kwh == Decimal(factor)


@pytest.mark.parametrize("url", ["https://a.test/v3/signal-index", "https://a.test/v3/forecast/index?region=X"])
def test_an_address_of_an_index_is_refused_whatever_unit_it_claims(url: str) -> None:
    with pytest.raises(ConfigError, match="signal index, a percentile"):
        refuse_index(url)
    refuse_index("https://a.test/v3/forecast")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (Decimal("-0.0"), "0.0"),
        (142, "142"),
        ("0.412", "0.412"),
        (" 812.4 ", "812.4"),
        (Decimal("0.5123456789012345"), "0.5123456789012345"),
        (1.5, "1.5"),
        ("1e2", "1E+2"),
        (None, None),
        ("", None),
    ],
)
def test_numbers_come_as_numbers_or_text(value: Json, expected: str | None) -> None:
    found = number(value, "src", 0, "value")
    assert (found if found is None else str(found)) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "value of row 3 is True, not a number"),
        (-1, "value of row 3 is -1; an intensity is never negative"),
        ("-0.5", "never negative"),
        (Decimal("NaN"), "is NaN, not a number; a missing value is null"),
        ("inf", "is Infinity, not a number"),
        ("n/a", "is 'n/a', not a number"),
        ([1], "not a number"),
        ("1e99999", "no intensity"),
    ],
)
def test_what_is_no_figure_is_refused_by_field_and_row(value: Json, words: str) -> None:
    with pytest.raises(SignalUnavailable, match=words):
        number(value, "src", 2, "value")


@pytest.mark.parametrize(
    "text",
    [
        *("2025-05-01T10:00Z", "2025-05-01T10:00:00Z", "2025-05-01T10:00:00.000Z", "2025-05-01T12:00:00+02:00"),
        *("2025-05-01T03:00-07:00", "2025-05-01T10:00:00+00:00", "2025-05-01 10:00:00+0000"),
    ],
)
def test_times_come_with_z_or_offset_and_perhaps_without_seconds(text: str) -> None:
    assert time_of(text, "src", 0, "time") == T


@pytest.mark.parametrize("value", ["2025-05-01T10:00", "2025-05-01", "soon", 174609, None, "0001-01-01T00:00+14:00"])
def test_other_times_are_refused_by_field_and_row(value: Json) -> None:
    with pytest.raises(SignalUnavailable, match="src: time of row 1 is"):
        time_of(value, "src", 0, "time")


def rows(*values: str | None, start: datetime = T, step: timedelta = STEP) -> list[Reading]:
    return [Reading(start + i * step, None if one is None else Decimal(one)) for i, one in enumerate(values)]


def test_rows_of_one_time_that_agree_are_one() -> None:
    one = rows("5")[0]
    assert settled([one, Reading(T, Decimal("5.0"))], "src") == [one]
    assert settled([one, Reading(T, Decimal(5), is_estimated=True)], "src")[0].is_estimated


def test_of_rows_that_differ_the_one_updated_last_counts() -> None:
    early, late = Reading(T, Decimal(1), False, T), Reading(T, Decimal(2), False, T + STEP)
    assert settled([early, late], "src") == settled([late, early], "src") == [late]


def test_a_time_in_dispute_has_no_value(caplog: pytest.LogCaptureFixture) -> None:
    found = settled([*rows("1", "2"), Reading(T, Decimal(3))], "src")
    assert [one.raw for one in found] == [None, Decimal(2)]
    assert "src gives both 1 and 3 for 2025-05-01T10:00:00.000000Z" in caplog.text


def forecast(readings: list[Reading], step_s: int = 300, unit: str = "g/kWh"):
    return forecast_of(
        readings, ORIGIN, unit_of(unit, "src"), where="src zone", step_s=step_s, issued_at=T, retrieved_at=T
    )


def test_a_forecast_keeps_order_gaps_nulls_and_zero() -> None:
    given = rows("3", None, "0", "7")
    given[3] = Reading(T + 5 * STEP, Decimal(7), is_estimated=True)
    made = forecast(given[::-1])
    assert made.values == [Decimal(3), None, Decimal(0), None, None, Decimal(7)]
    assert (made.start_at, made.step_s, made.is_estimated, made.raw_unit) == (T, 300, True, "g/kWh")
    assert (made.zone, made.source, made.model, made.gas, made.method) == ("zone", "src", "m1", "co2e", "lifecycle")


def test_hourly_values_stay_hourly() -> None:
    made = forecast(rows("3", "4", step=timedelta(hours=1)), step_s=3600)
    assert (made.values, made.step_s) == ([Decimal(3), Decimal(4)], 3600)


@pytest.mark.parametrize(
    ("readings", "step_s", "words"),
    [
        ([], 300, "a forecast of 0 rows without a value"),
        (rows(None, None), 300, "a forecast of 2 rows without a value"),
        (rows("1", "2"), 3600, "2025-05-01T10:05:00.000000Z is no multiple of 3600 s"),
        (rows("1", start=T + timedelta(seconds=1)), 300, "is not the start of a 5-minute window"),
        (rows("1"), 60, "a step of 60 s is no whole number of windows"),
        (rows("1"), 86_700, "a step of 86700 s is longer than a day"),
        (rows("1"), 0, "a step of 0 s"),
        (rows("1", "2", step=timedelta(days=400)), 300, "runs from 2025-05-01.* to 2026-06-05"),
        (rows("10001"), 300, "10001 g/kWh at .* is 10001 g/kWh, more than any grid's 10,000; is the unit right"),
    ],
)
def test_forecasts_that_cannot_be_are_refused(readings: list[Reading], step_s: int, words: str) -> None:
    with pytest.raises(SignalUnavailable, match=words):
        forecast(readings, step_s)


def test_the_largest_possible_rate_is_taken() -> None:
    assert forecast(rows("10000")).values == [Decimal(10000)]
    assert forecast(rows("10000"), unit="lb/MWh").values == [Decimal("4535.92370000")]


@given(
    raw=st.decimals(min_value=0, max_value=20000, places=6),
    unit=st.sampled_from([unit for unit in UNITS.values() if unit.g_per_kwh <= Decimal("0.5")]),
)
def test_the_raw_figure_can_be_shown_again(raw: Decimal, unit: object) -> None:
    made = forecast([Reading(T, raw)], unit=unit.name)  # type: ignore[attr-defined]
    (value,) = made.values
    assert value is not None
    # The checker's tolerance (verify.RAW_TOLERANCE) is 1e-9.
    assert abs(value * made.raw_per_g_per_kwh - raw) <= Decimal("1e-12") * max(raw, Decimal(1))


def observed(readings: list[Reading], start: datetime | None, end: datetime, now: datetime, step_s: int = 300):
    return observations_of(
        readings, ORIGIN, GRAMS, where="src zone", step_s=step_s, start=start, end=end, now=now, may_settle=False
    )


def test_observations_are_those_of_the_span_that_have_begun() -> None:
    given = rows("1", "2", None, "4", "5", "6")
    found = observed(given[::-1], T + STEP, T + 6 * STEP, T + 4 * STEP)
    assert [(one.window_at, one.g_per_kwh, one.raw) for one in found] == [
        (T + STEP, 2, 2),
        (T + 3 * STEP, 4, 4),
        (T + 4 * STEP, 5, 5),
    ]
    assert [one.window_at for one in observed(given, None, T + 2 * STEP, T + 9 * STEP)] == [T, T + STEP]
    assert not any(one.may_settle for one in found)
    assert observed([], T, T + STEP, T) == []


def test_an_hourly_row_that_began_before_the_span_covers_it() -> None:
    hourly = rows("1", "2", step=timedelta(hours=1))
    found = observed(hourly, T + 6 * STEP, T + 12 * STEP, T + 9 * STEP, step_s=3600)
    assert [(one.window_at, one.step_s) for one in found] == [(T, 3600)]


def test_a_series_that_looks_like_an_index_is_warned_of() -> None:
    low = [Decimal(one) for one in range(0, 100, 5)]
    note = scale_note([*low, None])
    assert note is not None
    assert note.level == "warn"
    assert "all 20 values lie within 0 and 100 (0.0 to 95.0 g/kWh)" in note.text
    assert scale_note([*low, Decimal("100.1")]) is None
    assert scale_note(low[:11]) is None
    assert scale_note([Decimal(0)] * 20) is None
    assert scale_note([]) is None

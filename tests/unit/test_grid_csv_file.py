from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from carbonq.errors import SignalUnavailable
from carbonq.grid.csv_file import CsvSource
from carbonq.model import Signal
from carbonq.units import WINDOW

START = datetime(2026, 1, 5, tzinfo=UTC)


def write(path: Path, text: str) -> CsvSource:
    path.write_text(text, encoding="utf-8")
    return CsvSource(path, "DE", Signal.AER)


def test_rows_behind_are_observations_and_rows_ahead_a_forecast(tmp_path: Path) -> None:
    text = "\ufefftime_utc,g_per_kwh\r\n2026-01-05T00:00Z,100.5\r\n2026-01-05T00:05Z,\r\n2026-01-05T00:10Z,0\r\n\r\n"
    source = write(tmp_path / "grid.csv", text)
    now = START + timedelta(minutes=10)
    seen = source.observations("DE", START, START + timedelta(hours=1), now)
    assert [(one.window_at, one.g_per_kwh, one.step_s) for one in seen] == [(START, Decimal("100.5"), 300)]
    assert (seen[0].source, seen[0].signal) == ("csv:grid.csv", Signal.AER)
    forecast = source.forecast("DE", now)
    assert forecast is not None
    assert (forecast.issued_at, forecast.start_at) == (START, START)
    assert list(forecast.values) == [Decimal("100.5"), None, Decimal(0)]
    assert source.forecast("DE", START + timedelta(minutes=15)) is None
    assert source.observations("DE", START + WINDOW, START + 9 * WINDOW, START + timedelta(days=1))[0].g_per_kwh == 0


def test_hourly_rows_and_gaps(tmp_path: Path) -> None:
    text = (
        "zone,g_per_kwh,time_utc\nDE,10,2026-01-05T00:00Z\nDE,11,2026-01-05T02:00:00+01:00\nDE,12,2026-01-05T04:00Z\n"
    )
    source = write(tmp_path / "h.csv", text)
    forecast = source.forecast("DE", START + timedelta(minutes=70))
    assert forecast is not None
    assert (forecast.step_s, forecast.start_at) == (3600, START + timedelta(hours=1))
    assert list(forecast.values) == [Decimal(11), None, None, Decimal(12)]
    seen = source.observations("DE", START, START + timedelta(hours=9), START + timedelta(hours=2))
    assert [one.g_per_kwh for one in seen] == [10, 11]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    source = write(path, "time_utc,g_per_kwh\n2026-01-05T00:00Z,1\n")
    now = START + timedelta(hours=1)
    assert source.observations("DE", START, now, now)[0].g_per_kwh == 1
    write(path, "time_utc,g_per_kwh\n2026-01-05T00:00Z,2\n")
    os.utime(path, ns=(1, 1))
    assert source.observations("DE", START, now, now)[0].g_per_kwh == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the columns time_utc, g_per_kwh are needed"),
        ("time_utc,percent\n2026-01-05T00:00Z,3\n", "no percentiles"),
        ("time_utc,g_per_kwh\n", "has no rows"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z,abc\n", "line 2"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00,5\n", "line 2: not a time with a zone"),
        ("time_utc,g_per_kwh\n2026-01-05T00:01Z,5\n", "not the start of a 5-minute window"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z,-1\n", "-1 is no intensity"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z,nan\n", "nan is no intensity"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z,1\n2026-01-05T00:00Z,1\n", "line 3"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z,1\n2026-01-05T00:10Z,1\n2026-01-05T00:25Z,1\n", "evenly spaced"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z\n", "line 2"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z,20000\n", "line 2: 20000 g/kWh is more than 10,000 g/kWh"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z,1e999999999\n", "more than 10,000 g/kWh"),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z,1e-999999\n", "1e-999999 is no intensity"),
        ("time_utc,g_per_kwh\n9999-12-31T23:55Z,1\n", "line 2: 9999-12-31T23:55Z is too far ahead"),
        ("time_utc,g_per_kwh\n0001-01-01T00:00+14:00,1\n", "line 2: not a time with a zone"),
        (
            "time_utc,g_per_kwh\n1926-01-05T00:00Z,1\n2026-01-05T00:00Z,1\n2026-01-05T00:05Z,1\n",
            "10,519,202 steps of 0:05:00; is a time wrong?",
        ),
        ("time_utc,g_per_kwh\n2026-01-05T00:00Z,1\n2026-01-07T00:00Z,1\n", "2 days apart"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    source = write(tmp_path / "bad.csv", text)
    with pytest.raises(SignalUnavailable, match=r"bad\.csv") as caught:
        source.forecast("DE", START)
    assert said in caught.value.message


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SignalUnavailable, match="cannot read"):
        CsvSource(tmp_path / "none.csv", "DE", Signal.MOER).observations("DE", START, START, START)


def test_another_zone(tmp_path: Path) -> None:
    with pytest.raises(SignalUnavailable, match="rates of DE, not of FR"):
        write(tmp_path / "grid.csv", "time_utc,g_per_kwh\n2026-01-05T00:00Z,1\n").forecast("FR", START)


def rows(start: datetime, values: str) -> str:
    cells = [f"{start + i * WINDOW:%Y-%m-%dT%H:%MZ},{value}" for i, value in enumerate(values.split())]
    return "\n".join(["time_utc,g_per_kwh", *cells, ""])


def test_a_file_that_is_replaced_is_a_new_issue_and_its_past_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    source = write(path, rows(START, "1 2 3"))
    asked = START + timedelta(minutes=7)
    first = source.forecast("DE", asked)
    assert first is not None and first.issued_at == START
    assert source.observations("DE", asked - timedelta(minutes=10), asked, asked)
    at = START + timedelta(minutes=20)
    assert not source.revisions("DE", at - timedelta(minutes=5), at)
    write(path, rows(START, "1.5 2 3 4 5 6"))
    os.utime(path, ns=(1, 1))
    second = source.forecast("DE", at)
    assert second is not None
    assert (second.issued_at, second.start_at) == (at, START + 4 * WINDOW)
    again = source.forecast("DE", at + timedelta(minutes=1))
    assert again is not None and again.issued_at == at, "it did not change since"
    corrected = source.revisions("DE", at - timedelta(minutes=5), at)
    assert next((one.window_at, one.g_per_kwh) for one in corrected) == (START, Decimal("1.5"))
    assert not source.revisions("DE", at + timedelta(minutes=1), at + timedelta(hours=1))


def test_a_file_foretells_eight_days_from_now_and_says_when_it_knows_nothing_of_now(tmp_path: Path) -> None:
    source = write(tmp_path / "grid.csv", rows(START, "0 -0"))
    assert source.forecast("DE", START - timedelta(days=9)) is None
    soon = START - timedelta(days=7)
    forecast = source.forecast("DE", soon)
    assert forecast is not None and [str(value) for value in forecast.values] == ["0", "0"]
    notes = [note.text for note in source.check("DE", soon)]
    assert "it begins at 2026-01-05T00:00:00.000000Z: nothing is known of now" in notes

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from carbonq.clock import GridClock
from carbonq.errors import SignalUnavailable
from carbonq.grid import cut_recorded
from carbonq.grid.recorded import RecordedSource, recording, shift_for
from carbonq.units import WINDOW

START = datetime(2021, 6, 7, tzinfo=UTC)
PGE = "SGIP_CAISO_PGE"


def test_what_ships_is_whole() -> None:
    days = recording()
    assert (days.start_at, days.end_at) == (START, START + timedelta(days=14))
    assert sorted(days.observed) == [PGE, "SGIP_CAISO_SCE"]
    for zone in days.observed:
        assert days.observed[zone].shape == (4032,)
        assert days.forecast[zone].shape == (4032, 36)
        assert days.observed[zone].min() >= 0
        assert days.forecast[zone].max() <= 1000


def test_a_forecast_is_the_one_issued_last() -> None:
    forecast = RecordedSource().forecast(PGE, START + timedelta(minutes=7))
    assert forecast is not None
    assert forecast.issued_at == START + WINDOW
    assert forecast.start_at == START + 2 * WINDOW
    assert len(forecast.values) == 36
    assert forecast.values[:3] == [Decimal(123), Decimal(133), Decimal(146)]
    assert (forecast.source, forecast.may_settle, forecast.is_estimated) == ("recorded-demo", True, False)


def test_an_observation_is_published_when_its_window_is_over() -> None:
    source = RecordedSource()
    now = START + 3 * WINDOW + timedelta(seconds=1)
    seen = source.observations(PGE, START, START + timedelta(days=1), now)
    assert [one.window_at for one in seen] == [START, START + WINDOW, START + 2 * WINDOW]
    assert (seen[0].g_per_kwh, seen[0].raw, seen[0].raw_unit) == (Decimal(104), Decimal("0.104"), "kg/kWh")
    late = source.observations(PGE, START + timedelta(seconds=1), START + 2 * WINDOW, now)
    assert [one.window_at for one in late] == [START + WINDOW]


def test_outside_the_recording_nothing_is_made_up() -> None:
    source = RecordedSource()
    assert source.forecast(PGE, START - WINDOW) is None
    after = source.forecast(PGE, START + timedelta(days=20))
    assert after is not None
    assert after.issued_at == START + timedelta(days=14) - WINDOW
    assert source.observations(PGE, START - WINDOW, START, START) == []
    with pytest.raises(SignalUnavailable, match="no zone 'X'; it has SGIP_CAISO_PGE, SGIP_CAISO_SCE"):
        source.forecast("X", START)


def test_shifted_days_say_so_and_go_round() -> None:
    clock = GridClock.real()
    source = RecordedSource(shift_for(clock))
    now = clock.now()
    forecast = source.forecast(PGE, now)
    assert forecast is not None
    assert now - forecast.issued_at < WINDOW
    assert (forecast.source, forecast.may_settle, forecast.is_estimated) == ("recorded-demo-shifted", False, True)
    weeks = RecordedSource(timedelta(weeks=4))
    there = START + timedelta(days=3)
    seen = weeks.observations(PGE, there + timedelta(weeks=4), there + timedelta(weeks=4, minutes=5), now)[0]
    assert seen.g_per_kwh == RecordedSource().observations(PGE, there, there + WINDOW, now)[0].g_per_kwh
    assert not seen.may_settle
    with pytest.raises(ValueError, match="whole weeks"):
        RecordedSource(timedelta(days=1))


def test_an_accelerated_clock_inside_the_days_gets_them_as_they_were() -> None:
    inside = GridClock.accelerated(START + timedelta(days=2), 75)
    assert RecordedSource(shift_for(inside)).name == "recorded-demo"
    outside = GridClock.accelerated(START + timedelta(days=200), 75)
    assert RecordedSource(shift_for(outside)).name == "recorded-demo-shifted"


def test_the_cut_is_reproducible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for zone in cut_recorded.ZONES:
        with gzip.open(tmp_path / f"{zone}_2021-06.csv.gz", "wt", encoding="utf-8", newline="") as file:
            file.write("time,moer," + ",".join(f"f{i}" for i in range(1, 37)) + "\r\n")
            for i in range(288 * 20):
                at = START - timedelta(days=3) + i * WINDOW
                value = (0.1 if zone.endswith("PGE") else 0.2) + (i % 288) / 1000
                file.write(f"{at:%Y-%m-%d %H:%M:%S}+00:00,{value}," + ",".join(["0.2505"] * 36) + "\r\n")
    out = tmp_path / "cut.csv.gz"
    cut_recorded.main([str(tmp_path), str(out)])
    lines = gzip.decompress(out.read_bytes()).decode().splitlines()
    assert len(lines) == 1 + 2 * 4032
    assert lines[1].startswith("SGIP_CAISO_PGE,2021-06-07T00:00Z,100,250,250")
    first = out.read_bytes()
    cut_recorded.main([str(tmp_path), str(out)])
    assert out.read_bytes() == first
    cut_recorded.main([str(tmp_path)])
    assert "2021-06-07" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="holds no"):
        cut_recorded.main([str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        cut_recorded.main([])

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from carbonq.bench import outlook_figures as figures
from carbonq.bench.outlook import bench
from carbonq.bench.outlook_files import Issued, read
from carbonq.bench.outlook_walk import gather, walk
from carbonq.cli.main import app
from carbonq.grid.recorded import recording
from carbonq.plan.forecaster import WINDOWS_A_DAY, FloatArray, Series
from carbonq.units import parse_iso, window_at, window_index

#: Recorded files that do not belong to the project: beside the checkout, or where this says.
SHARED = Path(os.environ.get("RECORDED_GRIDS", Path(__file__).parents[3] / "shared" / "data"))
SGIP = SHARED / "moer_sgip_caiso_5min_forecast_asissued.csv.gz"


def stamp(window: int) -> str:
    return f"{window_at(window):%Y-%m-%dT%H:%MZ}"


def write_recorded(folder: Path, zone: str, days: int) -> None:
    """Write some of the days that ship as files of the bench's columns."""
    recorded = recording()
    leads = ",".join(f"f{5 * lead:03d}" for lead in range(1, 37))
    lines = [f"region,generated_at_utc,actual,{leads}"]
    for place in range(days * WINDOWS_A_DAY):
        said = ",".join(map(str, recorded.forecast[zone][place].tolist()))
        lines.append(f"{zone},{stamp(recorded.first_window + place)},{recorded.observed[zone][place]},{said}")
    (folder / "issued.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_the_blend_beats_the_source_and_the_last_value_on_the_days_that_ship(tmp_path: Path) -> None:
    write_recorded(tmp_path, "SGIP_CAISO_SCE", 4)
    said: list[str] = []
    made = bench(tmp_path, delays_min=[0], report=said.append)
    found = made["five_minute"]["SGIP_CAISO_SCE"]
    assert found["issues"] == 4 * 288
    errors = found["by_publication_delay_min"]["0"]["walked_forward"]["mae_by_lead_min"]
    # The weights it begins with were learned from these days: this says that the machinery works, no more.
    assert all(one["below_provider_pct"] > 2 for lead, one in errors.items() if int(lead) <= 30)
    saved = found["months"]["all"]["walked_forward"]["saving_pct"]
    assert saved["provider, placed once"] < saved["perfect foresight, in hindsight"]
    assert any("hourly" in note for note in made["notes"])
    assert any("SGIP_CAISO_SCE" in line for line in said)
    json.dumps(made, allow_nan=False)


@pytest.mark.skipif(not SGIP.is_file(), reason="no recorded grids beside the checkout (RECORDED_GRIDS names a folder)")
def test_recorded_forecasts_of_another_month_are_beaten_from_the_first_week(tmp_path: Path) -> None:
    with gzip.open(SGIP, "rt", encoding="utf-8") as source:
        lines = [next(source) for _ in range(1 + 8 * 288)]
    (tmp_path / "issued.csv").write_text("".join(lines), encoding="utf-8")
    made = bench(tmp_path, delays_min=[0], report=lambda _: None)
    (found,) = made["five_minute"].values()
    errors = found["by_publication_delay_min"]["0"]["walked_forward"]["mae_by_lead_min"]
    assert all(one["below_the_better_pct"] > 0 for lead, one in errors.items() if int(lead) <= 30)


def test_nothing_is_predicted_from_what_came_later() -> None:
    days = recording()
    zone = "SGIP_CAISO_PGE"
    windows = 4 * WINDOWS_A_DAY
    origins = np.arange(days.first_window, days.first_window + windows)
    issued = Issued(origins, days.forecast[zone][:windows].astype(float), 1, 1)
    truth = days.observed[zone][:windows].astype(float)
    day = int(origins[0]) // WINDOWS_A_DAY

    def outlook(observed: FloatArray, delay: int) -> FloatArray:
        table = gather(issued, Series(days.first_window, observed), origins[:: 12 // 4], np.arange(37), delay)
        return walk(table, range(day, day + 4))[0]

    cut = 3 * WINDOWS_A_DAY
    changed = truth.copy()
    changed[cut:] = 7.0
    for delay in (0, 6):
        before, after = outlook(truth, delay), outlook(changed, delay)
        last_blind = (cut + delay) // 3 + 1
        np.testing.assert_array_equal(before[:last_blind], after[:last_blind])
        assert (before[last_blind + 1 :] != after[last_blind + 1 :]).any()


def test_a_job_that_may_be_moved_runs_when_its_turn_is_cheapest() -> None:
    said = np.array([[5.0, 4, 3], [6, 2, 9], [1, 9, 9], [9, 9, 9]])
    # Placed once it takes the third window; asked again in its second one it waits on; in the third it must run.
    assert figures.chosen_once(said).tolist() == [2, 1, 0, 0]
    assert figures.chosen_again(said)[:2].tolist() == [2, 1]
    assert figures.saving(said, np.array([2, 1, 0, 0]), said[:, 0], np.array([True, True, False, False])) == (
        pytest.approx(100 * (1 - 5 / 11))
    )
    origins = np.array([*range(40), *range(50, 60)])
    assert figures.followed(origins).tolist() == [True] * 4 + [False] * 46


def test_hourly_and_captured_files_are_known_by_their_columns(tmp_path: Path) -> None:
    rows = ["region,issue_utc,lead_h,actual_direct,forecast_direct"]
    rows += [f"DE,2021-07-0{d}T00:00Z,{h},{200 + h},{210 + h}" for d in (1, 2, 3) for h in range(48)]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    captured = ["captured_utc,from_utc,lead_min,forecast,actual"]
    captured += [
        f"2023-03-14T10:00Z,2023-03-14T{10 + h // 2}:{30 * (h % 2):02d}Z,{30 * h},100,{'' if h > 4 else 90}"
        for h in range(8)
    ]
    (tmp_path / "b.csv").write_text("\n".join(captured) + "\n", encoding="utf-8")
    (tmp_path / "c.csv").write_text("time_utc,actual,forecast,index\n2020-01-01T00:00Z,1,2,low\n", encoding="utf-8")
    (tmp_path / "d.csv").write_text("something,else\n1,2\n", encoding="utf-8")
    found = read(tmp_path)
    assert found.files == ["a.csv", "b.csv"]
    assert found.notes == ["c.csv: its forecasts are not as they were issued, so it is left out"]
    assert found.hourly["DE"].values.shape == (3, 48)
    series = found.hourly["DE"].at(window_index(parse_iso("2021-07-01T05:00Z")))
    assert series is not None
    assert series.values[:13].tolist() == [210.0] * 12 + [211.0]
    assert np.isnan(found.observed["GB"].values).sum() == 0
    made = bench(tmp_path, report=lambda _: None)
    first = made["hourly"]["DE"]["mape_pct_by_day"]["all issues"]["1"]
    assert first["provider"] == first["outlook"]  # too few to learn from


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    runner = CliRunner()
    (tmp_path / "x.csv").write_text(
        "region,generated_at_utc,actual,f005,f015\nZ,2021-01-01T00:00Z,1,1,1\n", encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"x\.csv, line 1: the columns of leads must be f005, f010"):
        read(tmp_path)
    assert runner.invoke(app, ["bench", "outlook", "--data", str(tmp_path)]).exit_code != 0
    assert runner.invoke(app, ["bench", "outlook", "--data", str(tmp_path / "none")]).exit_code != 0
    assert runner.invoke(app, ["bench", "outlook", "--data", str(tmp_path), "--delay-min", "7"]).exit_code != 0
    (tmp_path / "x.csv").write_text(
        "region,generated_at_utc,actual,f005\nZ,2021-01-01T00:00Z,1,one\n", encoding="utf-8"
    )
    with pytest.raises(ValueError, match="one"):
        read(tmp_path)

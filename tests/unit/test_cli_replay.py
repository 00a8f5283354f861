from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from carbonq.cli.main import app
from carbonq.replay.figures import Blocks, Outcome, saving, share_of
from tests.unit import replays
from tests.unit.replays import FIRST

DAYS = 8


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two zones of eight days, hourly, clean in the afternoon; B is the cleaner one."""
    hours = np.arange(24 * DAYS)
    a = 400 + 200 * np.cos(2 * np.pi * (hours - 3) / 24)
    return replays.write_wide(tmp_path / "grid.csv", {"A": a.tolist(), "B": (0.7 * a).tolist()}, step=12)


def replay(*words: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, words)])


WORK = ("--arrivals", "nightly 6 jobs of 1h at 01:00 with slack 18h", "--every", "3h", "--piece", "1h")


#: Two of the days: enough where no interval is asked for.
SHORT = ("--to", "2021-06-12")


def test_a_replay_compares_policies_on_the_same_energy(grid: Path, tmp_path: Path) -> None:
    made = replay(
        "--intensity",
        grid,
        "--signal",
        "moer",
        *WORK,
        "--slots",
        6,
        "--pue",
        "B=1.1",
        "--json",
        "--plot",
        tmp_path / "a.svg",
    )
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["simulated"] is True
    assert found["signal"] == "moer"
    assert found["work"]["jobs"] == 6 * DAYS
    assert found["work"]["energy_kwh"] == pytest.approx(6.0 * DAYS)
    rows = {row["policy"]: row for row in found["policies"]}
    assert list(rows) == ["at-once", "round-robin", "best-time", "best-region", "carbonq", "perfect"]
    # At one o'clock at home, and in B with its PUE.
    once = np.mean([400 + 200 * np.cos(2 * np.pi * -2 / 24)])
    assert rows["at-once"]["g_per_kwh"] == pytest.approx(once, rel=1e-4)
    assert rows["best-region"]["g_per_kwh"] == pytest.approx(0.77 * once, rel=1e-4)
    assert rows["best-region"]["saved_against"]["at-once"]["pct"] == pytest.approx(23, abs=0.01)
    assert rows["perfect"]["simulated_g"] <= rows["carbonq"]["simulated_g"] < rows["best-region"]["simulated_g"]
    assert {row["jobs_late"] for row in rows.values()} == {0}
    low, pct, high = (rows["carbonq"]["saved_against"]["at-once"][key] for key in ("low", "pct", "high"))
    assert low <= pct <= high
    assert found["intervals"]["blocks"] == DAYS
    assert rows["carbonq"]["share_of_perfect_against"]["at-once"]["pct"] > 80
    drawn = (tmp_path / "a.svg").read_text()
    assert "simulated" in drawn.lower()
    assert "<svg" in drawn


def test_the_table_names_each_baseline_and_says_simulated(grid: Path) -> None:
    made = replay(
        "--intensity",
        grid,
        "--signal",
        "aer",
        *WORK,
        "--policy",
        "at-once",
        "--policy",
        "carbonq",
        "--margin",
        0,
        "--margin",
        10,
    )
    assert made.exit_code == 0, made.output
    assert "SAVED VS AT-ONCE %" in made.stdout
    assert "carbonq 0%" in made.stdout
    assert "carbonq 10%" in made.stdout
    assert "simulated" in made.stderr
    assert "average (AER)" in made.stderr
    assert "slots are unlimited" in made.stderr
    assert "no forecasts as issued" in made.stderr


def test_a_region_without_slots_runs_nothing(grid: Path) -> None:
    words = ("--intensity", grid, "--signal", "moer", *WORK, *SHORT, "--slots", 9, "--slots", "A=0", "--json")
    made = replay(*words, "--home", "B", *(f"--policy={name}" for name in ("at-once", "round-robin", "best-region")))
    assert made.exit_code == 0, made.output
    assert len({row["simulated_g"] for row in json.loads(made.stdout)["policies"]}) == 1


def test_too_few_days_for_intervals_are_said(grid: Path) -> None:
    words = ("--intensity", grid, "--signal", "moer", *WORK, "--policy", "at-once")
    assert "[95 % intervals: bootstrap of 2,000 draws over 8 days]" in replay(*words).stderr
    few = replay(*words, *SHORT).stderr
    assert "days are too few to resample; 8 are needed" in few and "95 %" not in few


def test_what_runs_past_the_data_is_said_and_counted_as_not_finished(grid: Path) -> None:
    words = ("--intensity", grid, "--signal", "moer", "--arrivals", "nightly 30 jobs of 1h at 01:00 with slack 18h")
    words = (*words, "--every", "6h", *SHORT, "--slots", "A=1", "--slots", "B=0,9", "--resamples", 100)
    found = json.loads(replay(*words, "--json").stdout)
    few, many = found["points"]
    # A night's thirty hours on one slot: most are late, and the last nights' do not end within the data.
    assert few["jobs_not_finished"] > 0 and many["jobs_not_finished"] == 0
    assert few["jobs_late"] >= few["jobs_not_finished"]
    assert found["pieces_left_out"] >= found["pieces_past_the_data"] >= few["jobs_not_finished"]
    shown = replay(*words)
    assert "NOT FINISHED" in shown.stdout
    assert f"{found['pieces_past_the_data']:,} of them would have run past the end of the data" in shown.stderr


def test_more_slots_in_the_clean_region_are_worth_carbon_and_lateness(grid: Path, tmp_path: Path) -> None:
    words = (
        "--intensity",
        grid,
        "--signal",
        "moer",
        *WORK[:4],
        *SHORT,
        "--slots",
        "A=1",
        "--slots",
        "B=0..3",
        "--slot-price",
        "B=2",
    )
    made = replay(*words, "--json", "--plot", tmp_path / "curve.png")
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    points = found["points"]
    assert [(one["region"], one["slots"]) for one in points] == [("B", 0), ("B", 1), ("B", 2), ("B", 3)]
    grams = [one["simulated_g"] for one in points]
    assert grams[0] > grams[1] > grams[2] > grams[3] > 0.99 * found["no_capacity_below_g"]
    assert points[1]["cost"] > points[0]["cost"]
    assert points[3]["saved_against_first"]["pct"] > points[1]["saved_against_first"]["pct"] > 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    table = replay(*words)
    assert table.exit_code == 0
    assert "SAVED VS FIRST %" in table.stdout
    assert "no number of slots brings this work below" in table.stderr


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--signal", "moer"), "say --intensity FILE"),
        (("--intensity", "GRID"), "say --signal moer (marginal) or --signal aer (average)"),
        (("--intensity", "GRID", "--signal", "moer"), "either --jobs FILE or --arrivals SPEC"),
        (("--intensity", "away.csv", "--signal", "moer", *WORK), "away.csv: cannot be read"),
        (("--intensity", "GRID", "--signal", "moer", "--arrivals", "x"), "not understood"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--home", "C"), "'C' is in no --intensity file"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--region", "A", "--home", "B"), "--home B is not among"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--slots", "C=1"), "'C' is not among the regions A, B"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--slots", "many"), "whole number up to 100,000"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--slots", "1..3"), "name the region whose slots vary"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--slots", "A=3..1"), "ends before it begins"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--slots", "0"), "leaves no region a slot"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--slots", "3", "--slots", "A=0"), "leaves A none"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--pue", "0.5"), "must be a number from 1 to 3"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--price", "A=cheap"), "must be a number from 0"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--slot-price", "1"), "--slot-price needs --slots"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--margin", "101"), "from 0 to 100"),
        (("--intensity", "GRID", "--signal", "moer", *WORK[:2], "--every", "7h"), "from 5m to 6h"),
        (
            ("--intensity", "GRID", "--signal", "moer", *WORK[:2], "--every", "7m"),
            "--every is 7m; a replay goes in steps of 5",
        ),
        (
            ("--intensity", "GRID", "--signal", "moer", *WORK[:2], "--piece", "8m"),
            "--piece is 8m; a replay goes in steps",
        ),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--displacement", "-1"), "from 0 to 10"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--policy", "best"), "policy 'best' is unknown; known are"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--from", "soon"), "'soon' is no time"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--from", "2030-01-01"), "nothing is recorded between"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--slack", "1h"), "--slack belongs to --jobs"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--only-foretold"), "A has no forecasts as issued"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--power-w", "0"), "must be more than 0"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--plot", "a.gif"), "must end in .png or .svg"),
        (("--intensity", "GRID", "--signal", "moer", *WORK, "--plot", "away/a.png"), "there is no folder away"),
    ],
)
def test_bad_options_end_with_a_sentence_and_status_2(grid: Path, words: tuple[str, ...], match: str) -> None:
    made = replay(*(str(grid) if word == "GRID" else word for word in words))
    assert made.exit_code == 2, made.output
    assert match in made.stderr
    assert made.stderr.count("\n") <= 2
    assert "Traceback" not in made.stderr


def test_a_plot_without_matplotlib_names_the_extra(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    made = replay("--intensity", grid, "--signal", "moer", *WORK, "--plot", "a.png")
    assert made.exit_code == 2
    assert "pip install 'carbonq[plot]'" in made.stderr


def test_jobs_whose_carbon_cannot_be_told_are_left_out_and_counted(tmp_path: Path) -> None:
    values: list[float | None] = [100.0] * 288 * 3
    values[288 + 20] = None
    path = replays.write_wide(tmp_path / "g.csv", {"A": values})
    made = replay(
        "--intensity", path, "--signal", "moer", "--arrivals", "nightly 1 job of 5m at 01:00 with slack 2h", "--json"
    )
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["work"]["jobs"] == 2
    assert any("1 jobs are left out" in note for note in found["notes"])
    # Too few days for an interval: none is pretended.
    assert found["policies"][-1]["saved_against"]["at-once"] == {"pct": pytest.approx(0), "low": None, "high": None}


def outcome(name: str, by_block: list[float]) -> Outcome:
    grams = np.array(by_block)
    return Outcome(name, float(grams.sum()), 0.0, None, 0, 0, 0.0, 0.0, 0.0, grams, False)


def test_intervals_are_of_whole_blocks() -> None:
    release = FIRST + np.repeat(np.arange(20), 5) * 288
    blocks = Blocks.of(release, length="day", resamples=4000, seed=1)
    assert blocks.count == 20
    assert (blocks.draws.sum(axis=1) == 20).all()
    assert blocks.sums(np.ones(100)).tolist() == [5.0] * 20
    base, best = outcome("at-once", [100.0] * 20), outcome("perfect", [50.0] * 20)
    # Every block saves 20 %: there is nothing uncertain about it.
    sure = saving(outcome("carbonq", [80.0] * 20), base, blocks)
    assert (sure.pct, sure.low, sure.high) == (pytest.approx(20), pytest.approx(20), pytest.approx(20))
    share = share_of(outcome("carbonq", [80.0] * 20), base, best, blocks)
    assert (share.pct, share.low) == (pytest.approx(40), pytest.approx(40))
    # Half of the blocks save all, half nothing: a binomial mean with a deviation of 0.5 / sqrt(20).
    half = saving(outcome("carbonq", [0.0, 100.0] * 10), base, blocks)
    assert half.low is not None
    assert half.high is not None
    assert half.low == pytest.approx(50 - 196 * 0.5 / np.sqrt(20), abs=6)
    assert half.high == pytest.approx(50 + 196 * 0.5 / np.sqrt(20), abs=6)
    # A Thursday and the Monday after it are two weeks.
    weeks = Blocks.of(FIRST + np.array([0, 3, 4, 10, 11]) * 288, length="week", resamples=100, seed=1)
    assert weeks.of_piece.tolist() == [0, 0, 1, 1, 2]
    assert saving(base, outcome("nothing", [0.0] * 20), blocks).pct is None
    assert share_of(base, best, best, blocks).pct is None

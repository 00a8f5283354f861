from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from carbonq.cli.main import app
from carbonq.errors import InvalidRequest
from carbonq.replay.published import Clocked, Given, read_clocked
from carbonq.replay.rows import Source
from carbonq.replay.scenarios import SCENARIOS, scenario
from carbonq.replay.scenarios_gaia import Trace, policies
from carbonq.replay.scenarios_lwa import ml_saving, next_workday, nightly_saving, training_jobs, twice_weekly
from carbonq.replay.scenarios_slack import best_zone, slack_saving

YEAR = datetime(2020, 1, 1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_nightly_job_takes_the_lowest_half_hour_on_either_side() -> None:
    days = np.full((3, 48), 100.0)
    days[:, 2] = 80.0  # one o'clock
    days[:, 0] = 60.0  # midnight, an hour before
    days[:, 5] = 20.0  # half past two
    days[1, 47] = 10.0  # half past eleven of the second evening, an hour and a half before the third night's job
    values = days.ravel()
    assert nightly_saving(values, 0, error=0, seeds=1) == pytest.approx(0)
    assert nightly_saving(values, 2, error=0, seeds=1) == pytest.approx(100 * (1 - 60 / 80))
    # The first night's time would begin before the data: it is counted, but causes nothing (as published).
    assert nightly_saving(values, 3, error=0, seeds=1) == pytest.approx(100 * (1 - (20 + 10) / 240))
    # With noise of its size a forecast goes wrong, but never better than the truth allows.
    noisy = nightly_saving(values, 2, error=0.5, seeds=10)
    assert noisy < 25


def test_training_jobs_run_whole_or_split_in_their_time() -> None:
    values = np.array([9.0, 1, 9, 2, 2, 9, 0, 9])
    jobs = [(0, 2, 5)]
    assert ml_saving(values, jobs, is_split=False, error=0, seeds=1) == pytest.approx(100 * (1 - 4 / 10))
    assert ml_saving(values, jobs, is_split=True, error=0, seeds=1) == pytest.approx(100 * (1 - 1 / 10))
    # A job that would end after the data is left out of both sums.
    assert ml_saving(values, [*jobs, (5, 2, 5)], is_split=True, error=0, seeds=1) == pytest.approx(90)


def test_training_jobs_are_those_of_the_published_evaluation() -> None:
    jobs = training_jobs()
    assert len(jobs) == 3387
    starts = [YEAR + timedelta(minutes=30 * start) for start, _ in jobs]
    assert starts == sorted(starts)
    assert {one.weekday() for one in starts} == {0, 1, 2, 3, 4}
    assert min(one.hour for one in starts) == 9
    assert max(one.hour for one in starts) == 16
    assert min(length for _, length in jobs) == 8
    assert max(length for _, length in jobs) == 179


@pytest.mark.parametrize(
    ("end", "next_morning", "semi_weekly"),
    [
        ("2020-01-01T12:00", "2020-01-01T12:00", "2020-01-02T09:00"),  # Wednesday, in working hours
        ("2020-01-01T17:00", "2020-01-01T17:00", "2020-01-02T09:00"),
        ("2020-01-01T17:30", "2020-01-02T09:00", "2020-01-02T09:00"),
        ("2020-01-02T09:00", "2020-01-02T09:00", "2020-01-02T09:00"),  # Thursday morning
        ("2020-01-02T09:30", "2020-01-02T09:30", "2020-01-06T09:00"),
        ("2020-01-03T03:00", "2020-01-03T09:00", "2020-01-06T09:00"),  # Friday before work
        ("2020-01-04T12:00", "2020-01-06T09:00", "2020-01-06T09:00"),  # Saturday
        ("2020-01-05T12:00", "2020-01-06T09:00", "2020-01-06T09:00"),  # Sunday
        ("2020-01-06T09:30", "2020-01-06T09:30", "2020-01-09T09:00"),  # Monday
    ],
)
def test_deadlines_of_training_jobs(end: str, next_morning: str, semi_weekly: str) -> None:
    assert next_workday(at(end)) == at(next_morning)
    assert twice_weekly(at(end)) == at(semi_weekly)


def test_slack_and_interruption_by_hand() -> None:
    values = np.array([5.0, 1, 4, 1, 9])
    # Two hours with one hour of slack start in hours 0, 1 or 2: pairs 3, 2.5, 2.5, 5; split 2.5, 1, 2.5.
    deferral, extra = slack_saving(values, 2, 1)
    assert deferral == pytest.approx(((3 - 2.5) + 0 + 0) / 3)
    assert extra == pytest.approx(((2.5 - 2.5) + (2.5 - 1) + (2.5 - 2.5)) / 3)
    assert slack_saving(values, 1, 4) == (pytest.approx(4), pytest.approx(0))
    with pytest.raises(InvalidRequest, match="5 hours are too few for a job of 5 h with 1 h"):
        slack_saving(values, 5, 1)
    best, each_hour = best_zone(np.array([[1.0, 5.0], [3.0, 1.0]]))
    assert (best, each_hour) == (pytest.approx(0.5), pytest.approx(1.5))


def test_the_policies_of_gaia_by_hand() -> None:
    # Carbon falls after six hours, is lowest in the tenth, and high again from the eleventh on.
    hours = np.array([10.0] * 6 + [4.0] * 3 + [1.0] + [8.0] * 50)
    seconds = 3600.0
    trace = Trace.of(np.array([0.0, 0.0]), np.array([1 * seconds, 4 * seconds]), np.array([1, 2]))
    assert trace.expected.tolist() == [720, 2880]
    assert trace.wait.tolist() == [6 * 720, 24 * 720]
    found = {name: (share, delay) for name, (share, delay) in policies(hours, trace).items()}
    at_once = 10 * 1 + 2 * 10 * 4
    # The short job may start until the seventh hour, in which carbon is 4; the long one within a day.
    assert found["LowestSlot"][0] == pytest.approx((4 + 2 * (1 + 3 * 8)) / at_once)
    assert found["LowestWindow"][0] == pytest.approx((4 + 2 * (3 * 4 + 1)) / at_once)
    assert found["LowestWindow"][1] == pytest.approx(6)
    # Saved for each hour until the end: from the sixth hour on, 27 of 40 in ten hours; no other start gains more.
    assert found["CarbonTime"] == found["LowestWindow"]
    # The lowest hours one by one: for the short job the seventh, for the long one four of the lowest.
    assert found["WaitAwhile"][0] == pytest.approx((4 + 2 * (1 + 3 * 4)) / at_once)
    # The thirtieth centile of the next day is 8: below it are the hours of 4 and 1; the short job waits its six hours.
    assert found["Ecovisor"][0] == pytest.approx((4 + 2 * (3 * 4 + 1)) / at_once)
    with pytest.raises(InvalidRequest, match="beyond the 20 hours"):
        policies(hours[:20], trace)


def test_series_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "ci.csv"
    path.write_text("Time,Carbon Intensity\n2020-01-01 00:00:00,1.5\n2020-01-01 00:15:00,2\n2020-01-01 00:30:00,3\n")
    (found,) = read_clocked(Source.parse(f"{path}:Carbon Intensity=GB"))
    assert (found.name, found.step_min, found.values.tolist()) == ("GB", 15, [1.5, 2.0, 3.0])
    assert found.every(30).values.tolist() == [1.5, 3.0]
    assert found.from_time(at("2020-01-01T00:15")).values.tolist() == [2.0, 3.0]
    with pytest.raises(InvalidRequest, match="every 20 are needed"):
        found.every(20)
    with pytest.raises(InvalidRequest, match="after 2019-12-31"):
        found.from_time(at("2019-12-31T00:00"))
    for text, match in (
        ("T,X\nnoon,1\n", "line 2: 'noon' in the first column is no time"),
        ("T,X\n2020-01-01,\n", "line 2: a value is missing"),
        ("T,X\n2020-01-01,1\n2020-01-02,1\n2020-01-04,1\n", "line 4: 2020-01-04 00:00 does not follow"),
        ("T,X\n2020-01-01,1\n2020-01-01,1\n", "do not rise"),
        ("T,X\n2020-01-01,1\n", "no series of values"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidRequest, match=match):
            read_clocked(Source(path))


def test_every_scenario_runs_on_made_data(tmp_path: Path) -> None:
    half_hours = np.arange(48 * 60)
    halves = Clocked("GB", YEAR, 30, 200 + 100 * np.cos(2 * np.pi * (half_hours - 30) / 48))
    hours = halves.every(60)
    other = Clocked("X", YEAR, 60, hours.values[::-1] + 10)
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("arrival_time,length,cpus\n0,3600,1\n7200,36000,2\n86400,1800,1\n")
    given = Given([halves]), Given([halves]), Given([hours, other]), Given([hours], Source(jobs), 24)
    for name, one in zip(SCENARIOS, given, strict=True):
        lines = scenario(name).run(one)
        assert len(lines) >= 4
        assert all(np.isfinite(line.value) for line in lines)
    ml = {line.what: line.value for line in scenario("lwa-ml").run(given[1])}
    assert ml["GB, next workday, whole"] <= ml["GB, next workday, split"] + 1e-9
    assert ml["GB, next workday, split"] < ml["GB, twice weekly, split"]
    for bad, match in (
        (Given([hours]), "needs --jobs"),
        (Given([hours, other], Source(jobs)), "needs one series"),
        (Given([hours], Source(jobs), 1400), "there are 40"),
    ):
        with pytest.raises(InvalidRequest, match=match):
            scenario("gaia-8").run(bad)


def test_scenarios_from_the_command_line(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["replay", "scenario"])
    assert listed.exit_code == 0
    assert all(name in listed.stdout for name in SCENARIOS)
    lines = [f"{YEAR + timedelta(minutes=30 * k):%Y-%m-%d %H:%M:%S},{100 + (k * 7) % 48}" for k in range(48 * 30)]
    path = tmp_path / "gb.csv"
    path.write_text("\n".join(["Time,Carbon Intensity", *lines]) + "\n")
    words = ["replay", "scenario", "lwa-nightly", "--intensity", f"{path}:Carbon Intensity=GB"]
    made = CliRunner().invoke(app, [*words, "--json"])
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["simulated"] is True
    assert [line["published"] for line in found["lines"]] == [4.77, 6.30, 6.74, 7.95]
    table = CliRunner().invoke(app, words)
    assert "PUBLISHED" in table.stdout
    assert "simulated" in table.stderr
    for wrong, match in (
        (["x"], "scenario 'x' is unknown; known are lwa-nightly"),
        (["lwa-ml"], "say --intensity FILE"),
    ):
        refused = CliRunner().invoke(app, ["replay", "scenario", *wrong])
        assert refused.exit_code == 2
        assert match in refused.stderr

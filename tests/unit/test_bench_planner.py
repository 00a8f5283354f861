"""The planner's bench in small: its loads, its yardstick and its figures."""

from __future__ import annotations

import pytest

from carbonq.bench import planner as bench
from carbonq.bench.planner_cases import NOW, Size, case
from carbonq.bench.planner_lp import has_highs, solve
from carbonq.plan.planner import assign


def test_loads_are_as_they_say() -> None:
    demand, outlook, capacity = case(Size(500, 3, 100), kwh=(1, 8), load=0.5)
    assert len(demand) == 500 and capacity.slots.sum() == 1000
    assert (demand.latest_s >= demand.release_s).all() and (demand.due_s <= 100 * 300).all()
    assert outlook.g_per_kwh.shape == (3, 100) and outlook.g_per_kwh.min() >= 5
    again, _, _ = case(Size(500, 3, 100), kwh=(1, 8), load=0.5)
    assert (again.release_s == demand.release_s).all() and (again.kind == demand.kind).all()


@pytest.mark.skipif(not has_highs(), reason="HiGHS is not installed")
def test_the_linear_programme_beside_finds_the_same_optimum_and_writes_nothing_into_the_figures(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for kwh in ((1.0,), (1.0, 2.0, 4.0, 8.0)):
        demand, outlook, capacity = case(Size(300, 3, 60), kwh=kwh, load=0.6)
        made = assign(demand, outlook, capacity, now=NOW)
        beside = solve(demand, outlook, capacity, limit_s=60)
        assert beside["status"] == "optimal"
        assert made.objective == pytest.approx(beside["objective_g"], rel=1e-6)
        assert made.bound == pytest.approx(beside["objective_g"], rel=1e-5)
    assert not capfd.readouterr().out


def test_figures_of_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.SIZES, "1k", Size(100, 2, 48))
    made = bench._plan("1k", "four unlike", 0.62, 1)
    assert made["in_time"] == made["most_in_time"] == 100
    assert made["gap"] < 1e-5 and made["peak_mib"] > 0 and made["cpu_s"] > 0
    beyond = bench._beyond("1k")
    assert beyond["in_time"] == beyond["most_in_time"] < 100
    added = bench._new_chunks("1k", 1)
    assert added["new"] == 10 and added["above_planning_anew"] > -1e-6
    per_job = bench._per_job([made])
    assert per_job["1k, four unlike, 62%"]["watttime_times_as_long"] > 0

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from carbonq.model import Region, RegionState, Throughput
from carbonq.plan.policy import (
    DURATION_MARGIN,
    duration_margin,
    feasibility,
    guard_s,
    latest_safe_start,
    may_start,
    nearest_region,
)

NOW = datetime(2021, 6, 10, 12, tzinfo=UTC)
REGION = Region("a", "Z", 2, Decimal(1), "stated", "cpu", latency_ms=20)


def test_the_latest_safe_start_leaves_room_for_delays_and_wrong_estimates() -> None:
    # 100 s of work, 25 s because estimates err, 2 s until a worker has it, 60 s that a lane may overrun.
    assert latest_safe_start(NOW, 100, 1) == NOW - timedelta(seconds=187)
    # On a clock of 75x, machine seconds are 75 grid seconds each; the overrun is grid time already.
    assert latest_safe_start(NOW, 2, 75) == NOW - timedelta(seconds=150 + 75 * 2.5 + 60)
    assert guard_s(2, 75) == 247.5


def test_what_was_learned_of_overruns_takes_the_place_of_the_quarter() -> None:
    def seen(hardware: str, overrun: float | None) -> Throughput:
        return Throughput("m", hardware, 1.0, 1, 9, overrun)

    learned = {("m", one.hardware): one for one in (seen("a", 1.5), seen("b", 1.1), seen("c", None))}
    assert duration_margin("m", ["b"], learned) == pytest.approx(0.1)
    # Wherever the planner may put it: the worst of them counts.
    assert duration_margin("m", ["a", "b"], learned) == pytest.approx(0.5)
    assert duration_margin("m", ["b", "c"], learned) == DURATION_MARGIN
    assert duration_margin("m", [], learned) == DURATION_MARGIN
    assert duration_margin("other", ["a"], learned) == DURATION_MARGIN
    assert guard_s(100, 1, 0.5) == 112
    assert latest_safe_start(NOW, 100, 1, 0.5) == NOW - timedelta(seconds=212)


def test_the_nearest_region_is_healthy_active_and_serves_the_model() -> None:
    near = replace(REGION, name="b", latency_ms=5)
    assert nearest_region([REGION, near], "m") == near
    assert nearest_region([REGION, replace(near, is_healthy=False)], "m") == REGION
    assert nearest_region([REGION, replace(near, state=RegionState.PAUSED)], "m") == REGION
    assert nearest_region([REGION, replace(near, models=("other",))], "m") == REGION
    assert nearest_region([replace(REGION, latency_ms=5), near], "m") == replace(REGION, latency_ms=5)
    assert nearest_region([], "m") is None
    assert may_start(replace(near, models=("m",)), "m")


@pytest.mark.parametrize(
    ("deadline_s", "work_s", "slots", "expected"),
    [
        (3600, 7000, 2, ""),
        (
            3600,
            7100,
            2,
            "at least 3637 s on 2 slots with the 87 s that are kept free before a deadline for delays and wrong "
            "estimates, but the deadline is in 3600 s",
        ),
        (-5, 100, 1, "the deadline is in 0 s"),
        (3600, 10, 0, "no region"),
    ],
)
def test_feasibility(deadline_s: float, work_s: float, slots: int, expected: str) -> None:
    said = feasibility(
        now=NOW,
        deadline_at=NOW + timedelta(seconds=deadline_s),
        work_s=work_s,
        longest_chunk_s=100,
        slots=slots,
        factor=1,
    )
    if (deadline_s, work_s) == (3600, 7000):
        assert said is None
    else:
        assert said is not None
        assert expected in said

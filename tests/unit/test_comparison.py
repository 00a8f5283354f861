from __future__ import annotations

import numpy as np
import pytest

from carbonq.plan.comparison import Arm, compare


def arm(rates: list[float], units: list[float] | None = None) -> Arm:
    weights = np.array(units or [1.0] * len(rates))
    return Arm(np.array(rates) * weights, weights)


def test_a_saving_is_of_sums_so_that_large_jobs_count_as_much_as_they_are() -> None:
    made = compare(arm([100, 400], [9, 1]), arm([200, 200], [1, 1]))
    assert made.saving == pytest.approx(1 - 130 / 200)
    assert (made.low, made.high) == (None, None)  # two jobs say nothing of their spread


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(3)
    covered = 0
    for _ in range(20):
        planned = arm(draw.lognormal(np.log(80), 0.5, 60).tolist())
        held_out = arm(draw.lognormal(np.log(100), 0.5, 40).tolist())
        made = compare(planned, held_out)
        assert made.low is not None and made.high is not None and made.saving is not None
        assert made.low < made.saving < made.high
        covered += made.low <= 0.2 <= made.high
    assert 16 <= covered <= 20
    assert compare(planned, held_out) == compare(planned, held_out)


@pytest.mark.parametrize(
    ("planned", "held_out"), [(arm([]), arm([1, 2])), (arm([1, 2]), arm([])), (arm([1, 2]), arm([0.0, 0.0]))]
)
def test_nothing_is_said_where_there_is_nothing_to_compare(planned: Arm, held_out: Arm) -> None:
    assert compare(planned, held_out).saving is None

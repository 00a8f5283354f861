from __future__ import annotations

import numpy as np

from carbonq.bench.long_chunks import long_case
from carbonq.plan.solver.contiguous import place


def test_the_made_load_is_as_asked_and_is_placed() -> None:
    demand, grams, slots = long_case(400, 3, 144, lengths=(6, 12), slacks=(12, 48))
    assert (len(demand), grams.shape, slots.shape) == (400, (1, 3, 144), (3, 144))
    assert 0.55 < (demand.duration_s / 300).sum() / slots.sum() < 0.7
    assert (demand.latest_s >= demand.release_s).all()
    made = place(demand, grams, slots, starts_s=np.arange(144) * 300.0, left_s=300.0)
    assert not made.late.any()
    assert made.objective - made.bound < 0.03 * made.objective

"""Place chunks one by one, the most pressing first: the packing of last resort, and good where chunks are few. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from carbonq.plan.demand import BoolArray, Demand, FloatArray, IntArray
from carbonq.plan.solver.lanes import Lanes


def place(
    demand: Demand,
    allowed: BoolArray,
    slots: IntArray,
    *,
    starts_s: FloatArray,
    left_s: float,
    long: IntArray,
    freeing_s: Sequence[Sequence[float]] = (),
    cost_of: Callable[[int], FloatArray] | None = None,
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return region, window and start (-1, -1, NaN without room) of each chunk.

    ``allowed[kind, region]``; chunks at ``long`` may take several windows. Chunks follow each other on a lane as long
    as they end with its window. Each is put where ``cost_of`` its row (by [region, window] of its start) is least,
    without that and where it cannot be in time as early as can be.
    """
    n = len(demand)
    region, window, start_s = np.full(n, -1), np.full(n, -1), np.full(n, np.nan)
    lanes = Lanes(slots, starts_s, left_s, freeing_s)
    is_long = np.zeros(n, dtype=np.bool_)
    is_long[long] = True
    zero = np.zeros(slots.shape)
    latest_s = demand.latest_s
    for row in np.lexsort((np.arange(n), latest_s)).tolist():
        duration = float(demand.duration_s[row])
        for latest in (float(latest_s[row]), math.inf):
            spot = lanes.find(
                duration,
                rows=allowed[demand.kind[row]],
                release_s=max(0.0, float(demand.release_s[row])),
                latest_s=latest,
                cost=zero if cost_of is None or latest == math.inf else cost_of(row),
                may_overrun=bool(is_long[row]),
            )
            if spot is not None:
                lanes.take(spot, duration)
                region[row], window[row], start_s[row] = spot.region, spot.window, spot.start_s
                break
    return region, window, start_s

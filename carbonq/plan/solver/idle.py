"""Split bundles over lanes of the running window that nothing else takes, at no gram more. Pure.

A bundle fills one lane, which is right where lanes are scarce or yet to come. In the window that runs already an idle
lane is lost, so that chunks run side by side there, in any region where each of them costs exactly the same. The
forecast's error plays no part: near-ties are between windows, and are none in the one that runs.
"""

from __future__ import annotations

import heapq

import numpy as np

from carbonq.plan.demand import BoolArray, Demand, IntArray
from carbonq.plan.solver.bundles import Bundles
from carbonq.plan.solver.freeing import Places
from carbonq.plan.solver.setting import Setting

#: Lanes that are dealt out at most, and bundles that are looked at, the longest first: many bundles are spread over
#: regions by ``levelling.py`` already, and within a region whatever is due takes a free slot anyhow.
MOST_LANES = 64


def use(demand: Demand, setting: Setting, bundles: Bundles, cell: IntArray, places: Places) -> None:
    """Deal the bundles (in ``cell``) of the running window out over the lanes that ``places.free`` has left there.

    The longest lane is halved first; every other one of its chunks goes to the emptiest region that costs the same, so
    that none starts later. What has a place already stays. Changes ``places``. ``O(n + B)`` to find the bundles, then
    ``O(L (R + log L) + m log L)`` for at most ``L = MOST_LANES`` lanes and the ``m`` chunks on them.
    """
    free = places.free[:, 0]
    if setting.costs.is_overlay or not (free > 0).any():
        return
    here = np.flatnonzero((cell >= 0) & (cell % setting.windows == 0) & (bundles.sizes > 1))
    here = here[np.argsort(-bundles.duration_s[here], kind="stable")][:MOST_LANES]
    lanes: list[tuple[float, int, IntArray, BoolArray]] = []
    for one in here.tolist():
        span = slice(int(bundles.begin[one]), int(bundles.begin[one + 1]))
        rows, region = bundles.members[span], int(cell[one]) // setting.windows
        is_there = (places.region[rows] == region) & (places.start_s[rows] == bundles.offset_s[span])
        # What moved since, or was there before, is not touched.
        if (is_there & (demand.current[rows, 1] < 0)).all():
            lanes.append((-float(bundles.duration_s[one]), one, rows, _alike(demand, setting, rows, region)))
    heapq.heapify(lanes)
    slots, number = setting.slots[:, 0], len(cell)
    while lanes and number < len(cell) + 2 * MOST_LANES:
        _, _, rows, alike = heapq.heappop(lanes)
        able = np.flatnonzero(alike & (free > 0))
        if len(rows) < 2 or not len(able):
            continue
        fullness = (slots[able] - free[able] + 1) / slots[able]
        region = int(able[np.lexsort((setting.costs.is_far[able], fullness))[0]])
        free[region] -= 1
        places.region[rows[1::2]] = region
        for part in (rows[::2], rows[1::2]):
            ends = np.cumsum(demand.duration_s[part])
            places.start_s[part] = np.minimum(places.start_s[part], ends - demand.duration_s[part])
            heapq.heappush(lanes, (-float(ends[-1]), number, part, alike))
            number += 1


def _alike(demand: Demand, setting: Setting, rows: IntArray, region: int) -> BoolArray:
    """Say in which regions each of some chunks costs exactly what it costs in one of them, in the running window."""
    costs, kind = setting.costs, np.unique(demand.kind[rows])
    grams = costs.kwh[kind] * costs.rate[:, 0] + costs.extra_g[kind]
    is_over = costs.carbon[:, 0] > costs.cap_rate[kind] * (1 + 1e-9)
    same = costs.allowed[kind] & (grams == grams[:, [region]]) & (is_over == is_over[:, [region]])
    alike: BoolArray = same.all(axis=0) & (costs.displaced[:, 0] == costs.displaced[region, 0])
    return alike

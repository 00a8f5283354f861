"""Give everybody its own cheapest cell: where all of them fit on the free slots, that is the optimum without a solver.

Pure. A piece that has a place keeps it unless another gains more than the margin, as in the planner; no plan under the
same rules can be cheaper than everybody's own best. Of equal cells the earlier one is taken, then the first region.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import FloatArray


def own_best(
    due: IntArray,
    windows: IntArray,
    current: IntArray,
    rates: FloatArray,
    free: IntArray,
    *,
    rows: Sequence[int],
    margin: float,
) -> tuple[IntArray, IntArray] | None:
    """Return (region row, column) of each piece, or None where they do not fit together or one cannot be in time.

    ``rates`` are what is chosen by, by ``[region, column]``. ``due`` are columns; ``current`` is ``[piece, 2]`` (region
    row, column; -1 without); all may start at once.
    """
    if (due < windows).any() or (due > rates.shape[1]).any():
        return None
    allowed = np.array(rows, dtype=np.int64)
    region, column = np.empty(len(due), dtype=np.int64), np.empty(len(due), dtype=np.int64)
    for length in np.unique(windows).tolist():
        mine = np.flatnonzero(windows == length)
        cost = startable(rates, free, length)
        best_row = np.argmin(cost[allowed], axis=0)
        lowest = cost[allowed][best_row, np.arange(cost.shape[1])]
        first = _first_lowest(lowest)
        column[mine] = first[due[mine] - length]
        region[mine] = allowed[best_row[column[mine]]]
        found = lowest[column[mine]]
        if np.isinf(found).any():
            return None
        keeps = _keeps(current[mine], cost, found, margin)
        region[mine[keeps]], column[mine[keeps]] = current[mine[keeps], 0], current[mine[keeps], 1]
    return (region, column) if _fits(region, column, windows, free) else None


def startable(rates: FloatArray, free: IntArray, length: int) -> FloatArray:
    """Return the mean rate of starting in each cell; inf where a window of it has no free slot."""
    spans = np.lib.stride_tricks.sliding_window_view
    if length == 1:
        return np.where(free > 0, rates, np.inf)
    return np.where(spans(free, length, axis=1).min(axis=2) > 0, spans(rates, length, axis=1).mean(axis=2), np.inf)


def _first_lowest(values: FloatArray) -> IntArray:
    """Return, for each place, where the lowest value up to it stands first."""
    running = np.minimum.accumulate(values)
    is_new = np.concatenate(([True], running[1:] < running[:-1]))
    return np.maximum.accumulate(np.where(is_new, np.arange(len(values)), 0))


def _keeps(current: IntArray, cost: FloatArray, found: FloatArray, margin: float) -> npt.NDArray[np.bool_]:
    """Say whose present place is not dearer than what was found by more than the margin."""
    row, place = current[:, 0], current[:, 1]
    has_place = (place >= 0) & (place < cost.shape[1])
    stays = np.where(has_place, cost[np.maximum(row, 0), np.clip(place, 0, cost.shape[1] - 1)], np.inf)
    return has_place & (stays * (1.0 - margin) <= found)


def _fits(region: IntArray, column: IntArray, windows: IntArray, free: IntArray) -> bool:
    edges = np.zeros((len(free), free.shape[1] + 1), dtype=np.int64)
    np.add.at(edges, (region, column), 1)
    np.add.at(edges, (region, column + windows), -1)
    return bool((np.cumsum(edges[:, :-1], axis=1) <= free).all())

"""Merge lanes wanted that cost nearly the same everywhere, so that few kinds are left to tell apart. Pure arrays."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np

from carbonq.plan.demand import FloatArray, IntArray
from carbonq.plan.solver.costs import row_numbers


@dataclass(frozen=True, slots=True)
class Alike:
    """The class of each row, and of each class its mean ``kwh[c, r]`` and ``extra_g[c, r]`` and one of its rows."""

    of: IntArray
    kwh: FloatArray
    extra_g: FloatArray
    row: IntArray
    is_exact: bool


def merge(
    kwh: FloatArray, extra_g: FloatArray, hard: IntArray, weight: FloatArray, *, level: FloatArray, most: int
) -> Alike:
    """Sort rows (costs of lanes, ``weight`` lanes each) into at most ``most`` classes, if rules allow so few.

    Rows that may use unlike cells (``hard``) never share a class. ``level[r]`` is a typical rate by region. Classes are
    cut where that lowers the variance of the rows' costs most.
    """
    distinct = row_numbers(np.concatenate((hard[:, None].astype(np.float64), kwh, extra_g), axis=1))
    if int(distinct.max(initial=-1)) < most:
        _, row = np.unique(distinct, return_index=True)
        return Alike(distinct, kwh[row], extra_g[row], row.astype(np.int64), True)
    cost = kwh * level + extra_g
    size = cost.mean(axis=1)
    group = hard
    # Hardware (costs by region in other proportions) is told apart if that leaves few enough.
    profile = np.round(cost / np.maximum(size, 1e-300)[:, None], 1)
    fine = row_numbers(np.concatenate((hard[:, None].astype(np.float64), profile), axis=1))
    if int(fine.max()) < max(most, int(hard.max()) + 1):
        group = fine
    order = np.lexsort((size, group))
    of = np.empty(len(order), dtype=np.int64)
    of[order] = _cut(group[order], size[order], weight[order], most)
    classes = int(of.max()) + 1
    total = np.bincount(of, weight, classes)
    means = [
        np.stack([np.bincount(of, weight * column, classes) / total for column in table.T], axis=1)
        for table in (kwh, extra_g)
    ]
    _, row = np.unique(of, return_index=True)
    return Alike(of, means[0], means[1], row.astype(np.int64), False)


def _cut(group: IntArray, size: FloatArray, weight: FloatArray, most: int) -> IntArray:
    """Number stretches of sorted sizes: the stretch with the largest variance is cut until there are ``most``."""
    zero = np.zeros(1)
    sums = [np.concatenate((zero, np.cumsum(weight * size**power))) for power in range(3)]

    def best(begin: int, end: int) -> tuple[float, int, int, int]:
        """Return (variance won, negative; begin, cut, end) of the best cut of a stretch."""
        cut = np.arange(begin + 1, end)
        if not len(cut):
            return 0.0, begin, end, end
        left = (sums[1][cut] - sums[1][begin]) ** 2 / (sums[0][cut] - sums[0][begin])
        right = (sums[1][end] - sums[1][cut]) ** 2 / (sums[0][end] - sums[0][cut])
        whole = (sums[1][end] - sums[1][begin]) ** 2 / (sums[0][end] - sums[0][begin])
        at = int(np.argmax(left + right))
        return float(whole - left[at] - right[at]), begin, int(cut[at]), end

    borders = np.append(np.flatnonzero(np.append(True, group[1:] != group[:-1])), len(group)).tolist()
    heap = [best(begin, end) for begin, end in itertools.pairwise(borders)]
    heapq.heapify(heap)
    done = 0
    while len(heap) + done < most and heap:
        won, begin, cut, end = heapq.heappop(heap)
        if won >= 0 or cut == end:
            done += 1
            borders.append(begin)
            continue
        heapq.heappush(heap, best(begin, cut))
        heapq.heappush(heap, best(cut, end))
        borders.append(cut)
    starts = np.zeros(len(group), dtype=np.int64)
    starts[np.unique(np.array([border for border in borders if border < len(group)], dtype=np.int64))] = 1
    return np.cumsum(starts) - 1

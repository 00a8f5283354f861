"""A proven lower bound on the cost of any plan, from prices for slots. Pure arrays.

For any prices ``p[r, w] >= 0`` of a lane and any plan within the slots: ``cost >= sum of min over a chunk's cells of
(cost + share x p) - sum of p x slots`` (weak duality), where ``share`` is the part of a lane that a chunk takes. With
the prices of the optimal flow the bound is its optimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from carbonq.plan.demand import FloatArray, IntArray
from carbonq.plan.solver.costs import Costs, row_numbers

#: Ratios of cost to share that are worked out; between them the least cost is concave, so the chord lies below it.
_RATIOS = 64

#: Kinds of hardware (energies by region in other proportions) told apart; beyond, the lower of each is taken.
_MOST_PROFILES = 64


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of at most a window by column: kind, first and last window, the share of a lane that they take."""

    kind: IntArray
    first: IntArray
    last: IntArray
    share: FloatArray


def lower_bound(
    chunks: Chunks, costs: Costs, slots: IntArray, prices: FloatArray, *, late: int, unplaced: int
) -> float:
    """Return what no plan of these chunks with as few late and as few without a place can cost less than, in grams.

    A chunk takes its ``share`` of a lane. A plan may choose which chunks are late or left out, so the largest
    differences that this can make are taken off.
    """
    if not len(chunks.kind):
        return 0.0
    windows = slots.shape[1]
    prices = np.where(slots > 0, prices, 0.0)
    in_time = _least(chunks, costs, slots, prices, np.minimum(chunks.last, windows - 1))
    value = in_time
    if late or np.isinf(in_time).any():
        any_time = _least(chunks, costs, slots, prices, np.full(len(chunks.kind), windows - 1))
        hopeless = np.isinf(in_time)
        value = np.where(hopeless, any_time, in_time)
        saved = np.zeros_like(value)
        np.subtract(value, any_time, out=saved, where=~hopeless)
        value_sum = float(value[np.isfinite(value)].sum())
        value_sum -= _largest(saved, late)
    else:
        value_sum = float(value.sum())
    if unplaced:
        value_sum -= _largest(np.where(np.isfinite(value), value, 0.0), unplaced)
    return value_sum - float((prices * slots).sum())


def _largest(values: FloatArray, count: int) -> float:
    count = min(count, len(values))
    return float(np.partition(values, len(values) - count)[len(values) - count :].sum()) if count else 0.0


def _least(chunks: Chunks, costs: Costs, slots: IntArray, prices: FloatArray, last: IntArray) -> FloatArray:
    """Return each chunk's least ``cost + share x price`` over its cells, from below; inf where it has none."""
    scale, profile, kwh, extra = _profiles(costs)
    made = np.full(len(chunks.kind), np.inf)
    has = chunks.first <= last
    of = profile[chunks.kind]
    order = np.flatnonzero(has)
    order = order[np.argsort(of[order], kind="stable")]
    borders = np.searchsorted(of[order], np.arange(len(kwh) + 1))
    for one in range(len(kwh)):
        rows = order[borders[one] : borders[one + 1]]
        if not len(rows):
            continue
        allowed = np.isfinite(kwh[one])
        base = np.where(allowed[:, None], np.where(allowed, kwh[one], 0.0)[:, None] * costs.rate, np.inf)
        base = np.where(slots > 0, base + np.where(allowed, extra[one], 0.0)[:, None], np.inf)
        share, size = chunks.share[rows], scale[chunks.kind[rows]]
        made[rows] = _concave(base, prices, size, share, first=chunks.first[rows], last=last[rows])
    return made


def _profiles(costs: Costs) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
    """Return each kind's size and profile, and each profile's kWh (inf where not allowed) and extra grams by region."""
    level = float(costs.rate.mean())
    cost = np.where(costs.allowed, costs.kwh * level + costs.extra_g, 0.0)
    scale = cost.sum(axis=1) / np.maximum(costs.allowed.sum(axis=1), 1)
    scale = np.where(scale > 0, scale, 1.0)
    kwh = np.where(costs.allowed, costs.kwh / scale[:, None], np.inf)
    extra = np.where(costs.allowed, costs.extra_g / scale[:, None], 0.0)
    # A part in 1e12 down, so that what is rounded to be alike is no higher than it was.
    kwh, extra = _rounded(kwh), _rounded(extra)
    profile = row_numbers(np.concatenate((kwh, extra), axis=1))
    if int(profile.max(initial=0)) >= _MOST_PROFILES:
        profile = row_numbers(costs.allowed.astype(np.float64))
    count = int(profile.max(initial=-1)) + 1
    low_kwh, low_extra = np.full((count, kwh.shape[1]), np.inf), np.full((count, kwh.shape[1]), np.inf)
    np.minimum.at(low_kwh, profile, kwh)
    np.minimum.at(low_extra, profile, extra)
    return scale, profile, low_kwh, low_extra


def _rounded(values: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        step = 10.0 ** (np.floor(np.log10(np.abs(values))) - 11)
        made = np.floor(values / step) * step
    return np.where(np.isfinite(values) & (values != 0), made, values)


def _concave(
    base: FloatArray, prices: FloatArray, size: FloatArray, share: FloatArray, *, first: IntArray, last: IntArray
) -> FloatArray:
    """Return ``min over cells in windows first..last of size x base + share x price``, or less.

    It is ``share x f(size / share)`` with a concave ``f``, worked out at some ratios.
    """
    # To pay for less than is taken only lowers the bound.
    has_share = share > 1e-9
    ratio = np.where(has_share, size / np.where(has_share, share, 1.0), 0.0)
    distinct = np.unique(ratio[has_share])
    if len(distinct) > _RATIOS:
        low, high = max(float(distinct[0]), 1e-12 * float(distinct[-1])), float(distinct[-1])
        steps = np.geomspace(low, high, _RATIOS)
        steps[0], steps[-1] = distinct[0], high
        distinct = steps
    least = np.full((len(distinct) + 1, base.shape[1]), np.inf)
    least[-1] = base.min(axis=0)
    for row, one in enumerate(distinct.tolist()):
        least[row] = (one * base + prices).min(axis=0)
    table = range_minima(least)
    free = range_of(table, np.full(len(size), len(distinct)), first, last)
    made: FloatArray = size * free
    if len(distinct):
        above = np.clip(np.searchsorted(distinct, ratio), 0, len(distinct) - 1)
        below = np.where(ratio == distinct[above], above, np.maximum(above - 1, 0))
        width = np.where(above > below, distinct[above] - distinct[below], 1.0)
        part = np.where(above > below, (ratio - distinct[below]) / width, 0.0)
        lower, upper = range_of(table, below, first, last), range_of(table, above, first, last)
        with np.errstate(invalid="ignore"):
            chord = share * np.where(np.isinf(lower), np.inf, lower + part * (upper - lower))
        made = np.where(has_share, chord, made)
    return made


def range_minima(rows: FloatArray) -> FloatArray:
    """Return the minima over 1, 2, 4 ... columns from each column on: ``[level, row, column]``."""
    levels = [rows]
    width = 1
    while 2 * width <= rows.shape[1]:
        below = levels[-1]
        level = below.copy()
        level[:, : rows.shape[1] - width] = np.minimum(below[:, : rows.shape[1] - width], below[:, width:])
        levels.append(level)
        width *= 2
    return np.stack(levels)


def range_of(table: FloatArray, row: IntArray, first: IntArray, last: IntArray) -> FloatArray:
    """Return the minima of rows over columns ``first`` to ``last`` (first <= last)."""
    level = np.log2(last - first + 1).astype(np.int64)
    made: FloatArray = np.minimum(table[level, row, first], table[level, row, last - (1 << level) + 1])
    return made

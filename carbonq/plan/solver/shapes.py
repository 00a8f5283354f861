"""Sort long chunks into shapes: alike in cost, length and where they may run, so that many are priced at once. Pure."""

from __future__ import annotations

import math

import numpy as np

from carbonq.plan.demand import BoolArray, Demand, FloatArray, IntArray
from carbonq.plan.solver.grouping import rows_of
from carbonq.plan.solver.stretches import Integral
from carbonq.units import WINDOW_S

#: Shapes (costs x length) told apart; beyond, alike ones are merged at their lower costs.
MOST_SHAPES = 64

#: Parts of a window by which lengths are told apart.
_PARTS = 4

#: A cost is above a cap from this many times the cap on: rounding is not.
_ABOVE = 1 + 1e-9


def shapes_of(
    demand: Demand, integral: Integral, allowed: BoolArray, held: tuple[IntArray, IntArray], penalty: float
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return each chunk's shape, and by shape where its starts end (``[s, t]``) and cost (``[s, r, t]``).

    A shape costs what its shortest and longest chunk cost, whichever is lower: between two borders of windows the mean
    over a stretch changes in one direction with its length, so that no chunk of the shape costs less. ``held`` are the
    windows that chunks hold when started in the running window, and later; ``penalty`` is what a cap counts.
    """
    held_now, held_later = held
    duration, kind = demand.duration_s, demand.kind
    regions, windows = integral.values.shape[1:]
    caps = np.array([one.max_g for one in demand.kinds], dtype=np.float64)
    for parts in (_PARTS, 1):
        part = np.floor(duration * parts / WINDOW_S).astype(np.int64)
        of, members = rows_of(kind, part, held_now, held_later)
        if len(members) <= MOST_SHAPES:
            break
    merged = _merge(kind[members], integral, allowed, (held_now[members], held_later[members]))
    order = np.argsort(of, kind="stable")
    begin = np.searchsorted(of[order], np.arange(len(members)))
    shortest = np.minimum.reduceat(duration[order], begin) if len(members) else duration
    longest = np.maximum.reduceat(duration[order], begin) if len(members) else duration
    shapes = int(merged.max(initial=-1)) + 1
    cost = np.full((shapes, regions, windows), np.inf)
    ends = np.tile(np.arange(windows), (shapes, 1))
    for one, shape, row in zip(range(len(members)), merged.tolist(), members.tolist(), strict=True):
        k = int(kind[row])
        rates = integral.only(k)
        low = np.minimum(rates.means(float(shortest[one])), rates.means(float(longest[one])))
        border = float(integral.starts_s[1] if windows > 1 else 0.0)
        border += math.floor((longest[one] - border) / WINDOW_S) * WINDOW_S
        if shortest[one] < border < longest[one]:
            # Started in the running window, of which only a part is left, borders lie elsewhere.
            low[:, 0] = np.minimum(low[:, 0], rates.means(border)[:, 0])
        low = low + np.where(low > caps[k] * _ABOVE, penalty, 0.0)
        rows = allowed[k]
        cost[shape, rows] = np.minimum(cost[shape, rows], low[rows])
        ends[shape] = np.arange(windows) + held_later[row]
        ends[shape, 0] = held_now[row]
    return merged[of], ends, cost


def _merge(kind: IntArray, integral: Integral, allowed: BoolArray, held: tuple[IntArray, IntArray]) -> IntArray:
    """Number shapes anew, so that those of one length and the same regions share a number if near in cost."""
    if len(kind) <= MOST_SHAPES:
        return np.arange(len(kind))
    level = np.maximum(integral.values.mean(axis=(1, 2)), 1e-12)[kind]
    spread = float(np.log(level.max() / level.min()))
    for bands in (MOST_SHAPES, MOST_SHAPES // 4, 4, 1):
        band = np.floor(np.log(level / level.min()) / max(spread, 1e-9) * bands).astype(np.int64)
        merged, kept = rows_of(np.minimum(band, bands - 1), *held, *allowed[kind].T.astype(np.int64))
        if len(kept) <= MOST_SHAPES:
            break
    return merged

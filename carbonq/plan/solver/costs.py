"""What a chunk costs in each cell, as arrays: carbon, weighted price, near-ties and what is taken from others. Pure.

A chunk of kind ``k`` in cell ``(r, w)`` costs ``kwh[k, r] x rate[r, w] + extra_g[k, r]`` grams, with ``rate`` = PUE x
(MOER + price weight x price). What only guides the choice (``tie``, ``displaced``) is kept apart and never reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carbonq.plan.capacity import Capacity
from carbonq.plan.demand import BoolArray, Demand, FloatArray, IntArray, Terms
from carbonq.plan.outlook import Outlook
from carbonq.units import UJ_PER_KWH

#: Between cells that differ by less than this share of the forecast's root mean square error the earlier one is taken:
#: which of two such cells comes out cleaner is a toss-up (50.6 : 49.4 for normal errors), being early is not.
NEAR_TIE = 0.02

#: Significant digits of carbon caps, rounded down, so that the chunks of one job stay alike.
_CAP_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs by cell and by kind.

    ``rate[r, w]`` grams (or what price weighs) per kWh that a chunk uses, ``carbon[r, w]`` the carbon of it alone, both
    without gaps; ``kwh[k, r]``, ``extra_g[k, r]``; ``allowed[k, r]``; ``cap_rate[k, r]`` the highest ``carbon`` within
    the kind's cap; ``hard[k]`` numbers kinds that may use the same cells. ``tie[r, w]`` grams per kWh for being late,
    ``displaced[r, w]`` grams for each lane taken. ``is_far[r]``: not the nearest region.
    """

    rate: FloatArray
    carbon: FloatArray
    kwh: FloatArray
    extra_g: FloatArray
    allowed: BoolArray
    cap_rate: FloatArray
    hard: IntArray
    tie: FloatArray
    displaced: FloatArray
    is_far: BoolArray
    is_overlay: bool

    def of(self, kind: IntArray, region: IntArray, window: IntArray) -> FloatArray:
        """Return the grams of chunks of some kinds in some cells."""
        made: FloatArray = self.kwh[kind, region] * self.rate[region, window] + self.extra_g[kind, region]
        return made


def build(demand: Demand, outlook: Outlook, capacity: Capacity, terms: Terms) -> Costs:
    """Work out the costs; a rate or price that is unknown counts as the worst one that is known.

    Raises ValueError when prices or kinds are not about the regions and windows of the outlook.
    """
    regions, windows = outlook.g_per_kwh.shape
    is_overlay = outlook.is_down
    carbon = _filled(np.maximum(outlook.g_per_kwh * outlook.pue[:, None], 0.0))
    rate = carbon
    if terms.price_per_kwh is not None and terms.price_weight_g > 0 and not is_overlay:
        if terms.price_per_kwh.shape != (regions, windows):
            raise ValueError("prices must be by the regions and windows of the outlook")
        rate = carbon + terms.price_weight_g * outlook.pue[:, None] * _filled(terms.price_per_kwh)
    if any(len(kind.energy_uj) != regions or len(kind.extra_g) != regions for kind in demand.kinds):
        raise ValueError("kinds must have one energy and one extra for each region of the outlook")
    shape = (len(demand.kinds), regions)
    kwh = np.array([kind.energy_uj for kind in demand.kinds], dtype=np.float64).reshape(shape) / UJ_PER_KWH
    extra_g = np.array([kind.extra_g for kind in demand.kinds], dtype=np.float64).reshape(shape)
    allowed = np.zeros(shape, dtype=np.bool_)
    sizes = [len(kind.regions) for kind in demand.kinds]
    allowed[np.repeat(np.arange(shape[0]), sizes), [row for kind in demand.kinds for row in kind.regions]] = True
    if is_overlay:
        extra_g = np.zeros_like(extra_g)
    cap_rate = _cap_rates(np.array([kind.max_g for kind in demand.kinds], dtype=np.float64), kwh, extra_g)
    tie = np.zeros((regions, windows))
    if terms.near_tie and outlook.spread.shape == tie.shape:
        error = np.nan_to_num(outlook.spread, nan=0.0) * outlook.pue[:, None]
        # The error grows with the lead and so does this: otherwise a less certain hour would count as a cleaner one.
        tie = NEAR_TIE * np.maximum.accumulate(error, axis=1) * np.arange(windows) / max(1, windows - 1)
    latency = np.array(capacity.latency_ms)
    nearest = np.lexsort((np.arange(regions), latency))[:1]
    return Costs(
        rate=rate,
        carbon=carbon,
        kwh=kwh,
        extra_g=extra_g,
        allowed=allowed,
        cap_rate=cap_rate,
        hard=row_numbers(np.where(allowed, cap_rate, np.nan)),
        tie=tie,
        displaced=_displaced(demand, rate, kwh, capacity.slots, terms.displacement),
        is_far=~np.isin(np.arange(regions), nearest),
        is_overlay=is_overlay,
    )


def row_numbers(rows: FloatArray) -> IntArray:
    """Number the distinct rows of a table."""
    if rows.shape[0] <= 1 or rows.shape[1] == 0:
        return np.zeros(rows.shape[0], dtype=np.int64)
    plain = np.ascontiguousarray(rows + 0.0)
    packed = plain.view(np.dtype((np.void, plain.dtype.itemsize * plain.shape[1]))).ravel()
    numbers: npt.NDArray[np.intp] = np.unique(packed, return_inverse=True)[1]
    return numbers.astype(np.int64)


def _filled(values: FloatArray) -> FloatArray:
    known = values[~np.isnan(values)]
    return np.where(np.isnan(values), known.max() if known.size else 0.0, values)


def _cap_rates(max_g: FloatArray, kwh: FloatArray, extra_g: FloatArray) -> FloatArray:
    rates = np.full(kwh.shape, np.inf)
    rows = np.flatnonzero(np.isfinite(max_g))
    if len(rows):
        left = max_g[rows, None] - extra_g[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.where(kwh[rows] > 0, left / kwh[rows], np.where(left >= 0, np.inf, -1.0))
            step = 10.0 ** (np.floor(np.log10(np.maximum(most, 1e-12))) - _CAP_DIGITS + 1)
            rates[rows] = np.where(np.isfinite(most) & (most > 0), np.floor(most / step + 1e-6) * step, most)
    return rates


def _displaced(demand: Demand, rate: FloatArray, kwh: FloatArray, slots: IntArray, weight: float) -> FloatArray:
    """Return the expected grams that a lane taken here costs work that comes later.

    Later work is taken to be like that here: with a share ``u`` of all lanes in use the cleanest share ``u`` of the
    lanes is fought over, and who is pushed out of one runs at the dirtiest rate of these instead.
    """
    none = np.zeros_like(rate)
    lanes = int(slots.sum())
    if weight <= 0 or not len(demand) or lanes <= 0:
        return none
    order = np.argsort(rate, axis=None, kind="stable")
    filled = np.cumsum(slots.ravel()[order])
    at = min(int(np.searchsorted(filled, min(len(demand), lanes))), rate.size - 1)
    threshold = rate.ravel()[order[at]]
    mean_kwh = float(kwh[demand.kind].mean())
    displaced: FloatArray = weight * mean_kwh * np.maximum(threshold - rate, 0.0)
    return displaced

"""Why chunks are where they are: what was cheaper and why it was passed over, and what the runner-up costs. Pure.

Computed from an outlook and what is free in it. Costs are energy x PUE x rate plus what does not depend on the hour
(gCO2e), and what the price weighs, which is said apart. A cell without a rate is never cheaper. Seconds are grid
seconds from the outlook's now.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from carbonq.plan.outlook import Outlook
from carbonq.plan.solver.costs import NEAR_TIE
from carbonq.plan.taken import span
from carbonq.units import UJ_PER_KWH

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_EPSILON = 1e-9


class Why(StrEnum):
    """Why a cheaper cell was passed over; the first that holds."""

    NOT_ALLOWED = "not_allowed"  # the job may not run in that region
    AWAY = "away"  # the region does not serve the model, or takes no work now
    BEFORE_RELEASE = "before_release"
    AFTER_DEADLINE = "after_deadline"  # it would start after the latest safe start
    FULL = "full"
    NEAR_TIE = "near_tie"  # free, but cheaper by less than the forecast's error can tell (``costs.NEAR_TIE`` of it)
    BELOW_MARGIN = "below_margin"  # free, but the gain is below the margin for which a chunk is moved
    FREE = "free"  # free and cheaper by more: it became so since, or other chunks of the plan needed it


@dataclass(frozen=True, slots=True)
class Case:
    """A chunk in a cell, given by row and column of the outlook.

    ``energy_uj`` and ``extra_g`` are what it takes by region row, ``price_g`` the grams that its price weighs there
    (None: prices do not count); ``allowed`` the rows where the job may run,
    ``usable`` those of them that serve the model and take work. ``max_g`` caps it (inf: no cap).
    """

    region: int
    window: int
    release_s: float
    latest_s: float
    duration_s: float
    energy_uj: FloatArray
    extra_g: FloatArray
    allowed: frozenset[int]
    usable: frozenset[int]
    max_g: float = math.inf
    price_g: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell (row, column), its rate in g/kWh, and what one chunk costs there: grams, and those its price weighs."""

    region: int
    window: int
    g_per_kwh: float
    grams: float
    price_g: float = 0.0

    @property
    def cost_g(self) -> float:
        """What is compared: both together."""
        return self.grams + self.price_g


@dataclass(frozen=True, slots=True)
class Passed:
    """How many cheaper cells were passed over for one reason, and the cheapest of them."""

    why: Why
    cells: int
    best: Cell


@dataclass(frozen=True, slots=True)
class Explained:
    """What was found. ``own`` is None where the rate of the cell is not known.

    ``choices`` counts the cells that were allowed, in time and free, the own one included. ``runner_up`` is the
    cheapest of them but for the own one and ``more_g`` the grams that one chunk causes more there (negative: less), as
    ``more_price_g`` what its price weighs more; ``more_share`` is both as a share of the own cost; None where there is
    none. ``is_cheapest``: no usable cell is cheaper.
    """

    own: Cell | None
    choices: int
    passed: tuple[Passed, ...]
    runner_up: Cell | None
    more_g: float | None
    more_price_g: float | None
    more_share: float | None
    is_cheapest: bool
    is_over_cap: bool


def explain(
    case: Case,
    outlook: Outlook,
    free: IntArray,
    starts_s: FloatArray,
    *,
    own_g_per_kwh: float | None = None,
    margin: float = 0.03,
) -> Explained:
    """Compare a placement with every other cell.

    ``free`` are the lanes by ``[region, window]`` that are free beside the explained chunks, ``starts_s`` is
    ``capacity.window_starts``. ``own_g_per_kwh`` replaces the outlook's rate of the own cell by the one it was decided
    by. Raises ValueError when the cell is not in the outlook.
    """
    if not (0 <= case.region < len(outlook.regions) and 0 <= case.window < outlook.windows):
        raise ValueError("the placement lies outside the outlook")
    rates = outlook.g_per_kwh.copy()
    if own_g_per_kwh is not None:
        rates[case.region, case.window] = own_g_per_kwh
    cells = span(case.duration_s)
    means = np.array([_ahead(row, cells) for row in rates * outlook.pue[:, None]]).reshape(rates.shape)
    grams = case.energy_uj[:, None] / UJ_PER_KWH * means + case.extra_g[:, None]
    price_g = np.zeros(len(grams)) if case.price_g is None else case.price_g
    cost = grams + price_g[:, None]
    held = np.array([_least_ahead(row, cells) for row in free]).reshape(free.shape)
    label = _labels(case, held, starts_s)
    own_g = float(cost[case.region, case.window])
    is_own = np.zeros(cost.shape, dtype=np.bool_)
    is_own[case.region, case.window] = True
    is_free = (label == 0) & ~np.isnan(cost) & ~is_own
    choices = int((label == 0).sum()) + int(label[case.region, case.window] != 0)

    def cell(place: tuple[int, int]) -> Cell:
        return Cell(place[0], place[1], float(rates[place]), float(grams[place]), float(price_g[place[0]]))

    if math.isnan(own_g):
        return Explained(None, choices, (), _best(cost, is_free, cell), None, None, None, False, False)
    cheaper = (cost < own_g - _EPSILON * abs(own_g)) & ~is_own
    passed: list[Passed] = []
    for code, why in enumerate(_ORDER, start=1):
        some = cheaper & (label == code)
        best = _best(cost, some, cell)
        if best is not None:
            passed.append(Passed(why, int(some.sum()), best))
    open_ = cheaper & (label == 0)
    best = _best(cost, open_, cell)
    if best is not None:
        why = _of_free(case, outlook, best, own_g, margin)
        passed.append(Passed(why, int(open_.sum()), best))
    runner_up, own = _best(cost, is_free, cell), cell((case.region, case.window))
    more = None if runner_up is None else runner_up.cost_g - own_g
    return Explained(
        own=own,
        choices=choices,
        passed=tuple(passed),
        runner_up=runner_up,
        more_g=None if runner_up is None else runner_up.grams - own.grams,
        more_price_g=None if runner_up is None else runner_up.price_g - own.price_g,
        more_share=None if more is None or own_g <= 0 else more / own_g,
        is_cheapest=best is None,
        is_over_cap=own.grams > case.max_g * (1 + _EPSILON),
    )


_ORDER = (Why.NOT_ALLOWED, Why.AWAY, Why.BEFORE_RELEASE, Why.AFTER_DEADLINE, Why.FULL)


def _labels(case: Case, free: IntArray, starts_s: FloatArray) -> IntArray:
    """Return for each cell 0 (may be taken) or the place of its reason in ``_ORDER``, counted from 1."""
    label = np.zeros(free.shape, dtype=np.int64)
    label[free <= 0] = 5
    label[:, starts_s > case.latest_s + 1e-6] = 4
    label[:, starts_s < case.release_s - 1e-6] = 3
    for row in range(len(free)):
        if row not in case.allowed:
            label[row] = 1
        elif row not in case.usable:
            label[row] = 2
    return label


def _of_free(case: Case, outlook: Outlook, best: Cell, own_g: float, margin: float) -> Why:
    gain = own_g - best.cost_g
    if outlook.spread.shape == outlook.g_per_kwh.shape:
        places = ((case.region, case.window), (best.region, best.window))
        errors = [
            float(outlook.spread[place] * outlook.pue[place[0]]) * float(case.energy_uj[place[0]]) / UJ_PER_KWH
            for place in places
        ]
        if gain <= NEAR_TIE * max(errors):  # False where a spread is not known
            return Why.NEAR_TIE
    return Why.BELOW_MARGIN if gain <= margin * own_g else Why.FREE


def _best(cost: FloatArray, some: npt.NDArray[np.bool_], cell: Callable[[tuple[int, int]], Cell]) -> Cell | None:
    if not some.any():
        return None
    # The earliest of the cheapest, then the first region.
    columns = np.broadcast_to(np.arange(cost.shape[1]), cost.shape)
    rows, at = np.nonzero(some)
    order = np.lexsort((rows, columns[some], cost[some]))[0]
    return cell((int(rows[order]), int(at[order])))


def _ahead(values: FloatArray, cells: int) -> FloatArray:
    """Return the mean over ``cells`` windows from each one on; past the end the last one repeats."""
    if cells == 1:
        return values
    padded = np.pad(values, (0, cells - 1), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, cells).mean(axis=1)


def _least_ahead(values: IntArray, cells: int) -> IntArray:
    if cells == 1:
        return values
    padded = np.pad(values, (0, cells - 1), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, cells).min(axis=1)

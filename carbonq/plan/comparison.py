"""Compare jobs that were planned with jobs that were held out: a measured saving with its confidence interval. Pure.

A rate is grams over all jobs of an arm by their energy (or tokens): a ratio of sums, so that large jobs count as much
as they are. The interval is a bootstrap over jobs (Efron 1979, percentiles), drawn with a fixed seed: same jobs, same
interval. Jobs and not items are drawn, because items of one job share its hours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: Draws of the bootstrap, and how it begins.
DRAWS, SEED = 2_000, 7

#: Jobs that an arm must have before an interval means anything.
LEAST_JOBS = 5


@dataclass(frozen=True, slots=True)
class Arm:
    """The jobs of one treatment: grams of each, and what they are counted against (kWh of IT energy, or tokens)."""

    grams: FloatArray
    units: FloatArray

    @property
    def rate(self) -> float | None:
        """Grams a unit; None where there is no unit."""
        total = float(self.units.sum())
        return float(self.grams.sum()) / total if total > 0 else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The share saved against what was held out, and the bounds of its interval; None where it cannot be said."""

    saving: float | None
    low: float | None
    high: float | None


def compare(planned: Arm, held_out: Arm, *, confidence: float = 0.95) -> Comparison:
    """Return ``1 - planned rate / held-out rate`` with its interval.

    Without energy in an arm, or where what was held out caused nothing, there is no saving to state; with fewer than
    ``LEAST_JOBS`` jobs in an arm no interval.
    """
    ours, theirs = planned.rate, held_out.rate
    if ours is None or not theirs:
        return Comparison(None, None, None)
    saving = 1 - ours / theirs
    if min(len(planned.grams), len(held_out.grams)) < LEAST_JOBS:
        return Comparison(saving, None, None)
    draw = np.random.default_rng(SEED)
    with np.errstate(divide="ignore", invalid="ignore"):
        savings = 1 - _rates(planned, draw) / _rates(held_out, draw)
    savings = savings[np.isfinite(savings)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(savings, [tail, 1 - tail])
    return Comparison(saving, float(low), float(high))


def _rates(arm: Arm, draw: np.random.Generator) -> FloatArray:
    """Return the rate of each draw of as many jobs with replacement."""
    count = len(arm.grams)
    rates = np.empty(DRAWS)
    for number in range(DRAWS):
        some = draw.integers(0, count, count)
        rates[number] = arm.grams[some].sum() / arm.units[some].sum()
    return rates

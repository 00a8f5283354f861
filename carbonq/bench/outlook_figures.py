"""Figures of an outlook: errors by lead, and the saving of a short job that may wait. Pure arrays, g/kWh."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import FloatArray

#: Windows a job may wait: three hours.
WAIT = 36


def mae(said: FloatArray, truth: FloatArray) -> float:
    """Return the mean absolute error over all windows whose truth and value are known."""
    errors = np.abs(said - truth)
    return float(np.nanmean(errors)) if (~np.isnan(errors)).any() else float("nan")


def mape(said: FloatArray, truth: FloatArray) -> float:
    """Return the mean absolute error in per cent of the truth, over windows whose truth is known and not 0."""
    known = ~np.isnan(truth) & (truth > 0) & ~np.isnan(said)
    return float(100 * np.mean(np.abs(said[known] - truth[known]) / truth[known])) if known.any() else float("nan")


def followed(origins: IntArray) -> npt.NDArray[np.bool_]:
    """Say for each origin whether the next ``WAIT`` origins follow it window by window."""
    found = np.zeros(len(origins), dtype=np.bool_)
    if len(origins) > WAIT:
        found[:-WAIT] = origins[WAIT:] - origins[:-WAIT] == WAIT
    return found


def chosen_once(said: FloatArray) -> IntArray:
    """Return the column each row's job runs in when it is placed once and stays."""
    return np.nanargmin(np.where(np.isnan(said), np.inf, said), axis=1)


def chosen_again(said: FloatArray) -> IntArray:
    """Return the column each row's job runs in when every later row may move it: it runs when its own turn is cheapest.

    ``said[i, k]`` is what is thought at moment i of the k-th window from it; a job may wait ``said.shape[1]`` windows.
    """
    rows, wait = said.shape
    best = np.fmin.accumulate(said, axis=1)
    chosen = np.full(rows, -1, dtype=np.int64)
    for waited in range(wait):
        later = np.minimum(np.arange(rows) + waited, rows - 1)
        is_now = said[later, 0] <= best[later, wait - 1 - waited]
        chosen = np.where((chosen < 0) & is_now, waited, chosen)
    return np.where(chosen < 0, wait - 1, chosen)


def saving(truth: FloatArray, chosen: IntArray, at_once: FloatArray, rows: npt.NDArray[np.bool_]) -> float:
    """Return the per cent saved by running in the chosen columns instead of at once, over some rows."""
    took = truth[np.arange(len(truth)), chosen][rows]
    return float(100 * (1 - took.mean() / at_once[rows].mean()))

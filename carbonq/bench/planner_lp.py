"""The grouped linear programme of a placement in HiGHS, the yardstick of ``carbonq bench planner``. One thread."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from carbonq.plan.capacity import Capacity
from carbonq.plan.demand import Demand
from carbonq.plan.outlook import Outlook
from carbonq.plan.solver.contiguous import rows_of
from carbonq.units import UJ_PER_KWH, WINDOW_S


@contextmanager
def _stdout_on_stderr() -> Generator[None]:
    """Send what native code writes to stdout to stderr: figures on stdout must stay JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def has_highs() -> bool:
    """Say whether HiGHS is there (the package highspy, of the development extras)."""
    return importlib.util.find_spec("highspy") is not None


def solve(demand: Demand, outlook: Outlook, capacity: Capacity, *, limit_s: float) -> dict[str, Any]:
    """Place chunks of one window each by class (kind, first and last window) -> (kind, window) -> cell.

    Returns the seconds of building and solving, the optimum in grams, or what HiGHS said instead of finding it within
    ``limit_s``. Raises ImportError without HiGHS.
    """
    import highspy

    started = time.process_time()
    regions, windows = capacity.slots.shape
    first = np.ceil(demand.release_s / WINDOW_S).astype(np.int64)
    last = np.minimum((demand.latest_s // WINDOW_S).astype(np.int64), windows - 1)
    of, chosen = rows_of(demand.kind, first, last)
    kind, first, last = demand.kind[chosen], first[chosen], last[chosen]
    count, kinds = np.bincount(of).astype(float), len(demand.kinds)
    spans = last - first + 1
    class_of = np.repeat(np.arange(len(chosen)), spans)
    window_of = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans) + first[class_of]
    flat = np.arange(kinds * regions * windows)
    cell_kind, cell = np.divmod(flat, regions * windows)
    kwh = np.array([one.energy_uj for one in demand.kinds], dtype=float) / UJ_PER_KWH
    rate = outlook.g_per_kwh * outlook.pue[:, None]
    cost = np.concatenate((np.zeros(len(class_of)), (kwh[:, :, None] * rate).ravel()))
    chooses, uses = np.arange(len(class_of)), len(class_of) + flat
    link, lanes = len(chosen), len(chosen) + kinds * windows
    rows = np.concatenate(
        (
            class_of,
            link + kind[class_of] * windows + window_of,
            link + cell_kind * windows + cell % windows,
            lanes + cell,
        )
    )
    columns = np.concatenate((chooses, chooses, uses, uses))
    values = np.concatenate((np.ones(2 * len(chooses)), -np.ones(len(uses)), np.ones(len(uses))))
    order = np.lexsort((rows, columns))
    none = np.zeros(kinds * windows)
    model: Any = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), lanes + regions * windows
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, np.zeros(len(cost)), np.full(len(cost), np.inf)
    model.row_lower_ = np.concatenate((count, none, np.full(regions * windows, -np.inf)))
    model.row_upper_ = np.concatenate((count, none, capacity.slots.ravel().astype(float)))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.searchsorted(columns[order], np.arange(len(cost) + 1)).astype(np.int32)
    model.a_matrix_.index_ = rows[order].astype(np.int32)
    model.a_matrix_.value_ = values[order]
    with _stdout_on_stderr():
        solver: Any = highspy.Highs()  # says its name on the process's stdout, before it can be told not to
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", limit_s)
    solver.passModel(model)
    solver.run()
    took = time.process_time() - started
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return {"cpu_s": took, "status": solver.modelStatusToString(solver.getModelStatus())}
    return {"cpu_s": took, "objective_g": float(solver.getInfo().objective_function_value), "status": "optimal"}

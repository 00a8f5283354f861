"""Slow but plain ways to the true optimum of a placement, to hold the planner against.

All take the same `Case`: *shapes* are chunks that cost the same everywhere and take as many windows; *classes* are
chunks of one shape with the same choice of starts. Rows are regions, columns windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt
from ortools.graph.python import max_flow

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """``cost[s, r, t]`` is that of shape ``s`` started in window ``t`` of region ``r``, inf where it may not start.

    A class has ``count`` chunks of one ``shape`` that may start in windows ``first`` to ``last`` (both included; none
    where last < first). A chunk holds one of ``slots[r, t]`` in ``length[shape]`` windows from its start on.
    """

    slots: IntArray  # [region, window]
    length: IntArray  # [shape]
    cost: FloatArray  # [shape, region, window]
    shape: IntArray  # [class]
    first: IntArray  # [class]
    last: IntArray  # [class]
    count: IntArray  # [class]

    @property
    def starts(self) -> list[tuple[IntArray, IntArray]]:
        """Each shape's possible starts (rows, columns): finite cost, a slot in all its windows, inside the horizon."""
        windows = self.slots.shape[1]
        found: list[tuple[IntArray, IntArray]] = []
        for shape, length in enumerate(self.length):
            may = np.isfinite(self.cost[shape])
            may[:, max(0, windows - int(length) + 1) :] = False
            for step in range(min(int(length), windows)):
                may[:, : windows - step] &= self.slots[:, step:] > 0
            found.append(np.nonzero(may))
        return found


@dataclass(frozen=True)
class Optimum:
    """The least number of chunks that cannot be in time, and the least cost of the others given that."""

    late: float
    cost: float


def brute_force(case: Case) -> Optimum:
    """Try everything. For up to about eight chunks."""
    chunks = [k for k, count in enumerate(case.count) for _ in range(int(count))]
    starts = case.starts
    free = case.slots.copy()
    best = (len(chunks) + 1, 0.0)

    def choose(position: int, late: int, cost: float, least: int) -> None:
        nonlocal best
        if (late, cost) >= best:
            return
        if position == len(chunks):
            best = (late, cost)
            return
        k = chunks[position]
        shape, length = int(case.shape[k]), int(case.length[case.shape[k]])
        # Chunks of one class are alike: their choices may be taken in order, and "late" comes last.
        alike = position + 1 < len(chunks) and chunks[position + 1] == k
        rows, columns = starts[shape]
        for choice in range(least, len(rows)):
            row, window = int(rows[choice]), int(columns[choice])
            cells = free[row, window : window + length]
            if case.first[k] <= window <= case.last[k] and cells.min() > 0:
                cells -= 1
                choose(position + 1, late, cost + float(case.cost[shape, row, window]), choice if alike else 0)
                cells += 1
        choose(position + 1, late + 1, cost, len(rows) if alike else 0)

    choose(0, 0, 0.0, 0)
    return Optimum(*best)


def linear_programme(case: Case, *, time_limit_s: float = 600.0) -> Optimum:
    """Let HiGHS solve the relaxation (chunks may be split): a lower bound, and the optimum of one-window chunks.

    Variables: chunks of class k that start in window t; chunks of shape s that start in (r, t); late chunks of class k.
    First the fewest late, then the least cost with no more late. Raises RuntimeError when HiGHS does not end optimal.
    """
    starts = case.starts
    windows = case.slots.shape[1]
    first, last = np.maximum(case.first, 0), np.minimum(case.last, windows - 1)
    spans = np.maximum(last - first + 1, 0)
    classes, shapes = len(case.count), len(case.length)
    # Columns: u[k, t], then late[k], then y[s, r, t].
    k_of = np.repeat(np.arange(classes), spans)
    t_of = np.concatenate([np.arange(a, a + n) for a, n in zip(first, spans, strict=True)] or [np.zeros(0, int)])
    s_of = np.repeat(np.arange(shapes), [len(rows) for rows, _ in starts])
    row_of = np.concatenate([rows for rows, _ in starts])
    start_of = np.concatenate([columns for _, columns in starts])
    u, late, y = len(k_of), classes, len(s_of)
    # Rows: one for each class, one for each (shape, window), one for each cell.
    links, cells = classes, classes + shapes * windows
    pieces = [
        (k_of, np.arange(u), np.ones(u)),
        (np.arange(classes), u + np.arange(classes), np.ones(classes)),
        (links + case.shape[k_of] * windows + t_of, np.arange(u), np.ones(u)),
        (links + s_of * windows + start_of, u + late + np.arange(y), -np.ones(y)),
    ]
    length = case.length[s_of]
    for step in range(int(case.length.max(initial=0))):
        held = np.flatnonzero(length > step)
        at = cells + row_of[held] * windows + start_of[held] + step
        pieces.append((at, u + late + held, np.ones(len(held))))
    rows, columns, values = (np.concatenate(part) for part in zip(*pieces, strict=True))
    slots = case.slots.ravel().astype(float)
    low = np.concatenate((case.count, np.zeros(shapes * windows), np.full(len(slots), -np.inf)))
    high = np.concatenate((case.count, np.zeros(shapes * windows), slots))
    is_late = np.concatenate((np.zeros(u), np.ones(late), np.zeros(y)))
    grams = np.concatenate((np.zeros(u + late), np.concatenate([case.cost[s][at] for s, at in enumerate(starts)])))
    fewest = _solve((rows, columns, values), (low, high), is_late, np.full(u + late + y, np.inf), time_limit_s)
    upper = np.full(u + late + y, np.inf)
    if fewest < 1e-7:
        upper[u : u + late] = 0.0
    else:
        rows = np.concatenate((rows, np.full(late, len(low))))
        columns = np.concatenate((columns, u + np.arange(late)))
        values = np.concatenate((values, np.ones(late)))
        low, high = np.append(low, -np.inf), np.append(high, fewest + 1e-9)
    return Optimum(fewest, _solve((rows, columns, values), (low, high), grams, upper, time_limit_s))


def _solve(
    entries: tuple[IntArray, IntArray, FloatArray],
    between: tuple[FloatArray, FloatArray],
    cost: FloatArray,
    upper: FloatArray,
    time_limit_s: float,
) -> float:
    """Minimise ``cost x`` with ``low <= A x <= high`` and ``0 <= x <= upper``; A is given by its entries."""
    (rows, columns, values), (low, high) = entries, between
    if not len(cost):
        return 0.0
    order = np.lexsort((rows, columns))
    model: Any = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(low)
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, np.zeros(len(cost)), upper
    model.row_lower_, model.row_upper_ = low, high
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.searchsorted(columns[order], np.arange(len(cost) + 1)).astype(np.int32)
    model.a_matrix_.index_ = rows[order].astype(np.int32)
    model.a_matrix_.value_ = values[order]
    solver: Any = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", time_limit_s)
    solver.passModel(model)
    solver.run()
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS ended with {solver.modelStatusToString(status)}")
    return float(solver.getInfo().objective_function_value)


def most_in_time(case: Case) -> int:
    """Return how many chunks of one window each can be in time, by maximum flow class -> (shape, window) -> cell."""
    if (case.length != 1).any():
        raise ValueError("a flow counts chunks of one window only")
    windows = case.slots.shape[1]
    classes, shapes = len(case.count), len(case.length)
    source, links = classes, classes + 1
    cells = links + shapes * windows
    sink = cells + case.slots.size
    solver = max_flow.SimpleMaxFlow()
    for k in range(classes):
        solver.add_arc_with_capacity(source, k, int(case.count[k]))
        for window in range(max(0, int(case.first[k])), min(windows - 1, int(case.last[k])) + 1):
            solver.add_arc_with_capacity(k, links + int(case.shape[k]) * windows + window, int(case.count[k]))
    for shape, (rows, columns) in enumerate(case.starts):
        for row, window in zip(rows.tolist(), columns.tolist(), strict=True):
            head = cells + row * windows + window
            solver.add_arc_with_capacity(links + shape * windows + window, head, int(case.slots[row, window]))
    for cell, slots in enumerate(case.slots.ravel().tolist()):
        solver.add_arc_with_capacity(cells + cell, sink, int(slots))
    status = solver.solve(source, sink)
    if status != solver.OPTIMAL:
        raise RuntimeError(f"the maximum flow ended with status {status}")
    return int(solver.optimal_flow())

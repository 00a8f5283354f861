"""How much of some work can be finished in time beside work that was accepted before. Pure.

Work is taken as divisible (it is cut into chunks), so that this is a maximum flow from classes of work to the slot
seconds of each region up to each due time: what it says cannot be in time, no plan can bring in time. Accepted work
keeps what it can have: the flow of what comes anew is what it adds. Seconds are grid seconds from now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.graph.python import max_flow

from carbonq.plan.capacity import Capacity
from carbonq.units import WINDOW_S

#: Slot seconds are counted in whole milliseconds: work rounded up, room rounded down.
_SCALE = 1000

#: Work that does not fit by less than this share is a matter of rounding.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Load:
    """Work alike in where it may run (rows of regions) and when it must be done; ``work_s`` is its slot seconds."""

    regions: tuple[int, ...]
    due_s: float
    work_s: float


def slot_seconds(capacity: Capacity, left_s: float) -> npt.NDArray[np.float64]:
    """Return the free slot seconds by ``[region, window]``; ``left_s`` are left of the running window."""
    seconds = capacity.slots.astype(np.float64) * WINDOW_S
    seconds[:, 0] = capacity.slots[:, 0] * left_s
    for row, lanes in enumerate(capacity.freeing_s):
        seconds[row, 0] += sum(left_s - one for one in lanes)
    return seconds


def _units(work_s: float) -> int:
    return math.ceil(work_s * _SCALE)


def in_time_s(loads: Sequence[Load], seconds: npt.NDArray[np.float64], left_s: float) -> float:
    """Return the most slot seconds of all loads together that can be done in time."""
    regions, windows = seconds.shape
    ends = left_s + WINDOW_S * np.arange(windows)
    starts = np.concatenate(([0.0], ends[:-1]))
    dues = np.unique([min(max(one.due_s, 0.0), float(ends[-1])) for one in loads])
    dues = dues[dues > 0]
    if not len(dues):
        return 0.0
    # Seconds by region up to each due time, a part of a window counting by its share; then between due times.
    share = np.clip((dues[:, None] - starts) / (ends - starts), 0.0, 1.0)
    between = np.diff(seconds @ share.T, axis=1, prepend=0.0)
    flow = max_flow.SimpleMaxFlow()
    count = len(dues)
    source, sink, first = 0, 1, 2 + len(loads)

    def cell(region: int, step: int) -> int:
        return first + region * count + step

    endless = sum(_units(one.work_s) for one in loads) + 1
    for region in range(regions):
        for step in range(count):
            flow.add_arc_with_capacity(cell(region, step), sink, int(between[region, step] * _SCALE))
            if step:  # what may wait for a later step may also be done in an earlier one
                flow.add_arc_with_capacity(cell(region, step), cell(region, step - 1), endless)
    for number, one in enumerate(loads):
        step = int(np.searchsorted(dues, min(one.due_s, float(ends[-1])) + 1e-9)) - 1
        if step < 0:
            continue
        flow.add_arc_with_capacity(source, 2 + number, _units(one.work_s))
        for region in one.regions:
            flow.add_arc_with_capacity(2 + number, cell(region, step), endless)
    if flow.num_arcs() == 0 or flow.solve(source, sink) != flow.OPTIMAL:
        return 0.0
    return flow.optimal_flow() / _SCALE


def share_in_time(new: Load, accepted: Sequence[Load], seconds: npt.NDArray[np.float64], left_s: float) -> float:
    """Return the share of new work that can be done in time without taking anything from what was accepted."""
    if new.work_s <= 0:
        return 1.0
    gain_s = in_time_s([*accepted, new], seconds, left_s) - in_time_s(accepted, seconds, left_s)
    # Each load and each piece of room may have lost up to one unit to rounding.
    lost_s = min((len(accepted) + 1) * (1 + seconds.shape[0]) / _SCALE, new.work_s / 2)
    return 1.0 if gain_s > (1 - ROUNDING) * new.work_s - lost_s else max(0.0, gain_s / new.work_s)


def all_in_time_s(new: Load, accepted: Sequence[Load], seconds: npt.NDArray[np.float64], left_s: float) -> float | None:
    """Return the earliest due time, to a window, by which all new work can be done; None beyond the horizon."""
    low, high = 0, seconds.shape[1] - 1

    def fits(window: int) -> bool:
        due_s = left_s + WINDOW_S * window
        return share_in_time(Load(new.regions, due_s, new.work_s), accepted, seconds, left_s) >= 1.0

    if not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return left_s + WINDOW_S * low

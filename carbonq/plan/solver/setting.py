"""What plans are made in and measured by: costs, lanes and times of a moment; lateness, gap, lanes held. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from carbonq.plan.capacity import Capacity, window_starts
from carbonq.plan.demand import BoolArray, Demand, FloatArray, IntArray, Terms
from carbonq.plan.outlook import Outlook
from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.plan.solver import costs
from carbonq.plan.solver.bundles import BUNDLE_FILL, is_short
from carbonq.plan.solver.lanes import EPSILON_S
from carbonq.units import WINDOW, WINDOW_S, window_at, window_index

#: Lateness below this is rounding.
_ROUNDING_S = 1e-5


@dataclass(frozen=True, slots=True)
class Setting:
    """What plans are made in: costs, slots by [region, window], and when windows can first be used (s from now).

    ``near`` ranks the regions by their latency, 0 the nearest.
    """

    costs: costs.Costs
    slots: IntArray
    starts_s: FloatArray
    left_s: float
    terms: Terms
    freeing_s: tuple[tuple[float, ...], ...] = ()
    near: tuple[int, ...] = ()

    @classmethod
    def of(cls, demand: Demand, outlook: Outlook, capacity: Capacity, now: datetime, terms: Terms) -> Setting:
        """Put it together; raises ValueError as ``assign`` does."""
        if outlook.regions != capacity.regions or outlook.g_per_kwh.shape != capacity.slots.shape:
            raise ValueError("outlook and capacity must cover the same regions and windows")
        if not outlook.first_window == capacity.first_window == window_index(now):
            raise ValueError("outlook and capacity must begin with the window that holds now")
        left_s = (window_at(outlook.first_window) + WINDOW - now).total_seconds()
        made = costs.build(demand, outlook, capacity, terms)
        slots = np.maximum(capacity.slots.astype(np.int64), 0)
        near = np.argsort(np.argsort(np.array(capacity.latency_ms), kind="stable"), kind="stable").tolist()
        starts_s = window_starts(now, outlook.windows)
        return cls(made, slots, starts_s, left_s, terms, capacity.freeing_s, tuple(near))

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return len(self.starts_s)

    def range(self, release_s: FloatArray, latest_s: FloatArray, duration_s: FloatArray) -> tuple[IntArray, IntArray]:
        """Return the first and last window in which something may start."""
        offset = self.left_s - WINDOW_S
        begin = np.where(release_s > EPSILON_S, np.ceil((release_s - EPSILON_S - offset) / WINDOW_S), 0.0)
        room_s = min(WINDOW_S, self.left_s + OVERRUN_SHARE * WINDOW_S)
        begin = np.where((begin == 0) & (duration_s > room_s + EPSILON_S), 1.0, begin)
        latest = latest_s + EPSILON_S
        end = np.where(latest >= 0, np.floor((latest - offset) / WINDOW_S), -1.0)
        first = np.minimum(begin, self.windows).astype(np.int64)
        last = np.minimum(end, self.windows - 1).astype(np.int64)
        return first, last

    def is_long(self, demand: Demand) -> BoolArray:
        """Say which chunks take more than one cell: longer than a window, or too urgent to wait for the next one."""
        fits_now = demand.duration_s <= self.left_s + OVERRUN_SHARE * WINDOW_S
        latest = demand.latest_s
        is_urgent = ~fits_now & (demand.release_s <= 0) & (latest >= 0) & (latest < self.left_s)
        return (demand.duration_s > WINDOW_S) | is_urgent


def lateness(demand: Demand, start_s: FloatArray) -> FloatArray:
    """Return the seconds by which chunks that start then (NaN: nowhere) are late; 0 where in time or nowhere."""
    late_s = start_s + demand.duration_s - demand.due_s
    return np.where(late_s > _ROUNDING_S, late_s, 0.0)


def lane_shares(duration_s: FloatArray) -> FloatArray:
    """Return the part of a lane that chunks take: all of it, unless they are short enough to share one."""
    return np.where(is_short(duration_s), duration_s / (BUNDLE_FILL * WINDOW_S), 1.0)


def gap(objective: float, least: float) -> float:
    """Return how far a cost may be from the least one, as a share of it."""
    return (objective - least) / abs(objective) if objective else 0.0


def lanes_held(region: IntArray, window: IntArray, cells: IntArray, shape: tuple[int, int]) -> IntArray:
    """Count the lanes that chunks hold by [region, window], each from its start for some cells."""
    rows = np.flatnonzero(window >= 0)
    ends = np.minimum(window[rows] + cells[rows], shape[1])
    edges = np.zeros((shape[0], shape[1] + 1), dtype=np.int64)
    np.add.at(edges, (region[rows], window[rows]), 1)
    np.add.at(edges, (region[rows], ends), -1)
    return np.cumsum(edges, axis=1)[:, :-1]

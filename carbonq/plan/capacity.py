"""How many lanes each (region, window) has free. Pure.

A cell offers its region's slots for 300 s each. A lane that running or due work keeps busy into a window still counts
as free there if it frees itself within the first fifth (``policy.OVERRUN_SHARE``).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from carbonq.model import Region
from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.units import WINDOW_S, window_at, window_index


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free lanes by ``[region, window]``; column 0 is the window that runs now. Latencies are milliseconds."""

    regions: tuple[str, ...]
    first_window: int
    slots: npt.NDArray[np.int64]
    latency_ms: tuple[float, ...]


def build(
    regions: Sequence[Region],
    *,
    now: datetime,
    windows: int,
    running_s: Mapping[str, Sequence[float]],
    due_s: Mapping[str, Sequence[float]],
    closed: frozenset[str] = frozenset(),
) -> Capacity:
    """Take what is running and due off the regions' slots.

    ``running_s`` holds the grid seconds that each running chunk still needs, ``due_s`` the durations of chunks that
    wait for the next free slot; regions in ``closed`` offer nothing.
    """
    first = window_index(now)
    starts = window_starts(now, windows)
    free = np.zeros((len(regions), windows), dtype=np.int64)
    for row, region in enumerate(regions):
        if region.name in closed:
            continue
        lanes = sorted(max(left, 0.0) for left in running_s.get(region.name, ()))
        lanes = [0.0] * max(0, region.slots - len(lanes)) + lanes
        heapq.heapify(lanes)
        for duration in due_s.get(region.name, ()):
            heapq.heapreplace(lanes, lanes[0] + duration)
        # More may be running than there are slots (the settings changed): the last to end hold the lanes.
        ends = np.sort(np.array(lanes))[-region.slots :]
        slack = np.where(np.arange(windows) == 0, 0.0, OVERRUN_SHARE * WINDOW_S)
        free[row] = np.searchsorted(ends, starts + slack, side="right")
    return Capacity(
        regions=tuple(region.name for region in regions),
        first_window=first,
        slots=free,
        latency_ms=tuple(region.latency_ms for region in regions),
    )


def window_starts(now: datetime, windows: int) -> npt.NDArray[np.float64]:
    """Return when each window can first be used, in grid seconds from ``now`` (0 for the one that runs)."""
    offset = (window_at(window_index(now)) - now).total_seconds()
    return np.maximum(offset + WINDOW_S * np.arange(windows, dtype=np.float64), 0.0)

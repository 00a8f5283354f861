"""How many lanes each (region, window) has free. Pure.

A cell offers its region's slots for 300 s each, less where maintenance takes some away; the slots of realtime are not
among them. A lane that running or due work keeps busy into a window still counts as free there if it frees itself
within the first fifth (``policy.OVERRUN_SHARE``). In the window that runs, what is left of a lane after that work is
told apart: ``freeing_s``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from carbonq.model import Region
from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.units import WINDOW_S, window_at, window_index


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free lanes by ``[region, window]``; column 0 is the window that runs now. Latencies are milliseconds.

    ``freeing_s`` holds for each region the seconds from now after which lanes that are busy now free themselves within
    the window that runs; they are not among ``slots`` there.
    """

    regions: tuple[str, ...]
    first_window: int
    slots: npt.NDArray[np.int64]
    latency_ms: tuple[float, ...]
    freeing_s: tuple[tuple[float, ...], ...] = ()


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
    left_s = (window_at(first + 1) - now).total_seconds()
    free = np.zeros((len(regions), windows), dtype=np.int64)
    freeing: list[tuple[float, ...]] = []
    for row, region in enumerate(regions):
        if region.name in closed:
            freeing.append(())
            continue
        lanes = sorted(max(left, 0.0) for left in running_s.get(region.name, ()))
        lanes = [0.0] * max(0, region.slots - len(lanes)) + lanes
        heapq.heapify(lanes)
        for duration in due_s.get(region.name, ()):
            heapq.heapreplace(lanes, lanes[0] + duration)
        # More may be running than there are slots (the settings changed): the last to end hold the lanes.
        ends = np.sort(np.array(lanes))[-region.slots :]
        slack = np.where(np.arange(windows) == 0, 0.0, OVERRUN_SHARE * WINDOW_S)
        busy = region.slots - np.searchsorted(ends, starts + slack, side="right")
        offered = _offered(region, now, first, windows)
        free[row] = np.maximum(offered - busy, 0)
        soon = ends[(ends > 0) & (ends < left_s)]
        # While maintenance leaves fewer slots, the first that end only make room for those that go on.
        usable = max(0, int(offered[0] - free[row, 0] - (ends >= left_s).sum()))
        freeing.append(tuple(soon[max(0, len(soon) - usable) :].tolist()))
    return Capacity(
        regions=tuple(region.name for region in regions),
        first_window=first,
        slots=free,
        latency_ms=tuple(region.latency_ms for region in regions),
        freeing_s=tuple(freeing),
    )


def _offered(region: Region, now: datetime, first: int, windows: int) -> npt.NDArray[np.int64]:
    """Return how many slots a region offers all through each window; of the one that runs, its rest counts."""
    offered = np.full(windows, region.slots, dtype=np.int64)
    for one in region.maintenance:
        if one.end_at <= now:
            continue
        begin = max(0, window_index(one.start_at) - first)
        end = window_index(one.end_at - timedelta(microseconds=1)) - first + 1
        offered[begin : max(begin, end)] = np.minimum(offered[begin : max(begin, end)], one.slots)
    return offered


def window_starts(now: datetime, windows: int) -> npt.NDArray[np.float64]:
    """Return when each window can first be used, in grid seconds from ``now`` (0 for the one that runs)."""
    offset = (window_at(window_index(now)) - now).total_seconds()
    return np.maximum(offset + WINDOW_S * np.arange(windows, dtype=np.float64), 0.0)

"""Read what accepted work holds of the regions' slots, and say what is left of each cell while it stays where it is."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from carbonq.model import Region, RegionState
from carbonq.plan import capacity, policy
from carbonq.plan.capacity import Capacity
from carbonq.plan.solver.bundles import BUNDLE_FILL
from carbonq.plan.taken import SHARED_UP_TO_S, Held, LongChunk, lanes_taken
from carbonq.store import accepted, placements
from carbonq.store.database import Tx
from carbonq.units import WINDOW, WINDOW_S


@dataclass(frozen=True, slots=True)
class Load:
    """What accepted work holds, in grid seconds: slots now, the next free slots, cells, and what has no place yet."""

    running_s: dict[str, list[float]]
    due_s: dict[str, list[float]]
    held: tuple[Held, ...]
    long: tuple[LongChunk, ...]
    waiting_s: tuple[float, ...]


#: Nothing is accepted.
NO_LOAD = Load({}, {}, (), (), ())


def read_load(tx: Tx, now: datetime, windows: int, factor: float) -> Load:
    """Read it for the ``windows`` windows from the one that holds ``now``; ``factor`` is grid for machine seconds."""
    running: defaultdict[str, list[float]] = defaultdict(list)
    due: defaultdict[str, list[float]] = defaultdict(list)
    for one in placements.busy(tx):
        if one.elapsed_s is None:
            due[one.region].append(one.est_duration_s * factor)
        else:
            # An overdue chunk is taken to need another tenth of its estimate, as in planning.
            left_s = max(one.est_duration_s - one.elapsed_s, one.est_duration_s / 10)
            running[one.region].append(left_s * factor)
    for one in accepted.due(tx, now):
        due[one.region].append(one.est_duration_s * factor)
    held, long = read_held(tx, now + timedelta(microseconds=1), now + windows * WINDOW, factor)
    waiting = tuple(seconds * factor for seconds, _ in accepted.waiting(tx))
    return Load(dict(running), dict(due), held, long, waiting)


def read_held(
    tx: Tx, start: datetime, end: datetime, factor: float, *, with_ended: bool = False
) -> tuple[tuple[Held, ...], tuple[LongChunk, ...]]:
    """Return what is placed in the cells whose window starts in ``[start, end)``."""
    longest_s = WINDOW_S / factor
    sums = accepted.by_cell(
        tx, start=start, end=end, above_s=SHARED_UP_TO_S / factor, longest_s=longest_s, with_ended=with_ended
    )
    long = accepted.longer(tx, start=start, end=end, longest_s=longest_s, with_ended=with_ended)
    return (
        tuple(Held(one.region, one.window_at, one.above, one.other_s * factor) for one in sums),
        tuple(LongChunk(one.region, one.window_at, one.est_duration_s * factor) for one in long),
    )


def free_lanes(regions: Sequence[Region], load: Load, now: datetime, windows: int) -> Capacity:
    """Return the lanes that are left; chunks without a place take the earliest ones, regions not active offer none."""
    closed = frozenset(region.name for region in regions if region.state is not RegionState.ACTIVE)
    made = capacity.build(regions, now=now, windows=windows, running_s=load.running_s, due_s=load.due_s, closed=closed)
    taken = lanes_taken(load.held, load.long, made.regions, made.first_window, windows)
    free = np.maximum(made.slots - taken, 0)
    _take_earliest(free, load.waiting_s)
    return Capacity(made.regions, made.first_window, free, made.latency_ms)


def _take_earliest(free: npt.NDArray[np.int64], waiting_s: Sequence[float]) -> None:
    shared_s = sum(one for one in waiting_s if one <= SHARED_UP_TO_S)
    lanes = math.ceil(shared_s / (BUNDLE_FILL * WINDOW_S)) + sum(
        max(1, math.ceil(one / WINDOW_S - policy.OVERRUN_SHARE)) for one in waiting_s if one > SHARED_UP_TO_S
    )
    by_time = free.T.reshape(-1)  # a copy: window by window, region by region
    before = np.concatenate(([0], np.cumsum(by_time)[:-1])) if len(by_time) else by_time
    by_time -= np.clip(lanes - before, 0, by_time)
    free[:] = by_time.reshape(free.T.shape).T

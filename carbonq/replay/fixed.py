"""Ways to run work without a plan: first come, first served on the slots of a region. Pure arrays.

All of them run the same pieces with the same energy as every other policy, and none looks at carbon.
"""

from __future__ import annotations

import heapq

import numpy as np

from carbonq.plan.evidence import IntArray
from carbonq.replay.rolling import Ran
from carbonq.replay.work import Work


def queued(work: Work, slots: int) -> IntArray:
    """Return the window in which each piece starts in a queue of so many slots: as soon as there is one, in order."""
    if not work.count:
        return np.empty(0, dtype=np.int64)
    if (work.windows == 1).all():
        # In units of a slot's window: the i-th starts at its release or right behind the one before it.
        place = np.arange(work.count)
        return (np.maximum.accumulate(work.release * slots - place) + place) // slots
    if slots >= work.count:
        return work.release.copy()
    free = [int(work.release[0])] * slots
    starts = np.empty(work.count, dtype=np.int64)
    for row, (release, windows) in enumerate(zip(work.release.tolist(), work.windows.tolist(), strict=True)):
        start = max(release, free[0])
        heapq.heapreplace(free, start + windows)
        starts[row] = start
    return starts


def at_once(work: Work, slots: IntArray, row: int) -> Ran:
    """Run everything at once in one region."""
    return Ran(np.full(work.count, row, dtype=np.int64), queued(work, int(slots[row])))


def round_robin(work: Work, slots: IntArray) -> Ran:
    """Run everything at once, jobs going round the regions that have slots in turn."""
    able = np.flatnonzero(slots)
    region = able[work.job % len(able)].astype(np.int64)
    start = np.empty(work.count, dtype=np.int64)
    for row in able.tolist():
        mine = np.flatnonzero(region == row)
        start[mine] = queued(work.rows(mine), int(slots[row]))
    return Ran(region, start)

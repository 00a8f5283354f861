"""Put short chunks together so that a lane of a cell is full. Pure arrays.

A *bundle* is what occupies one lane of one cell: one chunk, or several short ones that run one after another. All of
a bundle's deadlines hold if it starts by its own latest start. Seconds are grid seconds from now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from carbonq.plan.demand import Demand, FloatArray, IntArray
from carbonq.plan.solver.lanes import EPSILON_S
from carbonq.units import WINDOW_S

#: Share of a window that bundled chunks may fill by estimate; the rest absorbs the time between chunks.
BUNDLE_FILL = 0.75

#: Deadlines that lie within this ratio of each other (counted from now) may share a bundle, and releases that are apart
#: by no more than that part of the time from release to deadline.
DEADLINE_RATIO = 1.1


@dataclass(frozen=True, slots=True)
class Bundles:
    """``members`` are rows of the demand, bundle after bundle in the order in which they run.

    Bundle ``b`` has ``members[begin[b]:begin[b + 1]]``; ``offset_s`` is when a member starts after its bundle's start.
    ``current`` is the cell (region x windows + window) where all its members are now, -1 without one.
    """

    members: IntArray
    begin: IntArray
    offset_s: FloatArray
    duration_s: FloatArray
    release_s: FloatArray
    latest_s: FloatArray
    current: IntArray

    def __len__(self) -> int:
        """Count the bundles."""
        return len(self.duration_s)

    @property
    def sizes(self) -> IntArray:
        """Count each bundle's members."""
        return np.diff(self.begin)


def is_short(duration_s: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Say which chunks may share a lane: two of them fit."""
    return duration_s * 2 <= BUNDLE_FILL * WINDOW_S


def bundle(demand: Demand, rows: IntArray, hard: IntArray, windows: int, *, is_tight: bool) -> Bundles:
    """Make bundles of the chunks at ``rows``; ``hard`` numbers those that may use the same cells, by kind.

    ``is_tight`` merges whatever may run in the same regions, for when lanes are scarce; otherwise only chunks with
    alike releases and deadlines and the same present placement share a lane, so that nothing loses more than a tenth
    of its choice of windows.
    """
    short = is_short(demand.duration_s[rows])
    alone, few = rows[~short], rows[short]
    cell = np.where(demand.current[:, 1] >= 0, demand.current[:, 0] * windows + demand.current[:, 1], -1)
    release = np.maximum(demand.release_s, 0.0)
    begin = np.zeros(0, dtype=np.int64)
    if len(few):
        keys = [hard[demand.kind[few]]]
        if is_tight:
            keys += [np.ceil(release[few] / WINDOW_S).astype(np.int64)]
        else:
            width = _release_width(release[few], demand.due_s[few])
            begins = np.ceil(release[few] / (width * WINDOW_S)).astype(np.int64)
            keys += [width, begins, _deadline_bucket(demand.due_s[few]), cell[few]]
        # Chunks of like length fill a lane best; where lanes are scarce, those of like deadlines go together.
        order = np.lexsort((few, demand.due_s[few] if is_tight else demand.duration_s[few], *keys))
        few = few[order]
        is_new = np.zeros(len(few), dtype=np.bool_)
        is_new[0] = True
        for key in keys:
            is_new[1:] |= key[order][1:] != key[order][:-1]
        begin = _cut(demand.duration_s[few], is_new)
        of = np.repeat(np.arange(len(begin)), np.diff(np.append(begin, len(few))))
        few = few[np.lexsort((few, demand.due_s[few], of))]
    members = np.concatenate((few, alone))
    begin = np.concatenate((begin, np.arange(len(few), len(members) + 1))).astype(np.int64)
    if not len(members):
        none = np.zeros(0)
        return Bundles(members, begin[-1:], none, none, none, none, np.zeros(0, dtype=np.int64))
    heads = begin[:-1]
    duration = demand.duration_s[members]
    ends = np.cumsum(duration)
    sizes = np.diff(begin)
    before = np.where(np.repeat(sizes, sizes) > 1, ends - duration - np.repeat((ends - duration)[heads], sizes), 0.0)
    places = cell[members]
    low, high = np.minimum.reduceat(places, heads), np.maximum.reduceat(places, heads)
    return Bundles(
        members=members,
        begin=begin,
        offset_s=before,
        duration_s=np.where(sizes > 1, np.add.reduceat(duration, heads), duration[heads]),
        release_s=np.maximum.reduceat(release[members], heads),
        latest_s=np.minimum.reduceat(demand.due_s[members] - duration - before, heads),
        current=np.where(low == high, low, -1),
    )


def _deadline_bucket(due_s: FloatArray) -> IntArray:
    windows = np.maximum(1.0, due_s // WINDOW_S)
    far = 10 + np.floor(np.log(np.maximum(windows, 10) / 10) / math.log(DEADLINE_RATIO))
    return np.where(windows < 10, windows, far).astype(np.int64)


def _release_width(release_s: FloatArray, due_s: FloatArray) -> IntArray:
    """Return how many windows apart releases may lie to share a bundle: a power of 2 up to that part of the slack."""
    part = (DEADLINE_RATIO - 1) * np.maximum(due_s - release_s, 0.0) / WINDOW_S
    return (1 << np.floor(np.log2(np.maximum(part, 1.0))).astype(np.int64)).astype(np.int64)


def _cut(duration_s: FloatArray, is_new: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> IntArray:
    """Return where bundles begin: at each new group, and wherever the next chunk would overfill a lane.

    Each position knows where the bundle after its own would begin if it began one; which positions do begin one is
    found by jumps of 1, 2, 4 ... bundles at once.
    """
    n = len(duration_s)
    ends = np.cumsum(duration_s)
    room = ends - duration_s + BUNDLE_FILL * WINDOW_S + EPSILON_S
    groups = np.append(np.flatnonzero(is_new), n)
    group_end = np.repeat(groups[1:], np.diff(groups))
    jump = np.append(np.minimum(np.searchsorted(ends, room, side="right"), group_end), n)
    begins = np.zeros(n + 1, dtype=np.bool_)
    begins[groups] = True
    while True:
        begins[jump[begins]] = True
        if (jump[begins] == n).all():
            break
        jump = jump[jump]
    return np.flatnonzero(begins[:-1]).astype(np.int64)

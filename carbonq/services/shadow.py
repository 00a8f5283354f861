"""Plan beside what carbonq would have done with chunks that are only observed, in the capacity that others leave.

A shadow moves with each plan like a real placement until its window has come; then it stays. In its world no observed
chunk runs at once: shadows hold the slots instead.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt

from carbonq.model import Signal, Treatment
from carbonq.plan import capacity, planner
from carbonq.plan.demand import Assignment, Terms
from carbonq.plan.outlook import Outlook
from carbonq.plan.planner import Reason
from carbonq.plan.taken import SHARED_UP_TO_S, Held, LongChunk, lanes_taken
from carbonq.services.work import Work
from carbonq.store import shadows as rows
from carbonq.store.database import Tx
from carbonq.store.placements import Placed
from carbonq.store.shadows import RunningShadow
from carbonq.store.waiting import Rows, Waiting
from carbonq.units import WINDOW_S

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shadows:
    """The shadows that may still move, with their chunks, and those that would run now."""

    waiting: Waiting
    running: tuple[RunningShadow, ...]

    def __bool__(self) -> bool:
        """Say whether any may still move."""
        return len(self.waiting) > 0


@dataclass(frozen=True, slots=True)
class Planned:
    """Shadows that are new or move, and the grid seconds that each would hold its slot."""

    placed: Placed = field(default_factory=Placed)
    duration_s: list[float] = field(default_factory=list[float])

    def __len__(self) -> int:
        """Count them."""
        return len(self.placed)


def read(tx: Tx, now: datetime) -> tuple[Rows, tuple[RunningShadow, ...]]:
    """Return the shadows that may still move and those that would run at grid time ``now``."""
    return rows.movable(tx, now), tuple(rows.running(tx, now))


def plan_shadows(
    found: Shadows,
    work: Work,
    outlook: Outlook,
    terms: Terms,
    *,
    planned: tuple[IntArray, IntArray, Assignment],
    held_out: IntArray,
) -> Planned:
    """Return where the observed chunks would go, as far as that is new or differs from where their shadows are.

    ``planned`` are the rows of ``work`` that were planned, those that are about to start, and the assignment of the
    first; ``held_out`` are its rows that run at once in this world, too.
    """
    new = _without_shadow(found, work)
    waiting = found.waiting.join(work.waiting.take(new)) if len(new) else found.waiting
    if not len(waiting):
        return Planned()
    beside = Work(waiting, work.world)
    free = np.arange(len(waiting), dtype=np.int64)
    demand = beside.demand(free, outlook.windows)
    lanes = _capacity(found, work, outlook, planned, held_out)
    made = planner.assign(demand, outlook, lanes, now=work.world.now, terms=terms)
    is_there = (demand.current[:, 0] == made.region) & (demand.current[:, 1] == made.window)
    result = Planned()
    for row in np.flatnonzero((made.window >= 0) & ~is_there).tolist():
        region, window = int(made.region[row]), int(made.window[row])
        rate = outlook.rate(region, window)
        placed = result.placed
        placed.chunk_id.append(waiting.chunk_id[row])
        placed.region.append(outlook.regions[region])
        placed.window_at.append(outlook.window_at(window))
        placed.g_per_kwh.append(rate)
        placed.issued_at.append(None if rate is None else outlook.issued_at[region])
        reason = Reason.LATE if made.late_s[row] > 0 else Reason.OVERLAY if rate is None else Reason.CARBON
        placed.reason.append(reason.value)
        result.duration_s.append(float(waiting.duration_s[row]) * work.world.factor)
    return result


def _without_shadow(found: Shadows, work: Work) -> IntArray:
    """Return the rows of observed chunks that came with this plan."""
    waiting, known = work.waiting, set(found.waiting.chunk_id)
    observed = work.treated(Treatment.OBSERVED)
    rows = [row for row in observed.tolist() if not waiting.is_placed[row] and waiting.chunk_id[row] not in known]
    return np.array(rows, dtype=np.int64)


def write(tx: Tx, plan_id: str, planned: Planned, *, created_at: datetime, signal: Signal) -> None:
    """Store where shadows are; those that ran meanwhile, or that another process made, stay."""
    rows.put(tx, plan_id, planned.placed, planned.duration_s, created_at=created_at, signal=signal)


def _capacity(
    found: Shadows,
    work: Work,
    outlook: Outlook,
    planned: tuple[IntArray, IntArray, Assignment],
    held_out: IntArray,
) -> capacity.Capacity:
    world = work.world
    observed = frozenset(one.chunk_id for one in world.busy if one.treatment == Treatment.OBSERVED.value)
    running: defaultdict[str, list[float]] = defaultdict(list, world.running_s(observed))
    for one in found.running:
        running[one.region].append(one.left_s)
    free, due, made = planned
    lanes = capacity.build(
        world.active,
        now=world.now,
        windows=outlook.windows,
        running_s=running,
        due_s=work.due_s(np.concatenate([held_out, due]), observed),
    )
    held, long = _held(work, free, made, outlook)
    taken = lanes_taken(held, long, lanes.regions, lanes.first_window, outlook.windows)
    return replace(lanes, slots=np.maximum(lanes.slots - taken, 0))


def _held(work: Work, free: IntArray, made: Assignment, outlook: Outlook) -> tuple[list[Held], list[LongChunk]]:
    """Return what the planned chunks take of each cell."""
    seconds = work.waiting.duration_s[free] * work.world.factor
    cell = made.region * outlook.windows + made.window
    is_placed = made.window >= 0
    is_long = is_placed & (seconds > WINDOW_S)
    is_alone = is_placed & ~is_long & (seconds > SHARED_UP_TO_S)
    is_shared = is_placed & ~is_long & ~is_alone
    size = len(outlook.regions) * outlook.windows
    alone = np.bincount(cell[is_alone], minlength=size)
    shared = np.bincount(cell[is_shared], weights=seconds[is_shared], minlength=size)
    held = [
        Held(
            outlook.regions[one // outlook.windows],
            outlook.window_at(one % outlook.windows),
            int(alone[one]),
            float(shared[one]),
        )
        for one in np.flatnonzero((alone > 0) | (shared > 0)).tolist()
    ]
    long = [
        LongChunk(outlook.regions[made.region[row]], outlook.window_at(int(made.window[row])), float(seconds[row]))
        for row in np.flatnonzero(is_long).tolist()
    ]
    return held, long

"""Chunks to place and their placements as objects, and how they become the planner's columns and back. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

import numpy as np

from carbonq.plan.capacity import window_starts
from carbonq.plan.demand import Assignment, Demand, Kind
from carbonq.plan.outlook import Outlook
from carbonq.plan.solver.lanes import EPSILON_S
from carbonq.units import window_index


class Reason(StrEnum):
    """Why a chunk is where it is."""

    CARBON = "carbon"  # the least carbon that all chunks together allow
    DEADLINE = "deadline"  # its deadline left no choice of window
    OVERLAY = "overlay"  # no rate was known there
    LATE = "late"  # it cannot be in time; the earliest that could be had


@dataclass(frozen=True, slots=True)
class ChunkNeed:
    """What the planner has to know of a chunk.

    ``duration_s`` is grid seconds on one slot; ``guard_s`` grid seconds to keep free before the deadline where that is
    possible; ``regions`` None means all; ``current`` is its present placement (region, window start); ``max_g`` caps
    its grams where a deadline allows. ``energy_by_region`` names what it takes on a region's own hardware
    (microjoules; ``energy_uj`` where a region is not named), ``extra_g_by_region`` the grams of transfer and embodied
    carbon there (0 where not named).
    """

    chunk_id: str
    release_at: datetime
    deadline_at: datetime
    duration_s: float
    energy_uj: int
    regions: tuple[str, ...] | None
    model: str
    current: tuple[str, datetime] | None = None
    max_g: Decimal | None = None
    guard_s: float = 0.0
    energy_by_region: tuple[tuple[str, int], ...] = ()
    extra_g_by_region: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """Where a chunk goes; ``g_per_kwh`` and ``issued_at`` are the rate it was based on (None: unknown)."""

    chunk_id: str
    region: str
    window_at: datetime
    g_per_kwh: Decimal | None
    issued_at: datetime | None
    reason: Reason
    lateness_s: float
    moved: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan and how far it may be from the best one.

    ``objective_g`` sums the cost of all chunks that have a place and ``lower_bound_g`` is a proven lower bound on that
    sum for any plan that leaves no more of them late; both None in an overlay. A cell without a rate counts as the
    worst one that is known. ``unplaced`` chunks may run nowhere within the horizon.
    """

    placements: tuple[PlannedChunk, ...]
    unplaced: tuple[str, ...]
    objective_g: float | None
    lower_bound_g: float | None
    is_overlay: bool
    late: int

    @property
    def moved(self) -> int:
        """Count the chunks that leave a placement they had."""
        return sum(placement.moved for placement in self.placements)

    @property
    def gap(self) -> float | None:
        """How far the plan may be from the best, as a share of its cost; None in an overlay."""
        if self.objective_g is None or self.lower_bound_g is None:
            return None
        return (self.objective_g - self.lower_bound_g) / self.objective_g if self.objective_g > 0 else 0.0


#: Lateness below this is the rounding of datetimes.
_ROUNDING_S = 1e-5


def demand_of(needs: Sequence[ChunkNeed], outlook: Outlook, now: datetime, *, has_guard: bool = True) -> Demand:
    """Return chunks as columns; a region that the outlook does not have is no choice for anyone.

    Without ``has_guard`` each chunk may take all the time to its deadline.
    """
    kinds: dict[tuple[object, ...], int] = {}
    made: list[Kind] = []
    rows = {name: row for row, name in enumerate(outlook.regions)}
    index = np.zeros(len(needs), dtype=np.int64)
    current = np.full((len(needs), 2), -1, dtype=np.int64)
    for position, need in enumerate(needs):
        key = (need.regions, need.energy_uj, need.energy_by_region, need.extra_g_by_region, need.max_g)
        found = kinds.get(key)
        if found is None:
            found = kinds[key] = len(made)
            made.append(_kind(need, outlook.regions))
        index[position] = found
        if need.current is not None and need.current[0] in rows:
            window = window_index(need.current[1]) - outlook.first_window
            if 0 <= window < outlook.windows:
                current[position] = rows[need.current[0]], window
    guard = 1.0 if has_guard else 0.0
    return Demand(
        release_s=np.array([(need.release_at - now).total_seconds() for need in needs], dtype=np.float64),
        due_s=np.array(
            [(need.deadline_at - now).total_seconds() - guard * need.guard_s for need in needs], dtype=np.float64
        ),
        duration_s=np.array([max(need.duration_s, 0.0) for need in needs], dtype=np.float64),
        kind=index,
        kinds=tuple(made),
        current=current,
    )


def _kind(need: ChunkNeed, names: Sequence[str]) -> Kind:
    energies, extras = dict(need.energy_by_region), dict(need.extra_g_by_region)
    allowed = names if need.regions is None else need.regions
    return Kind(
        regions=tuple(row for row, name in enumerate(names) if name in allowed),
        energy_uj=tuple(energies.get(name, need.energy_uj) for name in names),
        extra_g=tuple(extras.get(name, 0.0) for name in names),
        max_g=math.inf if need.max_g is None else float(need.max_g),
    )


def plan_of(needs: Sequence[ChunkNeed], demand: Demand, made: Assignment, outlook: Outlook, now: datetime) -> Plan:
    """Return an assignment as a plan; ``demand`` is what it was made of."""
    starts = window_starts(now, outlook.windows)
    first = np.searchsorted(starts, np.maximum(demand.release_s, 0.0) - EPSILON_S)
    last = np.searchsorted(starts, demand.latest_s + EPSILON_S, side="right")
    has_choice = (last - first > 1).tolist()
    windows = [outlook.window_at(window) for window in range(outlook.windows)]
    rates: dict[tuple[int, int], Decimal | None] = {}
    placements: list[PlannedChunk] = []
    late = 0
    for position, (row, window, start_s) in enumerate(
        zip(made.region.tolist(), made.window.tolist(), made.start_s.tolist(), strict=True)
    ):
        if window < 0:
            continue
        need, cell = needs[position], (row, window)
        if cell not in rates:
            rates[cell] = outlook.rate(*cell)
        rate = rates[cell]
        end_at = now + timedelta(seconds=start_s + float(demand.duration_s[position]))
        lateness = max(0.0, (end_at - need.deadline_at).total_seconds())
        lateness = 0.0 if lateness < _ROUNDING_S else lateness
        late += lateness > 0
        if lateness > 0:
            reason = Reason.LATE
        elif rate is None:
            reason = Reason.OVERLAY
        else:
            reason = Reason.CARBON if has_choice[position] else Reason.DEADLINE
        placements.append(
            PlannedChunk(
                chunk_id=need.chunk_id,
                region=outlook.regions[row],
                window_at=windows[window],
                g_per_kwh=rate,
                issued_at=None if rate is None else outlook.issued_at[row],
                reason=reason,
                lateness_s=lateness,
                moved=need.current is not None and need.current != (outlook.regions[row], windows[window]),
            )
        )
    is_overlay = outlook.is_down
    return Plan(
        placements=tuple(placements),
        unplaced=tuple(needs[position].chunk_id for position in np.flatnonzero(made.window < 0).tolist()),
        objective_g=None if is_overlay else made.objective,
        lower_bound_g=None if is_overlay else made.bound,
        is_overlay=is_overlay,
        late=late,
    )

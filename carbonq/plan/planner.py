"""Place every waiting chunk in the cell of least carbon that still meets its deadline. Pure: no clock, no database.

The plan is exact (min-cost flow, ``flow.py``) over bundles of at most a window (``bundles.py``). Chunks longer than a
window are placed first, one by one. If some deadline is missed, tighter packings are tried, and the plan with the
fewest late chunks wins. Without any carbon signal the plan is an *overlay*: as early as possible, nearest region first,
deadlines still first. Costs are energy x PUE x MOER of the impact book; durations are grid seconds on one slot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

import numpy as np

from carbonq.plan.bundles import Bundle, Piece, bundle
from carbonq.plan.capacity import Capacity, window_starts
from carbonq.plan.flow import solve
from carbonq.plan.lanes import EPSILON_S, FloatArray, Lanes, Spot
from carbonq.plan.outlook import Outlook
from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.units import UJ_PER_KWH, WINDOW, WINDOW_S, window_at, window_index


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
    its grams where a deadline allows.
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

    ``objective_g`` sums the grams of all chunks with a known rate and ``lower_bound_g`` is a proven lower bound on that
    sum for any plan; both None in an overlay. ``unplaced`` chunks may run nowhere within the horizon.
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


#: Lateness below this is the rounding of datetimes.
_ROUNDING_S = 1e-5


def plan(
    needs: Sequence[ChunkNeed], outlook: Outlook, capacity: Capacity, *, now: datetime, margin: float = 0.03
) -> Plan:
    """Return the plan of least carbon under slots, releases, deadlines (finished by) and allowed regions.

    As many chunks as can be are in time, whatever the carbon. A chunk with a ``current`` placement moves only for a
    gain of more than ``margin`` of its cost. Same input, same plan.

    Raises ValueError when outlook and capacity are not about the same cells as ``now``.
    """
    if outlook.regions != capacity.regions or outlook.g_per_kwh.shape != capacity.slots.shape:
        raise ValueError("outlook and capacity must cover the same regions and windows")
    if not outlook.first_window == capacity.first_window == window_index(now):
        raise ValueError("outlook and capacity must begin with the window that holds now")
    return _Planner(needs, outlook, capacity, now, margin).plan()


class _Planner:
    def __init__(
        self, needs: Sequence[ChunkNeed], outlook: Outlook, capacity: Capacity, now: datetime, margin: float
    ) -> None:
        self.needs, self.outlook, self.capacity, self.now, self.margin = needs, outlook, capacity, now, margin
        self.starts = window_starts(now, outlook.windows)
        self.left_s = (window_at(outlook.first_window) + WINDOW - now).total_seconds()
        self.rates = outlook.g_per_kwh * outlook.pue[:, None]
        self.is_overlay = outlook.is_down
        by_latency = sorted(range(len(outlook.regions)), key=lambda row: (capacity.latency_ms[row], row))
        self.near = [by_latency.index(row) for row in range(len(outlook.regions))]
        # An unknown rate is never a clean one: it counts as the worst that is known, so that only deadlines lead there.
        self.filled = np.zeros_like(self.rates)
        if not self.is_overlay:
            self.filled = np.where(np.isnan(self.rates), np.nanmax(self.rates), self.rates)
        self.filled = np.maximum(self.filled, 0.0)
        self.rows = {name: row for row, name in enumerate(outlook.regions)}
        self.pieces = [self._piece(need) for need in needs]
        self._cleanest_rates: dict[tuple[tuple[int, ...], int], float] = {}

    def _piece(self, need: ChunkNeed) -> Piece:
        rows = self.rows
        allowed = self.outlook.regions if need.regions is None else need.regions
        max_rate = math.inf
        if need.max_g is not None and need.energy_uj > 0:
            # Three digits, so that the chunks of one job stay alike.
            max_rate = float(f"{float(need.max_g) / (need.energy_uj / UJ_PER_KWH):.2e}")
        current = None
        if need.current is not None and not self.is_overlay and need.current[0] in rows:
            window = window_index(need.current[1]) - self.outlook.first_window
            current = (rows[need.current[0]], window) if 0 <= window < self.outlook.windows else None
        return Piece(
            duration_s=max(need.duration_s, 0.0),
            energy_uj=need.energy_uj,
            release_s=max(0.0, (need.release_at - self.now).total_seconds()),
            due_s=(need.deadline_at - self.now).total_seconds() - need.guard_s,
            regions=tuple(sorted(rows[name] for name in allowed if name in rows)),
            max_rate=max_rate,
            current=current,
        )

    def plan(self) -> Plan:
        best = self._attempt(is_tight=False)
        for attempt in (lambda: self._attempt(is_tight=True), self._serial):
            if not best.late and not best.unplaced:
                break
            other = attempt()
            best = min(best, other, key=_badness)
        return best

    def _lanes(self) -> Lanes:
        return Lanes(self.capacity.slots, self.starts, self.left_s)

    def _attempt(self, *, is_tight: bool) -> Plan:
        """Long chunks one by one, then the flow, then what cannot be in time as early as can be."""
        lanes = self._lanes()
        spots: dict[int, Spot] = {}
        short: list[int] = []
        long: list[int] = []
        for position, piece in enumerate(self.pieces):
            (long if self._is_long(piece) else short).append(position)
        for position in sorted(long, key=lambda position: (self.pieces[position].latest_s, position)):
            self._place(lanes, spots, position, by_carbon=True)
        bundles = bundle(self.pieces, short, is_tight=is_tight)
        solution = solve(bundles, lanes, self.filled, self.near, self.margin)
        rest: list[Bundle] = []
        for one, cell in zip(bundles, solution.cells, strict=True):
            if cell is None:
                rest.append(one)
                continue
            start = float(self.starts[cell[1]])
            lanes.take(Spot(*cell, start), one.duration_s)
            for position in one.members:
                spots[position] = Spot(*cell, start)
                start += self.pieces[position].duration_s
        for one in sorted(rest, key=lambda one: one.latest_s):
            for position in one.members:
                self._place(lanes, spots, position, by_carbon=False)
        is_exact = not long and not rest and all(len(one.members) == 1 for one in bundles)
        return self._finish(spots, solution.bound_g if is_exact else None)

    def _serial(self) -> Plan:
        """Earliest latest start first, each as early as can be."""
        lanes = self._lanes()
        spots: dict[int, Spot] = {}
        for position in sorted(
            range(len(self.pieces)), key=lambda position: (self.pieces[position].latest_s, position)
        ):
            self._place(lanes, spots, position, by_carbon=False)
        return self._finish(spots, None)

    def _is_long(self, piece: Piece) -> bool:
        """Say whether a piece takes more than one cell: longer than a window, or too urgent to wait for the next."""
        if piece.duration_s > WINDOW_S:
            return True
        fits_now = piece.duration_s <= self.left_s + OVERRUN_SHARE * WINDOW_S
        return not fits_now and piece.release_s <= 0 <= piece.latest_s < self.left_s

    def _place(self, lanes: Lanes, spots: dict[int, Spot], position: int, *, by_carbon: bool) -> None:
        piece = self.pieces[position]
        rows = np.zeros(len(self.outlook.regions), dtype=np.bool_)
        rows[list(piece.regions)] = True
        zero = np.zeros_like(self.filled)
        cost = self._mean_rates(piece.duration_s) if by_carbon else zero
        for latest, costs in ((piece.latest_s, cost), (math.inf, zero)):
            spot = lanes.find(
                piece.duration_s,
                rows=rows,
                release_s=piece.release_s,
                latest_s=latest,
                cost=costs,
                may_overrun=self._is_long(piece),
            )
            if spot is not None:
                lanes.take(spot, piece.duration_s)
                spots[position] = spot
                return

    def _mean_rates(self, duration_s: float) -> FloatArray:
        """Return the mean rate over the cells that something touches, for each start; edges repeat the last cell."""
        cells = max(1, math.ceil(duration_s / WINDOW_S))
        padded = np.pad(self.filled, ((0, 0), (0, cells - 1)), mode="edge")
        means: FloatArray = np.lib.stride_tricks.sliding_window_view(padded, cells, axis=1).mean(axis=2)
        return means

    def _finish(self, spots: dict[int, Spot], bound_g: float | None) -> Plan:
        placements: list[PlannedChunk] = []
        objective = bound = 0.0
        late = 0
        for position in sorted(spots):
            need, piece, spot = self.needs[position], self.pieces[position], spots[position]
            region, window_at_ = self.outlook.regions[spot.region], self.outlook.window_at(spot.window)
            rate = self.outlook.rate(spot.region, spot.window)
            end_at = self.now + timedelta(seconds=spot.start_s + piece.duration_s)
            lateness = max(0.0, (end_at - need.deadline_at).total_seconds())
            lateness = 0.0 if lateness < _ROUNDING_S else lateness
            late += lateness > 0
            if rate is not None:
                kwh = need.energy_uj / UJ_PER_KWH
                objective += kwh * float(self.rates[spot.region, spot.window])
                bound += kwh * self._cleanest(piece)
            placements.append(
                PlannedChunk(
                    chunk_id=need.chunk_id,
                    region=region,
                    window_at=window_at_,
                    g_per_kwh=rate,
                    issued_at=None if rate is None else self.outlook.issued_at[spot.region],
                    reason=self._reason(piece, spot, lateness, is_known=rate is not None),
                    lateness_s=lateness,
                    moved=need.current is not None and need.current != (region, window_at_),
                )
            )
        best = bound if bound_g is None else max(bound, bound_g)
        return Plan(
            placements=tuple(placements),
            unplaced=tuple(need.chunk_id for i, need in enumerate(self.needs) if i not in spots),
            objective_g=None if self.is_overlay else objective,
            lower_bound_g=None if self.is_overlay else min(best, objective),
            is_overlay=self.is_overlay,
            late=late,
        )

    def _cleanest(self, piece: Piece) -> float:
        """Return the lowest known rate in any of a piece's regions after its release: no plan can do better."""
        key = (piece.regions, int(np.searchsorted(self.starts, piece.release_s - EPSILON_S)))
        if key not in self._cleanest_rates:
            known = self.rates[list(piece.regions), key[1] :]
            known = known[~np.isnan(known)]
            self._cleanest_rates[key] = float(known.min()) if known.size else 0.0
        return self._cleanest_rates[key]

    def _reason(self, piece: Piece, spot: Spot, lateness: float, *, is_known: bool) -> Reason:
        if lateness > 0:
            return Reason.LATE
        if not is_known:
            return Reason.OVERLAY
        first = np.searchsorted(self.starts, piece.release_s - EPSILON_S)
        last = np.searchsorted(self.starts, piece.latest_s + EPSILON_S, side="right")
        return Reason.CARBON if last - first > 1 else Reason.DEADLINE


def _badness(plan: Plan) -> tuple[int, int, float]:
    """Rank plans: first as much as possible in time, then as little as possible left out, then the grams."""
    return plan.late + len(plan.unplaced), len(plan.unplaced), plan.objective_g or 0.0

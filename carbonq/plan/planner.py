"""Place every waiting chunk in the cell of least carbon that still meets its deadline. Pure: no clock, no database.

The plan is exact (min-cost flow, ``flow.py``) over bundles of at most a window (``bundles.py``). Chunks longer than a
window are placed first, one by one. If some deadline is missed, tighter packings are tried, and the plan with the
fewest late chunks wins. Without any carbon signal the plan is an *overlay*: as early as possible, nearest region first,
deadlines still first. Costs are energy x PUE x MOER of the impact book; durations are grid seconds on one slot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from carbonq.plan.bundles import Bundle, Piece, bundle
from carbonq.plan.capacity import Capacity, window_starts
from carbonq.plan.demand import Assignment, Demand, Kind, Terms
from carbonq.plan.flow import solve
from carbonq.plan.lanes import EPSILON_S, FloatArray, Lanes, Spot
from carbonq.plan.needs import ChunkNeed, Plan, PlannedChunk, Reason, demand_of, plan_of
from carbonq.plan.outlook import Outlook
from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.units import UJ_PER_KWH, WINDOW, WINDOW_S, window_at, window_index

__all__ = ["ChunkNeed", "Plan", "PlannedChunk", "Reason", "assign", "plan"]


def plan(
    needs: Sequence[ChunkNeed],
    outlook: Outlook,
    capacity: Capacity,
    *,
    now: datetime,
    margin: float = 0.03,
    terms: Terms | None = None,
) -> Plan:
    """Return the plan of least carbon under slots, releases, deadlines (finished by) and allowed regions.

    As many chunks as can be are in time, whatever the carbon. A chunk with a ``current`` placement moves only for a
    gain of more than the margin of its cost (``terms`` where given, else ``margin``). Same input, same plan.

    Raises ValueError when outlook and capacity are not about the same cells as ``now``.
    """
    terms = Terms(margin=margin) if terms is None else terms
    demand = demand_of(needs, outlook, now)
    return plan_of(needs, demand, assign(demand, outlook, capacity, now=now, terms=terms), outlook, now)


def assign(
    demand: Demand, outlook: Outlook, capacity: Capacity, *, now: datetime, terms: Terms | None = None
) -> Assignment:
    """Return where each chunk goes: as ``plan``, on columns.

    Raises ValueError when outlook and capacity are not about the same cells as ``now``.
    """
    if outlook.regions != capacity.regions or outlook.g_per_kwh.shape != capacity.slots.shape:
        raise ValueError("outlook and capacity must cover the same regions and windows")
    if not outlook.first_window == capacity.first_window == window_index(now):
        raise ValueError("outlook and capacity must begin with the window that holds now")
    return _Planner(demand, outlook, capacity, now, terms or Terms()).assign()


class _Planner:
    def __init__(self, demand: Demand, outlook: Outlook, capacity: Capacity, now: datetime, terms: Terms) -> None:
        self.demand, self.outlook, self.capacity, self.now = demand, outlook, capacity, now
        self.margin = terms.margin
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
        self.pieces = [self._piece(row, demand.kinds[kind]) for row, kind in enumerate(demand.kind)]

    def _piece(self, row: int, kind: Kind) -> Piece:
        demand = self.demand
        energy = min((kind.energy_uj[region] for region in kind.regions), default=0)
        max_rate = math.inf
        if math.isfinite(kind.max_g) and energy > 0:
            # Three digits, so that the chunks of one job stay alike.
            max_rate = float(f"{kind.max_g / (energy / UJ_PER_KWH):.2e}")
        has_current = demand.current[row, 1] >= 0 and not self.is_overlay
        return Piece(
            duration_s=float(demand.duration_s[row]),
            energy_uj=energy,
            release_s=max(0.0, float(demand.release_s[row])),
            due_s=float(demand.due_s[row]),
            regions=kind.regions,
            max_rate=max_rate,
            current=(int(demand.current[row, 0]), int(demand.current[row, 1])) if has_current else None,
        )

    def assign(self) -> Assignment:
        best = self._attempt(is_tight=False)
        for attempt in (lambda: self._attempt(is_tight=True), self._serial):
            if not best.late and not best.unplaced:
                break
            best = min(best, attempt(), key=lambda made: (made.late + made.unplaced, made.unplaced, made.objective))
        return best

    def _lanes(self) -> Lanes:
        return Lanes(self.capacity.slots, self.starts, self.left_s, self.capacity.freeing_s)

    def _attempt(self, *, is_tight: bool) -> Assignment:
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

    def _serial(self) -> Assignment:
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

    def _finish(self, spots: dict[int, Spot], bound_g: float | None) -> Assignment:
        n = len(self.pieces)
        region, window = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
        start_s, late_s = np.full(n, np.nan), np.zeros(n)
        objective = bound = 0.0
        for position, spot in spots.items():
            piece = self.pieces[position]
            kind = self.demand.kinds[self.demand.kind[position]]
            region[position], window[position], start_s[position] = spot.region, spot.window, spot.start_s
            late_s[position] = max(0.0, spot.start_s + piece.duration_s - piece.due_s)
            kwh = np.array(kind.energy_uj)[:, None] / UJ_PER_KWH
            costs = kwh * self.filled + np.array(kind.extra_g)[:, None]
            objective += float(costs[spot.region, spot.window])
            first = int(np.searchsorted(self.starts, piece.release_s - EPSILON_S))
            bound += float(costs[list(piece.regions), first:].min())
        late_s[late_s < 1e-5] = 0.0
        best = min(objective, bound if bound_g is None else max(bound, bound_g))
        gap = (objective - best) / objective if objective > 0 else 0.0
        if self.is_overlay:
            objective = best = gap = math.nan
        return Assignment(region, window, start_s, late_s, objective, best, gap)

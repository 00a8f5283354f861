"""Rolling plans in simulated time: at each moment with the outlook of that moment, on the slots that are then free.

Several variants (margins, slots, allowed regions) go through the same outlooks in step. A piece that has begun keeps
its slot to its end; one that waits may move at every re-plan. What arrives between two re-plans is placed at once, with
the outlook of the last one, around what is booked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from carbonq.plan.capacity import Capacity
from carbonq.plan.demand import Assignment, Demand, Kind, Terms
from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import HISTORY_DAYS, WINDOWS_A_DAY, FloatArray
from carbonq.plan.outlook import Outlook
from carbonq.plan.planner import assign
from carbonq.plan.solver import costs
from carbonq.replay import newcomers
from carbonq.replay.own_best import own_best
from carbonq.replay.site import Site
from carbonq.replay.walk import Walk
from carbonq.replay.work import Work
from carbonq.units import WINDOW_S, window_at


@dataclass(frozen=True, slots=True)
class Ran:
    """Where and when each piece ran: region row and first window by piece (-1: never), and how often placements moved.

    ``is_exact`` says of a hindsight that it is a proven optimum.
    """

    region: IntArray
    start: IntArray
    moves: int = 0
    plans: int = 0
    is_exact: bool = False


def kinds_of(work: Work, rows: Sequence[int], regions: int) -> tuple[IntArray, tuple[Kind, ...]]:
    """Return the planner's kind of each piece and the kinds: one for each distinct energy, in the allowed rows."""
    energies, index = np.unique(work.energy_uj, return_inverse=True)
    kinds = tuple(Kind(tuple(rows), (energy,) * regions, (0.0,) * regions, math.inf) for energy in energies.tolist())
    return index.astype(np.int64), kinds


class Book:
    """Pieces by column, where they are placed, and which slots are held; ``at`` is a window number."""

    def __init__(self, site: Site, work: Work, *, slots: IntArray | None = None, rows: Sequence[int] | None = None):
        """``slots`` and ``rows`` (regions that may be used) stand in for the site's own."""
        self.site, self.work = site, work
        self.slots = site.slots if slots is None else slots
        self.rows = tuple(range(len(site.regions))) if rows is None else tuple(rows)
        self.kind, self.kinds = kinds_of(work, self.rows, len(site.regions))
        self.region = np.full(work.count, -1, dtype=np.int64)
        self.start = np.full(work.count, -1, dtype=np.int64)
        self.waiting = np.empty(0, dtype=np.int64)
        self.lanes = int(self.slots[list(self.rows)].sum())
        self._width = site.end - site.first
        self.busy = np.zeros((len(site.regions), self._width), dtype=np.int64)

    def spare(self) -> int:
        """Return windows beyond the last deadline in which what is late would still find room."""
        windows = self.work.windows[self.waiting]
        return int(windows.max(initial=1)) + int(windows.sum()) // max(1, self.lanes)

    def assign(self, at: int, chosen: IntArray, outlook: Outlook, terms: Terms) -> Assignment:
        """Plan some pieces at a moment on the slots that are not held."""
        capacity = self._capacity(at, outlook.windows)
        return assign(self._demand(at, chosen), outlook, capacity, now=window_at(at), terms=terms)

    def choosing(self, at: int, outlook: Outlook, terms: Terms) -> FloatArray:
        """Return what the planner chooses by, by ``[region, window]``: the rates, and what a near-tie adds to them."""
        made = costs.build(
            self._demand(at, np.empty(0, dtype=np.int64)), outlook, self._capacity(at, outlook.windows), terms
        )
        return made.rate + made.tie

    def _demand(self, at: int, chosen: IntArray) -> Demand:
        work = self.work
        return Demand(
            release_s=((work.release[chosen] - at) * WINDOW_S).astype(np.float64),
            due_s=((work.due[chosen] - at) * WINDOW_S).astype(np.float64),
            duration_s=(work.windows[chosen] * WINDOW_S).astype(np.float64),
            kind=self.kind[chosen],
            kinds=self.kinds,
            current=self._current(at, chosen),
        )

    def _capacity(self, at: int, windows: int) -> Capacity:
        return Capacity(
            regions=self.site.regions,
            first_window=at,
            slots=np.maximum(self.slots[:, None] - self._held(at, windows), 0),
            latency_ms=tuple(float(row != self.site.home) for row in range(len(self.site.regions))),
        )

    def _current(self, at: int, chosen: IntArray) -> IntArray:
        placed = self.start[chosen] >= at
        column = np.where(placed, self.start[chosen] - at, -1)
        return np.stack((np.where(placed, self.region[chosen], -1), column), axis=1)

    def put(self, at: int, chosen: IntArray, region: IntArray, column: IntArray) -> int:
        """Take a plan over; return how many placements moved. What found no place keeps waiting without one."""
        start = np.where(column >= 0, column + at, -1)
        had = self.start[chosen] >= 0
        moved = had & ((self.start[chosen] != start) | (self.region[chosen] != region))
        self.region[chosen], self.start[chosen] = region, start
        return int(moved.sum())

    def begin(self, until: int) -> None:
        """Start what is placed before a window: it holds its slots from now on."""
        start = self.start[self.waiting]
        begins = (start >= 0) & (start < until)
        chosen = self.waiting[begins]
        if len(chosen):
            end = int((self.start[chosen] + self.work.windows[chosen]).max()) - self.site.first
            if end > self._width:
                self.busy = np.pad(self.busy, ((0, 0), (0, end - self._width + 4096)))
                self._width = self.busy.shape[1]
            base = self.site.first
            low = int(self.start[chosen].min()) - base
            self.busy[:, low:end] += self._taken(chosen, base + low, end - low)
        self.waiting = self.waiting[~begins]

    def _held(self, at: int, windows: int) -> IntArray:
        low = at - self.site.first
        held = np.zeros((len(self.slots), windows), dtype=np.int64)
        part = self.busy[:, low : low + windows]
        held[:, : part.shape[1]] = part
        return held

    def _taken(self, chosen: IntArray, at: int, windows: int) -> IntArray:
        """Return how many slots the placements of some pieces take in the windows from ``at`` on."""
        edges = np.zeros((len(self.slots), windows + 1), dtype=np.int64)
        placed = chosen[self.start[chosen] >= 0]
        low = np.clip(self.start[placed] - at, 0, windows)
        high = np.clip(self.start[placed] + self.work.windows[placed] - at, 0, windows)
        np.add.at(edges, (self.region[placed], low), 1)
        np.add.at(edges, (self.region[placed], high), -1)
        return np.cumsum(edges[:, :-1], axis=1)


class Rolling(Book):
    """One variant of rolling plans: its margin, its slots, its allowed regions."""

    def __init__(
        self,
        site: Site,
        work: Work,
        *,
        margin: float,
        displacement: float = 0.0,
        slots: IntArray | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        super().__init__(site, work, slots=slots, rows=rows)
        self._terms = Terms(margin=margin, displacement=displacement)
        self._moves = self._plans = 0

    def plan(self, at: int, new: IntArray, outlook: Outlook, *, is_whole: bool) -> None:
        """Place what is new around the rest; in a re-plan, or where it finds no room in time, plan all that waits."""
        self.waiting = np.concatenate((self.waiting, new))
        if not is_whole and self._newcomers(at, outlook):
            return
        if not len(self.waiting):
            return
        self._plans += 1
        if not self._own_best(at, outlook):
            made = self.assign(at, self.waiting, outlook, self._terms)
            self._moves += self.put(at, self.waiting, made.region, made.window)

    def _own_best(self, at: int, outlook: Outlook) -> bool:
        """Give everything that waits its own cheapest cell, if that is a plan; False where it is none."""
        chosen, work = self.waiting, self.work
        if outlook.is_down or self._terms.displacement:
            return False
        free = np.maximum(self.slots[:, None] - self._held(at, outlook.windows), 0)
        found = own_best(
            work.due[chosen] - at,
            work.windows[chosen],
            self._current(at, chosen),
            self.choosing(at, outlook, self._terms),
            free,
            rows=self.rows,
            margin=self._terms.margin,
        )
        if found is not None:
            self._moves += self.put(at, chosen, *found)
        return found is not None

    def _newcomers(self, at: int, outlook: Outlook) -> bool:
        """Place what has no place yet around the rest; False where some of it finds no room in time."""
        is_new = self.start[self.waiting] < 0
        chosen = self.waiting[is_new]
        if not len(chosen):
            return True
        held = self._held(at, outlook.windows) + self._taken(self.waiting[~is_new], at, outlook.windows)
        free = np.maximum(self.slots[:, None] - held, 0)
        work = self.work
        region, column = newcomers.place(
            work.due[chosen] - at, work.windows[chosen], self.choosing(at, outlook, self._terms), free, self.rows
        )
        self.region[chosen] = region
        self.start[chosen] = np.where(column >= 0, column + at, -1)
        return bool((column >= 0).all())

    def ran(self) -> Ran:
        """Return where everything ran."""
        return Ran(self.region, self.start, self._moves, self._plans)


def roll(
    variants: Sequence[Rolling], walk: Walk, work: Work, *, every: int, report: Callable[[int], None] | None = None
) -> list[Ran]:
    """Run the work in each variant; re-plan every so many windows, in step with the clock. ``report`` gets windows."""
    at = int(work.release[0]) if work.count else 0
    at -= at % every
    outlook: Outlook | None = None
    arrived = 0
    while arrived < work.count or any(len(one.waiting) for one in variants):
        upto = int(np.searchsorted(work.release, at, side="right"))
        new = np.arange(arrived, upto)
        is_whole = at % every == 0
        if is_whole or outlook is None:
            # What has come, and what comes before the next re-plan, has to find all its windows in this outlook.
            soon = slice(arrived, int(np.searchsorted(work.release, at + every, side="right")))
            spare = max(one.spare() for one in variants) + int(work.windows[soon].sum() // _fewest(variants))
            spare += int(work.windows[soon].max(initial=1))
            latest = max(int(work.due[one.waiting].max(initial=at)) for one in variants)
            outlook = walk.outlook(at, max(latest, int(work.due[soon].max(initial=at))) - at + spare + every)
        else:
            outlook = _from(outlook, at)
        arrived = upto
        for one in variants:
            one.plan(at, new, outlook, is_whole=is_whole)
        following = at - at % every + every
        if arrived < work.count:
            following = min(following, int(work.release[arrived]))
        for one in variants:
            one.begin(following)
        if report is not None:
            report(following)
        if arrived < work.count and not any(len(one.waiting) for one in variants):
            # Nothing is there for long: what is learned within two weeks before the next arrival is what counts then.
            following = max(following, int(work.release[arrived]) - HISTORY_DAYS * WINDOWS_A_DAY)
        at = following
    return [one.ran() for one in variants]


def _fewest(variants: Sequence[Rolling]) -> int:
    return max(1, min(one.lanes for one in variants))


def _from(outlook: Outlook, at: int) -> Outlook:
    """Return the rest of an outlook from a later window on."""
    gone = at - outlook.first_window
    return replace(
        outlook,
        first_window=at,
        g_per_kwh=outlook.g_per_kwh[:, gone:],
        basis=outlook.basis[:, gone:],
        spread=outlook.spread[:, gone:],
        parts=outlook.parts[:, gone:],
    )

"""Turn the chunks that wait into what the planner takes: which are about to start, which run at once, which are free.

Columns throughout, and one object for each group of chunks alike: there may be 100,000 chunks.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from carbonq import estimate
from carbonq.model import Model, Region, RegionState, Throughput, Treatment
from carbonq.plan import hardware, policy
from carbonq.plan.demand import Demand, Kind
from carbonq.store.placements import Busy
from carbonq.store.waiting import Waiting
from carbonq.units import WINDOW, WINDOW_S

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class World:
    """What is known beside the chunks. ``backoffs`` are machine seconds by chunk, ``caps`` grams.

    ``is_expected_wanted``: budgets, or targets, ask what placed work is expected to emit.
    """

    now: datetime
    factor: float
    regions: Sequence[Region]
    models: Mapping[str, Model]
    learned: Mapping[tuple[str, str], Throughput]
    busy: Sequence[Busy]
    backoffs: Mapping[str, float]
    caps: Mapping[str, Decimal]
    is_expected_wanted: bool = False

    @property
    def active(self) -> list[Region]:
        """The regions that take new work, whether a worker is there now or not."""
        return [region for region in self.regions if region.state is RegionState.ACTIVE]

    def running_s(self, without: frozenset[str] = frozenset()) -> dict[str, list[float]]:
        """Return the grid seconds that running chunks still need, by region, but for some chunks."""
        left: defaultdict[str, list[float]] = defaultdict(list)
        for one in self.busy:
            if one.elapsed_s is not None and one.chunk_id not in without:
                # An overdue chunk is taken to need another tenth of its estimate, never nothing.
                still = max(one.est_duration_s - one.elapsed_s, one.est_duration_s / 10)
                left[one.region].append(still * self.factor)
        return left

    def tickets_s(self, without: frozenset[str] = frozenset()) -> dict[str, list[float]]:
        """Return the grid seconds of the chunks that have a ticket out, by region."""
        ahead: defaultdict[str, list[float]] = defaultdict(list)
        for one in self.busy:
            if one.elapsed_s is None and one.chunk_id not in without:
                ahead[one.region].append(one.est_duration_s * self.factor)
        return ahead


@dataclass(frozen=True, slots=True)
class Group:
    """Chunks alike in model, allowed regions and home: where they may run, and how far their estimates are trusted."""

    model: str
    allowed: tuple[str, ...] | None
    home: str
    names: tuple[str, ...]
    margin: float


class Work:
    """The chunks that wait, with what the world makes of them."""

    def __init__(self, waiting: Waiting, world: World) -> None:
        """Group them, and set each one's guard and latest safe start."""
        self.waiting, self.world = waiting, world
        index: dict[tuple[str, str | None, str], int] = {}
        keys = zip(waiting.model, waiting.regions, waiting.home, strict=True)
        self.group: IntArray = np.fromiter((index.setdefault(key, len(index)) for key in keys), np.int64, len(waiting))
        self.groups = [_group(world, *key) for key in index]
        margins = np.array([group.margin for group in self.groups], dtype=np.float64)[self.group]
        self.guard_s: FloatArray = policy.guard_s(waiting.duration_s, world.factor, margins)
        self.latest_s: FloatArray = waiting.deadline_s - waiting.duration_s * world.factor - self.guard_s
        self.now_s = world.now.timestamp()
        self._treatments = set(waiting.treatment)

    def at_once(self) -> IntArray:
        """Return the rows that run at once in their home region, in the order they came."""
        rows = np.concatenate([self.treated(Treatment.OBSERVED), self.treated(Treatment.HELD_OUT)])
        return rows[np.lexsort((rows, self.waiting.release_s[rows]))]

    def treated(self, treatment: Treatment) -> IntArray:
        """Return the rows of one treatment."""
        if treatment.value not in self._treatments:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero([one == treatment.value for one in self.waiting.treatment])

    def split(self, at_once: IntArray) -> tuple[IntArray, IntArray]:
        """Part the other rows into those that are about to start where they are, and those to be planned.

        A placed chunk whose window has come waits only for the next free slot of its region. It stays there, unless
        that is more than a window or its latest safe start away, or the region went away.
        """
        waiting, world = self.waiting, self.world
        is_mine = np.ones(len(waiting), dtype=np.bool_)
        is_mine[at_once] = False
        has_come = is_mine & waiting.is_placed & (waiting.window >= 0) & (waiting.window * WINDOW_S <= self.now_s)
        lanes = self._lanes(at_once)
        regions = {region.name: region for region in world.regions}
        due: list[int] = []
        # In the order in which the dispatcher takes them.
        pressing = np.where(np.isnan(waiting.latest_s), waiting.deadline_s, waiting.latest_s)
        candidates = np.flatnonzero(has_come)
        for row in candidates[np.lexsort((candidates, pressing[candidates]))].tolist():
            region = regions.get(waiting.region[row] or "")
            if region is None or not policy.may_start(region, waiting.model[row]) or not lanes[region.name]:
                continue
            wait = lanes[region.name][0]
            is_late = 0 < wait > pressing[row] - self.now_s
            if wait > WINDOW_S or is_late or waiting.chunk_id[row] in world.backoffs:
                continue
            heapq.heapreplace(lanes[region.name], wait + float(waiting.duration_s[row]) * world.factor)
            due.append(row)
        is_mine[due] = False
        return np.array(due, dtype=np.int64), np.flatnonzero(is_mine)

    def _lanes(self, at_once: IntArray) -> dict[str, list[float]]:
        """Return when each region's lanes are free, in grid seconds: after what runs, has a ticket, or goes at once."""
        world = self.world
        running, ahead = world.running_s(), self.due_s(at_once)
        lanes: dict[str, list[float]] = {}
        for region in world.regions:
            busy = running.get(region.name, [])
            slots = region.least_slots(world.now, world.now + WINDOW)
            found = [0.0] * max(0, slots - len(busy)) + busy[: max(0, slots)]
            heapq.heapify(found)
            for seconds in ahead.get(region.name, ()) if found else ():
                heapq.heapreplace(found, found[0] + seconds)
            lanes[region.name] = found
        return lanes

    def due_s(self, rows: IntArray, without: frozenset[str] = frozenset()) -> dict[str, list[float]]:
        """Return the grid seconds of what takes the next free slots, by region: tickets first, then some rows."""
        ahead = self.world.tickets_s(without)
        for row in rows.tolist():
            name = self.waiting.region[row]
            if name is not None:
                ahead.setdefault(name, []).append(float(self.waiting.duration_s[row]) * self.world.factor)
        return ahead

    def demand(self, rows: IntArray, windows: int, *, is_new: bool = False) -> Demand:
        """Return some rows as the planner takes them; ``is_new`` leaves out where they are now.

        Energies and sizes are rounded to three digits, so that chunks of a job are few kinds.
        """
        waiting, world = self.waiting, self.world
        names = [region.name for region in world.active]
        kinds: dict[tuple[int, int, int, Decimal | None], int] = {}
        made: list[Kind] = []
        kind = np.empty(len(rows), dtype=np.int64)
        ids, caps = waiting.chunk_id, world.caps
        columns = zip(
            rows.tolist(),
            self.group[rows].tolist(),
            waiting.tokens[rows].tolist(),
            waiting.energy_uj[rows].tolist(),
            strict=True,
        )
        rounded: dict[int, int] = {}
        for position, (row, group, tokens, energy) in enumerate(columns):
            size = rounded.get(tokens)
            if size is None:
                size = rounded[tokens] = hardware.round_to_digits(tokens)
            joules = rounded.get(energy)
            if joules is None:
                joules = rounded[energy] = hardware.round_to_digits(energy)
            key = (group, size, joules, caps.get(ids[row]) if caps else None)
            found = kinds.get(key)
            if found is None:
                found = kinds[key] = len(made)
                made.append(self._kind(key, float(waiting.duration_s[row])))
            kind[position] = found
        release_s = waiting.release_s[rows] - self.now_s
        due_s = waiting.deadline_s[rows] - self.now_s - self.guard_s[rows]
        if world.backoffs:
            waits = np.array([world.backoffs.get(ids[row], 0.0) for row in rows.tolist()]) * world.factor
            # One that is over within the running window need not wait for the next: the dispatcher waits for it.
            is_over_soon = waits < WINDOW_S - self.now_s % WINDOW_S
            release_s = np.maximum(release_s, np.where(is_over_soon, 0.0, waits))
            due_s = due_s - np.where(is_over_soon, waits, 0.0)
        return Demand(
            release_s=release_s,
            due_s=due_s,
            duration_s=(waiting.duration_s[rows] + policy.TURNOVER_S) * world.factor,
            kind=kind,
            kinds=tuple(made),
            current=np.full((len(rows), 2), -1, dtype=np.int64) if is_new else self._current(rows, names, windows),
        )

    def _current(self, rows: IntArray, names: Sequence[str], windows: int) -> IntArray:
        row_of: dict[str | None, int] = {name: row for row, name in enumerate(names)}
        region = np.array([row_of.get(self.waiting.region[row], -1) for row in rows.tolist()], dtype=np.int64)
        window = self.waiting.window[rows] - int(self.now_s // WINDOW_S)
        is_there = self.waiting.is_placed[rows] & (region >= 0) & (window >= 0) & (window < windows)
        current = np.stack([region, window], axis=1)
        current[~is_there] = -1
        return current

    def _kind(self, key: tuple[int, int, int, Decimal | None], duration_s: float) -> Kind:
        number, tokens, energy, cap = key
        group, active, learned = self.groups[number], self.world.active, self.world.learned
        model = self.world.models.get(group.model)
        return Kind(
            regions=tuple(row for row, region in enumerate(active) if region.name in group.names),
            energy_uj=tuple(hardware.energy_uj(tokens, energy, region, model, learned) for region in active),
            extra_g=tuple(
                hardware.extra_g(tokens, duration_s, region, model, learned, home=group.home) for region in active
            ),
            max_g=float("inf") if cap is None else float(cap),
        )


def _group(world: World, model: str, regions: str | None, home: str) -> Group:
    allowed = None if regions is None else tuple(json.loads(regions))
    serving = estimate.allowed_regions(world.regions, allowed, model)
    open_now = [region for region in serving if region.state is RegionState.ACTIVE]
    # With no worker anywhere (everything is just starting) a plan is still better than none.
    usable = [region.name for region in open_now if region.is_healthy] or [region.name for region in open_now]
    margin = policy.duration_margin(model, [region.hardware for region in serving], world.learned)
    return Group(model, allowed, home, tuple(usable), margin)

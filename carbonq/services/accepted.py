"""Say at submit how much of a job cannot be in time beside the work that was accepted before it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from carbonq import estimate
from carbonq.model import Model, Region, RegionState, Throughput
from carbonq.plan import capacity, policy, room
from carbonq.plan.room import Load
from carbonq.store import loads, placements
from carbonq.store.database import Tx
from carbonq.units import WINDOW_S, iso, window_at, window_index

#: The longest look ahead in windows: a week, like the planner's; later deadlines count as a week away.
HORIZON = 2016

#: Jobs like the asked one for which room is asked at once.
GRANTED = 256


@dataclass(frozen=True, slots=True)
class Asked:
    """A job as far as its time goes; ``chunk_s`` is machine seconds of its longest chunk."""

    model: Model
    regions: Sequence[str] | None
    tokens: int
    chunk_s: float
    deadline_at: datetime


@dataclass(slots=True)
class _Grant:
    """Room that is there for jobs alike in where they may run and when they are due, and what of it is used.

    ``due_s`` is the latest of theirs. ``may_grow`` False: there is no room for many more.
    """

    due_s: float = 0.0

    work_s: float = 0.0
    used_s: float = 0.0
    may_grow: bool = True


class Fleet:
    """The regions that take new work, and how fast each model runs there; ``factor`` is grid for machine seconds."""

    def __init__(
        self,
        regions: Sequence[Region],
        models: Mapping[str, Model],
        learned: Mapping[tuple[str, str], Throughput],
        *,
        now: datetime,
        factor: float,
    ) -> None:
        """Take regions as they are now; one without a worker counts, for it may only be starting."""
        self.active = [region for region in regions if region.state is RegionState.ACTIVE]
        self.now, self.factor = now, factor
        self._models, self._learned = models, learned
        self._places: dict[tuple[str, tuple[str, ...] | None], tuple[tuple[int, ...], float, float]] = {}

    def load(
        self, model: str, allowed: tuple[str, ...] | None, deadline_at: datetime, *, chunk_s: float, tokens: int
    ) -> Load:
        """Return what some tokens are on the fastest hardware they may use, due when the guard is taken off."""
        key = (model, allowed)
        if key not in self._places:
            self._places[key] = self._place(model, allowed)
        rows, margin, tokens_per_s = self._places[key]
        left_s = (deadline_at - self.now).total_seconds() - policy.guard_s(chunk_s, self.factor, margin)
        return Load(rows, left_s, estimate.duration_s(tokens, tokens_per_s) * self.factor)

    def _place(self, name: str, allowed: tuple[str, ...] | None) -> tuple[tuple[int, ...], float, float]:
        usable = estimate.allowed_regions(self.active, allowed, name)
        rows = tuple(row for row, region in enumerate(self.active) if region in usable)
        margin = policy.duration_margin(name, [region.hardware for region in usable], self._learned)
        model = self._models.get(name)
        rates = [estimate.speed(model, one.hardware, self._learned).tokens_per_s for one in usable] if model else []
        return rows, margin, max(rates, default=1.0)


class Picture:
    """What was accepted at one moment, with what was asked of it since. Without the database, not thread-safe.

    Most of what is asked fits by far, and a maximum flow for each would cost more than storing a small job. So room for
    many alike is asked for at once (a *grant*), and small jobs are taken out of it; only where no grant is to be had is
    each asked for by itself.
    """

    def __init__(self, tx: Tx, fleet: Fleet, *, granted: int = GRANTED) -> None:
        """Look at all that waits and runs; a grant is for ``granted`` jobs (1: none). Raises StoreUnavailable."""
        self.fleet = fleet
        self._granted = granted
        self._accepted = _accepted(tx, fleet)
        self._running: defaultdict[str, list[float]] = defaultdict(list)
        for one in placements.busy(tx):
            left_s = one.est_duration_s if one.elapsed_s is None else max(one.est_duration_s - one.elapsed_s, 0.0)
            self._running[one.region].append(left_s * fleet.factor)
        self._left_s = (window_at(window_index(fleet.now) + 1) - fleet.now).total_seconds()
        self._grants: dict[tuple[tuple[int, ...], int], _Grant] = {}
        self._free: dict[int, npt.NDArray[np.float64]] = {}

    def shortage(self, asked: Asked) -> str | None:
        """Return a sentence on what of a job cannot be in time; None if all of it can. It counts as accepted then."""
        allowed = None if asked.regions is None else tuple(asked.regions)
        mine = self.fleet.load(asked.model.name, allowed, asked.deadline_at, chunk_s=asked.chunk_s, tokens=asked.tokens)
        if not mine.regions:
            return None
        key = (mine.regions, int(mine.due_s // WINDOW_S))
        grant = self._grants.setdefault(key, _Grant())
        grant.due_s = max(grant.due_s, mine.due_s)
        if grant.used_s + mine.work_s > grant.work_s and grant.may_grow:
            self._grow(grant, key, mine)
        fits = grant.used_s + mine.work_s <= grant.work_s
        sentence = None if fits else self._sentence(asked, mine)
        grant.used_s += mine.work_s
        return sentence

    def _grow(self, grant: _Grant, key: tuple[tuple[int, ...], int], mine: Load) -> None:
        """Ask for room for many jobs like this one, due when its window begins: too early is on the safe side."""
        grant.may_grow = self._granted > 1 and key[1] > 0
        if not grant.may_grow:
            return
        block = Load(key[0], key[1] * WINDOW_S, self._granted * mine.work_s)
        grant.may_grow = self._share(block, self._others(lambda one: max(one.work_s, one.used_s))) >= 1
        if grant.may_grow:
            grant.work_s = max(grant.work_s, grant.used_s) + block.work_s

    def _others(self, size: Callable[[_Grant], float]) -> list[Load]:
        asked = [Load(rows, one.due_s, size(one)) for (rows, _), one in self._grants.items() if size(one) > 0]
        return [*self._accepted, *asked]

    def _share(self, mine: Load, others: Sequence[Load]) -> float:
        last_s = max(one.due_s for one in [mine, *others])
        windows = min(HORIZON, max(2, int(last_s // WINDOW_S) + 2))
        return room.share_in_time(mine, others, self._seconds(windows), self._left_s)

    def _sentence(self, asked: Asked, mine: Load) -> str | None:
        others = self._others(lambda one: one.used_s)
        share = self._share(mine, others)
        if share >= 1:
            return None
        now = self.fleet.now
        by_s = room.all_in_time_s(mine, others, self._seconds(HORIZON), self._left_s)
        guard_s = (asked.deadline_at - now).total_seconds() - mine.due_s
        rest = "the rest not within a week" if by_s is None else f"all of it by about {_when(now, by_s + guard_s)}"
        late_pct = math.ceil(100 * (1 - share))
        return (
            f"beside the work already accepted about {late_pct} % of this job cannot be in time; {rest} "
            f"({guard_s:.0f} s are kept free before a deadline for delays and wrong estimates)"
        )

    def _seconds(self, windows: int) -> npt.NDArray[np.float64]:
        found = self._free.get(windows)
        if found is None:
            free = capacity.build(
                self.fleet.active, now=self.fleet.now, windows=windows, running_s=self._running, due_s={}
            )
            found = self._free[windows] = room.slot_seconds(free, self._left_s)
        return found


def shortage(tx: Tx, fleet: Fleet, asked: Asked) -> str | None:
    """Return a sentence on what of a job cannot be in time; None if all of it can, as far as can be told.

    Raises StoreUnavailable.
    """
    return Picture(tx, fleet, granted=1).shortage(asked)


def _when(now: datetime, seconds: float) -> str:
    return iso((now + timedelta(seconds=seconds)).replace(microsecond=0))


def _accepted(tx: Tx, fleet: Fleet) -> list[Load]:
    """Return what waits, by class: chunks with no ticket out, and jobs that are not cut yet. Late work is left out."""
    sums: defaultdict[tuple[tuple[int, ...], int], float] = defaultdict(float)
    names: dict[str | None, tuple[str, ...] | None] = {None: None}
    for one in loads.open_work(tx):
        if one.regions not in names:
            names[one.regions] = tuple(json.loads(one.regions or "[]"))
        chunk_s = one.duration_s / max(one.chunks, 1)
        made = fleet.load(one.model, names[one.regions], one.deadline_at, chunk_s=chunk_s, tokens=one.tokens)
        if made.regions and made.due_s > 0:
            work_s = one.duration_s * fleet.factor if one.chunks else made.work_s
            sums[made.regions, int(made.due_s // WINDOW_S)] += work_s
    return [Load(rows, window * WINDOW_S, work_s) for (rows, window), work_s in sums.items()]

"""Say at submit how much of a job cannot be in time beside the work that was accepted before it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A job as far as its time goes; ``chunk_s`` is machine seconds of its longest chunk."""

    model: Model
    regions: Sequence[str] | None
    tokens: int
    chunk_s: float
    deadline_at: datetime


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


def shortage(tx: Tx, fleet: Fleet, asked: Asked) -> str | None:
    """Return a sentence on what of a job cannot be in time; None if all of it can, as far as can be told.

    Raises StoreUnavailable.
    """
    allowed = None if asked.regions is None else tuple(asked.regions)
    mine = fleet.load(asked.model.name, allowed, asked.deadline_at, chunk_s=asked.chunk_s, tokens=asked.tokens)
    if not mine.regions:
        return None
    now, others = fleet.now, _accepted(tx, fleet)
    running: defaultdict[str, list[float]] = defaultdict(list)
    for one in placements.busy(tx):
        left_s = one.est_duration_s if one.elapsed_s is None else max(one.est_duration_s - one.elapsed_s, 0.0)
        running[one.region].append(left_s * fleet.factor)
    left_s = (window_at(window_index(now) + 1) - now).total_seconds()

    def seconds(windows: int) -> npt.NDArray[np.float64]:
        free = capacity.build(fleet.active, now=now, windows=windows, running_s=running, due_s={})
        return room.slot_seconds(free, left_s)

    last_s = max(one.due_s for one in [mine, *others])
    share = room.share_in_time(mine, others, seconds(min(HORIZON, max(2, int(last_s // WINDOW_S) + 2))), left_s)
    if share >= 1:
        return None
    by_s = room.all_in_time_s(mine, others, seconds(HORIZON), left_s)
    guard_s = (asked.deadline_at - now).total_seconds() - mine.due_s
    rest = "the rest not within a week" if by_s is None else f"all of it by about {_when(now, by_s + guard_s)}"
    late_pct = math.ceil(100 * (1 - share))
    return (
        f"beside the work already accepted about {late_pct} % of this job cannot be in time; {rest} "
        f"({guard_s:.0f} s are kept free before a deadline for delays and wrong estimates)"
    )


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

"""Replay a day on a recorded grid: what planning with the forecasts *as issued* would really have saved. Pure.

Every row runs the same chunks with the same energy on the same slots, and is judged by what was observed afterwards.
No machine ran for it: chunks are of one window, and a replay is always to be shown as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from carbonq.model import Region
from carbonq.plan import outlook
from carbonq.plan.capacity import Capacity
from carbonq.plan.forecaster import FloatArray, Series
from carbonq.plan.outlook import Outlook, ZoneData
from carbonq.plan.planner import ChunkNeed, plan
from carbonq.units import UJ_PER_KWH, WINDOW, WINDOW_S, window_at, window_index

#: Share of a window that a replayed chunk takes.
_FILL = 0.6


class Way(StrEnum):
    """A way to run the day's work, from none of carbonq to the limit of the possible."""

    AT_ONCE = "at once, at home"
    BEST_REGION = "at once, best single region"
    BEST_TIME = "best time at home, with hindsight"
    PLANNED = "planned, forecasts as issued"
    PERFECT = "best time and region, with hindsight"


@dataclass(frozen=True, slots=True)
class Work:
    """``count`` chunks of ``energy_uj`` each that arrive with a window and must be done ``slack`` windows later."""

    window: int
    count: int
    slack: int
    energy_uj: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded grid as a replay needs it: what was observed, and what had been foretold when.

    ``issued(zone, window)`` is the newest forecast at the start of that window, None if there was none.
    """

    observed: dict[str, Series]
    issued: Callable[[str, int], Series | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One way's grams (impact book), and how many chunks were late."""

    way: Way
    grams: float
    late: int


def replay(
    recorded: Recorded,
    regions: Sequence[Region],
    home: str,
    work: Sequence[Work],
    *,
    every: int = 3,
    margin: float = 0.03,
) -> list[Row]:
    """Run the work in each way; ``every`` is how often the planned way plans anew, in windows.

    Raises ValueError when the recording does not reach from the first arrival to the last deadline.
    """
    return _Replay(recorded, regions, home, work, every=every, margin=margin).rows()


class _Replay:
    def __init__(
        self,
        recorded: Recorded,
        regions: Sequence[Region],
        home: str,
        work: Sequence[Work],
        *,
        every: int,
        margin: float,
    ) -> None:
        self.recorded, self.regions, self.every, self.margin = recorded, list(regions), every, margin
        self.home = next(row for row, region in enumerate(self.regions) if region.name == home)
        self.first = min(one.window for one in work)
        self.windows = max(one.window + one.slack for one in work) - self.first
        self.actual = self._columns(self.first, self.windows)
        if np.isnan(self.actual).any():
            raise ValueError("the recording does not cover all windows from the first arrival to the last deadline")
        self.pue = np.array([float(region.pue) for region in self.regions])
        self.needs = [
            ChunkNeed(
                chunk_id=f"{number:04d}.{copy:04d}",
                release_at=window_at(one.window),
                deadline_at=window_at(one.window + one.slack),
                duration_s=_FILL * WINDOW_S,
                energy_uj=one.energy_uj,
                regions=None,
                model="",
            )
            for number, one in enumerate(sorted(work, key=lambda one: one.window))
            for copy in range(one.count)
        ]

    def rows(self) -> list[Row]:
        at_once = [self._at_once(row) for row in range(len(self.regions))]
        best = min(at_once, key=lambda found: found[0])
        return [
            Row(Way.AT_ONCE, *at_once[self.home]),
            Row(Way.BEST_REGION, *best),
            Row(Way.BEST_TIME, *self._hindsight([self.regions[self.home]])),
            Row(Way.PLANNED, *self._planned()),
            Row(Way.PERFECT, *self._hindsight(self.regions)),
        ]

    def _columns(self, first: int, windows: int) -> FloatArray:
        wanted = np.arange(first, first + windows, dtype=np.int64)
        return np.array([self.recorded.observed[region.zone].at(wanted) for region in self.regions])

    def _grams(self, need: ChunkNeed, region: int, window: int) -> float:
        return need.energy_uj / UJ_PER_KWH * float(self.pue[region] * self.actual[region, window - self.first])

    def _at_once(self, region: int) -> tuple[float, int]:
        """First come, first served on one region's slots; what finds no room counts the last recorded window."""
        free = np.full(self.windows, self.regions[region].slots)
        grams, late = 0.0, 0
        for need in self.needs:
            start = window_index(need.release_at) - self.first
            room = np.flatnonzero(free[start:] > 0)
            window = start + int(room[0]) if len(room) else self.windows - 1
            free[window] -= 1
            late += not len(room) or window_at(self.first + window + 1) > need.deadline_at
            grams += self._grams(need, region, self.first + window)
        return grams, late

    def _hindsight(self, regions: Sequence[Region]) -> tuple[float, int]:
        """The exact optimum for one who knows the whole day beforehand."""
        rows = [self.regions.index(region) for region in regions]
        known = Outlook(
            regions=tuple(region.name for region in regions),
            first_window=self.first,
            g_per_kwh=self.actual[rows],
            basis=np.ones((len(rows), self.windows), dtype=np.int8),
            issued_at=tuple(None for _ in rows),
            pue=self.pue[rows],
        )
        made = plan(self.needs, known, self._capacity(regions, self.first, self.windows), now=window_at(self.first))
        return made.objective_g or 0.0, made.late + len(made.unplaced)

    def _planned(self) -> tuple[float, int]:
        """Window by window with what was known then; a chunk runs when its window has come."""
        names = [region.name for region in self.regions]
        waiting: dict[str, ChunkNeed] = {}
        arrivals = list(self.needs)
        grams, late = 0.0, 0
        for window in range(self.first, self.first + self.windows):
            new = 0
            while arrivals and window_index(arrivals[0].release_at) <= window:
                need = arrivals.pop(0)
                waiting[need.chunk_id] = need
                new += 1
            if not waiting:
                continue
            if new or (window - self.first) % self.every == 0:
                horizon = max(window_index(need.deadline_at) for need in waiting.values()) - window + len(waiting)
                made = plan(
                    list(waiting.values()),
                    self._outlook(window, horizon),
                    self._capacity(self.regions, window, horizon),
                    now=window_at(window),
                    margin=self.margin,
                )
                for placed in made.placements:
                    current = (placed.region, placed.window_at)
                    waiting[placed.chunk_id] = replace(waiting[placed.chunk_id], current=current)
            for name, need in list(waiting.items()):
                if need.current is not None and need.current[1] <= window_at(window):
                    grams += self._grams(need, names.index(need.current[0]), window)
                    late += window_at(window) + _FILL * WINDOW > need.deadline_at
                    del waiting[name]
        return grams, late + len(waiting)

    def _outlook(self, window: int, horizon: int) -> Outlook:
        zones: dict[str, ZoneData] = {}
        for zone, series in self.recorded.observed.items():
            known = series.values[: max(0, window - series.first_window)]
            issued = self.recorded.issued(zone, window)
            history = Series(series.first_window, known)
            zones[zone] = ZoneData(history=history) if issued is None else ZoneData(issued, window_at(window), history)
        return outlook.build(self.regions, zones, window_at(window), horizon)

    @staticmethod
    def _capacity(regions: Sequence[Region], first: int, windows: int) -> Capacity:
        return Capacity(
            regions=tuple(region.name for region in regions),
            first_window=first,
            slots=np.array([[region.slots] * windows for region in regions]),
            latency_ms=tuple(region.latency_ms for region in regions),
        )

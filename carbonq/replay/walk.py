"""The outlook as it would have been at each moment of a recording: nothing in it is known from later.

A moment knows the forecasts issued by then and the values whose whole step was over, and published, by then. What an
outlook was made of is kept until the truth is in and learned then, once a day, as the learning tick of an installation
does (docs/planning.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from carbonq.model import Region
from carbonq.plan import outlook
from carbonq.plan.blend import MAX_LEAD, Pairs, Skill, bucket_of, learn
from carbonq.plan.evidence import ISSUE_AGES, Evidence, IntArray
from carbonq.plan.forecaster import EMPTY, HISTORY_DAYS, WINDOWS_A_DAY, Series
from carbonq.plan.outlook import Outlook, ZoneData
from carbonq.replay.grids import Grid, Issued
from carbonq.units import window_at

#: Leads (windows) from which a bucket gives one pair a moment: far ahead, neighbours say the same.
_FAR = 37


@dataclass(slots=True)
class _Zone:
    """One zone as it is walked through."""

    observed: Series
    issued: Issued | None
    step: int
    delay: int
    skill: Skill = field(default_factory=Skill)
    waiting: list[Pairs] = field(default_factory=list[Pairs])
    windows: list[IntArray] = field(default_factory=list[IntArray])
    told: dict[int, Series] = field(default_factory=dict[int, Series])

    def known_until(self, window: int) -> int:
        """Return the window up to which values are out at a moment: those of steps that were over ``delay`` ago."""
        end = window - self.delay
        return end - end % self.step

    def issue(self, window: int) -> Series:
        if self.issued is None:
            return EMPTY
        place = int(np.searchsorted(self.issued.origins, window, side="right")) - 1
        if place < 0:
            return EMPTY
        if place not in self.told:
            if len(self.told) > 2 * WINDOWS_A_DAY:
                self.told.clear()
            self.told[place] = self.issued.at(window) or EMPTY
        return self.told[place]

    def data(self, window: int) -> ZoneData:
        end = self.known_until(window)
        newest, *earlier = (self.issue(window - age) for age in ISSUE_AGES)
        return ZoneData(
            forecast=newest,
            issued_at=window_at(window) if len(newest.values) else None,
            history=self.observed.slice(end - HISTORY_DAYS * WINDOWS_A_DAY, end),
            earlier=tuple(earlier),
            skill=self.skill,
            step=self.step,
        )

    def keep(self, known: Evidence, window: int, every: int) -> None:
        """Keep some of what was known, so that each bucket of leads gives about a pair for each window that passes."""
        lead = known.lead
        rows = np.flatnonzero((lead <= MAX_LEAD) & ~np.isnan(known.base))
        if not len(rows):
            return
        _, first, back, counts = np.unique(
            bucket_of(lead[rows]), return_index=True, return_inverse=True, return_counts=True
        )
        wanted = np.where(lead[rows][first] >= _FAR, 1, max(1, every // self.step))
        # Every so many of a bucket, beginning with another one from moment to moment.
        apart = np.maximum(1, counts // wanted)
        chosen = rows[(np.arange(len(rows)) - first[back]) % apart[back] == (window // every) % apart[back]]
        none = np.full(len(chosen), np.nan)
        self.waiting.append(
            Pairs(lead[chosen], known.kind[chosen], known.base[chosen], known.differences[chosen], none)
        )
        self.windows.append(known.windows[chosen])

    def learn(self, window: int) -> None:
        """Learn what was kept and has come true by a moment."""
        if not self.waiting:
            return
        kept, windows = Pairs.joined(self.waiting), np.concatenate(self.windows)
        end = self.known_until(window)
        is_over = windows < end
        ready = _some(kept, is_over)
        truth = self.observed.at(windows[is_over])
        self.skill = learn(
            self.skill, Pairs(ready.lead, ready.kind, ready.base, ready.differences, truth), max(end, self.skill.until)
        )
        self.waiting, self.windows = [_some(kept, ~is_over)], [windows[~is_over]]


def _some(pairs: Pairs, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Pairs:
    return Pairs(pairs.lead[rows], pairs.kind[rows], pairs.base[rows], pairs.differences[rows], pairs.truth[rows])


class Walk:
    """Goes through a recording, moment by moment; moments must be asked for in order."""

    def __init__(
        self, grid: Grid, regions: Sequence[Region], *, every: int, delays: Mapping[str, int] | None = None
    ) -> None:
        """``every`` is how often a moment is asked for, in windows; ``delays`` how long a zone's values take to be out.

        Without ``delays`` a value of a 5-minute step is out when its window is over, a longer one its step later.
        """
        self._regions, self._every = regions, every
        self._zones = {
            region.zone: _Zone(
                grid.observed[region.zone],
                grid.issued.get(region.zone),
                step := grid.steps[region.zone],
                (0 if step == 1 else step) if delays is None else delays[region.zone],
            )
            for region in regions
        }
        self._learned = -1

    def outlook(self, window: int, windows: int) -> Outlook:
        """Return what was thought at the start of a window of that many windows from it on."""
        day = window // WINDOWS_A_DAY
        for zone in self._zones.values():
            if day != self._learned:
                zone.learn(window)
        self._learned = day
        data = {name: zone.data(window) for name, zone in self._zones.items()}
        made, known = outlook.build_known(self._regions, data, window_at(window), windows)
        for name, zone in self._zones.items():
            zone.keep(known[name], window, self._every)
        return made


def truth(grid: Grid, regions: Sequence[Region], first: int, end: int) -> Outlook:
    """Return what really came in windows ``[first, end)``, as an outlook of somebody who knew it all."""
    values = grid.rates([region.zone for region in regions], first, end)
    return Outlook(
        regions=tuple(region.name for region in regions),
        first_window=first,
        g_per_kwh=values,
        basis=np.where(np.isnan(values), 0, 1).astype(np.int8),
        issued_at=tuple(None for _ in regions),
        pue=np.array([float(region.pue) for region in regions]),
    )

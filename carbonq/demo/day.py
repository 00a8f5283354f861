"""The hours that the demonstration runs in, how typical they are, and the replay of their whole day beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from carbonq.grid import recorded
from carbonq.model import Region
from carbonq.plan import replay as replaying
from carbonq.plan import typical
from carbonq.plan.forecaster import WINDOWS_A_DAY
from carbonq.plan.replay import Work
from carbonq.units import WINDOW, window_at, window_index

#: Windows of the demonstration's deadline.
WINDOWS = 24

#: The hours are those whose possible saving lies nearest to this percentile of all: good ones, so that there is
#: something to see within two hours, and said to be so.
POTENTIAL_PCT = 80.0

#: The replay: a chunk arrives every so many windows, may wait so many, and takes one slot's energy of a small GPU.
EVERY = 2
SLACK = 96
ENERGY_UJ = 30_000_000_000


@dataclass(frozen=True, slots=True)
class Scene:
    """When the demonstration plays (grid time), and a sentence on how typical those hours are."""

    start_at: datetime
    typical: str


@dataclass(frozen=True, slots=True)
class DayRow:
    """One way to run the day's work: gCO2e in all, and how many chunks were late."""

    name: str
    g: float
    late: int


@dataclass(frozen=True, slots=True)
class Day:
    """A replayed day; the first row is running at once at home."""

    date: datetime
    chunks: int
    deadline_h: float
    rows: Sequence[DayRow]


def choose(regions: Sequence[Region]) -> Scene:
    """Pick the hours by a rule, not by hand, a day or more after the recording begins and well before it ends."""
    days = recorded.recording()
    observed = np.array([days.observed[region.zone] for region in regions], dtype=np.float64)
    observed[observed < 0] = np.nan  # how the recording marks a missing value
    usable = observed[:, : days.windows - WINDOWS_A_DAY - SLACK]
    first = typical.pick_start(usable, 0, windows=WINDOWS, earliest=WINDOWS_A_DAY, percentile=POTENTIAL_PCT)
    found = typical.typicality(observed, 0, first, WINDOWS)
    sentence = (
        f"good hours, picked by rule (possible saving at the {POTENTIAL_PCT:.0f}th percentile): "
        + found.sentence(days.start_at, days.windows * WINDOW)
    )
    return Scene(window_at(days.first_window + first), sentence)


def replay(scene: Scene, regions: Sequence[Region]) -> Day:
    """Replay the day that holds the scene, from its midnight (UTC), in each way to run the same work."""
    midnight = scene.start_at.replace(hour=0, minute=0)
    first = window_index(midnight)
    work = [Work(first + at, 1, SLACK, ENERGY_UJ) for at in range(0, WINDOWS_A_DAY, EVERY)]
    rows = replaying.replay(recorded.replayable(recorded.recording()), regions, regions[0].name, work)
    return Day(
        date=midnight,
        chunks=len(work),
        deadline_h=SLACK * WINDOW / timedelta(hours=1),
        rows=[DayRow(row.way.value, row.grams, row.late) for row in rows],
    )

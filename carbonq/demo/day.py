"""The hours that the demonstration runs in, how typical they are, and the replay of their whole day beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from carbonq.grid import recorded
from carbonq.model import Region, Signal
from carbonq.plan import typical
from carbonq.plan.forecaster import WINDOWS_A_DAY, FloatArray, Series
from carbonq.replay.grids import Grid, Issued
from carbonq.replay.policies import Rules, run
from carbonq.replay.site import Site
from carbonq.replay.work import Work
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

#: The policies shown, and what they are called there.
WAYS = {
    "at-once": "at once, at home",
    "best-region": "at once, best single region",
    "best-time": "best time at home, with hindsight",
    "carbonq": "planned, forecasts as issued",
    "perfect": "best time and region, with hindsight",
}


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
    site, work = _site(regions), _work(first + np.arange(0, WINDOWS_A_DAY, EVERY, dtype=np.int64))
    made = run(site, work, list(WAYS), Rules())
    late = {name: int((one.start + work.windows > work.due).sum()) for name, one in made.items()}
    grams = {name: float(site.grams(work, one.region, one.start).sum()) for name, one in made.items()}
    return Day(
        date=midnight,
        chunks=work.count,
        deadline_h=SLACK * WINDOW / timedelta(hours=1),
        rows=[DayRow(said, grams[name], late[name]) for name, said in WAYS.items()],
    )


def _work(release: npt.NDArray[np.int64]) -> Work:
    count = len(release)
    return Work(
        release=release,
        due=release + SLACK,
        windows=np.ones(count, dtype=np.int64),
        energy_uj=np.full(count, ENERGY_UJ, dtype=np.int64),
        job=np.arange(count, dtype=np.int64),
    )


def _site(regions: Sequence[Region]) -> Site:
    """Return the recorded days as a grid whose zones are called like the regions on them."""
    days = recorded.recording()
    origins = days.first_window + np.arange(days.windows, dtype=np.int64)
    none = np.zeros(len(regions))
    return Site(
        grid=Grid(
            signal=Signal.MOER,
            observed={one.name: Series(days.first_window, _floats(days.observed[one.zone])) for one in regions},
            steps={one.name: 1 for one in regions},
            issued={
                one.name: Issued(origins, origins + 1, _floats(days.forecast[one.zone][: days.windows]), 1)
                for one in regions
            },
        ),
        regions=tuple(one.name for one in regions),
        slots=np.array([one.slots for one in regions], dtype=np.int64),
        pue=np.array([float(one.pue) for one in regions]),
        home=0,
        first=days.first_window,
        end=days.first_window + days.windows,
        price_per_kwh=none,
        slot_price_per_h=none,
    )


def _floats(values: npt.NDArray[np.int16]) -> FloatArray:
    # How the recording marks a missing value.
    return np.where(values < 0, np.nan, values.astype(np.float64))

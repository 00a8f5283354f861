"""How typical some hours of a recording are, so that nobody takes a good day for every day. Pure.

``observed`` is gCO2e/kWh by ``[region, window]``; ``home`` is the row of the home region. A span's *potential* is the
share by which the cleanest tenth of its cells lies below running at once at home (the mean of its first three windows):
what perfect foresight could save if there were room for everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from carbonq.plan.forecaster import FloatArray
from carbonq.units import WINDOW

#: Spans are compared at every half hour.
STEP = 6

_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Typicality:
    """Figures of a span and the percentile of each among all spans of the recording; spread is a standard deviation."""

    first: int
    windows: int
    mean_g: float
    mean_pct: float
    spread_g: float
    spread_pct: float
    potential: float
    potential_pct: float

    def sentence(self, recording_start_at: datetime, recorded: timedelta) -> str:
        """Say it to a reader."""
        start_at = recording_start_at + self.first * WINDOW
        hours = self.windows * WINDOW / timedelta(hours=1)
        return (
            f"the {hours:g} h from {start_at:%Y-%m-%d %H:%M}Z: mean {self.mean_g:.0f} g/kWh (higher than in "
            f"{self.mean_pct:.0f} % of such spans of the {recorded.days} recorded days), spread {self.spread_g:.0f} "
            f"g/kWh (wider than in {self.spread_pct:.0f} %), and at best {100 * self.potential:.0f} % to be saved "
            f"against running at once (more than in {self.potential_pct:.0f} %)"
        )


def typicality(observed: FloatArray, home: int, first: int, windows: int) -> Typicality:
    """Describe the span of ``windows`` from column ``first``. Raises ValueError when the recording does not hold it."""
    if not 0 <= first <= observed.shape[1] - windows:
        raise ValueError("the recording does not hold that span")
    starts = np.arange(0, observed.shape[1] - windows + 1, STEP)
    everywhere = np.array([_figures(observed, home, int(start), windows) for start in starts])
    here = _figures(observed, home, first, windows)
    mean, spread, potential = (_percentile(everywhere[:, column], here[column]) for column in range(3))
    return Typicality(first, windows, here[0], mean, here[1], spread, here[2], potential)


def pick_start(observed: FloatArray, home: int, *, windows: int, earliest: int, percentile: float = 50.0) -> int:
    """Return the first column from ``earliest`` on whose span's potential lies nearest to a percentile of all spans.

    A rule instead of a hand-picked hour: with the default, half of all spans would show more.
    """
    starts = np.arange(0, observed.shape[1] - windows + 1, STEP)
    potentials = np.array([_figures(observed, home, int(start), windows)[2] for start in starts])
    wanted = float(np.percentile(potentials, percentile))
    usable = np.flatnonzero(starts >= earliest)
    if not len(usable):
        raise ValueError("the recording holds no span that late")
    return int(starts[usable[np.argmin(np.abs(potentials[usable] - wanted))]])


def _figures(observed: FloatArray, home: int, first: int, windows: int) -> tuple[float, float, float]:
    span = observed[:, first : first + windows]
    at_once = float(span[home, :_AT_ONCE].mean())
    cells = np.sort(span, axis=None)
    best = float(cells[: max(1, len(cells) // 10)].mean())
    return float(span.mean()), float(span.std()), 1 - best / at_once if at_once > 0 else 0.0


def _percentile(everywhere: npt.NDArray[np.float64], here: float) -> float:
    return 100 * float((everywhere < here).mean())

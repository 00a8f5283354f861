"""How busy each region is with calls from here, and how long an answer takes: what shedding and routing go by.

All times are machine time. Belongs to one event loop; costs of O(1) a call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

#: Weight of a new engine time against the mean so far.
_EWMA = 0.2

#: A mean older than this says nothing any more, in seconds.
_KEPT_S = 600.0


class Load:
    """Calls in flight by region, and the mean seconds that the engine takes by (region, model)."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet."""
        self._monotonic = monotonic
        self._means: dict[tuple[str, str], tuple[float, float]] = {}  # mean seconds, when measured last
        self.in_flight: Counter[str] = Counter()

    def answered(self, region: str, model: str, engine_s: float) -> None:
        """Take the engine's time of an answer into the mean."""
        before = self.engine_s(region, model)
        mean = engine_s if before is None else before + _EWMA * (engine_s - before)
        self._means[region, model] = (mean, self._monotonic())

    def engine_s(self, region: str, model: str) -> float | None:
        """Return the mean seconds that an engine takes; None when nothing was measured lately."""
        mean, at = self._means.get((region, model), (0.0, float("-inf")))
        return None if self._monotonic() - at > _KEPT_S else mean

    def wait_s(self, region: str, model: str, lanes: int) -> float:
        """Return how long one call more would wait before an engine of ``lanes`` threads takes it up.

        Calls from other API processes are not seen from here; before the first answer it is 0.
        """
        ahead = self.in_flight[region] - max(1, lanes) + 1
        return max(0, ahead) / max(1, lanes) * (self.engine_s(region, model) or 0.0)

"""Estimate energy as rated watts x time, where nothing can be measured: a virtual counter on the machine's clock.

Two kinds that must not be mixed up: the estimate (TDP, or typical watts, with an uncertainty that somebody states) and
the upper bound (nameplate watts: no more can have been used). Microjoules out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from carbonq.meters.protocol import Component, MeterKind
from carbonq.model import Quality

_NS_PER_S = 1_000_000_000
_UW_PER_W = 1_000_000


class RatedMeter:
    """Rated watts x time since this object was made.

    Args:
        component: what the watts are of; those of all its devices together.
        watts: W, all the time, idle or busy.
        is_upper_bound: they are the nameplate's.
        uncertainty_pct: of the estimate; None when nobody states one.
        now_ns: monotonic machine time.
    """

    def __init__(
        self,
        component: Component,
        watts: float,
        *,
        is_upper_bound: bool,
        uncertainty_pct: float | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.component = component
        self.kind = MeterKind.NAMEPLATE if is_upper_bound else MeterKind.TDP
        self.quality = Quality.UPPER_BOUND if is_upper_bound else Quality.ESTIMATED
        self.uncertainty_pct = uncertainty_pct
        what = "nameplate" if is_upper_bound else "TDP"
        self.device_ids: Sequence[str] = (f"{component.value} at {watts:g} W ({what})",)
        self.lag_s = 0.0
        self._uw = round(watts * _UW_PER_W)
        self._now_ns = now_ns
        self._start_ns = now_ns()

    def read_uj(self) -> int:
        """Return watts x time in whole uJ."""
        return (self._now_ns() - self._start_ns) * self._uw // _NS_PER_S

    def marks(self) -> Sequence[str]:
        """Nothing to say."""
        return ()

    def close(self) -> None:
        """Nothing is held."""

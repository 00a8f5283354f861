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
        self._component = component
        self._watts = watts
        self._uw = round(watts * _UW_PER_W)
        self._is_upper_bound = is_upper_bound
        self._uncertainty_pct = uncertainty_pct
        self._now_ns = now_ns
        self._start_ns = now_ns()

    @property
    def component(self) -> Component:
        """What the watts are of."""
        return self._component

    @property
    def kind(self) -> MeterKind:
        """Rated power."""
        return MeterKind.TDP

    @property
    def quality(self) -> Quality:
        """Estimated, or an upper bound."""
        return Quality.UPPER_BOUND if self._is_upper_bound else Quality.ESTIMATED

    @property
    def uncertainty_pct(self) -> float | None:
        """As stated."""
        return self._uncertainty_pct

    @property
    def device_ids(self) -> Sequence[str]:
        """The component and its watts."""
        what = "nameplate" if self._is_upper_bound else "TDP"
        return (f"{self._component.value} at {self._watts:g} W ({what})",)

    @property
    def lag_s(self) -> float:
        """Time is exact."""
        return 0.0

    def read_uj(self) -> int:
        """Return watts x time in whole uJ."""
        return (self._now_ns() - self._start_ns) * self._uw // _NS_PER_S

    def marks(self) -> Sequence[str]:
        """Nothing to say."""
        return ()

    def close(self) -> None:
        """Nothing is held."""

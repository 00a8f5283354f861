"""One meter's open interval: the stretches of time since its last reading, and how a reading is divided over them.

A counter trails: NVML's moves about every 100 ms, so what is read at an event was used up to ``lag_s`` earlier. Between
two readings therefore lies at least the lag; the stretches in between share one interval, whose energy is divided by
time (its power is taken as level: nothing better is known) and within a stretch by token rate. All exact: what is
credited sums to what the counter counted, to the microjoule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from carbonq.meters import attribution
from carbonq.meters.accounts import Account, Stretch
from carbonq.meters.attribution import Span
from carbonq.meters.protocol import DEVICE_LOST, MERGED, METER_OUTAGE, SHARED_DEVICE, Component, Meter
from carbonq.shares import apportion

logger = logging.getLogger(__name__)

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class IdleShare:
    """Energy of a span without engine batches, or around an outage; ``is_others``: somebody else used the device."""

    span: Span
    component: Component
    uj: int
    is_others: bool
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a meter showed, and what must be said of it."""

    uj: int
    marks: tuple[str, ...]


class Counter:
    """A meter that can be read, and what of time it has not been read for. Not thread-safe but for ``read``.

    A reading has three steps, so that a slow meter holds nobody up: ``begin`` (the interval ends here), ``read``
    (outside the hub's lock), ``settle`` (the energy is divided). Raises MeterLost when it cannot be read at all.
    """

    def __init__(self, meter: Meter, now_ns: int) -> None:
        self.meter = meter
        self.component = meter.component
        self.lag_ns = round(meter.lag_s * _NS_PER_S)
        #: Somebody waits for a reading, whatever happened in the interval.
        self.is_asked = False
        self.is_reading = False
        self._last_uj = meter.read_uj()
        self._opened_ns = now_ns
        self._stretches: list[Stretch] = []
        self._in_reading: list[Stretch] = []

    @property
    def due_ns(self) -> int:
        """When, in machine time, the open interval is long enough to be read."""
        return self._opened_ns + self.lag_ns

    @property
    def first_open(self) -> Stretch | None:
        """The oldest stretch not read for."""
        open_ones = self._in_reading or self._stretches
        return open_ones[0] if open_ones else None

    def is_due(self, now_ns: int) -> bool:
        """Say whether the open interval is long enough to be read; so it is when machine time went back."""
        return not self.is_reading and not self._opened_ns <= now_ns < self.due_ns

    def is_wanted(self, active: tuple[Account, ...]) -> bool:
        """Say whether a reading helps: somebody waits, or the open interval holds time of others than those active."""
        return self.is_asked or any(stretch.accounts != active for stretch in self._stretches)

    def awaits(self, account: Account) -> bool:
        """Say whether part of the account's time was not read for yet."""
        return any(account in stretch.accounts for stretch in (*self._in_reading, *self._stretches))

    def note(self, stretch: Stretch) -> None:
        """Take a stretch of time into the open interval."""
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last.accounts == stretch.accounts and last.end_at == stretch.start_at:
            last.end_at = stretch.end_at
            last.machine_ns += stretch.machine_ns
            return
        own = Stretch(stretch.start_at, stretch.end_at, stretch.machine_ns, stretch.accounts)  # it may grow
        self._stretches.append(own)
        for account in stretch.accounts:
            account.awaited += 1

    def begin(self, now_ns: int) -> None:
        """End the open interval here; the next one begins."""
        self._in_reading, self._stretches = self._stretches, []
        self._opened_ns = now_ns
        self.is_reading = True
        self.is_asked = False

    def read(self) -> Reading:
        """Ask the meter. Raises MeterLost."""
        uj = self.meter.read_uj()
        return Reading(uj, tuple(self.meter.marks()))

    def settle(self, reading: Reading, idle: Callable[[IdleShare], None]) -> None:
        """Divide what the meter counted in the interval that ``begin`` ended."""
        delta_uj = reading.uj - self._last_uj
        if delta_uj < 0:
            logger.error("%s meter went back by %d uJ; counted as 0", self.component, -delta_uj)
        self._last_uj = reading.uj
        self._divide(max(0, delta_uj), self._taken(), reading.marks, idle)

    def give_up(self) -> None:
        """Let go of all time not read for: nobody can say what was used in it."""
        for stretch in (*self._taken(), *self._stretches):
            for account in stretch.accounts:
                account.doubt((DEVICE_LOST,))
        self._in_reading, self._stretches = self._stretches, []
        self._taken()

    def _taken(self) -> list[Stretch]:
        taken, self._in_reading = self._in_reading, []
        self.is_reading = False
        for stretch in taken:
            for account in stretch.accounts:
                account.awaited -= 1
        return taken

    def _divide(
        self, delta_uj: int, stretches: list[Stretch], marks: tuple[str, ...], idle: Callable[[IdleShare], None]
    ) -> None:
        by_stretch = [delta_uj] if len(stretches) == 1 else apportion(delta_uj, [one.machine_ns for one in stretches])
        for stretch, stretch_uj in zip(stretches, by_stretch, strict=True):
            parts = stretch.spans()
            for span, uj in zip(parts, attribution.over_time(stretch_uj, parts), strict=True):
                # What a meter counted around an outage is of some engine batch of then, and nobody can say of which.
                if stretch.accounts and METER_OUTAGE not in marks:
                    self._credit(span, uj, stretch.accounts)
                else:
                    idle(IdleShare(span, self.component, uj, SHARED_DEVICE in marks, marks))
        for account in {one for stretch in stretches for one in stretch.accounts}:
            # Over, and shorter than the counter can tell apart: its figure is its share of an interval by time.
            is_merged = account.is_over and account.lasted_ns < self.lag_ns
            if marks or is_merged:
                account.doubt((*marks, MERGED) if is_merged else marks)

    def _credit(self, span: Span, uj: int, accounts: tuple[Account, ...]) -> None:
        shares = attribution.among(uj, [one.token_rate for one in accounts])
        for account, share in zip(accounts, shares, strict=True):
            account.credit(span, self.component, share)

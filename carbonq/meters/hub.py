"""Turn the counters of one worker into energy per engine batch and window, and the rest into idle windows.

At each event (an engine batch starts, ends or is looked at, a tick) the hub notes the time since the event before and
who was active in it, and reads each meter whose last reading lies at least the meter's lag back (``counter.py``). What
a meter counted between two readings is divided over the windows by time, then among the engine batches active by token
rate, or to idle when there was none. So attributed + idle = counter delta, to the microjoule (invariant 2).

An engine batch that ends sooner than a lag after the last reading is known when the next reading is due: ``finish``
returns at once and ``Closing.result`` waits for it; ``end`` does both. A worker ticks its hub at every window edge.
When a tick comes late, the time that crossed the edge is split at the edge in proportion to time, because nothing
better is known of it; no part ever spans two windows. A meter that is lost is left out from then on: parts keep what it
had counted, their quality becomes ``estimated``, later parts have None. What must be said of a figure beside that
stands as a mark among its device ids (``protocol.py``). Everything is thread-safe. Energies are uJ; part times are grid
times; durations are machine seconds.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NewType

from carbonq.clock import Clock
from carbonq.meters import attribution
from carbonq.meters.accounts import Account, Stretch
from carbonq.meters.counter import Counter, IdleShare
from carbonq.meters.protocol import (
    DEVICE_LOST,
    Component,
    IdleWindow,
    Meter,
    MeteredPart,
    MeterInfo,
    MeterKind,
    MeterLost,
)
from carbonq.model import EntryKind, Quality
from carbonq.units import window_of

logger = logging.getLogger(__name__)

_NS_PER_S = 1_000_000_000

#: Stands for an engine batch between ``start`` and ``end``.
Handle = NewType("Handle", int)


class Closing:
    """An engine batch that has ended and whose energy may become known a moment later; from ``Hub.finish``."""

    def __init__(self, hub: Hub, account: Account) -> None:
        self._hub = hub
        self._account = account

    @property
    def is_known(self) -> bool:
        """Say whether ``result`` returns at once."""
        return self._account.is_known

    def so_far(self) -> tuple[tuple[MeteredPart, ...], MeterInfo]:
        """Return the parts with what was read up to now; a component not read for yet is None."""
        return self._hub.read_account(self._account)

    def result(self) -> tuple[tuple[MeteredPart, ...], MeterInfo]:
        """Return the parts, one a window, and how they were obtained; waits at most the longest lag of the meters."""
        self._hub.wait_for(self._account)
        return self._hub.read_account(self._account)


class Hub:
    """The meters of one worker process; at most one for each component.

    Args:
        meters: the counters, usually from ``discover``.
        clock: grid time, for windows.
        machine: monotonic machine seconds, for durations.
        sleep: waits so many machine seconds, for a meter that trails.
    """

    def __init__(
        self,
        meters: Sequence[Meter],
        clock: Clock,
        machine: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        components = [meter.component for meter in meters]
        if len(set(components)) != len(components):
            raise ValueError(f"a hub takes one meter for each component, not {components}")
        self._clock = clock
        self._machine = machine
        self._sleep = sleep
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closer: threading.Thread | None = None
        self._is_closed = False
        self._numbers = itertools.count(1)
        self._active: dict[Handle, Account] = {}
        self._idle: dict[tuple[datetime, EntryKind], Account] = {}
        self._all = list(meters)
        self._counters: list[Counter] = []
        now_ns = self._now_ns()
        for meter in meters:
            self._open(meter, now_ns)
        self._info = self._describe()
        self._last_ns = self._now_ns()
        self._last_grid = clock.now()

    def info(self) -> MeterInfo:
        """Return how figures are obtained from now on."""
        with self._lock:
            return self._info

    def start(self, token_rate: float | None = None) -> Handle:
        """Open an engine batch; ``token_rate`` (tokens/s) is its weight where batches overlap (None: unknown)."""
        with self._lock:
            self._advance()
            handle = Handle(next(self._numbers))
            account = Account(self._info, token_rate)
            account.spend(attribution.spans(self._last_grid, self._last_grid)[0], 0.0)
            self._active[handle] = account
            self._changed.notify()
            return handle

    def finish(self, handle: Handle) -> Closing:
        """Close an engine batch without waiting. Raises KeyError for a handle that is not open."""
        with self._lock:
            self._active[handle].is_over = True
            self._advance()
            closing = Closing(self, self._active.pop(handle))
            self._changed.notify()
            return closing

    def end(self, handle: Handle) -> tuple[tuple[MeteredPart, ...], MeterInfo]:
        """Close an engine batch; return its parts, one a window, and how they were obtained.

        Waits for a meter that trails only where the engine batch ended within the lag after a reading. Raises KeyError
        for a handle that is not open.
        """
        return self.finish(handle).result()

    def peek(self, handle: Handle) -> tuple[MeteredPart, ...]:
        """Return the parts of an open engine batch so far. Raises KeyError for a handle that is not open."""
        with self._lock:
            self._advance()
            return self._active[handle].parts()

    def tick(self) -> None:
        """Read the meters; called at window edges, so that no interval has to be split by time."""
        with self._lock:
            self._advance()

    def drain_idle(self) -> Sequence[IdleWindow]:
        """Return the idle of windows that are over and fully read for, each once, oldest first.

        Reads no meter: ``tick`` first.
        """
        with self._lock:
            open_from = [one.first_open.start_at for one in self._counters if one.first_open is not None]
            return self._pop_idle(before=window_of(min([self._last_grid, *open_from])))

    def flush(self) -> Sequence[IdleWindow]:
        """Read the meters and return all idle not yet drained, that of the running window too; for the shutdown.

        Meters that trail are read all the same: what they show later nobody would see.
        """
        with self._lock:
            self._advance(is_last=True)
            return self._pop_idle(before=None)

    def exchange(self, component: Component, meter: Meter | None) -> None:
        """From now on use another meter for a component, or none; what the one before had counted stays.

        Energy of before and after is of two kinds, so what is open becomes an estimate.
        """
        with self._lock:
            self._advance(is_last=True)
            self._counters = [one for one in self._counters if one.component is not component]
            if meter is not None:
                self._all.append(meter)
                self._open(meter, self._last_ns)
            self._now_estimated()

    def watch(self) -> None:
        """From now on read each meter as soon as its lag has passed since somebody began or ended in its interval.

        Without it the next event does that, and what follows a short engine batch is put down in one with it.
        """
        if any(counter.lag_ns for counter in self._counters):
            self._closer = threading.Thread(target=self._read_when_due, name="meter-lag", daemon=True)
            self._closer.start()

    def close(self) -> None:
        """Release all meters."""
        with self._lock:
            self._is_closed = True
            self._changed.notify()
        if self._closer is not None:
            self._closer.join()
        with self._lock:
            for meter in self._all:
                meter.close()

    def read_account(self, account: Account) -> tuple[tuple[MeteredPart, ...], MeterInfo]:
        """Return what stands in an account now; for ``Closing``."""
        with self._lock:
            return account.parts(), account.info

    def wait_for(self, account: Account) -> None:
        """Wait until every meter was read for an account that is over; for ``Closing``."""
        while True:
            with self._lock:
                if account.awaited:
                    self._advance()
                awaiting = [one.due_ns for one in self._counters if one.awaits(account)]
                if not awaiting:
                    return
                missing_ns = max(awaiting) - self._last_ns
            self._sleep(max(missing_ns, 1) / _NS_PER_S)

    def _read_when_due(self) -> None:
        with self._lock:
            while not self._is_closed:
                active = tuple(self._active.values())
                due_ns = [one.due_ns for one in self._counters if one.is_mixed(active)]
                missing_ns = min(due_ns) - self._now_ns() if due_ns else None
                if missing_ns is not None and missing_ns <= 0:
                    self._advance()
                else:
                    self._changed.wait(None if missing_ns is None else missing_ns / _NS_PER_S)

    def _open(self, meter: Meter, now_ns: int) -> None:
        try:
            self._counters.append(Counter(meter, now_ns))
        except MeterLost as error:
            logger.error("%s meter not used: %s", meter.component, error)

    def _pop_idle(self, before: datetime | None) -> list[IdleWindow]:
        over = sorted(key for key in self._idle if before is None or key[0] < before)
        accounts = [self._idle.pop(key) for key in over]
        filled = [account for account in accounts if self._all and not account.is_empty]
        return [IdleWindow(account.parts()[0], account.info, account.kind) for account in filled]

    def _now_ns(self) -> int:
        return round(self._machine() * _NS_PER_S)

    def _advance(self, *, is_last: bool = False) -> None:
        now_ns, grid = self._now_ns(), self._clock.now()
        # A wall clock that was set back must not make a window begin twice.
        grid = max(grid, self._last_grid)
        stretch = Stretch(self._last_grid, grid, max(0, now_ns - self._last_ns), tuple(self._active.values()))
        self._last_ns, self._last_grid = now_ns, grid
        self._spend(stretch)
        for counter in list(self._counters):
            counter.note(stretch)
            if is_last or counter.is_due(now_ns):
                self._read(counter, now_ns)

    def _spend(self, stretch: Stretch) -> None:
        """Put the time down; the energy follows when the meters are read."""
        for account in stretch.accounts:
            account.lasted_ns += stretch.machine_ns
        parts = stretch.spans()
        whole = sum(part.microseconds for part in parts)
        for part in parts:
            share = part.microseconds / whole if whole else 1 / len(parts)
            duration_s = stretch.machine_ns / _NS_PER_S * share
            for account in stretch.accounts:
                account.spend(part, duration_s)
            if not stretch.accounts and duration_s:
                self._idle_of(part.window_at, EntryKind.IDLE).spend(part, duration_s)

    def _read(self, counter: Counter, now_ns: int) -> None:
        try:
            counter.close(now_ns, self._credit_idle)
        except MeterLost as error:
            logger.error("%s meter lost, its component is unknown from now on: %s", counter.component, error)
            self._counters.remove(counter)
            self._now_estimated((DEVICE_LOST,))

    def _credit_idle(self, share: IdleShare) -> None:
        kind = EntryKind.HOST_OTHER if share.is_others else EntryKind.IDLE
        account = self._idle_of(share.span.window_at, kind)
        account.credit(share.span, share.component, share.uj)
        if share.marks:
            account.doubt(share.marks)

    def _idle_of(self, window_at: datetime, kind: EntryKind) -> Account:
        found = self._idle.get((window_at, kind))
        if found is None:
            found = self._idle[window_at, kind] = Account(self._info, kind=kind)
        return found

    def _now_estimated(self, marks: tuple[str, ...] = ()) -> None:
        # What was counted so far stays, but it is no longer all that was used.
        for account in (*self._active.values(), *self._idle.values()):
            account.doubt(marks)
        self._info = self._describe()

    def _describe(self) -> MeterInfo:
        return _describe([counter.meter for counter in self._counters])


def _describe(meters: Sequence[Meter]) -> MeterInfo:
    kinds = {meter.component: meter.kind for meter in meters}
    stated = [meter.uncertainty_pct for meter in meters]
    known = [value for value in stated if value is not None]
    return MeterInfo(
        gpu_meter=kinds.get(Component.GPU, MeterKind.NONE),
        cpu_meter=kinds.get(Component.CPU, MeterKind.NONE),
        dram_meter=kinds.get(Component.DRAM, MeterKind.NONE),
        quality=_quality({meter.quality for meter in meters}),
        # The largest bounds the sum's, and no bound is known unless every meter states one.
        uncertainty_pct=max(known) if known and len(known) == len(stated) else None,
        device_ids=tuple(device for meter in meters for device in meter.device_ids),
    )


def _quality(qualities: set[Quality]) -> Quality:
    if Quality.UPPER_BOUND in qualities:
        return Quality.UPPER_BOUND
    if len(qualities) > 1:
        return Quality.MIXED
    return next(iter(qualities), Quality.ESTIMATED)

"""Turn the counters of one worker into energy per engine batch and window, and the rest into idle windows.

At each event (an engine batch starts, ends or is looked at, a tick) the hub notes the time since the event before and
who was active in it, and reads each meter whose last reading lies at least the meter's lag back (``counter.py``). What
a meter counted between two readings is divided over the windows by time, then among the engine batches active by token
rate, or to idle when there was none. So attributed + idle = counter delta, to the microjoule (invariant 2).

An engine batch that ends sooner than a lag after the last reading is known when the next reading is due: ``finish``
returns at once and ``Closing.result`` waits for it; ``end`` does both. A worker ticks its hub at every window edge.
When a tick comes late, the time that crossed the edge is split at the edge in proportion to time, because nothing
better is known of it; no part ever spans two windows. A meter that is lost is left out from then on: parts keep what it
had counted, their quality becomes ``estimated``, later parts have None; when it answers again, a tick takes it up. What
must be said of a figure beside that stands as a mark among its device ids (``protocol.py``). Everything is thread-safe.
Energies are uJ; part times are grid times; durations are machine seconds.
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
from carbonq.meters.closing import Closing
from carbonq.meters.counter import Counter, IdleShare, Reading
from carbonq.meters.describe import describe
from carbonq.meters.protocol import (
    DEVICE_BACK,
    DEVICE_LOST,
    Component,
    IdleWindow,
    Meter,
    MeteredPart,
    MeterInfo,
    MeterLost,
)
from carbonq.model import EntryKind
from carbonq.units import window_of

logger = logging.getLogger(__name__)

_NS_PER_S = 1_000_000_000

#: How long a tick waits for meters that trail, in machine seconds: a window's idle is booked a tick later otherwise.
TICK_WAIT_S = 1.0

#: Stands for an engine batch between ``start`` and ``end``.
Handle = NewType("Handle", int)


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
        self._reader: threading.Thread | None = None
        self._is_closed = False
        self._waiting: list[tuple[Account, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._active: dict[Handle, Account] = {}
        self._idle: dict[tuple[datetime, EntryKind], Account] = {}
        self._all = list(meters)
        self._counters: list[Counter] = []
        self._lost: list[Meter] = []
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
            self._changed.notify_all()
            return handle

    def finish(self, handle: Handle) -> Closing:
        """Close an engine batch without waiting. Raises KeyError for a handle that is not open."""
        with self._lock:
            self._active[handle].is_over = True
            self._advance()
            closing = Closing(self, self._active.pop(handle))
            self._changed.notify_all()
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
        """Read the meters; called at window edges, so that no interval has to be split by time.

        Waits for meters that trail, but no longer than ``TICK_WAIT_S``. A meter that was lost and answers again is read
        from then on.
        """
        self._take_up_lost()
        with self._lock:
            self._advance()
            edge = self._last_grid
            for counter in self._counters:
                counter.is_asked = counter.first_open is not None
            if self._reader is not None:
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_closed or self._open_from() >= edge, TICK_WAIT_S)

    def drain_idle(self) -> Sequence[IdleWindow]:
        """Return the idle of windows that are over and fully read for, each once, oldest first.

        Reads no meter: ``tick`` first.
        """
        with self._lock:
            return self._pop_idle(before=window_of(self._open_from()))

    def flush(self) -> Sequence[IdleWindow]:
        """Read the meters and return all idle not yet drained, that of the running window too; for the shutdown.

        Meters that trail are read all the same: what they show later nobody would see.
        """
        with self._lock:
            self._read_all()
            idle = self._pop_idle(before=None)
        self._call_known()
        return idle

    def exchange(self, component: Component, meter: Meter | None) -> None:
        """From now on use another meter for a component, or none; what the one before had counted stays.

        Energy of before and after is of two kinds, so what is open becomes an estimate.
        """
        with self._lock:
            self._read_all()
            self._counters = [one for one in self._counters if one.component is not component]
            if meter is not None:
                self._all.append(meter)
                self._open(meter, self._last_ns)
            self._now_estimated()

    def watch(self) -> None:
        """From now on read the meters that trail in a thread, each as soon as its lag is over.

        So nobody who starts or ends an engine batch waits for a slow meter (an H200's counter takes 2 to 16 ms), and
        what follows a short engine batch is not put down in one with it. Without it they are read at events.
        """
        if any(counter.lag_ns for counter in self._counters):
            self._reader = threading.Thread(target=self._keep_reading, name="meter-reader", daemon=True)
            self._reader.start()

    def close(self) -> None:
        """Release all meters."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
        if self._reader is not None:
            self._reader.join()
        with self._lock:
            for meter in self._all:
                meter.close()
        self._call_known()

    def read_account(self, account: Account) -> tuple[tuple[MeteredPart, ...], MeterInfo]:
        """Return what stands in an account now; for ``Closing``."""
        with self._lock:
            return account.parts(), account.info

    def wait_for(self, account: Account, timeout_s: float | None) -> bool:
        """Wait until every meter was read for an account that is over; say whether it was. For ``Closing``."""
        if self._reader is not None:
            with self._lock:
                self._changed.wait_for(lambda: self._is_closed or account.is_known, timeout_s)
                return account.is_known
        end_s = None if timeout_s is None else self._machine() + timeout_s
        while True:
            with self._lock:
                if account.awaited:
                    self._advance()
                awaiting = [one.due_ns for one in self._counters if one.awaits(account)]
                if not awaiting:
                    return True
                missing_s = max(max(awaiting) - self._last_ns, 1) / _NS_PER_S
            if end_s is not None and self._machine() + missing_s > end_s:
                return False
            self._sleep(missing_s)

    def call_when_known(self, account: Account, act: Callable[[], None]) -> bool:
        """Keep what is to be called when an account is known; False where nobody reads, so that it never would be."""
        with self._lock:
            if self._reader is None or self._is_closed or account.is_known:
                return False
            self._waiting.append((account, act))
            return True

    def _call_known(self) -> None:
        with self._lock:
            waiting, self._waiting, known = self._waiting, [], []
            for one in waiting:
                (known if self._is_closed or one[0].is_known else self._waiting).append(one)
        for _, act in known:
            try:
                act()
            except Exception:  # a process loop: what one caller does must not end the readings of all
                logger.exception("what was to follow a metered engine batch failed")

    # --- reading ------------------------------------------------------------------------------------------------

    def _keep_reading(self) -> None:
        while (counter := self._next_due()) is not None:
            reading = None
            try:
                reading = counter.read()
            except MeterLost as error:
                self._log_lost(counter, error)
            except Exception:  # a process loop: without it nobody would ever learn what was used
                logger.exception("%s meter failed", counter.component)
            with self._lock:
                self._settle(counter, reading)
            self._call_known()

    def _next_due(self) -> Counter | None:
        """Wait for the next meter that is to be read, and end its interval; None when the hub is closed."""
        with self._lock:
            while not self._is_closed:
                active = tuple(self._active.values())
                wanted = [one for one in self._counters if one.lag_ns and one.is_wanted(active)]
                first = min(wanted, key=lambda one: one.due_ns, default=None)
                missing_ns = first.due_ns - self._now_ns() if first is not None else None
                if first is not None and missing_ns is not None and missing_ns <= 0:
                    self._advance()
                    first.begin(self._last_ns)
                    return first
                self._changed.wait(None if missing_ns is None else missing_ns / _NS_PER_S)
            return None

    def _read_all(self) -> None:
        """Read every meter now, trailing or not, in this thread."""
        self._changed.wait_for(lambda: not any(one.is_reading for one in self._counters))
        self._advance()
        for counter in [one for one in self._counters if one.first_open is not None]:
            self._read(counter)

    def _read(self, counter: Counter) -> None:
        counter.begin(self._last_ns)
        reading = None
        try:
            reading = counter.read()
        except MeterLost as error:
            self._log_lost(counter, error)
        self._settle(counter, reading)

    def _settle(self, counter: Counter, reading: Reading | None) -> None:
        if reading is not None:
            counter.settle(reading, self._credit_idle)
        else:
            counter.give_up()
            self._counters.remove(counter)
            self._lost.append(counter.meter)
            self._now_estimated((DEVICE_LOST,))
        self._changed.notify_all()

    def _take_up_lost(self) -> None:
        for meter in list(self._lost):
            try:
                meter.read_uj()  # may take long, so nobody is held up by it
            except MeterLost:
                continue
            with self._lock:
                self._lost.remove(meter)
                if self._is_closed or meter.component in {one.component for one in self._counters}:
                    continue
                self._advance()
                self._open(meter, self._last_ns)
                meter.marks()  # of what it counted meanwhile, which is nobody's
                self._now_estimated((DEVICE_BACK,))
                for account in (*self._active.values(), *self._idle.values()):
                    account.measure_by(self._info)
                logger.warning("%s meter answers again; what was used meanwhile is not known", meter.component)

    def _log_lost(self, counter: Counter, error: MeterLost) -> None:
        logger.error("%s meter lost, its component is unknown from now on: %s", counter.component, error)

    def _open_from(self) -> datetime:
        """Return the grid time up to which every meter was read for."""
        opened = [one.first_open.start_at for one in self._counters if one.first_open is not None]
        return min([self._last_grid, *opened])

    def _open(self, meter: Meter, now_ns: int) -> None:
        try:
            self._counters.append(Counter(meter, now_ns))
        except MeterLost as error:
            logger.error("%s meter not used: %s", meter.component, error)

    def _pop_idle(self, before: datetime | None) -> list[IdleWindow]:
        over = [key for key in self._idle if before is None or key[0] < before]
        over.sort(key=lambda key: (key[0], key[1] is not EntryKind.IDLE))
        accounts = [self._idle.pop(key) for key in over]
        filled = [account for account in accounts if self._all and not account.is_empty]
        return [IdleWindow(account.parts()[0], account.info, account.kind) for account in filled]

    def _now_ns(self) -> int:
        return round(self._machine() * _NS_PER_S)

    def _advance(self) -> None:
        now_ns, grid = self._now_ns(), self._clock.now()
        # A wall clock that was set back must not make a window begin twice.
        grid = max(grid, self._last_grid)
        stretch = Stretch(self._last_grid, grid, max(0, now_ns - self._last_ns), tuple(self._active.values()))
        self._last_ns, self._last_grid = now_ns, grid
        self._spend(stretch)
        for counter in list(self._counters):
            counter.note(stretch)
            if counter.is_due(now_ns) and not (counter.lag_ns and self._reader is not None):
                self._read(counter)

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
        return describe([counter.meter for counter in self._counters])

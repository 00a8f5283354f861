"""Turn the counters of one worker into energy per engine batch and window, and the rest into idle windows.

At each event (an engine batch starts, ends or is looked at, a tick) the hub reads all its meters and divides what they
counted since the event before: over the windows by time, then among the engine batches active in that interval by
token rate, or to idle when there was none. So attributed + idle = counter delta, to the microjoule (invariant 2).

A worker ticks its hub at every window edge. When a tick comes late, the interval that crossed the edge is split at the
edge in proportion to time, because nothing better is known of it; no part ever spans two windows. A meter that is lost
is left out from then on: parts keep what it had counted, their quality becomes ``estimated``, later parts have None.
Everything is thread-safe. Energies are uJ; part times are grid times; durations are machine seconds.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NewType

from carbonq.clock import Clock
from carbonq.meters import attribution
from carbonq.meters.attribution import Span
from carbonq.meters.protocol import Component, IdleWindow, Meter, MeteredPart, MeterInfo, MeterKind, MeterLost
from carbonq.model import Quality
from carbonq.units import window_of

logger = logging.getLogger(__name__)

#: Stands for an engine batch between ``start`` and ``end``.
Handle = NewType("Handle", int)


@dataclass(slots=True)
class _Tally:
    """What was counted for one account in one window. A component that no meter covered has no member."""

    started_at: datetime
    ended_at: datetime
    duration_s: float = 0.0
    uj: dict[Component, int] = field(default_factory=dict[Component, int])

    @property
    def is_empty(self) -> bool:
        return self.duration_s == 0 and not any(self.uj.values())

    def add(self, span: Span, duration_s: float, uj: Mapping[Component, int]) -> None:
        self.ended_at = max(self.ended_at, span.end_at)
        self.duration_s += duration_s
        for component, value in uj.items():
            self.uj[component] = self.uj.get(component, 0) + value

    def part(self, window_at: datetime) -> MeteredPart:
        return MeteredPart(
            window_at=window_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            duration_s=self.duration_s,
            gpu_uj=self.uj.get(Component.GPU),
            cpu_uj=self.uj.get(Component.CPU),
            dram_uj=self.uj.get(Component.DRAM),
        )


@dataclass(slots=True)
class _Account:
    """An active engine batch, or the idle of one window."""

    info: MeterInfo
    token_rate: float | None = None
    tallies: dict[datetime, _Tally] = field(default_factory=dict[datetime, _Tally])

    def tally(self, span: Span) -> _Tally:
        found = self.tallies.get(span.window_at)
        if found is None:
            found = self.tallies[span.window_at] = _Tally(span.start_at, span.start_at)
        return found

    def parts(self) -> tuple[MeteredPart, ...]:
        """Return the windows' parts, oldest first: at least one, and no empty one beside others."""
        ordered = sorted(self.tallies.items())
        filled = [item for item in ordered if not item[1].is_empty] or ordered[:1]
        return tuple(tally.part(window_at) for window_at, tally in filled)


class Hub:
    """The meters of one worker process; at most one for each component.

    Args:
        meters: the counters, usually from ``discover``.
        clock: grid time, for windows.
        machine: monotonic machine seconds, for durations.
    """

    def __init__(self, meters: Sequence[Meter], clock: Clock, machine: Callable[[], float] = time.monotonic) -> None:
        components = [meter.component for meter in meters]
        if len(set(components)) != len(components):
            raise ValueError(f"a hub takes one meter for each component, not {components}")
        self._clock = clock
        self._machine = machine
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._active: dict[Handle, _Account] = {}
        self._idle: dict[datetime, _Account] = {}
        self._all = list(meters)
        self._last_uj: dict[Component, int] = {}
        self._alive: list[Meter] = []
        for meter in meters:
            try:
                self._last_uj[meter.component] = meter.read_uj()
                self._alive.append(meter)
            except MeterLost as error:
                logger.error("%s meter not used: %s", meter.component, error)
        self._info = _describe(self._alive)
        self._last_machine = machine()
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
            account = _Account(self._info, token_rate)
            zero = {meter.component: 0 for meter in self._alive}
            span = attribution.spans(self._last_grid, self._last_grid)[0]
            account.tally(span).add(span, 0.0, zero)
            self._active[handle] = account
            return handle

    def end(self, handle: Handle) -> tuple[tuple[MeteredPart, ...], MeterInfo]:
        """Close an engine batch; return its parts, one a window, and how they were obtained.

        Raises KeyError for a handle that is not open.
        """
        with self._lock:
            self._advance()
            account = self._active.pop(handle)
            return account.parts(), account.info

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
        """Return the idle of windows that are over, each once, oldest first. Reads no meter: ``tick`` first."""
        with self._lock:
            return self._pop_idle(before=window_of(self._last_grid))

    def flush(self) -> Sequence[IdleWindow]:
        """Read the meters and return all idle not yet drained, that of the running window too; for the shutdown."""
        with self._lock:
            self._advance()
            return self._pop_idle(before=None)

    def exchange(self, component: Component, meter: Meter | None) -> None:
        """From now on use another meter for a component, or none; what the one before had counted stays.

        Energy of before and after is of two kinds, so what is open becomes an estimate.
        """
        with self._lock:
            self._advance()
            for old in [one for one in self._alive if one.component is component]:
                self._alive.remove(old)
            if meter is not None:
                self._last_uj[component] = meter.read_uj()
                self._alive.append(meter)
                self._all.append(meter)
            self._now_estimated()

    def close(self) -> None:
        """Release all meters."""
        with self._lock:
            for meter in self._all:
                meter.close()

    def _pop_idle(self, before: datetime | None) -> list[IdleWindow]:
        over = sorted(window_at for window_at in self._idle if before is None or window_at < before)
        accounts = [self._idle.pop(window_at) for window_at in over]
        return [IdleWindow(account.parts()[0], account.info) for account in accounts if self._all]

    def _advance(self) -> None:
        machine, grid = self._machine(), self._clock.now()
        # A wall clock that was set back must not make a window begin twice.
        grid = max(grid, self._last_grid)
        elapsed_s = max(0.0, machine - self._last_machine)
        deltas = self._read()
        parts = attribution.spans(self._last_grid, grid)
        divided = {component: attribution.over_time(delta, parts) for component, delta in deltas.items()}
        whole = sum(part.microseconds for part in parts)
        for position, part in enumerate(parts):
            duration_s = elapsed_s * (part.microseconds / whole) if whole else elapsed_s / len(parts)
            self._attribute(part, duration_s, {component: uj[position] for component, uj in divided.items()})
        self._last_machine, self._last_grid = machine, grid

    def _attribute(self, span: Span, duration_s: float, uj: Mapping[Component, int]) -> None:
        accounts = list(self._active.values())
        if not accounts:
            idle = self._idle.get(span.window_at)
            if idle is None:
                if duration_s == 0 and not any(uj.values()):
                    return
                idle = self._idle[span.window_at] = _Account(self._info)
            accounts = [idle]
        rates = [account.token_rate for account in accounts]
        shares = {component: attribution.among(value, rates) for component, value in uj.items()}
        for position, account in enumerate(accounts):
            own = {component: parts[position] for component, parts in shares.items()}
            account.tally(span).add(span, duration_s, own)

    def _read(self) -> dict[Component, int]:
        deltas: dict[Component, int] = {}
        for meter in list(self._alive):
            component = meter.component
            try:
                value = meter.read_uj()
            except MeterLost as error:
                self._lose(meter, error)
                continue
            delta = value - self._last_uj[component]
            if delta < 0:
                logger.error("%s meter went back by %d uJ; counted as 0", component, -delta)
            deltas[component] = max(0, delta)
            self._last_uj[component] = value
        return deltas

    def _lose(self, meter: Meter, error: MeterLost) -> None:
        logger.error("%s meter lost, its component is unknown from now on: %s", meter.component, error)
        self._alive.remove(meter)
        self._now_estimated()

    def _now_estimated(self) -> None:
        # What was counted so far stays, but it is no longer all that was used.
        for account in (*self._active.values(), *self._idle.values()):
            account.info = replace(account.info, quality=Quality.ESTIMATED)
        self._info = _describe(self._alive)


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

"""What metering costs an engine batch, and whether it divides what was used exactly: against a script of the truth.

The cost is that of ``start`` and ``finish`` on the thread that runs the engine. Scripted meters move by known amounts,
so what each engine batch is due is known to the microjoule; the error is the largest difference.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from carbonq.clock import ClockKind, GridClock
from carbonq.meters.hub import Handle, Hub
from carbonq.meters.protocol import Component, Meter, MeterKind
from carbonq.model import Quality
from carbonq.units import WINDOW, window_of


class ScriptedMeter:
    """A counter that moves only when it is told, and takes a while to be read."""

    def __init__(self, component: Component, *, lag_s: float = 0.0, read_s: float = 0.0) -> None:
        self.component = component
        self.kind = MeterKind.EXTERNAL
        self.quality = Quality.MEASURED
        self.uncertainty_pct: float | None = None
        self.device_ids: Sequence[str] = (f"scripted {component}",)
        self.lag_s = lag_s
        self.uj = 0
        self._read_s = read_s

    def read_uj(self) -> int:
        """Return the counter, after a while."""
        if self._read_s:
            time.sleep(self._read_s)
        return self.uj

    def marks(self) -> Sequence[str]:
        """Nothing to say."""
        return ()

    def close(self) -> None:
        """Nothing is held."""


class _Clock:
    """Grid and machine time that pass only when told."""

    def __init__(self) -> None:
        self.kind = ClockKind.SIMULATED
        self.factor = 1.0
        self._start = datetime(2026, 1, 1, tzinfo=UTC)
        self._ms = 0

    def now(self) -> datetime:
        return self._start + timedelta(milliseconds=self._ms)

    def machine(self) -> float:
        return self._ms / 1000

    def to_edge_s(self, seconds: float) -> float:
        """Return the seconds up to the next window edge, or ``seconds`` if it is further away."""
        left_s = (window_of(self.now()) + WINDOW - self.now()).total_seconds()
        return min(seconds, left_s)

    def advance_s(self, seconds: float) -> None:
        self._ms += round(seconds * 1000)


def overhead(meters: Sequence[Meter], *, batches: int) -> Mapping[str, float]:
    """Measure what ``start`` and ``finish`` cost together with these meters, in us; closes them."""
    hub = Hub(meters, GridClock.real())
    hub.watch()
    costs_us: list[float] = []
    for number in range(batches):
        began = time.perf_counter()
        handle = hub.start(1000.0)
        between = time.perf_counter()
        if number % 10 == 0:
            time.sleep(0.001)  # so that readings fall due in between, as they do in life
        ending = time.perf_counter()
        hub.finish(handle)
        costs_us.append((between - began + time.perf_counter() - ending) * 1e6)
    hub.close()
    ordered = sorted(costs_us)
    return {
        "median_us": statistics.median(ordered),
        "p99_us": ordered[int(len(ordered) * 0.99)],
        "most_us": ordered[-1],
    }


def error_uj(*, events: int, seed: int = 0) -> Mapping[str, int]:
    """Run overlapping engine batches over scripted counters without lag; compare with what each was due.

    Energies are chosen so that every share is whole: then the largest difference of any engine batch is the error of
    attribution. ``lost_uj`` is what the counters counted less all that was attributed, idle included.
    """
    rng = random.Random(seed)
    clock = _Clock()
    meters = {component: ScriptedMeter(component) for component in (Component.GPU, Component.CPU)}
    hub = Hub(list(meters.values()), clock, clock.machine)
    due: dict[Handle, int] = {}
    rates: dict[Handle, int] = {}
    largest, attributed = 0, 0
    for _ in range(events):
        if due and rng.random() < 0.5:
            handle = rng.choice(list(due))
            parts, _info = hub.end(handle)
            got = sum((part.gpu_uj or 0) + (part.cpu_uj or 0) for part in parts)
            largest = max(largest, abs(got - due.pop(handle)))
            attributed += got
            del rates[handle]
        else:
            rate = rng.randint(1, 8)
            handle = hub.start(float(rate))
            due[handle], rates[handle] = 0, rate
        clock.advance_s(clock.to_edge_s(rng.choice([0.001, 1, 20])))
        hub.tick()  # as a worker does at each window edge: no interval with energy crosses one here
        clock.advance_s(0.001)
        whole = sum(rates.values()) or 1
        for meter in meters.values():
            units = rng.randint(0, 10_000)
            meter.uj += units * whole
            for handle, rate in rates.items():
                due[handle] += units * rate
        hub.tick()
    for handle, wanted in due.items():
        parts, _info = hub.end(handle)
        got = sum((part.gpu_uj or 0) + (part.cpu_uj or 0) for part in parts)
        largest = max(largest, abs(got - wanted))
        attributed += got
    idle = sum((one.part.gpu_uj or 0) + (one.part.cpu_uj or 0) for one in hub.flush())
    counted = sum(meter.uj for meter in meters.values())
    return {"largest_error_uj": largest, "lost_uj": counted - attributed - idle, "counted_uj": counted}


def bench(*, batches: int = 2_000, events: int = 2_000) -> dict[str, Any]:
    """Measure cost and error; JSON values.

    The scripted GPU takes 2.4 ms to be read and trails by 110 ms, as an H200's counter does.
    """
    slow = [ScriptedMeter(Component.GPU, lag_s=0.11, read_s=0.0024), ScriptedMeter(Component.CPU)]
    return {
        "overhead": overhead(slow, batches=batches),
        "overhead_without_lag": overhead([ScriptedMeter(Component.CPU)], batches=batches),
        "attribution": error_uj(events=events),
    }

"""Look at a card beside the meters: its counter and its power at every moment, polled by a thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any


class Sampler:
    """Power of a card in mW, as ``nvmlDeviceGetPowerUsage`` gives it, with the time of each sample; a context.

    An independent second opinion on energy: trapezoids in floating point.
    """

    def __init__(self, read_mw: Callable[[], int], period_s: float = 0.02) -> None:
        self._read_mw = read_mw
        self._period_s = period_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self.samples: list[tuple[float, int]] = []

    def __enter__(self) -> Sampler:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _look(self) -> None:
        self.samples.append((time.perf_counter(), self._read_mw()))

    def _loop(self) -> None:
        while not self._over.wait(self._period_s):
            self._look()

    @property
    def joules(self) -> float:
        """Area below the samples."""
        pairs = itertools.pairwise(self.samples)
        return sum((a[1] + b[1]) / 2e3 * (b[0] - a[0]) for a, b in pairs)

    @property
    def watts(self) -> float:
        """Mean power over the time of the samples."""
        return self.joules / (self.samples[-1][0] - self.samples[0][0])

    @property
    def most_watts(self) -> float:
        """Largest sample."""
        return max(power for _, power in self.samples) / 1e3


def changes(read_mj: Callable[[], int], seconds: float, pause_s: float = 0.0005) -> list[tuple[float, int]]:
    """Poll a counter; return when (s from the start) it had moved, and to what (mJ)."""
    began = time.perf_counter()
    last = read_mj()
    found: list[tuple[float, int]] = [(0.0, last)]
    while (now := time.perf_counter() - began) < seconds:
        value = read_mj()
        if value != last:
            found.append((now, value))
            last = value
        time.sleep(pause_s)
    return found


def gaps_ms(found: list[tuple[float, int]]) -> dict[str, Any]:
    """Describe the time between moves of a counter, in ms; the first one is left out, it began before we looked."""
    gaps = sorted((b[0] - a[0]) * 1e3 for a, b in itertools.pairwise(found[1:]))
    if not gaps:
        return {"moves": 0}
    return {
        "moves": len(gaps),
        "least": round(gaps[0], 3),
        "median": round(gaps[len(gaps) // 2], 3),
        "p95": round(gaps[int(len(gaps) * 0.95)], 3),
        "most": round(gaps[-1], 3),
    }


def cost_us(act: Callable[[], object], times: int) -> dict[str, float]:
    """Describe what one call costs, in us."""
    costs: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        costs.append((time.perf_counter() - began) * 1e6)
    return described(costs)


def described(costs_us: list[float]) -> dict[str, float]:
    """Describe costs that were measured, in us."""
    ordered = sorted(costs_us)
    return {
        "median": round(ordered[len(ordered) // 2], 2),
        "p99": round(ordered[int(len(ordered) * 0.99)], 2),
        "most": round(ordered[-1], 2),
    }

"""Turn power that is sampled into a counter: trapezoids between samples, in whole numbers, so that nothing is rounded.

Between two samples power is taken to change evenly. A sampler thread looks every ``PERIOD_S``; each reading of the
counter takes a sample, too, so that it holds what was used up to then. Milliwatts in, microjoules out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from carbonq.meters.protocol import MeterLost

#: Between samples, in machine seconds: 20 Hz.
PERIOD_S = 0.05

#: Samples further apart than this leave a gap that is said (a suspended host, a driver that hung), in machine seconds.
GAP_S = 1.0

#: mW x ns x 2 (twice the area of a trapezoid) in a microjoule.
_HALF_PICOJOULES_PER_UJ = 2_000_000


class PowerCounter:
    """A counter over sampled power. Thread-safe.

    Args:
        read_mw: one sample in mW; may raise MeterLost.
        now_ns: monotonic machine time.
    """

    def __init__(self, read_mw: Callable[[], int], now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Take the first sample. Raises MeterLost."""
        self._read_mw = read_mw
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._last_mw = read_mw()
        self._last_ns = now_ns()
        self._area = 0
        self._had_gap = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, period_s: float = PERIOD_S) -> None:
        """Sample in a thread from now on."""
        self._thread = threading.Thread(target=self._sample, args=(period_s,), name="power-sampler", daemon=True)
        self._thread.start()

    def read_uj(self) -> int:
        """Take a sample and return the uJ since the start. Raises MeterLost."""
        with self._lock:
            power_mw, now_ns = self._read_mw(), self._now_ns()
            passed_ns = max(0, now_ns - self._last_ns)
            self._area += (self._last_mw + power_mw) * passed_ns
            self._had_gap = self._had_gap or passed_ns > GAP_S * 1_000_000_000
            self._last_mw, self._last_ns = power_mw, now_ns
            return self._area // _HALF_PICOJOULES_PER_UJ

    def had_gap(self) -> bool:
        """Say whether samples were missing since this was asked last."""
        with self._lock:
            had_gap, self._had_gap = self._had_gap, False
            return had_gap

    def close(self) -> None:
        """End the thread; safe to call twice."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self, period_s: float) -> None:
        while not self._over.wait(period_s):
            try:
                self.read_uj()
            except MeterLost:
                return  # whoever reads next hears of it

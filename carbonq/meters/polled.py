"""Figures that are fetched from elsewhere (an exporter, a PDU): asked by a thread, so that nobody waits for a network.

A meter that is polled trails by the period at which it is asked, and by whatever it trails itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from carbonq.errors import ConfigError
from carbonq.meters.protocol import MeterLost

logger = logging.getLogger(__name__)

#: Without an answer for so long the meter counts as lost, in machine seconds.
LOST_AFTER_S = 60.0

#: An answer may come so much later than its second period before it counts as missing, in machine seconds.
LATE_S = 1.0


class Unanswered(Exception):
    """The figure could not be fetched this time."""


class Polled:
    """Calls ``look`` every period in a thread.

    Args:
        look: fetches the figure and keeps it; raises Unanswered.
        period_s: machine seconds between looks.
        lost_after_s: how long it may go unanswered.

    Raises ConfigError when the first look is not answered.
    """

    def __init__(self, look: Callable[[], None], *, period_s: float, lost_after_s: float = LOST_AFTER_S) -> None:
        self._look = look
        self._period_s = period_s
        self._lost_after_s = lost_after_s
        self._error = ""
        self._was_silent = False
        try:
            look()
        except Unanswered as error:
            raise ConfigError(str(error)) from error
        self._answered = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="meter-poll", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise MeterLost when there was no answer for too long."""
        silent_s = time.monotonic() - self._answered
        if silent_s > self._lost_after_s:
            raise MeterLost(f"no answer for {silent_s:.0f} s: {self._error}")

    def was_silent(self) -> bool:
        """Say whether a look went unanswered since this was asked last: then figures may come too low, and too late."""
        is_silent = bool(self._error) or time.monotonic() - self._answered > 2 * self._period_s + LATE_S
        was_silent, self._was_silent = self._was_silent or is_silent, is_silent
        return was_silent

    def close(self) -> None:
        """End the thread; safe to call twice."""
        self._over.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._over.wait(self._period_s):
            try:
                self._look()
            except Unanswered as error:
                if not self._error:
                    logger.warning("a meter does not answer: %s", error)
                self._error, self._was_silent = str(error), True
            except Exception as error:  # a process loop: the next look may go well
                logger.exception("a meter cannot be looked at")
                self._error, self._was_silent = repr(error), True
            else:
                self._answered, self._error = time.monotonic(), ""

"""Ask for a tick without waiting for the broker: an answer to a client must not hang on a nudge that is only polite."""

from __future__ import annotations

import threading
import time
from typing import Protocol

#: How long the next nudge waits, in seconds: under load there would be one for each answer, and each costs the broker
#: and this process as much as storing a small job does.
_EVERY_S = 0.1


class Nudging(Protocol):
    """The part of ``tickets.Tickets`` that is needed here."""

    def nudge(self, tick: str) -> None:
        """Ask for a tick before its time; never raises, but may take seconds while the broker is away."""
        ...


class Nudger:
    """Passes nudges on from a thread of its own; those that come while one is on its way are one."""

    def __init__(self, tickets: Nudging) -> None:
        """Prepare; the thread starts with the first nudge."""
        self._tickets = tickets
        self._wanted: set[str] = set()
        self._lock = threading.Lock()
        self._is_running = False

    def nudge(self, tick: str) -> None:
        """Ask for a tick soon; returns at once."""
        with self._lock:
            self._wanted.add(tick)
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name="nudge", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._is_running = False
                    return
                tick = self._wanted.pop()
            self._tickets.nudge(tick)
            time.sleep(_EVERY_S)

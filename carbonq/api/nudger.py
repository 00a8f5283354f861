"""Ask for a tick without waiting for the broker: an answer to a client must not hang on a nudge that is only polite."""

from __future__ import annotations

import threading
from typing import Protocol

#: How long the next nudges wait, in seconds: under load there would be one for each answer, and each costs the broker
#: and this process as much as storing a small job does.
EVERY_S = 0.1


class Nudging(Protocol):
    """The part of ``tickets.Tickets`` that is needed here."""

    def nudge(self, tick: str) -> None:
        """Ask for a tick before its time; never raises, but may take seconds while the broker is away."""
        ...


class Nudger:
    """Passes nudges on from a thread of its own; those for one tick that come before it gets to them are one."""

    def __init__(self, tickets: Nudging) -> None:
        """Prepare; the thread starts with the first nudge, and stays: to start one takes an event loop milliseconds."""
        self._tickets = tickets
        self._wanted: set[str] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    def nudge(self, tick: str) -> None:
        """Ask for a tick soon; returns at once."""
        with self._changed:
            self._wanted.add(tick)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nudge", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Let the thread end; does not wait for it, because the broker may be away."""
        self._is_closed.set()
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._is_closed.is_set())
                taken, self._wanted = sorted(self._wanted), set()
            for tick in taken:
                self._tickets.nudge(tick)
            self._is_closed.wait(EVERY_S)

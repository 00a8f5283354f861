"""Keep the API's memory fresh: one thread that calls each refresh at its period until it is stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carbonq.errors import Unavailable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refresh:
    """Something to call every ``period_s`` machine seconds."""

    name: str
    period_s: float
    run: Callable[[], object]


class Background:
    """The thread. A refresh that fails is logged once per run of failures and tried again at its next time."""

    def __init__(self, refreshes: Sequence[Refresh]) -> None:
        """Prepare; nothing runs yet."""
        self._refreshes = tuple(refreshes)
        self._failing: set[str] = set()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="refresh", daemon=True)

    def start(self) -> None:
        """Refresh everything once, here, so that the first request finds it; then go on in the thread."""
        for refresh in self._refreshes:
            self._run(refresh)
        if self._refreshes:
            self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for the refresh it is in."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _loop(self) -> None:
        due = {refresh.name: time.monotonic() + refresh.period_s for refresh in self._refreshes}
        while not self._is_stopping.wait(max(0.01, min(due.values()) - time.monotonic())):
            for refresh in self._refreshes:
                if time.monotonic() >= due[refresh.name]:
                    self._run(refresh)
                    due[refresh.name] = time.monotonic() + refresh.period_s

    def _run(self, refresh: Refresh) -> None:
        try:
            refresh.run()
        except Unavailable as error:
            if refresh.name not in self._failing:
                logger.warning("refresh of %s failed, the last picture stays: %s", refresh.name, error.message)
            self._failing.add(refresh.name)
        except Exception:
            # The loop of this thread: a defect in one refresh must not stop the others.
            if refresh.name not in self._failing:
                logger.exception("refresh of %s failed", refresh.name)
            self._failing.add(refresh.name)
        else:
            if refresh.name in self._failing:
                logger.info("refresh of %s works again", refresh.name)
            self._failing.discard(refresh.name)

"""Say whether a worker is alone on its host: only then may it read a counter of the whole host.

RAPL counts what every process of the host uses: beside another worker its figures would be counted twice. Each worker
holds a shared lock on one file of the host, one that is alone an exclusive one. A newcomer holds a lock on a second
file while it waits, which tells the first to give its counters up. Locks end with their process: nothing is ever stale.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

#: How often the one that is alone looks for others, and a newcomer whether it was seen, in machine seconds.
LOOK_S = 0.5

#: How long a newcomer waits for the other to give its counters up: a frozen one must not keep it from working.
PATIENCE_S = 10.0


def open_lock(name: str) -> int:
    """Open a lock file of the host, made if need be. Read-only: it may have been made by another user."""
    path = Path(tempfile.gettempdir()) / name
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def is_locked(descriptor: int, kind: int) -> bool:
    """Take a lock if it is free; say whether this process has it now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Presence:
    """This worker's place among those of its host, held until ``close``."""

    def __init__(self) -> None:
        """Enter; waits for one that is alone to give its counters up."""
        self._here = open_lock("carbonq-workers.lock")
        self._waiting = open_lock("carbonq-workers-waiting.lock")
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_alone = is_locked(self._here, fcntl.LOCK_EX)
        if not self.is_alone:
            self._wait()

    def _wait(self) -> None:
        fcntl.flock(self._waiting, fcntl.LOCK_SH)
        end = time.monotonic() + PATIENCE_S
        while not is_locked(self._here, fcntl.LOCK_SH):
            if time.monotonic() > end:
                # It still says that it waits: the other one gives its counters up when it has loaded its models.
                logger.warning("another worker of this host reads its RAPL counters and does not answer yet")
                return
            time.sleep(LOOK_S / 5)
        fcntl.flock(self._waiting, fcntl.LOCK_UN)

    def share(self) -> None:
        """Let others in: this worker reads no counter of the whole host."""
        self.is_alone = False
        fcntl.flock(self._here, fcntl.LOCK_SH)

    def watch(self, give_up: Callable[[], None]) -> None:
        """Call ``give_up``, and then let others in, as soon as another worker comes to this host."""
        self._thread = threading.Thread(target=self._look, args=(give_up,), name="presence", daemon=True)
        self._thread.start()

    def _look(self, give_up: Callable[[], None]) -> None:
        while not self._over.wait(LOOK_S):
            if is_locked(self._waiting, fcntl.LOCK_EX):
                fcntl.flock(self._waiting, fcntl.LOCK_UN)
                continue
            give_up()
            self.share()
            return

    def close(self) -> None:
        """Leave."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        os.close(self._here)
        os.close(self._waiting)

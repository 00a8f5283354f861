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

from carbonq.errors import ConfigError

logger = logging.getLogger(__name__)

#: How often the one that is alone looks for others, and a newcomer whether it was seen, in machine seconds.
LOOK_S = 0.5

#: How long a newcomer waits for the other to give its counters up: a frozen one must not keep it from working.
PATIENCE_S = 10.0


def folder(lock_dir: Path | None) -> Path:
    """Return the folder of the host's locks: the one that is set, else the system's temporary folder."""
    return lock_dir if lock_dir is not None else Path(tempfile.gettempdir())


def open_lock(name: str, lock_dir: Path | None = None) -> int:
    """Open a lock file of the host, made if need be; read-only where it was made by another user.

    Raises ConfigError when the folder cannot be used.
    """
    path = folder(lock_dir) / name
    try:
        # Without O_CREAT first: Linux refuses to open others' files in a sticky folder for creation.
        for flags in (os.O_RDWR, os.O_RDONLY):
            try:
                return os.open(path, flags | os.O_CLOEXEC)
            except PermissionError:
                continue
            except FileNotFoundError:
                break
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"the lock {path} cannot be opened: {error.strerror}; see the setting lock_dir") from error


def is_locked(descriptor: int, kind: int) -> bool:
    """Take a lock if it is free; say whether this process has it now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Presence:
    """This worker's place among those of its host, held until ``close``."""

    def __init__(self, lock_dir: Path | None = None) -> None:
        """Enter; waits for one that is alone to give its counters up. Raises ConfigError for a folder without use."""
        self._here = open_lock("carbonq-workers.lock", lock_dir)
        self._waiting = open_lock("carbonq-workers-waiting.lock", lock_dir)
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

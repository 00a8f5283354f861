"""Signs of life: a file that a process touches as long as its loop really turns, and what can be read from it.

``DATA_DIR/run/NAME.HOST.PID.alive``: one for each process, so that two workers of one region on one folder never hide
each other. The process holds a lock on its file: what a killed one left behind is told from one that is frozen. Units:
machine seconds, by the files' times.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

#: Seconds without a touch after which a process counts as frozen. Region workers touch every 2 s; ticks come every
#: second or two, but a plan of a large installation may take its time.
STALE_S = {"beat": 30.0, "control": 30.0, "control-slow": 120.0, "worker": 30.0}

_FOLDER = "run"


def worker_name(region: str) -> str:
    """Return the name under which a region's workers give their signs of life."""
    return f"worker-{region}"


@dataclass(frozen=True, slots=True)
class Sign:
    """The sign of life of a process that has not ended: how long ago its loop turned."""

    pid: int
    age_s: float


class SignOfLife:
    """This process's file, made at the first ``touch``. Where the folder cannot be written, the process goes on."""

    def __init__(self, data_dir: Path, name: str) -> None:
        """Prepare; nothing is written yet."""
        self._path = data_dir / _FOLDER / f"{name}.{socket.gethostname()}.{os.getpid()}.alive"
        self._name = name
        self._handle: int | None = None
        self._has_failed = False

    def touch(self) -> None:
        """Say that the loop has turned; never raises."""
        if self._has_failed:
            return
        try:
            if self._handle is None:
                self._handle = self._make()
            os.utime(self._handle)
        except OSError as error:
            self._has_failed = True
            logger.warning("no signs of life from now on, `carbonq health` will miss them: %s", error)

    def close(self) -> None:
        """Take the file away: the process ends in order."""
        if self._handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None

    def _make(self) -> int:
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in folder.glob(f"{self._name}.*.alive"):
            if not _is_held(path):
                path.unlink(missing_ok=True)
        part = self._path.with_suffix(".part")
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Locked before it has its name: nobody may take it for what a killed process left behind.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.replace(self._path)
        except OSError:
            os.close(handle)
            raise
        return handle


def signs(data_dir: Path, name: str) -> list[Sign]:
    """Return the signs of life of this host's processes of a name that have not ended, the longest silent first."""
    found: list[Sign] = []
    prefix = f"{name}.{socket.gethostname()}."
    for path in (data_dir / _FOLDER).glob("*.alive"):
        pid = path.name.removeprefix(prefix).removesuffix(".alive")
        if not path.name.startswith(prefix) or not pid.isdigit():
            continue
        try:
            touched_at = path.stat().st_mtime
        except FileNotFoundError:
            continue  # it ended just now
        if _is_held(path):
            found.append(Sign(int(pid), max(0.0, time.time() - touched_at)))
    return sorted(found, key=lambda sign: -sign.age_s)


def _is_held(path: Path) -> bool:
    """Say whether a process that has not ended holds the file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False

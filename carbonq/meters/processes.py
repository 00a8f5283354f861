"""Tell whether somebody else uses a device: of the processes that a driver lists, which are not ours.

Ours are this process, its engines' processes and all that these started. A driver lists processes by the numbers of the
host; in a container those cannot be matched. There, processes that cannot be seen count as ours as long as there are no
more of them than processes of ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

#: The inode of the first process namespace (Linux, PROC_PID_INIT_INO): whoever is in it sees every process.
_FIRST_NAMESPACE = 0xEFFFFFFC


def sees_all(namespace: Path = Path("/proc/self/ns/pid")) -> bool:
    """Say whether this process sees all processes of its host by the host's numbers."""
    try:
        return namespace.stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


class Ours:
    """The processes of this worker.

    Args:
        pids: the engine's processes besides this one, asked each time.
        sees_all: whether the host's process numbers are ours, as ``sees_all`` says.
    """

    def __init__(self, pids: Callable[[], Sequence[int]], *, sees_all: bool) -> None:
        self._pids = pids
        self._sees_all = sees_all

    def is_shared(self, listed: Iterable[int]) -> bool:
        """Say whether any of the processes that use a device is not ours. One that has just ended is nobody's."""
        ours = {os.getpid(), *self._pids()}
        others = set(listed) - ours
        unseen = 0
        for pid in others:
            try:
                above = {one.pid for one in psutil.Process(pid).parents()}
            except psutil.Error:
                unseen += 1
                continue
            if not above & ours:
                return True
        return not self._sees_all and unseen > len(ours)

"""Start a program that dies with its parent: ``python tether.py PARENT_PID PROGRAM ARGUMENT...``. Imports only stdlib.

The supervisor starts every child through this file, so that nothing outlives it, not even when it is killed with -9.
On Linux the kernel does the watching and this process becomes the program; elsewhere it stays and watches its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

#: ``prctl`` option: the signal this process gets when the thread that started it ends.
_PR_SET_PDEATHSIG = 1

_POLL_S = 0.5


def run(parent: int, command: Sequence[str]) -> int:
    """Become ``command`` (Linux), or run it and watch (elsewhere); returns only in the latter case or on failure."""
    if sys.platform == "linux":
        # SIGKILL and not SIGTERM: a warm shutdown waits for a broker that dies at the same moment. Leases and fencing
        # make this the same as a crash, which loses nothing.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            return 1
        os.execv(command[0], list(command))
    return _watch(parent, command)


def _watch(parent: int, command: Sequence[str]) -> int:
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    while True:
        try:
            return child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                child.kill()
                child.wait()
                return 1
            time.sleep(0)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))

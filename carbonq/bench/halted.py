"""Some processes of a stack held still for a while, so that they take no turns from what is measured."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from carbonq.embedded.stack import Stack


@contextmanager
def halted(stack: Stack, is_meant: Callable[[str], bool]) -> Generator[None]:
    """Stop the processes whose name is meant where they are, and let them go on at the end."""
    pids = [pid for name, pid in stack.pids.items() if is_meant(name)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

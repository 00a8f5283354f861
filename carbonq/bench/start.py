"""Whole-stack start to ready: seconds until the API is ready and every region has a live worker, Flower left out.

The yardstick beside it is a Python process that imports what a region worker imports and loads the same model: the part
of a start that no arrangement of processes can save. Seconds are machine seconds.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from carbonq.bench.backend import Backend, each
from carbonq.bench.run import MODEL
from carbonq.embedded.stack import Stack

_YARDSTICK = """
import sys
import carbonq.wiring, carbonq.services.run, carbonq.tickets
from carbonq import models
engine = carbonq.wiring.make_engine(models.BUILTIN[sys.argv[1]])
engine.load()
engine.close()
"""


def bench(folder: Path, backends: Sequence[Backend], *, rounds: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Start and stop a fresh installation ``rounds`` times on each backend; return JSON values."""
    found: dict[str, Any] = {}
    for number, backend in enumerate(backends):
        found[backend.name] = each(
            folder / str(number), rounds, lambda place, on=backend: _start(place, on, report), "ready_s"
        )
    return {"bench": "start", "backends": found}


def _start(folder: Path, backend: Backend, report: Callable[[str], None]) -> dict[str, float]:
    folder.mkdir(parents=True)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", _YARDSTICK, MODEL], check=True, capture_output=True)
    alone_s = time.perf_counter() - began
    with backend.settings(folder) as settings:
        began = time.perf_counter()
        with Stack(settings, report=lambda _sentence: None, flower=False):
            ready_s = time.perf_counter() - began
            began = time.perf_counter()
        stopped_s = time.perf_counter() - began
    report(f"{backend.name}: ready after {ready_s:.1f} s (one worker's imports and model {alone_s:.1f} s)")
    return {"ready_s": ready_s, "stopped_s": stopped_s, "alone_s": alone_s, "ratio": ready_s / alone_s}

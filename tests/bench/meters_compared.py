"""One run as carbonq, Zeus and CodeCarbon measure it at the same time, in the same process. Takes about 40 s.

``python -m tests.bench.meters_compared`` writes JSON to stdout. It needs ``zeus`` and ``codecarbon`` and a C compiler;
the GPU is a library under NVML's name whose true energy is known (``tests/data/scheduled_nvml.c``), which all three
read through the same binding. ``tests/gpu/compare.py`` does the same on a real card, where the truth is not known.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "data" / "scheduled_nvml.c"
IDLE_W, BUSY_W = 78.0, 640.0

#: Name -> batches, seconds of each, seconds of pause after each.
RUNS = {"long": (4, 2.5, 1.0), "short": (300, 0.012, 0.005), "one short": (1, 0.05, 0.0)}


class Card:
    """Writes the schedule, and knows what is true."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spans: list[tuple[float, float]] = []
        self._write()

    def run(self, seconds: float) -> None:
        """Be busy for so long; the process sleeps, as it does while kernels run."""
        start = time.monotonic()
        self._spans.append((start, 0.0))
        self._write()
        time.sleep(seconds)
        self._spans[-1] = (start, time.monotonic())
        self._write()

    def joules(self, start: float, end: float) -> tuple[float, float]:
        """Return the true energy of a stretch while busy, and all of it."""
        busy = sum(max(0.0, min(end, last) - max(start, first)) for first, last in self._spans)
        return busy * BUSY_W, busy * BUSY_W + (end - start - busy) * IDLE_W

    def _write(self) -> None:
        lines = [f"{IDLE_W * 1000}", *(f"{a!r} {b!r} {BUSY_W * 1000}" for a, b in self._spans)]
        new = self._path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self._path)


def child(schedule: Path) -> dict[str, Any]:
    """Measure all runs; the library is in place."""
    from zeus.monitor import ZeusMonitor

    from carbonq.clock import GridClock
    from carbonq.meters.cpu_time import CpuTimeMeter, Watts
    from carbonq.meters.hub import Hub
    from carbonq.meters.nvml import NvmlMeter

    card = Card(schedule)
    hub = Hub([NvmlMeter(["0"]), CpuTimeMeter(Watts("stated", 5.0))], GridClock.real())
    hub.watch()
    zeus = ZeusMonitor(gpu_indices=[0])
    found: dict[str, Any] = {
        "versions": {name: version(name) for name in ("zeus", "codecarbon", "nvidia-ml-py")},
        "idle_w": IDLE_W,
        "busy_w": BUSY_W,
    }
    for name, (count, seconds, pause_s) in RUNS.items():
        found[name] = _run(
            card, hub, zeus, partial(_batches, card, hub, zeus, count=count, seconds=seconds, pause_s=pause_s)
        )
    hub.close()
    return found


def _run(card: Card, hub: Any, zeus: Any, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    from codecarbon import OfflineEmissionsTracker

    tracker = OfflineEmissionsTracker(
        country_iso_code="USA", measure_power_secs=1, save_to_file=False, log_level="error", allow_multiple_runs=True
    )
    tracker.start()
    hub.flush()
    zeus.begin_window("all", sync_execution=False)
    start = time.monotonic()
    made = work()
    end = time.monotonic()
    window = zeus.end_window("all", sync_execution=False)
    tracker.stop()
    idle = hub.flush()
    busy_j, all_j = card.joules(start, end)
    data = tracker.final_emissions_data
    joules = {key: round(value, 3) for key, value in made.items()}
    return {
        "wall_s": round(end - start, 3),
        "true": {"batches_gpu_j": round(busy_j, 3), "all_gpu_j": round(all_j, 3)},
        "carbonq": {
            "batches_gpu_j": joules["carbonq"],
            "idle_gpu_j": round(sum(one.part.gpu_uj or 0 for one in idle) / 1e6, 3),
            "batches_cpu_j": joules["carbonq_cpu"],
        },
        "zeus": {
            "batches_gpu_j": joules["zeus"],
            "batches_at_zero": made["zeus_zero"],
            "all_gpu_j": round(sum(window.gpu_energy.values()), 3),
        },
        "codecarbon": {
            "all_gpu_j": round(data.gpu_energy * 3.6e6, 3),
            "cpu_j": round(data.cpu_energy * 3.6e6, 3),
            "ram_j": round(data.ram_energy * 3.6e6, 3),
            "g_per_kwh": round(data.emissions / data.energy_consumed * 1000, 1),
        },
    }


def _batches(card: Card, hub: Any, zeus: Any, *, count: int, seconds: float, pause_s: float) -> dict[str, Any]:
    closings: list[Any] = []
    theirs: list[float] = []
    for number in range(count):
        handle = hub.start()
        zeus.begin_window(f"batch {number}", sync_execution=False)
        card.run(seconds)
        ended = zeus.end_window(f"batch {number}", sync_execution=False)
        theirs.append(sum(ended.gpu_energy.values()))
        closings.append(hub.finish(handle))
        time.sleep(pause_s)
    parts = [part for closing in closings for part in closing.result()[0]]
    return {
        "carbonq": sum(part.gpu_uj or 0 for part in parts) / 1e6,
        "carbonq_cpu": sum(part.cpu_uj or 0 for part in parts) / 1e6,
        "zeus": sum(theirs),
        "zeus_zero": sum(one == 0 for one in theirs),
    }


def main() -> None:
    """Build the library, then measure in a process that loads it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library, schedule = folder / "libnvidia-ml.so.1", folder / "schedule"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE], check=True)
        environment = os.environ | {"LD_LIBRARY_PATH": name, "SCHEDULED_NVML": str(schedule)}
        environment["SCHEDULED_NVML_BEGAN"] = repr(time.monotonic())
        environment["PATH"] = f"{name}{os.pathsep}{environment['PATH']}"
        found = folder / "nvidia-smi"  # CodeCarbon looks for a GPU only where this command succeeds
        found.write_text("#!/bin/sh\n")
        found.chmod(0o755)
        schedule.write_text(f"{IDLE_W * 1000}\n")
        command = [sys.executable, "-m", "tests.bench.meters_compared", str(schedule)]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(child(Path(sys.argv[1])), indent=1))
    else:
        main()

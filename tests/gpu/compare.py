"""One run as carbonq, Zeus and CodeCarbon measure it at the same time, in the same process. Takes about 45 s.

Needs a GPU, torch with CUDA, ``zeus`` and ``codecarbon``. ``python -m tests.gpu.compare`` writes JSON to stdout.
``docs/meters.md`` says why the figures differ.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from carbonq.clock import GridClock
from carbonq.meters.cpu_time import CpuTimeMeter, watts_of_this_cpu
from carbonq.meters.hub import Closing, Hub
from carbonq.meters.nvml import NvmlMeter

from .load import Load

#: Of the short batches: how many, and for how long each.
SHORT, SHORT_S = 150, 0.012

KWH = 3.6e6  # joules


class Three:
    """All three meters over the same stretch."""

    def __init__(self) -> None:
        from zeus.monitor import ZeusMonitor

        self.hub = Hub([NvmlMeter(["0"]), CpuTimeMeter(watts_of_this_cpu())], GridClock.real())
        self.hub.watch()
        self.zeus = ZeusMonitor(gpu_indices=[0])

    def measure(self, work: Callable[[], int]) -> dict[str, Any]:
        """Run ``work``, which returns how many batches it ran, and return the joules that each says."""
        from codecarbon import OfflineEmissionsTracker

        self.hub.flush()
        tracker = OfflineEmissionsTracker(
            country_iso_code="USA", measure_power_secs=1, save_to_file=False, log_level="error"
        )
        tracker.start()
        self.zeus.begin_window("all")
        began = time.monotonic()
        batches = work()
        wall_s = time.monotonic() - began
        zeus = self.zeus.end_window("all")
        tracker.stop()
        idle = self.hub.flush()
        data = tracker.final_emissions_data
        return {
            "wall_s": round(wall_s, 3),
            "batches": batches,
            "carbonq": {
                "batches_gpu_j": self.gpu_uj / 1e6,
                "batches_cpu_j": self.cpu_uj / 1e6,
                "idle_gpu_j": sum(one.part.gpu_uj or 0 for one in idle) / 1e6,
                "idle_cpu_j": sum(one.part.cpu_uj or 0 for one in idle) / 1e6,
                "least_batch_gpu_j": self.least_uj / 1e6,
            },
            "zeus": {
                "window_gpu_j": sum(zeus.gpu_energy.values()),
                "batches_gpu_j": self.zeus_j,
                "batches_at_zero": self.zeus_zero,
            },
            "codecarbon": {
                "gpu_j": data.gpu_energy * KWH,
                "cpu_j": data.cpu_energy * KWH,
                "ram_j": data.ram_energy * KWH,
            },
        }

    def batches(self, load: Load, count: int, seconds: float, pause_s: float) -> int:
        """Run engine batches, each in an interval of the hub and a window of Zeus."""
        self.gpu_uj = self.cpu_uj = self.zeus_zero = 0
        self.least_uj, self.zeus_j = 10**18, 0.0
        closings: list[Closing] = []
        for number in range(count):
            handle = self.hub.start()
            self.zeus.begin_window(f"batch {number}")
            load.run(seconds)
            window = self.zeus.end_window(f"batch {number}")
            closings.append(self.hub.finish(handle))
            theirs = sum(window.gpu_energy.values())
            self.zeus_j += theirs
            self.zeus_zero += theirs == 0
            time.sleep(pause_s)
        for closing in closings:
            parts, _ = closing.result()
            mine = sum(part.gpu_uj or 0 for part in parts)
            self.gpu_uj += mine
            self.least_uj = min(self.least_uj, mine)
            self.cpu_uj += sum(part.cpu_uj or 0 for part in parts)
        return count


def compare() -> dict[str, Any]:
    """Measure a few long batches with pauses, and many short ones without."""
    warnings.simplefilter("ignore")
    three, load = Three(), Load()
    return {
        "versions": {name: version(name) for name in ("zeus", "codecarbon", "nvidia-ml-py")},
        "long": three.measure(lambda: three.batches(load, 4, 3.0, 1.0)),
        "short": three.measure(lambda: three.batches(load, SHORT, SHORT_S, 0.0)),
    }


if __name__ == "__main__":
    print(json.dumps(compare(), indent=1))

"""What a real card does: its counter, its lag, its power, and what carbonq's hub makes of them. Takes about a minute.

Needs ``nvidia-ml-py``, ``psutil``, ``numpy`` and torch with CUDA. ``python -m tests.gpu.report`` writes JSON to stdout.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from carbonq.clock import GridClock
from carbonq.meters.hub import Hub
from carbonq.meters.nvml import NvmlMeter

from .load import Load
from .watch import Sampler, changes, cost_us, described, gaps_ms

#: Fields of nvmlDeviceGetFieldValues: mean and instantaneous power of the device (mW).
POWER_AVERAGE, POWER_INSTANT = 185, 186


class Card:
    """The first GPU, through the plain binding."""

    def __init__(self) -> None:
        import pynvml

        self.nvml = pynvml
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def read_mj(self) -> int:
        return int(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle))

    def read_mw(self) -> int:
        return int(self.nvml.nvmlDeviceGetPowerUsage(self.handle))

    def field_mw(self, field: int) -> int | None:
        value = self.nvml.nvmlDeviceGetFieldValues(self.handle, [field])[0]
        return None if value.nvmlReturn else int(value.value.uiVal)

    def ask(self, act: Callable[[], object]) -> str:
        """What a call answers, or how it is refused."""
        try:
            return str(act())
        except self.nvml.NVMLError as error:
            return f"{type(error).__name__}: {error}"

    def facts(self) -> dict[str, Any]:
        nvml, handle = self.nvml, self.handle
        return {
            "name": str(nvml.nvmlDeviceGetName(handle)),
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "gpus": int(nvml.nvmlDeviceGetCount()),
            "architecture": self.ask(lambda: nvml.nvmlDeviceGetArchitecture(handle)),
            "power_limit_mw": self.ask(lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle)),
            "enforced_limit_mw": self.ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
            "mig_mode": self.ask(lambda: nvml.nvmlDeviceGetMigMode(handle)),
            "max_mig_devices": self.ask(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)),
            "is_mig_handle": self.ask(lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)),
            "first_mig_device": self.ask(lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)),
            "power_average_mw": self.ask(lambda: self.field_mw(POWER_AVERAGE)),
            "power_instant_mw": self.ask(lambda: self.field_mw(POWER_INSTANT)),
            "python": platform.python_version(),
        }

    def processes(self) -> dict[str, Any]:
        """Who uses the card, as NVML says it, beside who we are."""
        nvml, handle = self.nvml, self.handle
        listed = self.ask(lambda: [one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)])
        return {
            "own_pid": os.getpid(),
            "pid_namespace": os.stat("/proc/self/ns/pid").st_ino,
            "is_first_namespace": os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC,
            "compute": listed,
            "graphics": self.ask(lambda: [one.pid for one in nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)]),
            "mps": self.ask(lambda: [one.pid for one in nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)]),
            "utilization": self.ask(
                lambda: [(one.pid, one.smUtil) for one in nvml.nvmlDeviceGetProcessUtilization(handle, 0)]
            ),
        }


def idle(card: Card, seconds: float) -> dict[str, Any]:
    """Power of the card while nothing runs: by counter and by samples."""
    began, first = time.perf_counter(), card.read_mj()
    with Sampler(card.read_mw) as sampler:
        time.sleep(seconds)
    joules = (card.read_mj() - first) / 1e3
    return {
        "seconds": seconds,
        "counter_w": round(joules / (time.perf_counter() - began), 2),
        "sampled_w": round(sampler.watts, 2),
        "power_instant_w": (card.field_mw(POWER_INSTANT) or 0) / 1e3,
    }


def one_batch(card: Card, hub: Hub, load: Load, seconds: float) -> dict[str, Any]:
    """One engine batch: the hub's figure beside the raw counter and the samples."""
    first = card.read_mj()
    with Sampler(card.read_mw) as sampler:
        handle = hub.start()
        began = time.perf_counter()
        products = load.run(seconds)
        lasted = time.perf_counter() - began
        parts, info = hub.end(handle)
    counter_j = (card.read_mj() - first) / 1e3
    hub_j = sum(part.gpu_uj or 0 for part in parts) / 1e6
    return {
        "seconds": round(lasted, 3),
        "products": products,
        "hub_j": hub_j,
        "hub_s": round(sum(part.duration_s for part in parts), 3),
        "counter_j": counter_j,
        "sampled_j": round(sampler.joules, 1),
        "sampled_to_counter": round(sampler.joules / counter_j, 4) if counter_j else None,
        "mean_w": round(hub_j / lasted, 1),
        "most_sampled_w": sampler.most_watts,
        "meter": info.gpu_meter.value,
        "quality": info.quality.value,
        "uncertainty_pct": info.uncertainty_pct,
        "device_ids": list(info.device_ids),
    }


def overlapping(hub: Hub, meter: NvmlMeter, loads: tuple[Load, Load], step_s: float) -> dict[str, Any]:
    """Two engine batches, the second begun a step after the first: 1 step alone, 1 together, 1 alone."""
    hub.flush()
    before = meter.read_uj()
    energies: list[int] = [0, 0]
    rates = (300.0, 100.0)

    def run(number: int) -> None:
        time.sleep(number * step_s)
        handle = hub.start(rates[number])
        loads[number].run(2 * step_s)
        parts, _ = hub.end(handle)
        energies[number] = sum(part.gpu_uj or 0 for part in parts)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, (0, 1)))
    idle_uj = sum(window.part.gpu_uj or 0 for window in hub.flush())
    return {
        "rates": rates,
        "batches_j": [uj / 1e6 for uj in energies],
        "idle_j": idle_uj / 1e6,
        "all_uj": sum(energies) + idle_uj,
        # Read before and after the hub's own readings, so it is at least what the hub saw.
        "counter_uj": meter.read_uj() - before,
    }


def short_batches(hub: Hub, load: Load, *, count: int, batch_s: float, pause_s: float) -> dict[str, Any]:
    """Engine batches shorter than the counter's lag: what each is said to have used."""
    hub.flush()
    joules: list[float] = []
    waits_ms: list[float] = []
    qualities: set[str] = set()
    for _ in range(count):
        handle = hub.start()
        load.run(batch_s)
        began = time.perf_counter()
        parts, info = hub.end(handle)
        waits_ms.append((time.perf_counter() - began) * 1e3)
        joules.append(round(sum(part.gpu_uj or 0 for part in parts) / 1e6, 2))
        qualities.add(info.quality.value)
        time.sleep(pause_s)
    idle_j = sum(window.part.gpu_uj or 0 for window in hub.flush()) / 1e6
    return {
        "batch_s": batch_s,
        "pause_s": pause_s,
        "zeros": sum(1 for value in joules if value == 0),
        "batches_j": joules,
        "idle_j": idle_j,
        "end_took_ms": [round(value, 2) for value in waits_ms],
        "qualities": sorted(qualities),
    }


def step_response(card: Card, load: Load, seconds: float = 0.6) -> dict[str, Any]:
    """Idle, load, idle: when counter and power see the step. Times in s, from the start of watching."""
    found: list[tuple[float, int]] = []
    marks: dict[str, float] = {}
    powers: list[tuple[float, int, int | None]] = []
    began = time.perf_counter()
    over = threading.Event()

    def watch_counter() -> None:
        found.extend(changes(card.read_mj, 3 * seconds, pause_s=0.001))

    def watch_power() -> None:
        while not over.wait(0.01):
            powers.append((round(time.perf_counter() - began, 4), card.read_mw(), card.field_mw(POWER_INSTANT)))

    threads = [threading.Thread(target=watch_counter), threading.Thread(target=watch_power)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    marks["load_from"] = round(time.perf_counter() - began, 4)
    load.run(seconds)
    marks["load_to"] = round(time.perf_counter() - began, 4)
    threads[0].join()
    over.set()
    threads[1].join()
    return {
        **marks,
        "counter_s_mj": [(round(at, 4), value - found[0][1]) for at, value in found],
        "power_s_mw_instant_mw": powers[::4],
    }


def overhead(card: Card, hub: Hub, meter: NvmlMeter) -> dict[str, Any]:
    """What looking costs, in us a call."""
    nvml, handle = card.nvml, card.handle
    opened = hub.start()
    peeks = cost_us(lambda: hub.peek(opened), 1000)
    hub.end(opened)
    starts: list[float] = []
    finishes: list[float] = []
    ends: list[float] = []
    for _ in range(40):
        began = time.perf_counter()
        opened = hub.start()
        starts.append((time.perf_counter() - began) * 1e6)
        time.sleep(0.15)  # beyond any lag: what is measured is the work, not the waiting
        began = time.perf_counter()
        closing = hub.finish(opened)
        finishes.append((time.perf_counter() - began) * 1e6)
        closing.result()
        ends.append((time.perf_counter() - began) * 1e6)
    hub.flush()
    return {
        "counter_us": cost_us(card.read_mj, 2000),
        "power_us": cost_us(card.read_mw, 1000),
        "power_instant_us": cost_us(lambda: card.field_mw(POWER_INSTANT), 500),
        "compute_processes_us": cost_us(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), 300),
        "graphics_processes_us": cost_us(lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle), 300),
        "meter_read_us": cost_us(meter.read_uj, 2000),
        "hub_peek_us": peeks,
        "hub_start_us": described(starts),
        "hub_finish_us": described(finishes),
        "until_known_us": described(ends),
    }


#: Another user of the card, with the seconds it stays.
OTHER = "import torch, time; x = torch.ones(8, device='cuda'); print('on', flush=True); time.sleep({seconds})"


def strangers(meter: NvmlMeter, seconds: float = 4.0) -> dict[str, Any]:
    """What the meter says while a child of ours uses the card, and while a process uses it that is nobody's child."""
    found: dict[str, Any] = {}
    code = OTHER.format(seconds=seconds)
    for name, command in {
        "child": [sys.executable, "-c", code],
        "stranger": ["sh", "-c", f'"{sys.executable}" -c "{code}" & exit 0'],
    }.items():
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            meter.read_uj()
            found[name] = list(meter.marks())
            process.stdout.read()  # until it has ended
    meter.read_uj()
    found["afterwards"] = list(meter.marks())
    return found


def make(say: Callable[[str], None] = lambda _text: None) -> dict[str, Any]:
    """Measure everything. Raises ImportError without torch or pynvml, and what they raise without a card."""
    card = Card()
    say("idle")
    found: dict[str, Any] = {
        "card": card.facts(),
        "processes_before": card.processes(),
        "idle_without_context": idle(card, 4.0),
    }
    loads = (Load(), Load())
    meter = NvmlMeter(["0"])
    hub = Hub([NvmlMeter(["0"])], GridClock.real())
    hub.watch()
    time.sleep(2.0)
    found["processes"] = card.processes()
    found["idle"] = idle(card, 6.0)
    say("lag")
    found["lag_idle_ms"] = gaps_ms(changes(card.read_mj, 4.0))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loads[0].run, 4.0)
        found["lag_busy_ms"] = gaps_ms(changes(card.read_mj, 3.5))
        found["lag_busy_products"] = running.result()
    time.sleep(1.0)
    say("step")
    found["step"] = step_response(card, loads[0])
    time.sleep(1.0)
    say("batches")
    found["one_batch"] = one_batch(card, hub, loads[0], 5.0)
    time.sleep(1.0)
    found["overlapping"] = overlapping(hub, meter, loads, 2.0)
    time.sleep(1.0)
    found["short_batches"] = short_batches(hub, loads[0], count=20, batch_s=0.03, pause_s=0.07)
    found["short_batches_close"] = short_batches(hub, loads[0], count=20, batch_s=0.03, pause_s=0.0)
    say("overhead")
    found["overhead"] = overhead(card, hub, meter)
    say("processes")
    found["shared"] = strangers(meter)
    hub.close()
    meter.close()
    return found


def write(found: dict[str, Any], path: str | None) -> None:
    """Write the report to a file, or to stdout."""
    text = json.dumps(found, indent=1) + "\n"
    if path is None:
        print(text)
    else:
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(make(lambda text: print(text, flush=True)), os.environ.get("CARBONQ_GPU_REPORT"))

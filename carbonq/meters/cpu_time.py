"""Estimate CPU energy as CPU seconds x watts per busy hardware thread: a virtual counter, where nothing can measure.

It covers this process and its engine's processes, and counts from 0 in each process incarnation. Two workers on one
host never count the same CPU second. Watts come from the settings or from ``data/watts_per_core.csv``, which names its
sources; the figure includes the thread's part of a whole server, so nothing is added for DRAM. Microjoules out.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import psutil

from carbonq.meters.protocol import Component, MeterKind
from carbonq.model import Quality

_NS_PER_S = 1_000_000_000
_UW_PER_W = 1_000_000
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Watts:
    """Watts of one busy hardware thread, and the CPU they are stated for."""

    cpu: str
    watts: float


def _no_pids() -> Sequence[int]:
    return ()


class CpuTimeMeter:
    """The virtual counter.

    Args:
        watts: of one busy hardware thread (what the operating system calls a core).
        pids: the engine's processes besides this one, asked at every reading.
    """

    component = Component.CPU
    kind = MeterKind.CPU_TIME
    quality = Quality.ESTIMATED
    uncertainty_pct: float | None = None  # nobody states one for the table
    lag_s = 0.0

    def __init__(self, watts: Watts, pids: Callable[[], Sequence[int]] = _no_pids) -> None:
        self.device_ids: Sequence[str] = (f"{watts.cpu} at {watts.watts:g} W",)
        self._uw = round(watts.watts * _UW_PER_W)
        self._pids = pids
        self._start_ns = time.process_time_ns()
        self._seen_ns: dict[tuple[int, float], int] = {}
        self._others_ns = 0
        self._read_others()

    def marks(self) -> Sequence[str]:
        """Nothing to say."""
        return ()

    def read_uj(self) -> int:
        """Return the uJ since this object was made: CPU ns of all threads x uW, in whole uJ."""
        self._read_others()
        cpu_ns = time.process_time_ns() - self._start_ns + self._others_ns
        return cpu_ns * self._uw // _NS_PER_S

    def close(self) -> None:
        """Nothing is held."""

    def _read_others(self) -> None:
        """Add what the engine's processes used since the last reading.

        What one used before it was first seen, or after its last reading when it died, is not counted.
        """
        for pid in self._pids():
            try:
                process = psutil.Process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    # The same number may come back as another process.
                    key = (pid, process.create_time())
            except psutil.Error:
                continue
            now_ns = round((times.user + times.system) * _NS_PER_S)
            self._others_ns += max(0, now_ns - self._seen_ns.get(key, now_ns))
            self._seen_ns[key] = now_ns


def watts_of_this_cpu(cpuinfo: Path = _CPUINFO) -> Watts:
    """Return the table's watts for this host's CPU, or the table's default where it is not listed."""
    fields = _first_processor(cpuinfo)
    default: Watts | None = None
    for row in table():
        if row["vendor_id"] == "default":
            default = Watts("unlisted CPU", float(row["watts"]))
        elif _is_match(row, fields):
            return Watts(row["cpu"], float(row["watts"]))
    assert default is not None
    return default


def table() -> list[dict[str, str]]:
    """Return the rows of ``data/watts_per_core.csv``; lines that begin with # are its sources."""
    text = resources.files("carbonq.data").joinpath("watts_per_core.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def _first_processor(cpuinfo: Path) -> Mapping[str, str]:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _is_match(row: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    if row["vendor_id"] != fields.get("vendor_id") or row["family"] != fields.get("cpu family"):
        return False
    steppings = row["steppings"].split()
    return fields.get("model") in row["models"].split() and (not steppings or fields.get("stepping") in steppings)

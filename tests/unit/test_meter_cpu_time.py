import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carbonq.meters.cpu_time import CpuTimeMeter, Watts, table, watts_of_this_cpu
from carbonq.meters.protocol import Component, MeterKind
from carbonq.model import Quality

BURN = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.readline()"


def burn(cpu_s: float) -> None:
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        pass


def test_cpu_seconds_become_microjoules() -> None:
    meter = CpuTimeMeter(Watts("test", 2.5))
    before_ns = time.process_time_ns()
    start = meter.read_uj()
    burn(0.05)
    uj = meter.read_uj() - start
    cpu_s = (time.process_time_ns() - before_ns) / 1e9
    assert 0.05 * 2.5e6 <= uj <= cpu_s * 2.5e6 + 1
    assert (meter.component, meter.kind, meter.quality) == (Component.CPU, MeterKind.CPU_TIME, Quality.ESTIMATED)
    assert list(meter.device_ids) == ["test at 2.5 W"]
    meter.close()


def test_the_counter_is_whole_microjoules_and_never_falls() -> None:
    meter = CpuTimeMeter(Watts("test", 1.0))
    readings = [meter.read_uj() for _ in range(1000)]
    assert readings == sorted(readings)
    assert all(isinstance(reading, int) for reading in readings)


def test_an_engine_process_is_counted_from_when_it_was_first_seen_and_stays_when_it_dies() -> None:
    pids: list[int] = []
    meter = CpuTimeMeter(Watts("test", 1.0), lambda: pids)
    child = subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    pids.append(child.pid)
    meter.read_uj()
    child.stdout.readline()
    own_ns = time.process_time_ns()
    alive = meter.read_uj()
    assert alive - own_ns / 1000 < 1e6
    assert alive > 0.15e6
    child.stdin.close()
    child.wait(timeout=30)
    child.stdout.close()
    assert meter.read_uj() >= alive


@pytest.mark.parametrize(
    ("cpuinfo", "cpu"),
    [
        ("vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 1\nstepping : 1\n\nvendor_id : other", "EPYC 3rd Gen"),
        ("vendor_id : GenuineIntel\ncpu family : 6\nmodel : 85\nstepping : 4\n", "Skylake"),
        ("vendor_id : GenuineIntel\ncpu family : 6\nmodel : 85\nstepping : 7\n", "Cascade Lake"),
        ("vendor_id : GenuineIntel\ncpu family : 6\nmodel : 85\nstepping : 11\n", "unlisted CPU"),
        ("CPU implementer : 0x41\nCPU part : 0xd0c\n", "unlisted CPU"),
    ],
)
def test_the_cpu_is_found_in_the_table(tmp_path: Path, cpuinfo: str, cpu: str) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    assert watts_of_this_cpu(path).cpu == cpu


def test_a_host_without_cpuinfo_gets_the_default(tmp_path: Path) -> None:
    assert watts_of_this_cpu(tmp_path / "none") == Watts("unlisted CPU", 4.06)


def test_the_table_is_well_formed_and_this_host_has_a_figure() -> None:
    rows = table()
    listed = [float(row["watts"]) for row in rows if row["vendor_id"] != "default"]
    assert all(0.5 < watts < 15 for watts in listed)
    assert [float(row["watts"]) for row in rows if row["vendor_id"] == "default"] == [statistics.median(listed)]
    assert watts_of_this_cpu().watts > 0

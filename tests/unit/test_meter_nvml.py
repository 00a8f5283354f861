"""The real pynvml binding against a small C library under NVML's name (tests/data/fake_nvml.c).

Each test runs in a process of its own, because a library once loaded stays.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import require

SOURCE = Path(__file__).parent.parent / "data" / "fake_nvml.c"
NOT_SUPPORTED, GPU_IS_LOST, NO_PERMISSION, DRIVER_NOT_LOADED = 3, 15, 4, 9
MIG = [("MIG-1", 0, 0, "parent=GPU-a"), ("MIG-2", 0, 0, "parent=GPU-a")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        require("no C compiler to build the fake NVML with")
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([str(compiler), "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE)], check=True)
    return folder


class Host:
    def __init__(self, library: Path, state: Path) -> None:
        self.library = library
        self.state = state

    def run(self, script: str, *gpus: tuple[object, ...], init: int = 0) -> str:
        """Run a script that may call ``gpus(...)`` to change the counters; return what it printed."""
        prelude = f"""
            import os
            from pathlib import Path
            from carbonq.errors import ConfigError
            from carbonq.meters.nvml import NvmlMeter
            from carbonq.meters.protocol import MeterLost
            def gpus(*rows, init=0):
                new = Path({str(self.state)!r} + ".new")
                new.write_text("\\n".join([str(init), *(" ".join(map(str, r)) for r in rows)]))
                new.rename({str(self.state)!r})  # a thread may be reading
            gpus(*{list(gpus)!r}, init={init})
        """
        source = textwrap.dedent(prelude) + textwrap.dedent(script)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.library), "FAKE_NVML": str(self.state)}
        command = [sys.executable, "-W", "error", "-c", source]
        done = subprocess.run(command, check=False, env=environment, text=True, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def host(library: Path, tmp_path: Path) -> Host:
    return Host(library, tmp_path / "state")


def test_all_devices_are_summed_in_microjoules_since_the_start(host: Host) -> None:
    script = """
        meter = NvmlMeter()
        first = meter.read_uj()
        gpus(("GPU-a", 0, 1_100), ("GPU-b", 0, 2_007))
        print(first, meter.read_uj(), *meter.device_ids, meter.kind, meter.component, meter.quality)
        meter.close(); meter.close()
    """
    printed = host.run(script, ("GPU-a", 0, 1_000), ("GPU-b", 0, 2_000))
    assert printed == "0 107000 GPU-a GPU-b nvml_counter gpu measured"


def test_devices_may_be_named_by_index_and_uuid(host: Host) -> None:
    script = """
        meter = NvmlMeter(["1", "GPU-c"])
        gpus(("GPU-a", 0, 500), ("GPU-b", 0, 10), ("GPU-c", 0, 20))
        print(meter.read_uj(), *meter.device_ids)
    """
    assert host.run(script, ("GPU-a", 0, 0), ("GPU-b", 0, 0), ("GPU-c", 0, 0)) == "30000 GPU-b GPU-c"


def test_a_counter_that_was_reset_goes_on_from_zero(host: Host) -> None:
    script = """
        meter = NvmlMeter()
        gpus(("GPU-a", 0, 5_100)); meter.read_uj()
        gpus(("GPU-a", 0, 40)); print(meter.read_uj(), *meter.marks())
        gpus(("GPU-a", 0, 41)); print(meter.read_uj(), *meter.marks())
    """
    assert host.run(script, ("GPU-a", 0, 5_000)) == "140000 counter_reset\n141000"


def test_a_lost_device_is_lost_not_zero(host: Host) -> None:
    script = f"""
        meter = NvmlMeter()
        gpus(("GPU-a", {GPU_IS_LOST}, 0))
        try: meter.read_uj()
        except MeterLost as error: print("lost:", error)
    """
    assert host.run(script, ("GPU-a", 0, 5_000)).startswith("lost: the GPU's energy counter cannot be read")


def test_a_lost_device_that_answers_again_counts_on_from_there(host: Host) -> None:
    script = f"""
        meter = NvmlMeter()
        gpus(("GPU-a", 0, 6_000))
        print(meter.read_uj())
        for init, row in [(0, ("GPU-a", {GPU_IS_LOST}, 0)), ({DRIVER_NOT_LOADED}, ()), (0, ("GPU-z", 0, 1))]:
            gpus(*[row][: bool(row)], init=init)
            try: meter.read_uj()
            except MeterLost as error: print("lost")
        gpus(("GPU-z", 0, 1), ("GPU-a", 0, 100))
        print(meter.read_uj(), *meter.marks())
        gpus(("GPU-z", 0, 1), ("GPU-a", 0, 107))
        print(meter.read_uj(), *meter.device_ids)
        meter.close()
    """
    printed = host.run(script, ("GPU-a", 0, 5_000)).splitlines()
    assert printed == ["1000000", "lost", "lost", "lost", "1000000", "1007000 GPU-a"]


REFUSED: list[tuple[list[str], list[tuple[object, ...]], int, str]] = [
    ([], [], 0, "the driver reports none"),
    ([], [("GPU-a", 0, 0)], DRIVER_NOT_LOADED, "no NVIDIA GPU can be metered"),
    ([], [("GPU-a", 0, 0), ("GPU-old", NOT_SUPPORTED, 0)], 0, "energy counter cannot be read"),
    ([], [("GPU-a", NO_PERMISSION, 0)], 0, "energy counter cannot be read"),
    (["7"], [("GPU-a", 0, 0)], 0, "GPU 7 cannot be metered: Invalid Argument; this host has 0 (GPU-a)"),
    (["GPU-z"], [("GPU-a", 0, 0)], 0, "this host has 0 (GPU-a)"),
    (["MIG-1"], [("GPU-a", 0, 0)], 0, "GPU MIG-1 cannot be metered: Not Found; this host has 0 (GPU-a)"),
    (["MIG-1", "MIG-2"], [("GPU-a", 0, 0), *MIG], 0, "one device twice"),
    ([], [("GPU-old", NOT_SUPPORTED, 0, "power=9", f"power_code={GPU_IS_LOST}")], 0, "nor its power"),
    (["0", "GPU-a"], [("GPU-a", 0, 0)], 0, "one device twice"),
]


def test_what_cannot_be_metered_whole_is_refused(host: Host) -> None:
    script = f"""
        for named, rows, init, _message in {REFUSED!r}:
            gpus(*rows, init=init)
            try: NvmlMeter(named); print("not refused")
            except ConfigError as error: print(str(error).replace("\\n", " "))
    """
    printed = host.run(script).splitlines()
    for (named, _gpus, _init, message), line in zip(REFUSED, printed, strict=True):
        assert message in line, named


def test_a_host_without_the_library_says_so(host: Host, tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this host has the real library")
    host.library = tmp_path
    printed = host.run("""
        try: NvmlMeter()
        except ConfigError as error: print(error)
    """)
    assert "no NVIDIA GPU can be metered" in printed


def test_discover_takes_the_gpu_and_the_hub_divides_it(host: Host) -> None:
    script = """
        from carbonq.meters.discover import discover
        from carbonq.meters.hub import Hub
        from carbonq.testing import FakeClock
        clock = FakeClock()
        meters = discover(gpus=(), watts_per_core=2.0, pids=lambda: (), may_use_rapl=False)
        hub = Hub(meters, clock, clock.machine)
        clock.advance(1)
        handle = hub.start()
        clock.advance(1)
        gpus(("GPU-a", 0, 12))
        parts, info = hub.end(handle)
        print(parts[0].gpu_uj, info.gpu_meter, info.cpu_meter, info.quality)
    """
    assert host.run(script, ("GPU-a", 0, 0)) == "12000 nvml_counter cpu_time mixed"


def test_a_gpu_without_the_counter_is_metered_by_its_power_and_says_so(host: Host) -> None:
    script = """
        import time
        from carbonq.meters import power
        meter = NvmlMeter()
        began = time.monotonic()
        first = meter.read_uj()
        time.sleep(0.4)
        sampled_uj, lasted = meter.read_uj() - first, time.monotonic() - began
        print(meter.kind, meter.quality, meter.uncertainty_pct, meter.lag_s, *meter.marks())
        print(abs(sampled_uj / 1e6 - 250 * lasted) < 0.1 * 250 * lasted, power.PERIOD_S <= 0.1)
        meter.close(); meter.close()
    """
    printed = host.run(script, ("GPU-old", NOT_SUPPORTED, 0, "power=250000"))
    assert printed == "nvml_power estimated 10.0 0.0\nTrue True"


def test_one_gpu_by_power_makes_the_whole_meter_one_by_power(host: Host) -> None:
    script = """
        meter = NvmlMeter()
        print(meter.kind, meter.lag_s)
        gpus(("GPU-a", 0, 100), ("GPU-old", 3, 0, "power=1000", "power_code=15"))
        try: meter.read_uj()
        except MeterLost as error: print(error)
        meter.close()
    """
    printed = host.run(script, ("GPU-a", 0, 0), ("GPU-old", NOT_SUPPORTED, 0, "power=1000"))
    assert printed.startswith("nvml_power 0.11\nthe GPU's power cannot be read")


def test_a_counter_that_may_not_be_read_gives_way_to_power(host: Host) -> None:
    script = "meter = NvmlMeter(); print(meter.kind); meter.close()"
    assert host.run(script, ("GPU-a", NO_PERMISSION, 0, "power=70000")) == "nvml_power"


def test_a_mig_slice_is_metered_by_its_whole_gpu_as_an_upper_bound(host: Host) -> None:
    script = """
        meter = NvmlMeter(["MIG-2"])
        gpus(("GPU-a", 0, 30), ("MIG-2", 0, 0, "parent=GPU-a"))
        print(meter.read_uj(), meter.quality, *meter.device_ids)
        whole = NvmlMeter()
        print(whole.quality, *whole.device_ids)
    """
    printed = host.run(script, ("GPU-a", 0, 10), ("MIG-2", 0, 0, "parent=GPU-a"))
    assert printed == "20000 upper_bound GPU-a mig_slice\nmeasured GPU-a"


def test_processes_that_are_not_ours_make_it_a_shared_device(host: Host) -> None:
    script = """
        import subprocess, sys
        engine = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        meter = NvmlMeter(pids=lambda: ())
        def look(*pids, code=0):
            gpus(("GPU-a", 0, 0, "procs=" + ",".join(map(str, pids)), f"procs_code={code}"))
            meter.read_uj()
            return list(meter.marks())
        print(look(), look(os.getpid()), look(os.getpid(), engine.pid), look(os.getpid(), os.getppid()), look(1))
        print(look(code=4), look(1))  # a driver that does not tell is not asked again
        engine.communicate()
    """
    assert host.run(script, ("GPU-a", 0, 0)) == "[] [] [] ['shared_device'] ['shared_device']\n[] []"


def test_a_counter_that_trails_gives_short_batches_their_part_and_loses_nothing(host: Host) -> None:
    script = """
        import time
        from carbonq.clock import GridClock
        from carbonq.meters.hub import Hub
        meter = NvmlMeter(lag_s=0.05)
        hub = Hub([meter], GridClock.real())
        hub.watch()
        used = []
        for mj in range(1000, 9000, 1000):
            handle = hub.start()
            gpus(("GPU-a", 0, mj, "lag_ms=45", "slow_us=3000"))
            time.sleep(0.01)
            began = time.perf_counter()
            closing = hub.finish(handle)
            took = time.perf_counter() - began
            used.append(closing)
        time.sleep(0.1)
        hub.tick()
        energies = [closing.result()[0][0].gpu_uj for closing in used]
        idle = sum(one.part.gpu_uj for one in hub.flush())
        print(all(energies), sum(energies) + idle, took < 0.003)
        hub.close()
    """
    assert host.run(script, ("GPU-a", 0, 0, "lag_ms=45", "slow_us=3000")) == "True 8000000 True"

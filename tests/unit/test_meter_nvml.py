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

    def run(self, script: str, *gpus: tuple[str, int, int], init: int = 0) -> str:
        """Run a script that may call ``gpus(...)`` to change the counters; return what it printed."""
        prelude = f"""
            from pathlib import Path
            from carbonq.errors import ConfigError
            from carbonq.meters.nvml import NvmlMeter
            from carbonq.meters.protocol import MeterLost
            def gpus(*rows, init=0):
                Path({str(self.state)!r}).write_text("\\n".join([str(init), *(" ".join(map(str, r)) for r in rows)]))
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
        gpus(("GPU-a", 0, 40)); print(meter.read_uj())
    """
    assert host.run(script, ("GPU-a", 0, 5_000)) == "140000"


def test_a_lost_device_is_lost_not_zero(host: Host) -> None:
    script = f"""
        meter = NvmlMeter()
        gpus(("GPU-a", {GPU_IS_LOST}, 0))
        try: meter.read_uj()
        except MeterLost as error: print("lost:", error)
    """
    assert host.run(script, ("GPU-a", 0, 5_000)).startswith("lost: the GPU's energy counter cannot be read")


@pytest.mark.parametrize(
    ("named", "gpus", "init", "message"),
    [
        ([], [], 0, "the driver reports none"),
        ([], [("GPU-a", 0, 0)], DRIVER_NOT_LOADED, "no NVIDIA GPU can be metered"),
        ([], [("GPU-a", 0, 0), ("GPU-old", NOT_SUPPORTED, 0)], 0, "energy counter cannot be read"),
        ([], [("GPU-a", NO_PERMISSION, 0)], 0, "energy counter cannot be read"),
        (["7"], [("GPU-a", 0, 0)], 0, "GPU 7 cannot be metered: Invalid Argument; this host has 0 (GPU-a)"),
        (["GPU-z"], [("GPU-a", 0, 0)], 0, "this host has 0 (GPU-a)"),
        (["MIG-1"], [("GPU-a", 0, 0)], 0, "MIG slice"),
        (["0", "GPU-a"], [("GPU-a", 0, 0)], 0, "one device twice"),
    ],
)
def test_what_cannot_be_metered_whole_is_refused(
    host: Host, named: list[str], gpus: list[tuple[str, int, int]], init: int, message: str
) -> None:
    script = f"""
        try: NvmlMeter({named!r})
        except ConfigError as error: print(error)
    """
    assert message in host.run(script, *gpus, init=init)


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

"""AMD SMI through a module file on the path, in place of the one that ROCm brings."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carbonq.errors import ConfigError
from carbonq.meters.amd import AmdMeter
from carbonq.meters.discover import Wanted, discover
from carbonq.meters.protocol import COUNTER_RESET, Component, MeterKind, MeterLost
from carbonq.model import Quality

Script = Callable[..., None]


def gpu(uuid: str, count: int, **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "count": count, **more}


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    state = tmp_path / "amd.json"
    monkeypatch.setenv("FAKE_AMDSMI", str(state))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "data"))

    def script(*rows: dict[str, Any], **more: Any) -> None:
        state.write_text(json.dumps({"gpus": rows, **more}))

    script(gpu("ff-1", 100), gpu("ff-2", 200))
    yield script
    sys.modules.pop("amdsmi", None)
    importlib.invalidate_caches()


def test_all_gpus_are_summed_in_whole_microjoules(gpus: Script) -> None:
    meter = AmdMeter()
    assert (meter.component, meter.kind, meter.quality) == (Component.GPU, MeterKind.AMDSMI, Quality.MEASURED)
    assert meter.device_ids == ("ff-1", "ff-2")
    assert meter.read_uj() == 0
    gpus(gpu("ff-1", 101), gpu("ff-2", 203, key="power"))
    assert meter.read_uj() == int(4 * 15.3)
    gpus(gpu("ff-1", 111), gpu("ff-2", 203))
    assert (meter.read_uj(), meter.marks()) == (int(14 * 15.3), ())
    gpus(gpu("ff-1", 6), gpu("ff-2", 203))
    assert (meter.read_uj(), meter.marks(), meter.marks()) == (306, (COUNTER_RESET,), ())
    gpus(gpu("ff-1", 6, error="device gone"), gpu("ff-2", 203))
    with pytest.raises(MeterLost, match="device gone"):
        meter.read_uj()
    meter.close()
    meter.close()


def test_gpus_may_be_named_and_those_that_are_not_there_are_an_error(gpus: Script) -> None:
    assert AmdMeter(["1"]).device_ids == ("ff-2",)
    assert AmdMeter(["ff-2", "0"]).device_ids == ("ff-2", "ff-1")
    for named, message in [
        (["7"], r"AMD GPU 7 cannot be metered; this host has 0 \(ff-1\), 1 \(ff-2\)"),
        (["0", "ff-1"], "name one device twice"),
    ]:
        with pytest.raises(ConfigError, match=message):
            AmdMeter(named)
    gpus()
    with pytest.raises(ConfigError, match="the library reports none"):
        AmdMeter()
    gpus(gpu("ff-1", 1, unit=None))
    with pytest.raises(ConfigError, match="has no energy accumulator"):
        AmdMeter()
    gpus(init="no driver")
    with pytest.raises(ConfigError, match="no driver"):
        AmdMeter()


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this host has an NVIDIA GPU")
def test_a_host_with_amd_and_no_nvidia_gpus_is_metered_by_them(gpus: Script) -> None:
    meters = discover(gpus=("0",), watts_per_core=1.0, pids=tuple, may_use_rapl=False)
    assert [meter.kind for meter in meters] == [MeterKind.AMDSMI, MeterKind.CPU_TIME]
    with pytest.raises(ConfigError, match=r"no NVIDIA GPU .* AMD GPU 9 cannot be metered"):
        discover(gpus=("9",), watts_per_core=1.0, pids=tuple, may_use_rapl=False)


def test_nothing_is_metered_beside_a_meter_of_the_whole_host(gpus: Script, tmp_path: Path) -> None:
    (tmp_path / "wall.csv").write_text("J\n1\n")
    wall = Wanted("external", url=str(tmp_path / "wall.csv"), value="J", unit="J", form="csv", is_whole_host=True)
    meters = discover(gpus=(), watts_per_core=1.0, pids=tuple, may_use_rapl=False, wanted={Component.CPU: wall})
    assert [meter.kind for meter in meters] == [MeterKind.EXTERNAL]
    meters[0].close()

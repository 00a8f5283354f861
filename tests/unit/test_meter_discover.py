from pathlib import Path

import pytest

from carbonq.errors import ConfigError
from carbonq.meters import rapl
from carbonq.meters.discover import discover
from carbonq.meters.protocol import Component, Meter, MeterKind
from carbonq.meters.rapl import RaplMeter

HAS_GPU = Path("/proc/driver/nvidia").exists()


def kinds(meters: list[Meter]) -> dict[Component, MeterKind]:
    return {meter.component: meter.kind for meter in meters if meter.component is not Component.GPU}


def nobody() -> tuple[int, ...]:
    return ()


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Component]:
    """The components that RAPL can read on this made-up host."""
    components = [Component.CPU, Component.DRAM]
    for name, value in (("energy_uj", "1"), ("max_energy_range_uj", "100")):
        (tmp_path / name).write_text(value)
    monkeypatch.setattr(rapl, "find", lambda: [RaplMeter(component, [tmp_path]) for component in components])
    return components


def test_rapl_is_taken_where_one_worker_has_the_host(packages: list[Component]) -> None:
    alone = discover(gpus=(), watts_per_core=None, pids=nobody, may_use_rapl=True)
    assert kinds(alone) == {Component.CPU: MeterKind.RAPL, Component.DRAM: MeterKind.RAPL}
    shared = discover(gpus=(), watts_per_core=None, pids=nobody, may_use_rapl=False)
    assert kinds(shared) == {Component.CPU: MeterKind.CPU_TIME}


def test_the_estimate_includes_memory_so_no_dram_counter_stands_beside_it(packages: list[Component]) -> None:
    packages.remove(Component.CPU)
    meters = discover(gpus=(), watts_per_core=None, pids=nobody, may_use_rapl=True)
    assert kinds(meters) == {Component.CPU: MeterKind.CPU_TIME}


def test_stated_watts_are_used_and_said() -> None:
    meters = discover(gpus=(), watts_per_core=7.5, pids=nobody, may_use_rapl=False)
    assert list(meters[-1].device_ids) == ["configured at 7.5 W"]


@pytest.mark.skipif(HAS_GPU, reason="this host has a GPU")
def test_named_gpus_that_are_not_there_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no NVIDIA GPU"):
        discover(gpus=("0",), watts_per_core=None, pids=nobody, may_use_rapl=False)

from pathlib import Path

import pytest

from carbonq.meters import rapl
from carbonq.meters.protocol import COUNTER_RESET, Component, MeterKind, MeterLost
from carbonq.model import Quality

RANGE_UJ = 262_143_328_850


def zone(root: Path, name: str, label: str, uj: int) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(label + "\n")
    (folder / "energy_uj").write_text(f"{uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return folder


def test_packages_are_summed_and_dram_is_apart(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 200)
    dram = zone(tmp_path, "intel-rapl:0:1", "dram", 50)
    zone(tmp_path, "intel-rapl:0:0", "core", 1)
    zone(tmp_path, "intel-rapl:2", "psys", 1)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 100)
    cpu, memory = rapl.find(tmp_path)
    assert (cpu.component, memory.component) == (Component.CPU, Component.DRAM)
    assert (cpu.device_ids, memory.device_ids) == (("intel-rapl:0", "intel-rapl:1"), ("intel-rapl:0:1",))
    assert (cpu.kind, cpu.quality) == (MeterKind.RAPL, Quality.MEASURED)
    (first / "energy_uj").write_text("110")
    (second / "energy_uj").write_text("205")
    (dram / "energy_uj").write_text("57")
    assert (cpu.read_uj(), memory.read_uj()) == (15, 7)


def test_a_counter_that_wraps_goes_on(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 10)
    [cpu] = rapl.find(tmp_path)
    (package / "energy_uj").write_text("5")
    assert cpu.read_uj() == 15
    (package / "energy_uj").write_text("6")
    assert cpu.read_uj() == 16


def test_a_counter_that_fell_in_a_suspend_or_too_far_began_again(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 100_000_000_000)
    awake_s, asleep_s = 0, 0
    cpu = rapl.RaplMeter(Component.CPU, [package], lambda: (awake_s * 10**9, asleep_s * 10**9))

    def show(uj: int) -> tuple[int, tuple[str, ...]]:
        (package / "energy_uj").write_text(str(uj))
        before = cpu.read_uj()
        return before, tuple(cpu.marks())

    awake_s = 99  # to wrap around it would have needed over 1,000 W
    assert show(7) == (7, (COUNTER_RESET,))
    assert show(RANGE_UJ - 5) == (RANGE_UJ - 5, ())
    awake_s, asleep_s = 299, 3_600  # a wrap-around would be likely, but for the suspend
    assert show(20) == (RANGE_UJ + 15, (COUNTER_RESET,))
    assert show(RANGE_UJ - 5)[1] == ()
    awake_s += 1
    assert show(5) == (2 * RANGE_UJ, ())


def test_part_of_the_sockets_is_no_meter(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (zone(tmp_path, "intel-rapl:1", "package-1", 1) / "energy_uj").unlink()
    assert rapl.find(tmp_path) == []


def test_no_powercap_is_no_meter_and_a_vanished_file_is_lost(tmp_path: Path) -> None:
    assert rapl.find(tmp_path / "nowhere") == []
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    [cpu] = rapl.find(tmp_path)
    (package / "energy_uj").unlink()
    with pytest.raises(MeterLost, match="intel-rapl:0"):
        cpu.read_uj()
    cpu.close()

"""RAPL is read by a worker that is alone on its host, and given up when another comes: real processes, real locks."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carbonq import config, rooms
from carbonq.errors import ConfigError
from carbonq.meters import rapl
from carbonq.meters.protocol import MIG_SLICE, Component, MeterKind
from carbonq.meters.rapl import RaplMeter
from carbonq.model import Quality
from carbonq.testing import FakeClock, FakeMeter

devices = rooms.load("workers", "devices")
presence = rooms.load("workers", "presence")
region = rooms.load("workers", "region")

AS_ANOTHER_USER = """
import fcntl, os, sys
from pathlib import Path
from carbonq import rooms
presence = rooms.load("workers", "presence")
if os.getuid() == 0:
    os.setuid(65534)
descriptor = presence.open_lock("carbonq-device-GPU-a.lock", Path(sys.argv[1]))
print(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE, presence.is_locked(descriptor, fcntl.LOCK_EX))
"""

OTHER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from carbonq import rooms
one = rooms.load("workers", "presence").Presence()
print(one.is_alone, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def gpu(*uuids: str) -> FakeMeter:
    return FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, quality=Quality.MEASURED, device_ids=uuids)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_newcomer_waits_until_the_first_has_given_its_counters_up(other: subprocess.Popen[str]) -> None:
    assert answer(other) == "True"
    other.kill()
    other.communicate()
    first = presence.Presence()
    assert first.is_alone, "a killed worker leaves nothing behind"
    order: list[str] = []
    done = threading.Event()

    def give_up() -> None:
        probe = presence.open_lock("carbonq-workers.lock")
        order.append(f"given up, others are in: {presence.is_locked(probe, fcntl.LOCK_SH)}")
        os.close(probe)

    first.watch(give_up)

    def come() -> None:
        second = presence.Presence()
        order.append(f"second alone: {second.is_alone}")
        second.close()
        done.set()

    threading.Thread(target=come, daemon=True).start()
    assert done.wait(20)
    assert order == ["given up, others are in: False", "second alone: False"]
    assert not first.is_alone
    first.close()


def test_workers_that_read_no_counter_of_the_host_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    first = presence.Presence()
    first.share()
    monkeypatch.setattr(presence, "PATIENCE_S", -1.0)
    second = presence.Presence()
    assert not second.is_alone
    waiting = presence.open_lock("carbonq-workers-waiting.lock")
    assert presence.is_locked(waiting, fcntl.LOCK_EX), "the second one waits no more"
    os.close(waiting)
    first.close()
    second.close()


def test_a_frozen_first_one_keeps_nobody_from_working(
    other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(other) == "True"  # it holds its lock and never looks
    monkeypatch.setattr(presence, "PATIENCE_S", 0.2)
    second = presence.Presence()
    assert not second.is_alone
    second.close()


def test_a_lock_file_of_another_user_can_be_used(tmp_path: Path) -> None:
    host = Path(tempfile.mkdtemp(prefix="carbonq-host-", dir="/tmp"))  # pytest's folders are closed to other users
    try:
        host.chmod(0o755)
        (host / "carbonq-device-GPU-a.lock").touch(mode=0o444)
        command = [sys.executable, "-c", AS_ANOTHER_USER, str(host)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    finally:
        shutil.rmtree(host)
    assert printed == [str(os.O_RDONLY), "True"]


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere/x.lock cannot be opened: No such file .*lock_dir"):
        presence.open_lock("x.lock", tmp_path / "nowhere")


HOLDER = """
import sys
from pathlib import Path
from carbonq import rooms
from carbonq.meters.protocol import MIG_SLICE, Component, MeterKind
from carbonq.testing import FakeMeter
meter = FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, device_ids=["GPU-a"])
rooms.load("workers", "devices").Devices(Path(sys.argv[1])).keep([meter], is_named=True)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_refused_one_is_told_who_holds_the_device(tmp_path: Path) -> None:
    shared = tmp_path / "volume"
    shared.mkdir()
    command = [sys.executable, "-c", HOLDER, str(shared)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert answer(process) == "held"
        meters = [gpu("GPU-a"), FakeMeter()]
        with pytest.raises(ConfigError, match=rf"GPU GPU-a is metered by .* \(pid {process.pid}\); .*volume"):
            devices.Devices(shared).keep(meters, is_named=True)
        assert all(meter.is_closed for meter in meters)
        # In a container the kernel's list does not name it: then what it wrote does.
        lock = os.open(shared / "carbonq-device-GPU-a.lock", os.O_RDONLY)
        assert devices.holder_of(lock, tmp_path / "no-locks") == f"pid {process.pid} on {socket.gethostname()}"
        os.truncate(shared / "carbonq-device-GPU-a.lock", 0)
        assert devices.holder_of(lock, tmp_path / "no-locks") == "which one cannot be seen from here"
        os.close(lock)
        process.kill()
        process.communicate()
    assert len(devices.Devices(shared).keep([gpu("GPU-a")], is_named=True)) == 1, (
        "a killed holder leaves nothing behind"
    )


def test_an_external_meter_belongs_to_one_worker_a_mark_or_an_estimate_to_none() -> None:
    def wall() -> FakeMeter:
        return FakeMeter(kind=MeterKind.EXTERNAL, device_ids=["pdu-3 outlet 7", "calibrated"])

    slices = FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, device_ids=["GPU-a", MIG_SLICE])
    others = FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, device_ids=["GPU-b", MIG_SLICE])
    tdp = FakeMeter(Component.GPU, kind=MeterKind.TDP, device_ids=["GPU at 700 W"])
    assert len(devices.Devices().keep([wall(), slices, tdp], is_named=True)) == 3
    most = FakeMeter(Component.GPU, kind=MeterKind.NAMEPLATE, device_ids=["GPU at 700 W"])
    assert len(devices.Devices().keep([others, tdp, most], is_named=True)) == 3
    with pytest.raises(ConfigError, match="pdu-3 outlet 7 is metered by another worker"):
        devices.Devices().keep([wall()], is_named=False)


def test_a_worker_takes_all_its_devices_or_none(tmp_path: Path) -> None:
    first, second, third = devices.Devices(), devices.Devices(), devices.Devices()
    assert len(first.keep([gpu("GPU-c")], is_named=True)) == 1
    meter = gpu("GPU-a", "GPU-c")
    assert second.keep([meter], is_named=False) == []
    assert meter.is_closed
    assert len(third.keep([gpu("GPU-a")], is_named=True)) == 1, "the second one holds nothing"
    with pytest.raises(ConfigError, match="GPU GPU-c is metered by another worker of this host"):
        second.keep([gpu("GPU-c")], is_named=True)


def test_a_worker_gives_rapl_up_when_another_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("energy_uj", "1"), ("max_energy_range_uj", "100")):
        (tmp_path / name).write_text(value)
    monkeypatch.setattr(rapl, "find", lambda: [RaplMeter(one, [tmp_path]) for one in (Component.CPU, Component.DRAM)])
    settings = config.load(regions={"se": {"zone": "SE"}}, zones={"SE": {}})
    first = region.Metering(settings, "se", tuple)
    hub = first.begin(FakeClock())
    assert (hub.info().cpu_meter, hub.info().dram_meter) == (MeterKind.RAPL, MeterKind.RAPL)
    second = region.Metering(settings, "se", tuple)
    other = second.begin(FakeClock())
    assert other.info().cpu_meter is MeterKind.CPU_TIME
    assert (hub.info().cpu_meter, hub.info().dram_meter) == (MeterKind.CPU_TIME, MeterKind.NONE)
    for one in (first, second, hub, other):
        one.close()


def test_rapl_is_given_up_even_where_the_other_meters_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("energy_uj", "1"), ("max_energy_range_uj", "100")):
        (tmp_path / name).write_text(value)
    monkeypatch.setattr(rapl, "find", lambda: [RaplMeter(one, [tmp_path]) for one in (Component.CPU, Component.DRAM)])
    wall = tmp_path / "wall.csv"
    wall.write_text("J\n1\n")
    external = {"by": "external", "url": str(wall), "value": "J", "unit": "J", "form": "csv"}
    settings = config.load(regions={"se": {"zone": "SE", "meters": {"gpu": external}}}, zones={"SE": {}})
    first = region.Metering(settings, "se", tuple)
    hub = first.begin(FakeClock())
    assert (hub.info().gpu_meter, hub.info().cpu_meter) == (MeterKind.EXTERNAL, MeterKind.RAPL)
    wall.write_text("what is no reading\n")
    second = presence.Presence()
    assert not second.is_alone
    assert (hub.info().gpu_meter, hub.info().cpu_meter) == (MeterKind.EXTERNAL, MeterKind.NONE)
    for one in (first, second, hub):
        one.close()

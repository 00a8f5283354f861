"""RAPL is read by a worker that is alone on its host, and given up when another comes: real processes, real locks."""

from __future__ import annotations

import fcntl
import os
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
from carbonq.meters.protocol import Component, MeterKind
from carbonq.meters.rapl import RaplMeter
from carbonq.model import Quality
from carbonq.testing import FakeClock, FakeMeter

devices = rooms.load("workers", "devices")
presence = rooms.load("workers", "presence")
region = rooms.load("workers", "region")

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
    (tmp_path / "carbonq-device-GPU-a.lock").touch(mode=0o444)
    descriptor = presence.open_lock("carbonq-device-GPU-a.lock")
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    os.close(descriptor)


def test_a_worker_takes_all_its_devices_or_none(tmp_path: Path) -> None:
    def gpus(*uuids: str) -> list[FakeMeter]:
        return [FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, quality=Quality.MEASURED, device_ids=uuids)]

    first, second, third = devices.Devices(), devices.Devices(), devices.Devices()
    assert len(first.keep(gpus("GPU-c"), is_named=True)) == 1
    (meter,) = gpus("GPU-a", "GPU-c")
    assert second.keep([meter], is_named=False) == []
    assert meter.is_closed
    assert len(third.keep(gpus("GPU-a"), is_named=True)) == 1, "the second one holds nothing"
    with pytest.raises(ConfigError, match="GPU GPU-c is metered by another worker of this host"):
        second.keep(gpus("GPU-c"), is_named=True)


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

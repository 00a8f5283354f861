"""NVIDIA GPUs by NVML's total-energy counter (mJ since the driver was loaded; Volta and later), all devices summed.

A GPU without the counter is metered by sampled power (``power.py``), and the whole meter is then called ``nvml_power``.
The counter moves about every 100 ms and knows whole devices only: no process, and no MIG slice. A slice that is named
is metered by its whole GPU, as an upper bound. The only module that imports ``pynvml``. Microjoules out.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from carbonq.errors import ConfigError
from carbonq.meters.power import PowerCounter
from carbonq.meters.processes import Ours, sees_all
from carbonq.meters.protocol import (
    COUNTER_RESET,
    MIG_SLICE,
    SAMPLING_GAP,
    SHARED_DEVICE,
    Component,
    MeterKind,
    MeterLost,
)
from carbonq.model import Quality

logger = logging.getLogger(__name__)

_UJ_PER_MJ = 1000

#: How far the counter may trail, in seconds: an H200's moves every 100 ms (measured: 98 to 101), and a little more than
#: that lies between readings, so that it has moved in every interval.
LAG_S = 0.11

#: Of sampled power, in per cent: NVML's own +/- 5 % (arXiv 2312.02741, steady load) and what its averaging loses; of
#: 5 s of full load after idling, samples of an H200 saw 8 % less than its counter.
POWER_UNCERTAINTY_PCT = 10.0


class _Counted:
    """One GPU by its energy counter."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._last_mj = self._read_mj()
        self._total_mj = 0
        self._was_reset = False

    def read_uj(self) -> int:
        """Return the uJ since the start. A counter that fell was reset: what it shows was counted since then."""
        now_mj = self._read_mj()
        is_reset = now_mj < self._last_mj
        self._was_reset = self._was_reset or is_reset
        self._total_mj += now_mj if is_reset else now_mj - self._last_mj
        self._last_mj = now_mj
        return self._total_mj * _UJ_PER_MJ

    def marks(self) -> list[str]:
        was_reset, self._was_reset = self._was_reset, False
        return [COUNTER_RESET] if was_reset else []

    def close(self) -> None:
        """Nothing is held."""

    def _read_mj(self) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError as error:
            raise MeterLost(f"the GPU's energy counter cannot be read: {error}") from error


class _Sampled:
    """One GPU by its power."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._counter = PowerCounter(self._read_mw)
        self._counter.start()

    def read_uj(self) -> int:
        return self._counter.read_uj()

    def marks(self) -> list[str]:
        return [SAMPLING_GAP] if self._counter.had_gap() else []

    def close(self) -> None:
        self._counter.close()

    def _read_mw(self) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetPowerUsage(self._handle))
        except self._nvml.NVMLError as error:
            raise MeterLost(f"the GPU's power cannot be read: {error}") from error


def _nobody() -> Sequence[int]:
    return ()


class NvmlMeter:
    """The energy of some GPUs, summed.

    Args:
        gpus: indices or UUIDs of GPUs, or UUIDs of MIG slices, as ``nvidia-smi -L`` lists them; empty: every GPU.
        pids: the engine's processes besides this one; others on a GPU make it a shared one.
        lag_s: how far the counter may trail, in seconds.

    Raises ConfigError when there is no NVIDIA driver, no such GPU, or a GPU that gives neither energy nor power: part
    of the devices would look like all of them.
    """

    def __init__(
        self, gpus: Sequence[str] = (), pids: Callable[[], Sequence[int]] = _nobody, lag_s: float = LAG_S
    ) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._lag_s = lag_s
        self._ours = Ours(pids, sees_all=sees_all())
        self._devices: list[_Counted | _Sampled] = []
        self._has_slice = False
        self._is_shared = False
        self._lists_processes = True
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise ConfigError(f"no NVIDIA GPU can be metered: {error}") from error
        self._is_open = True
        try:
            self._handles = [self._find(name) for name in gpus] if gpus else self._every()
            self._uuids = tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in self._handles)
            if len(set(self._uuids)) != len(self._uuids):
                raise ConfigError(f"the GPUs {', '.join(gpus)} name one device twice")
            for handle in self._handles:
                self._devices.append(self._open(handle))
        except ConfigError:
            self.close()
            raise
        except (pynvml.NVMLError, MeterLost) as error:
            self.close()
            raise ConfigError(f"no NVIDIA GPU can be metered: {error}") from error
        self._base_uj = self._last_uj = 0
        self._is_lost = False

    @property
    def component(self) -> Component:
        """GPUs."""
        return Component.GPU

    @property
    def kind(self) -> MeterKind:
        """The total-energy counter, or power where a GPU has none."""
        return MeterKind.NVML_POWER if self._has_sampled else MeterKind.NVML_COUNTER

    @property
    def quality(self) -> Quality:
        """Measured by the counter, estimated by power, an upper bound for a slice."""
        if self._has_slice:
            return Quality.UPPER_BOUND
        return Quality.ESTIMATED if self._has_sampled else Quality.MEASURED

    @property
    def uncertainty_pct(self) -> float | None:
        """NVML states nothing of energy, so nothing is stated here; of power, ``POWER_UNCERTAINTY_PCT``."""
        return POWER_UNCERTAINTY_PCT if self._has_sampled else None

    @property
    def device_ids(self) -> Sequence[str]:
        """The UUIDs of the GPUs summed; of a slice, its GPU's and a mark."""
        return (*self._uuids, *((MIG_SLICE,) if self._has_slice else ()))

    @property
    def lag_s(self) -> float:
        """The counter's lag; power is sampled at each reading."""
        return self._lag_s if self._has_counted else 0.0

    def read_uj(self) -> int:
        """Return the uJ counted since this object was made. Raises MeterLost when a GPU cannot be read.

        After that each call looks for the same GPUs again; what they used meanwhile is not counted.
        """
        if self._is_lost:
            self._take_up()
        try:
            total_uj = self._base_uj + sum(device.read_uj() for device in self._devices)
        except MeterLost:
            self._is_lost = True
            raise
        self._last_uj = total_uj
        self._is_shared = self._look_for_others()
        return total_uj

    def marks(self) -> Sequence[str]:
        """Say whether a counter was reset, samples are missing, or others used a GPU."""
        found = {mark: None for device in self._devices for mark in device.marks()}
        return (*found, *((SHARED_DEVICE,) if self._is_shared else ()))

    def close(self) -> None:
        """Let go of NVML; safe to call twice."""
        for device in self._devices:
            device.close()
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _take_up(self) -> None:
        """Open the GPUs anew by their UUIDs. Raises MeterLost while one of them is not there."""
        nvml = self._nvml
        for device in self._devices:
            device.close()
        self._devices = []
        try:
            # A handle from before a reset, or a reload of the driver, stays lost.
            if self._is_open:
                self._is_open = False
                nvml.nvmlShutdown()
            nvml.nvmlInit()
            self._is_open = True
            self._handles = [nvml.nvmlDeviceGetHandleByUUID(uuid.encode()) for uuid in self._uuids]
            for handle in self._handles:
                self._devices.append(self._open(handle))
        except nvml.NVMLError as error:
            raise MeterLost(f"the GPU is still lost: {error}") from error
        self._base_uj, self._is_lost = self._last_uj, False

    @property
    def _has_sampled(self) -> bool:
        return any(isinstance(device, _Sampled) for device in self._devices)

    @property
    def _has_counted(self) -> bool:
        return any(isinstance(device, _Counted) for device in self._devices)

    def _open(self, handle: Any) -> _Counted | _Sampled:
        nvml = self._nvml
        try:
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission) as refused:
            try:
                sampled = _Sampled(nvml, handle)
            except MeterLost as error:
                raise MeterLost(
                    f"the GPU's energy counter cannot be read: {refused}; nor its power: {error}"
                ) from error
            logger.warning("a GPU has no energy counter (%s): its power is sampled instead", refused)
            return sampled
        return _Counted(nvml, handle)

    def _look_for_others(self) -> bool:
        """Say whether a process that is not ours is on one of the GPUs; False where the driver does not tell."""
        nvml = self._nvml
        if not self._lists_processes:
            return False
        try:
            for handle in self._handles:
                compute = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                graphics = nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
                if self._ours.is_shared(int(one.pid) for one in (*compute, *graphics)):
                    return True
        except nvml.NVMLError as error:
            self._lists_processes = False
            logger.warning("the driver does not say who uses the GPUs, so a shared one is not noticed: %s", error)
        return False

    def _every(self) -> list[Any]:
        count = self._nvml.nvmlDeviceGetCount()
        if count == 0:
            raise ConfigError("no NVIDIA GPU can be metered: the driver reports none")
        return [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def _find(self, name: str) -> Any:
        nvml = self._nvml
        try:
            if name.isdecimal():
                return nvml.nvmlDeviceGetHandleByIndex(int(name))
            handle = nvml.nvmlDeviceGetHandleByUUID(name.encode())
            if name.startswith("MIG-"):
                self._has_slice = True
                return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            return handle
        except nvml.NVMLError as error:
            raise ConfigError(f"GPU {name} cannot be metered: {error}; this host has {self._listed()}") from error

    def _listed(self) -> str:
        """Say which GPUs there are, as `nvidia-smi -L` does."""
        with contextlib.suppress(self._nvml.NVMLError):
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
            found = [f"{index} ({self._nvml.nvmlDeviceGetUUID(handle)})" for index, handle in enumerate(handles)]
            return ", ".join(found) or "none"
        return "none that can be listed"

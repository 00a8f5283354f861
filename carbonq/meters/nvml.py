"""NVIDIA GPUs by NVML's total-energy counter (mJ since the driver was loaded; Volta and later), all devices summed.

The counter moves about every 100 ms and knows whole devices only: no MIG slice, no process. The only module that
imports ``pynvml``. Microjoules out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from carbonq.errors import ConfigError
from carbonq.meters.protocol import Component, MeterKind, MeterLost
from carbonq.model import Quality

_UJ_PER_MJ = 1000

#: How far the counter may trail, in seconds: an H200's moves every 100 ms (measured: 98 to 101), and a little more than
#: that lies between readings, so that it has moved in every interval.
LAG_S = 0.11


class NvmlMeter:
    """The energy counters of some GPUs, summed.

    Args:
        gpus: indices or UUIDs, as ``nvidia-smi -L`` lists them; empty: every GPU of the host.

    Raises ConfigError when there is no NVIDIA driver, no such GPU, or a GPU without the counter: part of the devices
    would look like all of them.
    """

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise ConfigError(f"no NVIDIA GPU can be metered: {error}") from error
        self._is_open = True
        try:
            self._handles = [self._find(name) for name in gpus] if gpus else self._every()
            self._device_ids = tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in self._handles)
            if len(set(self._device_ids)) != len(self._device_ids):
                raise ConfigError(f"the GPUs {', '.join(gpus)} name one device twice")
            self._raw_mj = [self._counter_mj(handle) for handle in self._handles]
        except ConfigError:
            self.close()
            raise
        except (pynvml.NVMLError, MeterLost) as error:
            self.close()
            raise ConfigError(f"no NVIDIA GPU can be metered: {error}") from error
        self._total_mj = 0

    @property
    def component(self) -> Component:
        """GPUs."""
        return Component.GPU

    @property
    def kind(self) -> MeterKind:
        """The total-energy counter."""
        return MeterKind.NVML_COUNTER

    @property
    def quality(self) -> Quality:
        """Measured."""
        return Quality.MEASURED

    @property
    def uncertainty_pct(self) -> float | None:
        """NVML states +/- 5 W of power and nothing of energy, so nothing is stated here."""
        return None

    @property
    def device_ids(self) -> Sequence[str]:
        """The UUIDs of the GPUs summed."""
        return self._device_ids

    @property
    def lag_s(self) -> float:
        """The counter moves about every 100 ms."""
        return LAG_S

    def marks(self) -> Sequence[str]:
        """Nothing to say."""
        return ()

    def read_uj(self) -> int:
        """Return the uJ counted since this object was made. Raises MeterLost when a GPU cannot be read.

        A counter that fell was reset by a reload of the driver: what it shows was counted since then.
        """
        for position, handle in enumerate(self._handles):
            now_mj = self._counter_mj(handle)
            last_mj = self._raw_mj[position]
            self._total_mj += now_mj - last_mj if now_mj >= last_mj else now_mj
            self._raw_mj[position] = now_mj
        return self._total_mj * _UJ_PER_MJ

    def close(self) -> None:
        """Let go of NVML; safe to call twice."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _every(self) -> list[Any]:
        count = self._nvml.nvmlDeviceGetCount()
        if count == 0:
            raise ConfigError("no NVIDIA GPU can be metered: the driver reports none")
        return [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def _find(self, name: str) -> Any:
        if name.startswith("MIG-"):
            raise ConfigError(f"GPU {name} is a MIG slice; NVML counts energy of whole GPUs only, so name the GPU")
        try:
            if name.isdecimal():
                return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
            return self._nvml.nvmlDeviceGetHandleByUUID(name.encode())
        except self._nvml.NVMLError as error:
            raise ConfigError(f"GPU {name} cannot be metered: {error}; this host has {self._listed()}") from error

    def _listed(self) -> str:
        """Say which GPUs there are, as `nvidia-smi -L` does."""
        with contextlib.suppress(self._nvml.NVMLError):
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
            found = [f"{index} ({self._nvml.nvmlDeviceGetUUID(handle)})" for index, handle in enumerate(handles)]
            return ", ".join(found) or "none"
        return "none that can be listed"

    def _counter_mj(self, handle: Any) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        except self._nvml.NVMLError as error:
            raise MeterLost(f"the GPU's energy counter cannot be read: {error}") from error

"""AMD GPUs by the energy accumulator of AMD SMI (the successor of ROCm SMI), all devices summed.

Uses the library's own Python module ``amdsmi``, which comes with ROCm and not from a package index; it is imported only
here, when an AMD GPU is asked for. The accumulator counts in units that the library names (15.3 uJ). Microjoules out.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from carbonq.errors import ConfigError
from carbonq.meters.protocol import COUNTER_RESET, Component, MeterKind, MeterLost
from carbonq.model import Quality

#: How far the accumulator may trail, in seconds: its firmware adds up every few ms; this is on the safe side.
LAG_S = 0.05


class AmdMeter:
    """The energy accumulators of some AMD GPUs, summed.

    Args:
        gpus: indices or UUIDs, as ``amd-smi list`` shows them; empty: every GPU of the host.

    Raises ConfigError when there is no library, no such GPU, or a GPU without the accumulator.
    """

    component = Component.GPU
    kind = MeterKind.AMDSMI
    quality = Quality.MEASURED
    uncertainty_pct: float | None = None  # AMD states none

    def __init__(self, gpus: Sequence[str] = (), lag_s: float = LAG_S) -> None:
        try:
            self._smi: Any = importlib.import_module("amdsmi")
        except (ImportError, OSError, KeyError) as error:  # it loads its library at import, by ROCM_PATH
            raise ConfigError(f"no AMD GPU can be metered: {error}") from error
        self.lag_s = lag_s
        self._is_open = False
        try:
            self._smi.amdsmi_init()
            self._is_open = True
            self._handles = self._find(gpus)
            self._last = [self._raw(handle) for _, handle in self._handles]
        except (ConfigError, MeterLost) as error:
            self.close()
            raise ConfigError(str(error)) from error
        except self._smi.AmdSmiException as error:
            self.close()
            raise ConfigError(f"no AMD GPU can be metered: {error}") from error
        self._total_uj = Fraction(0)
        self._was_reset = False

    @property
    def device_ids(self) -> Sequence[str]:
        """The UUIDs of the GPUs summed."""
        return tuple(uuid for uuid, _ in self._handles)

    def read_uj(self) -> int:
        """Return the uJ counted since this object was made. Raises MeterLost when a GPU cannot be read."""
        for position, (_, handle) in enumerate(self._handles):
            now, unit_uj = self._raw(handle)
            last, _ = self._last[position]
            self._was_reset = self._was_reset or now < last
            self._total_uj += (now - last if now >= last else now) * unit_uj
            self._last[position] = now, unit_uj
        return int(self._total_uj)

    def marks(self) -> Sequence[str]:
        """Say whether an accumulator began again."""
        was_reset, self._was_reset = self._was_reset, False
        return (COUNTER_RESET,) if was_reset else ()

    def close(self) -> None:
        """Let go of the library; safe to call twice."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(self._smi.AmdSmiException):
                self._smi.amdsmi_shut_down()

    def _find(self, gpus: Sequence[str]) -> list[tuple[str, Any]]:
        handles = list(self._smi.amdsmi_get_processor_handles())
        every = [(str(self._smi.amdsmi_get_gpu_device_uuid(handle)), handle) for handle in handles]
        if not every:
            raise ConfigError("no AMD GPU can be metered: the library reports none")
        if not gpus:
            return every
        by_name = {str(index): one for index, one in enumerate(every)} | {one[0]: one for one in every}
        missing = [name for name in gpus if name not in by_name]
        if missing:
            listed = ", ".join(f"{index} ({uuid})" for index, (uuid, _) in enumerate(every))
            raise ConfigError(f"AMD GPU {', '.join(missing)} cannot be metered; this host has {listed}")
        named = [by_name[name] for name in gpus]
        if len({uuid for uuid, _ in named}) != len(named):
            raise ConfigError(f"the GPUs {', '.join(gpus)} name one device twice")
        return named

    def _raw(self, handle: Any) -> tuple[int, Fraction]:
        """Return the accumulator and its unit in uJ."""
        try:
            found: Mapping[str, Any] = self._smi.amdsmi_get_energy_count(handle)
        except self._smi.AmdSmiException as error:
            raise MeterLost(f"the AMD GPU's energy accumulator cannot be read: {error}") from error
        # Called "power" before ROCm 6.2.
        count = found.get("energy_accumulator", found.get("power"))
        unit = found.get("counter_resolution")
        if not isinstance(count, int) or not isinstance(unit, int | float):
            raise MeterLost(f"the AMD GPU has no energy accumulator: {dict(found)}")
        # The library gives the unit as a 32-bit float; its shortest decimal is what was meant (15.3).
        return count, Fraction(f"{unit:.7g}")

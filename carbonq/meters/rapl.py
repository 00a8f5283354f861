"""CPU packages and DRAM by RAPL, through Linux's powercap files (``energy_uj``, root-readable on most systems).

RAPL counts the whole host, so it is used only where one worker runs on a host. Microjoules in and out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from carbonq.meters.protocol import COUNTER_RESET, Component, MeterKind, MeterLost
from carbonq.model import Quality

#: Where Linux shows the counters.
POWERCAP = Path("/sys/class/powercap")

#: How often the counters move, in seconds (Intel SDM volume 3B, section 16.10: about every millisecond).
LAG_S = 0.001

#: Two clocks read one after the other differ by less than this, in ns; more is time in which the host was suspended.
ASLEEP_NS = 100_000_000


#: More than any package or its memory draws, in W: twice the largest rated power (EPYC 9965: 500 W). A fall that would
#: need more than this since the last reading was no wrap-around.
MOST_W = 1_000

_UJ_PER_WNS = 1e-3


def _awake_and_asleep_ns() -> tuple[int, int]:
    """Return machine time since the boot, awake and suspended; where it is not told apart, all of it awake."""
    awake_ns = time.monotonic_ns()
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return awake_ns, 0 if boot is None else max(0, time.clock_gettime_ns(boot) - awake_ns)


@dataclass(slots=True)
class _Zone:
    name: str
    energy: Path
    max_uj: int
    last_uj: int


class RaplMeter:
    """The counters of one component over all sockets, summed; each wraps at ``max_energy_range_uj``.

    A counter must be read at least once a wrap (about 260 kJ: 20 minutes at 200 W); the hub's ticks see to that. One
    that fell was wrapped, unless the host was suspended or the step would need more than ``MOST_W``: then it began
    again, and what it counted between the last reading and that moment is not known.

    Args:
        component: CPU or DRAM.
        zones: folders of powercap, e.g. ``intel-rapl:0``.
        times_ns: machine time awake and suspended.
    """

    kind = MeterKind.RAPL
    quality = Quality.MEASURED
    uncertainty_pct: float | None = None  # the makers state none
    lag_s = LAG_S

    def __init__(
        self,
        component: Component,
        zones: Sequence[Path],
        times_ns: Callable[[], tuple[int, int]] = _awake_and_asleep_ns,
    ) -> None:
        self.component = component
        self._times_ns = times_ns
        self._last_ns = times_ns()
        self._zones = [_open(zone) for zone in zones]
        self._total_uj = 0
        self._was_reset = False

    @property
    def device_ids(self) -> Sequence[str]:
        """The RAPL zones summed, e.g. ``intel-rapl:0``."""
        return tuple(zone.name for zone in self._zones)

    def marks(self) -> Sequence[str]:
        """Say whether a counter began again."""
        was_reset, self._was_reset = self._was_reset, False
        return (COUNTER_RESET,) if was_reset else ()

    def read_uj(self) -> int:
        """Return the uJ counted since this object was made. Raises MeterLost when a file cannot be read."""
        awake_ns, asleep_ns = self._times_ns()
        was_asleep = asleep_ns - self._last_ns[1] > ASLEEP_NS
        most_uj = (awake_ns - self._last_ns[0]) * MOST_W * _UJ_PER_WNS
        for zone in self._zones:
            try:
                now_uj = _number(zone.energy)
            except (OSError, ValueError) as error:
                raise MeterLost(f"{zone.name}: {error}") from error
            step_uj = now_uj - zone.last_uj
            if step_uj < 0:
                step_uj += zone.max_uj
                if was_asleep or step_uj > most_uj:
                    self._was_reset, step_uj = True, now_uj
            self._total_uj += step_uj
            zone.last_uj = now_uj
        self._last_ns = awake_ns, asleep_ns
        return self._total_uj

    def close(self) -> None:
        """Nothing is held."""


def find(root: Path = POWERCAP) -> list[RaplMeter]:
    """Return the readable meters: CPU (all packages) and, where there is one, DRAM; none if any package is closed.

    Part of the sockets would look like all of them, so one that may not be read means no meter for its component.
    """
    zones: dict[Component, list[Path]] = {Component.CPU: [], Component.DRAM: []}
    # Packages are ``intel-rapl:N`` (AMD's too) and their parts ``intel-rapl:N:M``; the same counters seen through
    # ``intel-rapl-mmio:N`` would count twice.
    for zone in sorted(root.glob("intel-rapl:*")):
        try:
            name = (zone / "name").read_text(encoding="ascii").strip()
        except OSError:
            continue
        if name.startswith("package-"):
            zones[Component.CPU].append(zone)
        elif name == "dram":
            zones[Component.DRAM].append(zone)
    meters: list[RaplMeter] = []
    for component, found in zones.items():
        if not found:
            continue
        try:
            meters.append(RaplMeter(component, found))
        except (OSError, ValueError):
            continue
    return meters


def _open(zone: Path) -> _Zone:
    energy = zone / "energy_uj"
    return _Zone(zone.name, energy, _number(zone / "max_energy_range_uj"), _number(energy))


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))

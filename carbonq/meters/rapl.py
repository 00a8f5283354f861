"""CPU packages and DRAM by RAPL, through Linux's powercap files (``energy_uj``, root-readable on most systems).

RAPL counts the whole host, so it is used only where one worker runs on a host. Microjoules in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from carbonq.meters.protocol import Component, MeterKind, MeterLost
from carbonq.model import Quality

#: Where Linux shows the counters.
POWERCAP = Path("/sys/class/powercap")

#: How often the counters move, in seconds (Intel SDM volume 3B, section 16.10: about every millisecond).
LAG_S = 0.001


@dataclass(slots=True)
class _Zone:
    name: str
    energy: Path
    max_uj: int
    last_uj: int


class RaplMeter:
    """The counters of one component over all sockets, summed; each wraps at ``max_energy_range_uj``.

    A counter must be read at least once a wrap (about 260 kJ: 20 minutes at 200 W); the hub's ticks see to that.
    """

    def __init__(self, component: Component, zones: Sequence[Path]) -> None:
        self._component = component
        self._zones = [_open(zone) for zone in zones]
        self._total_uj = 0

    @property
    def component(self) -> Component:
        """CPU or DRAM."""
        return self._component

    @property
    def kind(self) -> MeterKind:
        """RAPL."""
        return MeterKind.RAPL

    @property
    def quality(self) -> Quality:
        """Measured."""
        return Quality.MEASURED

    @property
    def uncertainty_pct(self) -> float | None:
        """Nothing is stated by the makers."""
        return None

    @property
    def device_ids(self) -> Sequence[str]:
        """The RAPL zones summed, e.g. ``intel-rapl:0``."""
        return tuple(zone.name for zone in self._zones)

    @property
    def lag_s(self) -> float:
        """RAPL moves every millisecond."""
        return LAG_S

    def marks(self) -> Sequence[str]:
        """Nothing to say."""
        return ()

    def read_uj(self) -> int:
        """Return the uJ counted since this object was made. Raises MeterLost when a file cannot be read."""
        for zone in self._zones:
            try:
                now_uj = _number(zone.energy)
            except (OSError, ValueError) as error:
                raise MeterLost(f"{zone.name}: {error}") from error
            step_uj = now_uj - zone.last_uj
            self._total_uj += step_uj if step_uj >= 0 else step_uj + zone.max_uj
            zone.last_uj = now_uj
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

"""What a meter is: a cumulative energy counter, in whole microjoules, of one component (GPU, CPU or DRAM).

The hub (``meters/hub.py``) reads all meters of a worker at its events and divides the deltas. A meter that cannot give
a counter raises ``MeterLost``; it never returns 0 for unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from carbonq.model import EntryKind, Quality


class Component(StrEnum):
    """The part of a host that a meter covers."""

    GPU = "gpu"
    CPU = "cpu"
    DRAM = "dram"


class MeterKind(StrEnum):
    """How a component's energy was obtained (ledger columns ``*_meter``)."""

    NVML_COUNTER = "nvml_counter"
    NVML_POWER = "nvml_power"
    AMDSMI = "amdsmi"
    DCGM = "dcgm"
    RAPL = "rapl"
    CPU_TIME = "cpu_time"
    TDP = "tdp"
    NAMEPLATE = "nameplate"
    EXTERNAL = "external"
    NONE = "none"


#: Marks: what must be said of a figure, which is an estimate then; they stand among its device ids.
COUNTER_RESET = "counter_reset"  # the counter began again (driver reload): what it showed just before is not known
DEVICE_BACK = "device_back"  # the meter was lost and answers again: the figure holds what was counted since
DEVICE_LOST = "device_lost"  # the meter was lost while it ran: the figure holds what was counted before
MERGED = "merged_interval"  # shorter than the counter's lag: its part, by time, of an interval it shared with others
METER_OUTAGE = "meter_outage"  # a meter over the network did not answer: whose energy it then counted is not known
MIG_SLICE = "mig_slice"  # the counter covers the whole GPU of which this is a slice: an upper bound
SAMPLING_GAP = "sampling_gap"  # nothing was sampled for a while and power taken as level in between
SHARED_DEVICE = "shared_device"  # processes that are not ours used the device, too; the counter cannot tell them apart

MARKS = frozenset(
    {COUNTER_RESET, DEVICE_BACK, DEVICE_LOST, MERGED, METER_OUTAGE, MIG_SLICE, SAMPLING_GAP, SHARED_DEVICE}
)


#: Stands, with the time, behind the devices of engine batches whose token weights were learned; not about the energy.
WEIGHTS_LEARNED = "token weights learned"


class MeterLost(Exception):
    """The meter can no longer be read (device lost, permission withdrawn)."""


class Meter(Protocol):
    """A cumulative counter over the devices its worker uses."""

    @property
    def component(self) -> Component:
        """What it covers."""
        ...

    @property
    def kind(self) -> MeterKind:
        """How it measures."""
        ...

    @property
    def quality(self) -> Quality:
        """Measured or estimated."""
        ...

    @property
    def uncertainty_pct(self) -> float | None:
        """Stated uncertainty in per cent; None when nobody states one."""
        ...

    @property
    def device_ids(self) -> Sequence[str]:
        """The devices summed, e.g. GPU UUIDs."""
        ...

    @property
    def lag_s(self) -> float:
        """Machine seconds by which the counter may trail what was used; 0 where a reading is exact."""
        ...

    def read_uj(self) -> int:
        """Return the counter in uJ; never decreases, wrap-around and resets handled. Raises MeterLost."""
        ...

    def marks(self) -> Sequence[str]:
        """Return what must be said of what was counted between the last two readings; usually nothing."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


@dataclass(frozen=True, slots=True)
class MeteredPart:
    """One engine batch's energy inside one window. ``None`` for a component that no meter covers.

    ``started_at``/``ended_at`` are grid times inside ``window_at``'s window; ``duration_s`` is machine seconds.
    """

    window_at: datetime
    started_at: datetime
    ended_at: datetime
    duration_s: float
    gpu_uj: int | None
    cpu_uj: int | None
    dram_uj: int | None


@dataclass(frozen=True, slots=True)
class MeterInfo:
    """How the hub's figures were obtained; the same for every part until a meter is lost.

    ``device_ids`` ends with marks (``SHARED_DEVICE`` and the others) where something must be said of the figures.
    """

    gpu_meter: MeterKind
    cpu_meter: MeterKind
    dram_meter: MeterKind
    quality: Quality
    uncertainty_pct: float | None
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IdleWindow:
    """What the meters counted in one window while no engine batch was active.

    ``kind`` is ``idle``, or ``host_other`` for what a device counted while processes that are not ours used it. Time is
    counted on the idle line, so a ``host_other`` part lasts 0 s.
    """

    part: MeteredPart
    info: MeterInfo
    kind: EntryKind = EntryKind.IDLE

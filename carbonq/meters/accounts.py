"""Whom the hub's microjoules are credited to: engine batches and the idle of windows. Values and sums, no meters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from carbonq.meters import attribution
from carbonq.meters.attribution import Span
from carbonq.meters.protocol import Component, MeteredPart, MeterInfo, MeterKind
from carbonq.model import EntryKind, Quality


@dataclass(slots=True)
class Tally:
    """What was counted for one account in one window. A component that no meter covered has no member."""

    started_at: datetime
    ended_at: datetime
    duration_s: float = 0.0
    uj: dict[Component, int] = field(default_factory=dict[Component, int])

    @property
    def is_empty(self) -> bool:
        """Say whether neither time nor energy was put down."""
        return self.duration_s == 0 and not any(self.uj.values())

    def part(self, window_at: datetime) -> MeteredPart:
        """Return it as the ledger takes it."""
        return MeteredPart(
            window_at=window_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            duration_s=self.duration_s,
            gpu_uj=self.uj.get(Component.GPU),
            cpu_uj=self.uj.get(Component.CPU),
            dram_uj=self.uj.get(Component.DRAM),
        )


@dataclass(slots=True, eq=False)
class Account:
    """An engine batch, or one kind of idle of one window.

    ``awaited`` counts the stretches of its time that some meter has not been read for yet; ``lasted_ns`` is the machine
    time it was active, ``is_over`` says that no more will come.
    """

    info: MeterInfo
    token_rate: float | None = None
    kind: EntryKind = EntryKind.ITEM
    tallies: dict[datetime, Tally] = field(default_factory=dict[datetime, Tally])
    awaited: int = 0
    lasted_ns: int = 0
    is_over: bool = False

    @property
    def is_known(self) -> bool:
        """Say whether nothing will be added any more."""
        return self.is_over and self.awaited == 0

    @property
    def is_empty(self) -> bool:
        """Say whether neither time nor energy was put down."""
        return all(tally.is_empty for tally in self.tallies.values())

    def spend(self, span: Span, duration_s: float) -> None:
        """Put down time."""
        tally = self._tally(span)
        tally.ended_at = max(tally.ended_at, span.end_at)
        tally.duration_s += duration_s

    def credit(self, span: Span, component: Component, uj: int) -> None:
        """Put down energy; a component that was ever credited, be it with 0, counts as metered."""
        tally = self._tally(span)
        tally.ended_at = max(tally.ended_at, span.end_at)
        tally.uj[component] = tally.uj.get(component, 0) + uj

    def doubt(self, marks: tuple[str, ...] = ()) -> None:
        """From now on its figures are estimates, for the reasons that are named beside its devices."""
        new = tuple(mark for mark in marks if mark not in self.info.device_ids)
        quality = self.info.quality if self.info.quality is Quality.UPPER_BOUND else Quality.ESTIMATED
        self.info = replace(self.info, quality=quality, device_ids=self.info.device_ids + new)

    def measure_by(self, info: MeterInfo) -> None:
        """From now on a component that nothing metered may be credited: say by what."""
        kinds = {
            name: getattr(info, name)
            for name in ("gpu_meter", "cpu_meter", "dram_meter")
            if getattr(self.info, name) is MeterKind.NONE
        }
        devices = dict.fromkeys((*info.device_ids, *self.info.device_ids))
        self.info = replace(self.info, **kinds, device_ids=tuple(devices))

    def parts(self) -> tuple[MeteredPart, ...]:
        """Return the windows' parts, oldest first: at least one, and no empty one beside others."""
        ordered = sorted(self.tallies.items())
        filled = [item for item in ordered if not item[1].is_empty] or ordered[:1]
        return tuple(tally.part(window_at) for window_at, tally in filled)

    def _tally(self, span: Span) -> Tally:
        found = self.tallies.get(span.window_at)
        if found is None:
            found = self.tallies[span.window_at] = Tally(span.start_at, span.start_at)
        return found


@dataclass(slots=True)
class Stretch:
    """Time between two events, in which the same engine batches were active (none: idle). Grid times, machine ns."""

    start_at: datetime
    end_at: datetime
    machine_ns: int
    accounts: tuple[Account, ...]

    def spans(self) -> list[Span]:
        """Return its parts by window."""
        return attribution.spans(self.start_at, self.end_at)

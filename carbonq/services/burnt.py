"""Energy that was metered and is not in the ledger yet: reported with every lease renewal, booked as wasted if lost.

A report is JSON, because it travels through ``attempts.pending`` and the spool. Energies are uJ. Booked twice it must
not be: the reaper books a lost attempt's last report, and the attempt, when it comes back, only what that left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from carbonq import ids, ledger
from carbonq.booking import Booking, EngineBatch, Fact
from carbonq.clock import ClockKind
from carbonq.meters.protocol import MeteredPart, MeterInfo, MeterKind
from carbonq.model import EntryKind, Model, Quality, WorkClass
from carbonq.ratebook import RateBook
from carbonq.units import iso, parse_iso


@dataclass(frozen=True, slots=True)
class Burnt:
    """One engine call's energy. ``is_over``: the call has ended, so that nothing will be added to it."""

    engine_batch_id: str
    worker_id: str
    region: str
    model: str | None
    engine: str | None
    engine_version: str | None
    software_version: str
    clock: ClockKind
    parts: tuple[MeteredPart, ...]
    info: MeterInfo
    outcome: str = "lost"
    is_over: bool = True

    @property
    def energy_uj(self) -> int:
        """All components over all parts; what no meter covered adds nothing."""
        return sum((part.gpu_uj or 0) + (part.cpu_uj or 0) + (part.dram_uj or 0) for part in self.parts)

    def minus(self, booked: Burnt) -> Burnt | None:
        """Return what came after ``booked``, an earlier report of the same call, under an id of its own; or None."""
        before = {part.window_at: part for part in booked.parts}
        rest = [
            part if part.window_at not in before else _difference(part, before[part.window_at]) for part in self.parts
        ]
        parts = tuple(part for part in rest if part.duration_s > 0 or _total(part) > 0)
        return replace(self, engine_batch_id=ids.new("eb"), parts=parts) if parts else None


def _total(part: MeteredPart) -> int:
    return (part.gpu_uj or 0) + (part.cpu_uj or 0) + (part.dram_uj or 0)


def _difference(part: MeteredPart, before: MeteredPart) -> MeteredPart:
    return replace(
        part,
        started_at=min(before.ended_at, part.ended_at),
        duration_s=max(0.0, part.duration_s - before.duration_s),
        gpu_uj=_minus(part.gpu_uj, before.gpu_uj),
        cpu_uj=_minus(part.cpu_uj, before.cpu_uj),
        dram_uj=_minus(part.dram_uj, before.dram_uj),
    )


def _minus(value: int | None, before: int | None) -> int | None:
    return None if value is None else value - (before or 0)


def remainders(burnt: Sequence[Burnt], booked: Sequence[Burnt]) -> list[Burnt]:
    """Return what of ``burnt`` is not in ``booked`` yet."""
    known = {one.engine_batch_id: one for one in booked}
    rest = [one.minus(known[one.engine_batch_id]) if one.engine_batch_id in known else one for one in burnt]
    return [one for one in rest if one is not None]


def book_wasted(
    burnt: Burnt,
    rates: RateBook,
    *,
    fact: Fact,
    models: Mapping[str, Model],
    chunk_id: str | None,
    attempt: int | None,
    recorded_at: datetime,
    recorded_by: str,
    outcome: str | None = None,
) -> Booking:
    """Book energy that served no committed result: its own entry, no tenant's and no item's."""
    batch = EngineBatch(
        engine_batch_id=burnt.engine_batch_id,
        worker_id=burnt.worker_id,
        work_class=WorkClass.FLEXIBLE,
        fact=fact,
        info=burnt.info,
        parts=burnt.parts,
        items=(),
        model=models.get(burnt.model) if burnt.model is not None else None,
        engine=burnt.engine,
        engine_version=burnt.engine_version,
        software_version=burnt.software_version,
        clock=burnt.clock,
    )
    return ledger.book_overhead(
        batch,
        rates,
        EntryKind.WASTED,
        outcome=outcome or burnt.outcome,
        recorded_at=recorded_at,
        recorded_by=recorded_by,
        chunk_id=chunk_id,
        attempt=attempt,
    )


def to_json(burnt: Sequence[Burnt]) -> dict[str, Any]:
    """Write a report."""
    return {"burnt": [_one_to_json(one) for one in burnt]}


def from_json(report: Mapping[str, Any] | None) -> list[Burnt]:
    """Read a report; none is an empty one."""
    return [] if report is None else [_one_from_json(one) for one in report["burnt"]]


def _one_to_json(burnt: Burnt) -> dict[str, Any]:
    names = ("engine_batch_id", "worker_id", "region", "model", "engine", "engine_version", "software_version")
    info = burnt.info
    return {
        **{name: getattr(burnt, name) for name in names},
        "clock": burnt.clock.value,
        "outcome": burnt.outcome,
        "is_over": burnt.is_over,
        "parts": [
            [
                *(iso(part.window_at), iso(part.started_at), iso(part.ended_at)),
                *(part.duration_s, part.gpu_uj, part.cpu_uj, part.dram_uj),
            ]
            for part in burnt.parts
        ],
        "info": [
            *(info.gpu_meter.value, info.cpu_meter.value, info.dram_meter.value),
            *(info.quality.value, info.uncertainty_pct, list(info.device_ids)),
        ],
    }


def _one_from_json(values: Mapping[str, Any]) -> Burnt:
    gpu, cpu, dram, quality, uncertainty, devices = values["info"]
    info = MeterInfo(MeterKind(gpu), MeterKind(cpu), MeterKind(dram), Quality(quality), uncertainty, tuple(devices))
    parts = tuple(
        MeteredPart(parse_iso(window), parse_iso(start), parse_iso(end), duration, *energies)
        for window, start, end, duration, *energies in values["parts"]
    )
    fields: dict[str, Any] = {**values, "clock": ClockKind(values["clock"]), "parts": parts, "info": info}
    return Burnt(**fields)

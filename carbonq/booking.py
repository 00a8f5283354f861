"""The values a ledger booking is made of: facts, work items, engine batches, and the rows to store. Pure.

Energies are whole microjoules, rates gCO2e/kWh, grams decimals with 15 places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple, overload

from carbonq.batching import NO_FIGURES
from carbonq.clock import ClockKind
from carbonq.meters.protocol import MeteredPart, MeterInfo
from carbonq.methods import METHOD
from carbonq.model import DowngradeReason, Model, Quality, Rate, RateStatus, Region, WorkClass
from carbonq.ratebook import Row, digest
from carbonq.units import from_quanta, iso, parse_iso, plain

__all__ = [
    "METHOD",
    "SCHEMA",
    "BaselineAt",
    "Block",
    "Booking",
    "EngineBatch",
    "Entries",
    "Fact",
    "Figures",
    "ItemFigures",
    "PartRates",
    "WorkItem",
    "dumps",
    "loads",
]

#: Version of the entry's columns.
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Fact:
    """What was stated of a region when energy was used there."""

    region: str
    pue: Decimal
    pue_source: str
    hardware: str
    ownership: str
    embodied_kg: Decimal | None
    life_h: Decimal | None

    @classmethod
    def of(cls, region: Region) -> Fact:
        """Take the statement from a configured region."""
        return cls(
            region.name,
            region.pue,
            region.pue_source,
            region.hardware,
            region.ownership,
            region.embodied_kg,
            region.life_h,
        )

    @property
    def fact_id(self) -> str:
        """The digest that entries refer to."""
        return digest("fact", self._values().values())

    def _values(self) -> Row:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def row(self) -> Row:
        """Return the stored row."""
        return {"fact_id": self.fact_id, **self._values()}


class WorkItem(NamedTuple):
    """One item as it ran; ``item`` is its index in the job. The last three are None for realtime.

    A tuple, since there is one for each item: its columns are read by place.
    """

    tenant: str
    api_key_id: str | None
    product_line: str | None
    workload: str | None
    job_id: str | None
    custom_id: str | None
    item: int | None
    chunk_id: str | None
    attempt: int | None
    work_class: WorkClass
    requested_model: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    placement_id: str | None = None
    baseline_region: str | None = None
    baseline_window_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """One metered engine call, or a stretch of idle or wasted energy (``items`` empty, ``model`` may be None).

    ``figures``: its fill and speed (``batching.figures``), kept with its first part. ``downgraded``: why it ran on a
    smaller model than its items asked for.
    """

    engine_batch_id: str
    worker_id: str
    work_class: WorkClass
    fact: Fact
    info: MeterInfo
    parts: Sequence[MeteredPart]
    items: Sequence[WorkItem]
    model: Model | None
    engine: str | None
    engine_version: str | None
    software_version: str
    clock: ClockKind
    figures: Mapping[str, object] = field(default_factory=lambda: NO_FIGURES)
    downgraded: DowngradeReason | None = None


class PartRates(NamedTuple):
    """One part of an engine batch: its window, its energy, and each book's rate there (None: missing)."""

    window_at: datetime
    energy_uj: int | None
    moer: Rate | None
    moer_status: RateStatus
    aer: Rate | None
    aer_status: RateStatus


class BaselineAt(NamedTuple):
    """Where and when an item would have run without carbonq, and how final the rate is there."""

    region: str
    window_at: datetime
    status: RateStatus | None


@dataclass(frozen=True, slots=True)
class ItemFigures:
    """One item's figures over all parts; None where a part is unmetered or has no rate."""

    entry_ids: tuple[str, ...]
    energy_uj: int | None
    emission_g: Decimal | None
    inventory_g: Decimal | None
    baseline_g: Decimal | None
    saved_g: Decimal | None


@dataclass(frozen=True, slots=True)
class Figures(Sequence[ItemFigures]):
    """What the items of an engine batch caused over all its parts, for their callers' ``usage.carbon``.

    Kept by column: energies in uJ, grams as whole 1e-15 g. The statuses are the least final ones of all parts. All of
    them asked for ``requested_model``; ``downgraded`` says why a smaller one ran, if one did.
    """

    engine_batch_id: str
    region: str
    pue: Decimal
    quality: Quality
    status: RateStatus
    inventory_status: RateStatus
    parts: tuple[PartRates, ...]
    baselines: Sequence[BaselineAt | None]
    energies_uj: Sequence[int | None]
    emissions: Sequence[int | None]
    inventories: Sequence[int | None]
    alternatives: Sequence[int | None]
    savings: Sequence[int | None]
    requested_model: str | None = None
    downgraded: DowngradeReason | None = None

    def __len__(self) -> int:
        return len(self.energies_uj)

    @overload
    def __getitem__(self, index: int) -> ItemFigures: ...
    @overload
    def __getitem__(self, index: slice) -> list[ItemFigures]: ...
    def __getitem__(self, index: int | slice) -> ItemFigures | list[ItemFigures]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        grams = (self.emissions[index], self.inventories[index], self.alternatives[index], self.savings[index])
        return ItemFigures(
            self.entry_ids(index),
            self.energies_uj[index],
            *(None if quanta is None else from_quanta(quanta) for quanta in grams),
        )

    def entry_ids(self, position: int) -> tuple[str, ...]:
        """Return the ids of an item's entries, one for each part."""
        return tuple(f"{self.engine_batch_id}.{part}.{position}" for part in range(1, len(self.parts) + 1))

    def unmetered(self) -> Figures:
        """Return the same with everything unknown that follows from energy."""
        unknown = [None] * len(self)
        return replace(
            self,
            parts=tuple(part._replace(energy_uj=None) for part in self.parts),
            energies_uj=unknown,
            emissions=unknown,
            inventories=unknown,
            alternatives=unknown,
            savings=unknown,
        )


@dataclass(frozen=True, slots=True)
class Block:
    """The entries of one part of an engine batch, by column: ``count`` of them.

    ``shared`` has the columns in which all are alike, ``own`` one value for each, ``quanta`` gram columns as whole
    1e-15 g. Each column of ``entries`` is in one of them.
    """

    count: int
    shared: Mapping[str, object]
    own: Mapping[str, Sequence[object]]
    quanta: Mapping[str, Sequence[int | None]]

    def row(self, position: int) -> Row:
        """Return one entry's stored row."""
        grams = {name: column[position] for name, column in self.quanta.items()}
        return {
            **self.shared,
            **{name: column[position] for name, column in self.own.items()},
            **{name: None if count is None else from_quanta(count) for name, count in grams.items()},
        }


class Entries(Sequence[Row]):
    """The entries of an engine batch: rows to look at, kept by column (``blocks``) as they are stored."""

    __slots__ = ("blocks",)
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, blocks: Sequence[Block]) -> None:
        """Take the parts' entries, in order."""
        self.blocks = blocks

    def __len__(self) -> int:
        return sum(block.count for block in self.blocks)

    def __iter__(self) -> Iterator[Row]:
        return (block.row(position) for block in self.blocks for position in range(block.count))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return list(self)[index]
        if index < 0:
            index += len(self)
        for block in self.blocks:
            if 0 <= index < block.count:
                return block.row(index)
            index -= block.count
        raise IndexError("there is no such entry")

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented


@dataclass(frozen=True, slots=True)
class Booking:
    """Rows by table, ready to insert, and each item's figures in item order.

    ``awaited`` lists the rates that a later settlement is to look for. ``figures`` are for the answers that leave with
    the booking: they do not go to the spool.
    """

    facts: list[Row]
    rates: list[Row]
    engine_batches: list[Row]
    entries: Sequence[Row]
    awaited: list[Row]
    figures: Figures | None = field(default=None, compare=False)


#: What of a booking is stored.
_SPOOLED = ("facts", "rates", "engine_batches", "entries", "awaited")

_DECIMALS = frozenset(
    (
        *("pue", "embodied_kg", "life_h", "g_per_kwh", "raw", "duration_s", "emission_g", "inventory_g", "embodied_g"),
        *("transfer_kwh_per_gb", "transfer_g_per_kwh", "transfer_g", "baseline_g", "saved_g", "cost"),
    )
)


def dumps(booking: Booking) -> bytes:
    """Write a booking as JSON, for the spool that outlives a database outage; ``loads`` brings it back exactly."""

    def write(value: object) -> str:
        if isinstance(value, datetime):
            return iso(value)
        if isinstance(value, Decimal):
            return plain(value)
        raise TypeError(f"cannot spool {value!r}")

    values = {name: list(getattr(booking, name)) for name in _SPOOLED}
    return json.dumps(values, default=write, ensure_ascii=False, separators=(",", ":")).encode()


def loads(data: bytes) -> Booking:
    """Read what ``dumps`` wrote. Raises ValueError when it is not that."""
    values = json.loads(data)
    try:
        facts, rates, batches, entries, awaited = ([_row(row) for row in values[name]] for name in _SPOOLED)
        return Booking(facts, rates, batches, entries, awaited)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a spooled booking: {error}") from error


def _row(row: Row) -> Row:
    for name, value in row.items():
        if value is None:
            continue
        if name in _DECIMALS:
            row[name] = Decimal(value)
        elif name.endswith("_at"):
            row[name] = parse_iso(value)
    return row

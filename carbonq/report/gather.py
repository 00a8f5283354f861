"""Add a month's hours up into what the sections of its report are made of. Pure.

Memory follows what is told apart (hours x regions, days x workloads, arrivals by window), not the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from carbonq.booking import Fact
from carbonq.model import EntryKind, Rate
from carbonq.report.sums import Cell, Sums, Tally
from carbonq.units import LEDGER_CONTEXT

ITEM, HOST_OTHER = EntryKind.ITEM.value, EntryKind.HOST_OTHER.value

#: What runs our items makes necessary; what other processes used (host_other) is none of it.
OVERHEAD = frozenset({EntryKind.IDLE.value, EntryKind.WASTED.value, EntryKind.GAP.value})


class Statuses(NamedTuple):
    """How final both rates of some entries are."""

    moer: str
    aer: str


class Alike(NamedTuple):
    """What the totals, the kinds of energy and the savings tell apart."""

    kind: str
    quality: str
    method: str
    moer: str
    aer: str
    is_saving: bool


class Owner(NamedTuple):
    """Whose day it was: a product line's or workload's; None where work names none."""

    tenant: str | None
    name: str | None
    day: str


class InventoryKey(NamedTuple):
    """What a row of the hourly inventory is of."""

    hour_at: datetime
    region: str
    ownership: str
    zone: str | None
    source: str | None
    model: str | None
    gas: str | None
    method: str | None
    is_estimated: bool | None
    status: str


#: What the inventory tells apart of a rate.
_PROVENANCE = ("zone", "source", "model", "gas", "method", "is_estimated")


class Arrived(NamedTuple):
    """Where and when an item would have run at once in the nearest region, and how final its own rate is."""

    region: str
    window_at: datetime
    status: str


class Meters(NamedTuple):
    """How energy was counted."""

    gpu: str
    cpu: str
    dram: str
    quality: str


class _Narrow(NamedTuple):
    region: str
    fact_id: str
    model: str | None
    quality: str
    software_version: str
    gpu_meter: str
    cpu_meter: str
    dram_meter: str
    tenant: str | None
    product_line: str | None
    workload: str | None
    kind: str
    method: str
    moer: str
    aer: str
    moer_rate_id: str | None
    aer_rate_id: str | None
    is_saving: bool


@dataclass(slots=True)
class Mean:
    """A mean rate weighted by energy; None while nothing with a rate was added."""

    weight: Decimal = Decimal(0)
    weighted: Decimal = Decimal(0)

    def add(self, weight: Decimal, rate: Decimal) -> None:
        """Add energy that a rate applies to."""
        self.weight = LEDGER_CONTEXT.add(self.weight, weight)
        self.weighted = LEDGER_CONTEXT.add(self.weighted, LEDGER_CONTEXT.multiply(weight, rate))

    @property
    def value(self) -> Decimal | None:
        """The mean in g/kWh, rounded to 6 decimals."""
        if not self.weight:
            return None
        return LEDGER_CONTEXT.divide(self.weighted, self.weight).quantize(Decimal("1E-6"), context=LEDGER_CONTEXT)


@dataclass(slots=True)
class Place:
    """What of a region is no sum of entries. Energies in uJ, ``facility_uj`` with PUE."""

    zones: set[str] = field(default_factory=set[str])
    ownership: set[str] = field(default_factory=set[str])
    pues: set[Decimal] = field(default_factory=set[Decimal])
    facility_uj: Decimal = Decimal(0)
    moer: Mean = field(default_factory=Mean)
    aer: Mean = field(default_factory=Mean)


@dataclass(slots=True)
class Hour:
    """What of an inventory row is no sum of entries: facility energy in uJ, and the mean rate over it."""

    facility_uj: Decimal = Decimal(0)
    aer: Mean = field(default_factory=Mean)


@dataclass(frozen=True, slots=True)
class Known:
    """What the ids of an hour's cells refer to.

    ``arrived`` has the nearest region and the window of arrival of each job that can be compared.
    """

    facts: Mapping[str, Fact]
    rates: Mapping[str, Rate]
    reasons: Mapping[str, str]
    arrived: Mapping[str, tuple[str, datetime]]


class Gathered:
    """A month's sums by what its sections tell apart; ``tenant`` None: everybody and the overhead.

    ``pools`` alone are over all tenants, by region and kind: a tenant's share of the overhead depends on them. Of one
    tenant's cells they cannot be told, so that the energy of all items has to be given with ``attribute``.
    """

    def __init__(self, tenant: str | None) -> None:
        """Begin with nothing."""
        self.tenant = tenant
        self.alike = Tally[Alike]()
        self.product_lines = Tally[tuple[Owner, Statuses]]()
        self.workloads = Tally[tuple[Owner, Statuses]]()
        self.models = Tally[tuple[str | None, str | None, Statuses]]()
        self.days = Tally[tuple[str, bool, bool, Statuses]]()
        self.regions = Tally[tuple[str, bool, str, Statuses]]()
        self.places: dict[str, Place] = {}
        self.inventory = Tally[InventoryKey]()
        self.hours: dict[InventoryKey, Hour] = {}
        self.switches = Tally[tuple[str, str, str | None]]()
        self.arrived = Tally[Arrived]()
        self.pools = Tally[tuple[str, str]]()
        self.meters = Tally[Meters]()
        self.pue_sources: dict[tuple[str, Decimal, str], None] = {}
        self.rate_sources: dict[tuple[str, str, str | None, str], None] = {}
        self.software_versions: set[str] = set()
        self.methods: set[str] = set()

    def add(self, hour_at: datetime, cells: Sequence[Cell], known: Known) -> None:
        """Add an hour. Costs one addition a cell, and some more for each combination that sections tell apart."""
        narrow = Tally[_Narrow]()
        for cell in cells:
            if self.tenant is None or cell.kind != ITEM:
                self.pools.add((cell.region, cell.kind), cell.sums)
            if self.tenant is not None and cell.tenant != self.tenant:
                continue
            narrow.add(_Narrow._make((*cell[:11], *cell[12:18], cell.is_saving)), cell.sums)
            if cell.kind == ITEM and cell.job_id is not None:
                self._add_job(cell, known)
        for key, sums in narrow.items():
            self._add(hour_at, key, sums, known)

    def attribute(self, region: str, energy_uj: int) -> None:
        """Say how much energy all tenants' items used in a region."""
        self.pools.add((region, ITEM), Sums(energy_uj=energy_uj))

    def _add_job(self, cell: Cell, known: Known) -> None:
        if cell.baseline_region is not None and cell.baseline_region != cell.region:
            reason = None if cell.placement_id is None else known.reasons.get(cell.placement_id)
            self.switches.add((cell.baseline_region, cell.region, reason), cell.sums)
        arrived = known.arrived.get(str(cell.job_id))
        if arrived is not None and not cell.sums.unrated and not cell.sums.unmetered:
            self.arrived.add(Arrived(*arrived, cell.moer_status), cell.sums)

    def _add(self, hour_at: datetime, key: _Narrow, sums: Sums, known: Known) -> None:
        statuses, day = Statuses(key.moer, key.aer), f"{hour_at:%Y-%m-%d}"
        is_item = key.kind == ITEM
        self.alike.add(Alike(key.kind, key.quality, key.method, key.moer, key.aer, key.is_saving), sums)
        self.software_versions.add(key.software_version)
        self.methods.add(key.method)
        if is_item:
            self.product_lines.add((Owner(key.tenant, key.product_line, day), statuses), sums)
            self.workloads.add((Owner(key.tenant, key.workload, day), statuses), sums)
            self.models.add((key.tenant, key.model, statuses), sums)
        self.meters.add(Meters(key.gpu_meter, key.cpu_meter, key.dram_meter, key.quality), sums)
        if key.kind == HOST_OTHER:
            return
        self.days.add((day, is_item, key.is_saving, statuses), sums)
        self.regions.add((key.region, is_item, key.quality, statuses), sums)
        fact = known.facts[key.fact_id]
        moer, aer = (None if one is None else known.rates[one] for one in (key.moer_rate_id, key.aer_rate_id))
        facility_uj = LEDGER_CONTEXT.multiply(sums.energy_uj, fact.pue)
        self._add_place(key.region, fact, (moer, aer), facility_uj)
        row = InventoryKey(hour_at, key.region, fact.ownership, None, None, None, None, None, None, key.aer)
        if aer is not None:
            row = row._replace(**{name: getattr(aer, name) for name in _PROVENANCE})
        self.inventory.add(row, sums)
        hour = self.hours.setdefault(row, Hour())
        hour.facility_uj = LEDGER_CONTEXT.add(hour.facility_uj, facility_uj)
        if aer is not None:
            hour.aer.add(facility_uj, aer.g_per_kwh)

    def _add_place(self, region: str, fact: Fact, rates: tuple[Rate | None, Rate | None], facility_uj: Decimal) -> None:
        place = self.places.setdefault(region, Place())
        place.ownership.add(fact.ownership)
        place.pues.add(fact.pue)
        place.facility_uj = LEDGER_CONTEXT.add(place.facility_uj, facility_uj)
        self.pue_sources[region, fact.pue, fact.pue_source] = None
        for rate, mean in zip(rates, (place.moer, place.aer), strict=True):
            if rate is not None:
                place.zones.add(rate.zone)
                mean.add(facility_uj, rate.g_per_kwh)
                self.rate_sources[rate.signal.value, rate.source, rate.model, rate.gas] = None


def references(cells: Collection[Cell]) -> dict[str, set[str]]:
    """Return the ids that cells refer to: ``facts``, ``rates``, ``placements`` and ``jobs`` (of items)."""
    items = [cell for cell in cells if cell.kind == ITEM]
    return {
        "facts": {cell.fact_id for cell in cells},
        "rates": {one for cell in cells for one in (cell.moer_rate_id, cell.aer_rate_id) if one is not None},
        "placements": {
            cell.placement_id
            for cell in items
            if cell.placement_id is not None and cell.baseline_region not in (None, cell.region)
        },
        "jobs": {cell.job_id for cell in items if cell.job_id is not None},
    }

"""Where work ran: energy and grams of each region, moves between them, and the location-based inventory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from carbonq.render import figures, plots
from carbonq.render.chapters import books
from carbonq.render.plots import Bar, Segment
from carbonq.render.sheet import Cell, Chapter, Column, Table, Words, count, energy, grams, name, table, text
from carbonq.render.sheet import chapter as made
from carbonq.render.svg import Drawing, Key
from carbonq.report import Report
from carbonq.report.document import InventoryRow, RegionRow, SwitchRow
from carbonq.units import LEDGER_CONTEXT, plain

_QUALITIES = ("measured", "mixed", "estimated", "upper_bound")


def regions(report: Report) -> Chapter | None:
    """Return the regions and the work that left its home."""
    rows = sorted(report.regions, key=lambda row: -row.energy_uj)
    return made("regions", "Regions", [_drawing(rows), _table(rows), _switches(report.switches)])


def _drawing(rows: Sequence[RegionRow]) -> Drawing | None:
    unit = figures.energy_of([row.energy_uj for row in rows])
    bars = [
        Bar(
            row.region,
            tuple(Segment(quality, float(dict(row.qualities).get(quality, 0))) for quality in _QUALITIES),
            f"{row.region}: {unit.say(row.energy_uj)}",
            label=unit.say(row.energy_uj),
        )
        for row in rows
    ]
    used = [quality for quality in _QUALITIES if any(dict(row.qualities).get(quality) for row in rows)]
    said = "; ".join(f"{row.region} {figures.share(row.energy_share)}" for row in rows[: plots.MOST_BARS])
    alt = f"Bars of IT energy by region, parted by how it is known. Shares: {said}."
    keys = [Key(quality, quality.replace("_", " ")) for quality in used]
    return plots.bars("Energy by region (IT, items and overhead)", alt, bars, unit, keys=keys)


def _table(rows: Sequence[RegionRow]) -> Table | None:
    energies = figures.energy_of([row.energy_uj for row in rows])
    unit = books.unit_of([book for row in rows for book in (row.impact, row.inventory)])
    has_cost = any(row.cost is not None for row in rows)
    columns = (
        text("Region", 1.3),
        Column("PUE", weight=0.6),
        Column("Items", weight=0.8),
        Column(f"Energy, {energies.name}", weight=0.9),
        Column("Share", weight=0.7),
        Column(f"Impact, {unit.name}"),
        Column("Mean MOER, g/kWh", weight=0.8),
        Column(f"Inventory, {unit.name}"),
        Column("Mean AER, g/kWh", weight=0.8),
        *((Column("Cost", weight=0.8),) if has_cost else ()),
    )
    cells = [
        (
            name(row.region, below=", ".join((*row.zones, *row.ownership))),
            Cell(", ".join(plain(pue) for pue in row.pues) or figures.UNKNOWN),
            count(row.items),
            energy(energies, row.energy_uj),
            Cell(figures.share(row.energy_share)),
            books.cell(unit, row.impact),
            _rate(row.mean_moer_g_per_kwh),
            books.cell(unit, row.inventory),
            _rate(row.mean_aer_g_per_kwh),
            *((Cell(figures.number(row.cost)),) if has_cost else ()),
        )
        for row in rows
    ]
    note = "Items and overhead together. Mean rates are weighted by energy, each over the entries of its own book."
    return table("Regions in the month", columns, cells, note)


def _rate(value: Decimal | None) -> Cell:
    return Cell(figures.UNKNOWN if value is None else f"{value:,.1f}", figures.exact(value, "gCO2e/kWh"))


def _switches(rows: Sequence[SwitchRow]) -> Table | None:
    energies = figures.energy_of([row.energy_uj for row in rows])
    columns = (
        text("Home region"),
        text("Ran in"),
        text("Placed by"),
        Column("Items"),
        Column(f"Energy, {energies.name}"),
    )
    cells = [
        (
            name(row.home_region),
            Cell(row.region, is_name=True),
            Cell((row.reason or figures.UNKNOWN).replace("_", " ")),
            count(row.items),
            energy(energies, row.energy_uj),
        )
        for row in sorted(rows, key=lambda row: -row.items)
    ]
    return table("Work that ran in another region than its home region", columns, cells)


@dataclass(frozen=True, slots=True)
class _Sum:
    """The hours of one region alike in scope, source and how final they are, together."""

    hours: int = 0
    kwh: Decimal | None = None
    unmetered: int = 0
    grams: Decimal | None = None
    weighted: Decimal | None = None
    rated_kwh: Decimal = Decimal(0)
    unknown: int = 0

    @property
    def mean(self) -> Decimal | None:
        """The mean of the rates, weighted by the energy that has one; None where none has."""
        return None if self.weighted is None or not self.rated_kwh else self.weighted / self.rated_kwh


def inventory(report: Report) -> Chapter | None:
    """Return the location-based inventory as the GHG Protocol's Scope 2 asks for it, summed over its hours."""
    sums = _summed(report.inventory)
    unit = figures.grams_of([one.grams for one in sums.values()])
    columns = (
        text("Region", 1.2),
        text("Scope", 0.8),
        text("Source of the rates", 1.4),
        text("Status", 1.0),
        Column("Hours", weight=0.6),
        Column("Facility energy, kWh", weight=1.0),
        Column("Mean AER, g/kWh", weight=0.9),
        Column(f"Inventory, {unit.name}", weight=1.1),
    )
    cells = [_inventory(of, one, unit) for of, one in sorted(sums.items(), key=lambda pair: pair[0])]
    hours = len({(row.hour_at, row.region) for row in report.inventory})
    note = (
        f"Summed over {figures.several(hours, 'hour')} of regions; every hour with its rate stands in the CSV "
        "(section inventory) and the JSON. Facility energy has the PUE in it. Market instruments stay outside."
    )
    found = table("Location-based inventory by region and source", columns, cells, note)
    if found is None:
        return None
    words = Words(
        "What an inventory by the GHG Protocol's Scope 2 Guidance asks for, location-based: average rates, apart from "
        "the impact book and never added to it. Regions stated as owned or colocated stand as Scope 2, rented ones as "
        "Scope 3; no market-based total is in this report."
    )
    return made("inventory", "Location-based inventory", [words, found])


_Of = tuple[str, str, str, str, str]


def _summed(rows: Sequence[InventoryRow]) -> dict[_Of, _Sum]:
    found: dict[_Of, _Sum] = {}
    for row in rows:
        estimated = "" if row.is_estimated is None else "estimated" if row.is_estimated else "not estimated"
        gas = {"co2": "CO2 alone", "co2e": "CO2e"}.get(row.gas or "", row.gas or "")
        told = ", ".join(said for said in (row.model, row.method, gas, estimated) if said)
        of = (row.region, row.scope, row.source or "", told, row.status)
        one, rate, kwh = found.get(of, _Sum()), row.aer_g_per_kwh, row.kwh
        found[of] = _Sum(
            one.hours + 1,
            _added(one.kwh, row.kwh),
            one.unmetered + row.unmetered_entries,
            _added(one.grams, row.inventory_g),
            _added(one.weighted, None if rate is None or kwh is None else LEDGER_CONTEXT.multiply(rate, kwh)),
            one.rated_kwh if rate is None or kwh is None else LEDGER_CONTEXT.add(one.rated_kwh, kwh),
            one.unknown + row.unknown_entries,
        )
    return found


def _added(total: Decimal | None, more: Decimal | None) -> Decimal | None:
    return total if more is None else more if total is None else LEDGER_CONTEXT.add(total, more)


def _inventory(of: _Of, one: _Sum, unit: figures.Unit) -> tuple[Cell, ...]:
    region, scope, source, told, status = of
    unmetered = f"{figures.several(one.unmetered, 'entry', 'entries')} without a meter" if one.unmetered else ""
    unknown = f"{figures.several(one.unknown, 'entry', 'entries')} unknown" if one.unknown else ""
    return (
        name(region),
        Cell(scope),
        Cell(source or "no rate", below=told),
        Cell(status),
        count(one.hours),
        Cell(figures.number(one.kwh), figures.exact(one.kwh, "kWh"), unmetered),
        _rate(one.mean),
        grams(unit, one.grams, below=unknown),
    )

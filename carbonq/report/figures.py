"""The sections of a month's report, made of what was gathered: totals, energies, efficiency, regions, hours. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

from carbonq import sci
from carbonq.model import EntryKind, Quality, RateStatus, Region
from carbonq.report.document import (
    BookRow,
    DayRow,
    EfficiencyRow,
    EnergyRow,
    InventoryRow,
    KindRow,
    RegionRow,
    SavingRow,
    SwitchRow,
    Totals,
)
from carbonq.report.gather import ITEM, OVERHEAD, Alike, Gathered, InventoryKey
from carbonq.report.sums import Books, Sums, known
from carbonq.units import LEDGER_CONTEXT, UJ_PER_KWH, from_quanta, quanta

#: Ownership -> which part of a GHG inventory its electricity belongs to (GHG Protocol, Scope 2 Guidance).
SCOPES: Mapping[str, str] = {"owned": "scope 2", "colocated": "scope 2", "rented": "scope 3"}

_PROVISIONAL = RateStatus.PROVISIONAL.value
_K = TypeVar("_K")


def totals(gathered: Gathered) -> Totals:
    """Return the month's sums; the books apart, measured and estimated energy apart."""
    rows = list(gathered.alike.items())
    of_items = [(key, sums) for key, sums in rows if key.kind == ITEM]
    items, overhead = _books(of_items), _books((key, sums) for key, sums in rows if key.kind in OVERHEAD)
    energy_uj = items.sums.energy_uj
    transfer_g = known(items.sums.transfer, items.sums.entries, items.sums.no_transfer)
    return Totals(
        items=items.sums.items,
        prompt_tokens=items.sums.prompt_tokens,
        completion_tokens=items.sums.completion_tokens,
        entries=items.sums.entries,
        overhead_entries=overhead.sums.entries,
        item_energy_uj=energy_uj,
        overhead_energy_uj=overhead.sums.energy_uj,
        energy=_energy(rows),
        impact=items.impact,
        impact_overhead=overhead.impact,
        impact_rows=_book_rows(rows, lambda key: key.moer, lambda sums: (sums.emission, sums.unrated)),
        inventory=items.inventory,
        inventory_overhead=overhead.inventory,
        inventory_rows=_book_rows(rows, lambda key: key.aer, lambda sums: (sums.inventory, sums.unrated_aer)),
        embodied_g=known(items.sums.embodied, items.sums.entries, items.sums.no_embodied),
        no_embodied_entries=items.sums.no_embodied,
        transfer_g=transfer_g,
        no_transfer_entries=items.sums.no_transfer,
        provisional_share=_share(_energy_of(of_items, lambda key: key.moer == _PROVISIONAL), energy_uj),
        inventory_provisional_share=_share(_energy_of(of_items, lambda key: key.aer == _PROVISIONAL), energy_uj),
        measured_share=_share(_energy_of(of_items, lambda key: key.quality == Quality.MEASURED.value), energy_uj),
    )


def kinds(gathered: Gathered) -> tuple[KindRow, ...]:
    """Return each kind of entry with its share of all energy."""
    rows = list(gathered.alike.items())
    whole_uj = sum(sums.energy_uj for _, sums in rows)
    found: list[KindRow] = []
    for kind in EntryKind:
        books = _books((key, sums) for key, sums in rows if key.kind == kind.value)
        sums = books.sums
        if sums.entries or kind is not EntryKind.HOST_OTHER:
            share = _share(sums.energy_uj, whole_uj)
            found.append(
                KindRow(
                    kind.value,
                    sums.entries,
                    sums.energy_uj,
                    sums.unmetered,
                    share,
                    impact=books.impact,
                    inventory=books.inventory,
                )
            )
    return tuple(found)


def efficiency(month: str, by_model: Iterable[tuple[str | None, str, str, Sums]]) -> tuple[EfficiencyRow, ...]:
    """Return a month's efficiency over all models, and then of each model by name."""
    whole, models = Books(), dict[str, Books]()
    for model, moer, aer, sums in by_model:
        whole.add(moer, aer, sums)
        models.setdefault(model or "", Books()).add(moer, aer, sums)
    return (
        _efficiency(month, None, whole),
        *(_efficiency(month, name or None, books) for name, books in sorted(models.items())),
    )


def days(gathered: Gathered) -> tuple[DayRow, ...]:
    """Return the days on which anything ran."""
    books: dict[str, Books] = {}
    items: dict[str, Sums] = {}
    compared: dict[str, Sums] = {}
    for (day, is_item, is_saving, statuses), sums in gathered.days.items():
        books.setdefault(day, Books()).add(*statuses, sums)
        if is_item:
            items[day] = items.get(day, Sums()).plus(sums)
        if is_saving:
            compared[day] = compared.get(day, Sums()).plus(sums)
    return tuple(_day(day, both, items.get(day, Sums()), compared.get(day)) for day, both in sorted(books.items()))


def _day(day: str, both: Books, items: Sums, compared: Sums | None) -> DayRow:
    return DayRow(
        day=day,
        items=items.items,
        tokens=items.tokens,
        energy_uj=both.sums.energy_uj,
        overhead_energy_uj=both.sums.energy_uj - items.energy_uj,
        impact=both.impact,
        inventory=both.inventory,
        baseline_g=None if compared is None else from_quanta(compared.baseline),
        compared_emission_g=None if compared is None else from_quanta(compared.emission),
        saved_g=None if compared is None else from_quanta(compared.saved),
    )


def regions(gathered: Gathered, configured: Mapping[str, Region]) -> tuple[RegionRow, ...]:
    """Return each region that used energy; prices are those stated now."""
    books: dict[str, Books] = {}
    items: dict[str, Sums] = {}
    qualities: dict[str, dict[str, int]] = {}
    for (region, is_item, quality, statuses), sums in gathered.regions.items():
        books.setdefault(region, Books()).add(*statuses, sums)
        by_quality = qualities.setdefault(region, {})
        by_quality[quality] = by_quality.get(quality, 0) + sums.energy_uj
        if is_item:
            items[region] = items.get(region, Sums()).plus(sums)
    whole_uj = sum(one.sums.energy_uj for one in books.values())
    found: list[RegionRow] = []
    for region, both in sorted(books.items()):
        place, own = gathered.places[region], items.get(region, Sums())
        stated = configured.get(region)
        price = None if stated is None else stated.price_per_kwh
        found.append(
            RegionRow(
                region=region,
                zones=tuple(sorted(place.zones)),
                ownership=tuple(sorted(place.ownership)),
                pues=tuple(sorted(place.pues)),
                items=own.items,
                tokens=own.tokens,
                items_energy_uj=own.energy_uj,
                energy_uj=both.sums.energy_uj,
                energy_share=_share(both.sums.energy_uj, whole_uj),
                qualities=tuple(sorted(qualities[region].items())),
                impact=both.impact,
                inventory=both.inventory,
                mean_moer_g_per_kwh=place.moer.value,
                mean_aer_g_per_kwh=place.aer.value,
                cost=None if price is None else _cost(place.facility_uj, price),
            )
        )
    return tuple(found)


def switches(gathered: Gathered) -> tuple[SwitchRow, ...]:
    """Return what ran elsewhere than at home, the most energy first."""
    rows = [
        SwitchRow(home, region, reason, sums.items, sums.energy_uj)
        for (home, region, reason), sums in gathered.switches.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.energy_uj, row.home_region, row.region, row.reason or "")))


def inventory(gathered: Gathered) -> tuple[InventoryRow, ...]:
    """Return the location-based inventory by hour and region, apart where the provenance of the rate differs."""

    def order(row: tuple[InventoryKey, Sums]) -> tuple[object, ...]:
        return tuple((value is None, str(value)) for value in row[0])

    found: list[InventoryRow] = []
    for key, sums in sorted(gathered.inventory.items(), key=order):
        hour, is_metered = gathered.hours[key], sums.unmetered < sums.entries
        found.append(
            InventoryRow(
                hour_at=key.hour_at,
                region=key.region,
                zone=key.zone,
                ownership=key.ownership,
                scope=SCOPES.get(key.ownership, key.ownership),
                source=key.source,
                model=key.model,
                gas=key.gas,
                method=key.method,
                is_estimated=key.is_estimated,
                status=key.status,
                energy_uj=sums.energy_uj if is_metered else None,
                kwh=kwh(hour.facility_uj) if is_metered else None,
                unmetered_entries=sums.unmetered,
                aer_g_per_kwh=hour.aer.value,
                inventory_g=known(sums.inventory, sums.entries, sums.unrated_aer),
                unknown_entries=sums.unrated_aer,
            )
        )
    return tuple(found)


def savings(gathered: Gathered) -> tuple[tuple[SavingRow, ...], float | None]:
    """Return the savings, each beside its baseline, and the share of the items' energy that has one."""
    found: dict[tuple[str, str, str], Sums] = {}
    items_uj = 0
    for key, sums in gathered.alike.items():
        items_uj += sums.energy_uj if key.kind == ITEM else 0
        if key.is_saving:
            name = (key.moer, key.quality, key.method)
            found[name] = found.get(name, Sums()).plus(sums)
    rows = tuple(
        SavingRow(
            *name,
            entries=sums.entries,
            energy_uj=sums.energy_uj,
            emission_g=from_quanta(sums.emission),
            transfer_g=known(sums.transfer, sums.entries, sums.no_transfer),
            baseline_g=from_quanta(sums.baseline),
            saved_g=from_quanta(sums.saved),
        )
        for name, sums in sorted(found.items())
    )
    return rows, _share(sum(row.energy_uj for row in rows), items_uj)


def kwh(facility_uj: Decimal) -> Decimal:
    """Return facility energy in kWh, rounded once to 15 decimals."""
    num, den = facility_uj.as_integer_ratio()
    return from_quanta(quanta(num, den * UJ_PER_KWH))


def _books(rows: Iterable[tuple[Alike, Sums]]) -> Books:
    books = Books()
    for key, sums in rows:
        books.add(key.moer, key.aer, sums)
    return books


def _energy(rows: Iterable[tuple[Alike, Sums]]) -> tuple[EnergyRow, ...]:
    found = _grouped(rows, lambda key: (key.kind, key.quality))
    return tuple(EnergyRow(*key, sums.entries, sums.energy_uj, sums.unmetered) for key, sums in sorted(found.items()))


def _book_rows(
    rows: Iterable[tuple[Alike, Sums]], status: Callable[[Alike], str], figure: Callable[[Sums], tuple[int, int]]
) -> tuple[BookRow, ...]:
    found = _grouped(rows, lambda key: (key.kind, status(key), key.method))
    made: list[BookRow] = []
    for key, sums in sorted(found.items()):
        count, unknown = figure(sums)
        made.append(BookRow(*key, sums.entries, known(count, sums.entries, unknown), unknown))
    return tuple(made)


def _grouped(rows: Iterable[tuple[Alike, Sums]], key: Callable[[Alike], _K]) -> dict[_K, Sums]:
    found: dict[_K, Sums] = {}
    for one, sums in rows:
        found[key(one)] = found.get(key(one), Sums()).plus(sums)
    return found


def _energy_of(rows: Iterable[tuple[Alike, Sums]], wanted: Callable[[Alike], bool]) -> int:
    return sum(sums.energy_uj for key, sums in rows if wanted(key))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _efficiency(month: str, model: str | None, books: Books) -> EfficiencyRow:
    sums, impact, inventory_ = books.sums, books.impact, books.inventory
    emission, average = (None if one.known_g is None else Fraction(one.known_g) for one in (impact, inventory_))
    kg = None if not emission else emission / 1000
    return EfficiencyRow(
        month=month,
        model=model,
        items=sums.items,
        tokens=sums.tokens,
        energy_uj=sums.energy_uj,
        impact=impact,
        inventory=inventory_,
        unmetered_entries=sums.unmetered,
        impact_g_per_1000_tokens=sci.per(emission, sums.rated_tokens, 1000),
        inventory_g_per_1000_tokens=sci.per(average, sums.aer_tokens, 1000),
        impact_g_per_item=sci.per(emission, sums.rated_items),
        requests_per_kg=None if kg is None or kg <= 0 else _rounded(Fraction(sums.rated_items) / kg),
        wh_per_1000_tokens=sci.per(Fraction(sums.energy_uj * 1000, UJ_PER_KWH), sums.metered_tokens, 1000)
        if sums.entries > sums.unmetered
        else None,
    )


def _rounded(value: Fraction) -> Decimal:
    return from_quanta(quanta(value.numerator, value.denominator)).quantize(Decimal("1E-3"), context=LEDGER_CONTEXT)


def _cost(facility_uj: Decimal, price: Decimal) -> Decimal:
    exact = LEDGER_CONTEXT.divide(LEDGER_CONTEXT.multiply(facility_uj, price), Decimal(UJ_PER_KWH))
    return exact.quantize(Decimal("1E-6"), context=LEDGER_CONTEXT)

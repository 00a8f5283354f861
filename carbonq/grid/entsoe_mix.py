"""Megawatts by production type into average intensities, by published factors for each fuel. Pure.

The factors are medians of life-cycle studies (IPCC, Special Report on Renewable Energy Sources, 2011, Annex II); types
without one of their own take the mean of gas, oil and coal, or of the renewables (``data/grid/entsoe_factors.csv``).
Storage only moves energy: neither what it gives nor what it draws counts. Imports are ignored.

    intensity = sum(MW x factor) / sum(MW)                    of what was generated
    foreseen  = the same of forecast wind and sun, and of the rest of the forecast load, shared over the dispatchable
                types as they shared it of late
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files

from carbonq.grid.entsoe_documents import LOAD, Series
from carbonq.grid.readings import Reading
from carbonq.units import LEDGER_CONTEXT

logger = logging.getLogger(__name__)

#: Kept with every value as its model.
MODEL = "IPCC 2011 medians"
_FILE = "data/grid/entsoe_factors.csv"
#: Intensities are rounded to this, g/kWh: the factors have three digits at most.
_QUANTUM = Decimal("0.001")
#: Types that may be missing at a time without making its value missing: all that made less than this of the energy.
_NEGLIGIBLE = Decimal("0.01")


class Role(StrEnum):
    """What a production type is to a forecast."""

    DISPATCHABLE = "dispatchable"
    FORECAST = "forecast"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class Factor:
    """One production type: its name, its role, and its factor; None for storage."""

    name: str
    role: Role
    g_per_kwh: Decimal | None


@lru_cache(maxsize=1)
def factors() -> Mapping[str, Factor]:
    """Read the table that ships, once a process."""
    rows = csv.DictReader(files("carbonq").joinpath(_FILE).read_text(encoding="utf-8").splitlines())
    return {
        row["psr_type"]: Factor(row["name"], Role(row["role"]), Decimal(row["g_per_kwh"]) if row["g_per_kwh"] else None)
        for row in rows
    }


@lru_cache(maxsize=64)
def _factor(kind: str) -> Factor:
    known = factors()
    if kind not in known:
        logger.warning(
            "ENTSO-E names the production type %s, which is unknown; it counts as %s", kind, known["B20"].name
        )
    return known.get(kind, known["B20"])


@dataclass(frozen=True, slots=True)
class Generation:
    """Megawatts by time and production type, storage and consumption left out; every type at the finest step."""

    step: timedelta
    kinds: Collection[str]
    negligible: Collection[str]
    megawatts: Mapping[datetime, Mapping[str, Decimal]]

    def complete(self) -> Iterator[tuple[datetime, Mapping[str, Decimal] | None]]:
        """Yield each time with its megawatts; None where a type that counts is missing."""
        needed = set(self.kinds) - set(self.negligible)
        for at in sorted(self.megawatts):
            row = self.megawatts[at]
            yield at, row if needed <= row.keys() else None


def generation(series: Iterable[Series]) -> Generation | None:
    """Return the generation that series tell of; None where they tell of none.

    Of a type and time told twice with different values, neither counts.
    """
    mine = [one for one in series if one.kind != LOAD and not one.is_consumption]
    mine = [one for one in mine if _factor(one.kind).role is not Role.STORAGE]
    if not mine:
        return None
    step = min(one.step for one in mine)
    table: dict[datetime, dict[str, Decimal | None]] = {}
    for one in mine:
        for at, value in one.megawatts.items():
            # A coarser value holds for each of its finer steps.
            for place in range(one.step // step):
                row = table.setdefault(at + place * step, {})
                row[one.kind] = value if row.get(one.kind, value) == value else None
    known = {at: {kind: value for kind, value in row.items() if value is not None} for at, row in table.items()}
    energy: dict[str, Decimal] = {one.kind: Decimal(0) for one in mine}
    for row in known.values():
        for kind, value in row.items():
            energy[kind] += value
    total = sum(energy.values(), Decimal(0))
    negligible = [kind for kind, part in energy.items() if part < _NEGLIGIBLE * total]
    return Generation(step, list(energy), negligible, known)


def intensities(found: Generation) -> list[Reading]:
    """Return the average intensity of each time; missing where a type that counts is, or nothing was generated."""
    return [Reading(at, None if row is None else _mean(row)) for at, row in found.complete()]


def fleet(found: Generation, since: datetime) -> Mapping[str, Decimal] | None:
    """Return how the dispatchable types shared their energy since a time; None where nothing is known of it."""
    energy: dict[str, Decimal] = {}
    for at, row in found.complete():
        for kind, value in (row or {}).items() if at >= since else ():
            if _factor(kind).role is Role.DISPATCHABLE:
                energy[kind] = energy.get(kind, Decimal(0)) + value
    total = sum(energy.values(), Decimal(0))
    return {kind: LEDGER_CONTEXT.divide(value, total) for kind, value in energy.items()} if total else None


def foreseen(
    load: Sequence[Series], sun_and_wind: Generation, shares: Mapping[str, Decimal]
) -> tuple[timedelta, list[Reading]]:
    """Return step and intensities of the times that both a load and the wind and sun are forecast for."""
    step = min(sun_and_wind.step, *(one.step for one in load))
    demand: dict[datetime, Decimal | None] = {}
    for one in load:
        for at, value in one.megawatts.items():
            for place in range(one.step // step):
                fine = at + place * step
                demand[fine] = value if demand.get(fine, value) == value else None
    found: list[Reading] = []
    for at, row in sun_and_wind.complete():
        for place in range(sun_and_wind.step // step):
            fine = at + place * step
            needed = demand.get(fine)
            found.append(Reading(fine, None if row is None or needed is None else _foreseen(row, needed, shares)))
    return step, found


def _foreseen(row: Mapping[str, Decimal], load: Decimal, shares: Mapping[str, Decimal]) -> Decimal | None:
    rest = max(load - sum(row.values(), Decimal(0)), Decimal(0))
    return _mean({**row, **{kind: LEDGER_CONTEXT.multiply(rest, share) for kind, share in shares.items()}})


def _mean(row: Mapping[str, Decimal]) -> Decimal | None:
    energy, grams = Decimal(0), Decimal(0)
    for kind, megawatts in row.items():
        energy += megawatts
        grams += LEDGER_CONTEXT.multiply(megawatts, _factor(kind).g_per_kwh or Decimal(0))
    return LEDGER_CONTEXT.divide(grams, energy).quantize(_QUANTUM) if energy else None

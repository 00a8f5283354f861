"""Score the ledger by Software Carbon Intensity: per item, per million tokens, per job; direct and with overhead.

Overhead (idle, wasted and gap energy) is shared within its region and calendar month (UTC) by attributed energy, over
all tenants: what a tenant bears depends on nothing that another one may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from carbonq import sci
from carbonq.model import EntryKind
from carbonq.sci import Carbon, Pool
from carbonq.store import figures
from carbonq.store.database import Tx
from carbonq.store.figures import Group, Scope
from carbonq.units import plain

Json = dict[str, Any]
Key = tuple[str | None, ...]

#: What one pool is, as dimensions of the sums.
POOL = ("region", "month")

#: Of no items there is nothing to score.
_NONE = Carbon(None, None)

_OVERHEAD = frozenset((EntryKind.IDLE.value, EntryKind.WASTED.value, EntryKind.GAP.value))

BOUNDARY = (
    "accelerators, CPU and memory as far as they were metered or estimated (see the meters of the entries), times PUE; "
    "embodied carbon of the region's stated hardware by device time; not networks, storage and clients"
)


def scores(tx: Tx, scope: Scope, by: Sequence[str] = ()) -> Scores:
    """Read what the scores of some entries and of each group of them need. Two passes over the entries."""
    own = figures.groups(tx, scope, (*by, *POOL))
    everybody = Scope(clock=scope.clock, start_at=scope.start_at, end_at=scope.end_at, as_of=scope.as_of)
    all_groups = own if scope == everybody and not by else figures.groups(tx, everybody, POOL)
    jobs = figures.jobs_by(tx, scope, by)
    whole = figures.jobs_by(tx, scope)[()] if by and jobs else jobs.get((), 0)
    return Scores(own, _pools(all_groups), jobs, whole)


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of the groups of one summary."""

    own: Sequence[Group]
    pools: dict[str, dict[object, Pool]]
    jobs: dict[Key, int]
    jobs_in_all: int

    def of(self, key: Key | None) -> Json:
        """Return the score of a group, or of everything in scope (None)."""
        members = [group for group in self.own if key is None or group.by[: -len(POOL)] == key]
        items = [group for group in members if group.kind == EntryKind.ITEM.value]
        units = {
            "items": sum(group.items for group in items),
            "tokens": sum(group.prompt_tokens + group.completion_tokens for group in items),
            "jobs": self.jobs_in_all if key is None else self.jobs.get(key, 0),
        }
        is_metered = bool(items) and not any(group.unmetered for group in items)
        energy_uj = sum(group.energy_uj for group in items) if is_metered else None
        own_uj: dict[object, int] = {}
        for group in items:
            own_uj[group.by[-len(POOL) :]] = own_uj.get(group.by[-len(POOL) :], 0) + group.energy_uj
        return {
            "boundary": BOUNDARY,
            "units": units,
            "energy_quality": sorted({group.quality for group in items}),
            "kwh_per_million_tokens": _text(sci.kwh_per(energy_uj, units["tokens"], sci.MILLION)),
            **{
                book: self._book(
                    _carbon(items, book) if items else _NONE, sci.shared_overhead(own_uj, self.pools[book]), units
                )
                for book in ("impact", "inventory")
            },
            "unknown": _unknown(items),
        }

    @staticmethod
    def _book(direct: Carbon, overhead: Carbon, units: dict[str, int]) -> Json:
        return {
            "kg_per_million_tokens": _text(_kg(sci.per(direct.operational_g, units["tokens"], sci.MILLION))),
            "direct": _score(direct, units),
            "with_overhead": _score(direct + overhead, units),
        }


def _pools(groups: Sequence[Group]) -> dict[str, dict[object, Pool]]:
    by_pool: dict[Key, list[Group]] = {}
    for group in groups:
        by_pool.setdefault(group.by, []).append(group)
    pools: dict[str, dict[object, Pool]] = {"impact": {}, "inventory": {}}
    for key, members in by_pool.items():
        attributed_uj = sum(group.energy_uj for group in members if group.kind == EntryKind.ITEM.value)
        overhead = [group for group in members if group.kind in _OVERHEAD]
        for book, found in pools.items():
            found[key] = Pool(_carbon(overhead, book), attributed_uj)
    return pools


def _carbon(groups: Sequence[Group], book: str) -> Carbon:
    """Add up one book; None where any entry lacks the figure."""
    is_impact = book == "impact"
    lacking = sum(group.unrated if is_impact else group.unrated_aer for group in groups)
    rated = [group.emission_g if is_impact else group.inventory_g for group in groups]
    no_embodied = sum(group.no_embodied for group in groups)
    return Carbon(
        None if lacking else _sum(rated),
        None if no_embodied else _sum([group.embodied_g for group in groups]),
    )


def _sum(values: Sequence[Decimal | None]) -> Fraction:
    return sum((Fraction(value) for value in values if value is not None), Fraction(0))


def _score(carbon: Carbon, units: dict[str, int]) -> Json:
    return {
        "operational_g": _text(sci.per(carbon.operational_g, 1)),
        "embodied_g": _text(sci.per(carbon.embodied_g, 1)),
        "total_g": _text(sci.per(carbon.total_g, 1)),
        "per_item_g": _text(sci.per(carbon.total_g, units["items"])),
        "per_million_tokens_g": _text(sci.per(carbon.total_g, units["tokens"], sci.MILLION)),
        "per_job_g": _text(sci.per(carbon.total_g, units["jobs"])),
    }


def _unknown(items: Sequence[Group]) -> Json:
    """Count the items' entries that keep a score from being given."""
    return {
        "energy": sum(group.unmetered for group in items),
        "emission": sum(group.unrated for group in items),
        "inventory": sum(group.unrated_aer for group in items),
        "embodied": sum(group.no_embodied for group in items),
    }


def _kg(grams: Decimal | None) -> Decimal | None:
    return None if grams is None else grams.scaleb(-3)


def _text(value: Decimal | None) -> str | None:
    return None if value is None else plain(value)

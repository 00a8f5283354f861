"""The month's Software Carbon Intensity, from what was gathered: direct and with overhead, each book apart. Pure.

Overhead is shared within its region by attributed energy over all tenants, as ``carbonq.sci`` says.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from carbonq import sci
from carbonq.report.document import Sci, SciRow
from carbonq.report.gather import ITEM, OVERHEAD, Gathered
from carbonq.report.sums import Sums
from carbonq.sci import Carbon, Pool
from carbonq.units import QUANTA_PER_GRAM

BOOKS = ("impact", "inventory")


def scores(gathered: Gathered, *, boundary: str) -> Sci:
    """Return the scores per item and per million tokens; one whose inputs are not all known is None."""
    own: dict[str, Sums] = {}
    for (region, is_item, *_), sums in gathered.regions.items():
        if is_item:
            own[region] = own.get(region, Sums()).plus(sums)
    whole = Sums()
    for sums in own.values():
        whole = whole.plus(sums)
    energy_uj = whole.energy_uj if whole.entries and not whole.unmetered else None
    own_uj: dict[object, int] = {region: sums.energy_uj for region, sums in own.items()}
    rows: list[SciRow] = []
    for book in BOOKS:
        direct = _carbon(whole, book) if whole.entries else Carbon(None, None)
        overhead = sci.shared_overhead(own_uj, _pools(gathered, book))
        rows.append(_row(book, "direct", direct, whole))
        rows.append(_row(book, "with_overhead", direct + overhead, whole))
    return Sci(
        boundary=boundary,
        items=whole.items,
        tokens=whole.tokens,
        kwh_per_million_tokens=sci.kwh_per(energy_uj, whole.tokens, sci.MILLION),
        rows=tuple(rows),
        unknown=(
            ("embodied", whole.no_embodied),
            ("emission", whole.unrated),
            ("energy", whole.unmetered),
            ("inventory", whole.unrated_aer),
        ),
    )


def _pools(gathered: Gathered, book: str) -> dict[object, Pool]:
    overhead: dict[str, Sums] = {}
    attributed: dict[str, int] = {}
    for (region, kind), sums in gathered.pools.items():
        if kind == ITEM:
            attributed[region] = attributed.get(region, 0) + sums.energy_uj
        elif kind in OVERHEAD:
            overhead[region] = overhead.get(region, Sums()).plus(sums)
    return {
        region: Pool(_carbon(overhead.get(region, Sums()), book), attributed_uj)
        for region, attributed_uj in attributed.items()
    }


def _carbon(sums: Sums, book: str) -> Carbon:
    """Return one book's carbon; None where any entry lacks the figure."""
    lacking, count = (sums.unrated, sums.emission) if book == "impact" else (sums.unrated_aer, sums.inventory)
    return Carbon(
        None if lacking else Fraction(count, QUANTA_PER_GRAM),
        None if sums.no_embodied else Fraction(sums.embodied, QUANTA_PER_GRAM),
    )


def _row(book: str, counted: str, carbon: Carbon, sums: Sums) -> SciRow:
    def per(grams: Fraction | None, units: int = 1, of: int = 1) -> Decimal | None:
        return sci.per(grams, units, of)

    return SciRow(
        book=book,
        counted=counted,
        operational_g=per(carbon.operational_g),
        embodied_g=per(carbon.embodied_g),
        total_g=per(carbon.total_g),
        per_item_g=per(carbon.total_g, sums.items),
        per_million_tokens_g=per(carbon.total_g, sums.tokens, sci.MILLION),
    )

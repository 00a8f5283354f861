"""The month at a glance: its sums, each book by itself, and what a reader must know before using them. Pure."""

from __future__ import annotations

from decimal import Decimal

from carbonq.render import figures
from carbonq.render.sheet import Block, Chapter, Tile, Tiles, Words
from carbonq.render.sheet import chapter as made
from carbonq.report import Report
from carbonq.report.document import Grams
from carbonq.units import LEDGER_CONTEXT

#: Below this part of measured energy a report is said to be an estimate.
_MOSTLY = 0.5


def chapter(report: Report) -> Chapter:
    """Return the first chapter; of a month without entries it is the only one with figures."""
    return made("summary", "The month at a glance", [*_notices(report), _tiles(report) if _has_ran(report) else None])


def _has_ran(report: Report) -> bool:
    return bool(report.totals.energy)


def _notices(report: Report) -> list[Block]:
    head, totals = report.head, report.totals
    said: list[str] = []
    if not _has_ran(report):
        whose = "" if head.tenant is None else f" of tenant {head.tenant}"
        said.append(f"The ledger has no entry{whose} in {head.month}: nothing ran, or nothing that was metered.")
    if not head.is_over:
        said.append("The month is not over: figures will grow until it ends, and settle after that.")
    if head.clock not in {None, "real"}:
        said.append(f"These entries ran on an {head.clock} clock: this is a demonstration, and nothing to file.")
    if totals.measured_share is not None and totals.measured_share < _MOSTLY:
        part = "None" if totals.measured_share == 0 else f"Only {figures.share(totals.measured_share)}"
        said.append(f"{part} of the items' energy was measured; the rest, and all that follows from it, is estimated.")
    for book, grams, why in (
        ("impact", totals.impact, "a marginal rate"),
        ("inventory", totals.inventory, "an average rate"),
    ):
        if grams.unknown_entries:
            what = figures.several(grams.unknown_entries, "entry has", "entries have")
            said.append(
                f"{what} no figure in the {book} book, for want of {why} or of a meter, and are in no sum of it."
            )
    if any(row.gas == "co2" for row in report.inventory):
        said.append("Average rates are of CO2 alone: of them, gCO2e has neither methane nor nitrous oxide in it.")
    return [Words(words, is_notice=True) for words in said]


def _tiles(report: Report) -> Tiles:
    totals = report.totals
    tokens = totals.prompt_tokens + totals.completion_tokens
    return Tiles(
        (
            _book("Impact book (marginal), items", totals.impact, totals.impact_overhead, totals.provisional_share),
            _book(
                "Inventory book (average, location-based), items",
                totals.inventory,
                totals.inventory_overhead,
                totals.inventory_provisional_share,
            ),
            Tile(
                "Energy of the items (IT)",
                figures.energy(totals.item_energy_uj),
                f"overhead apart: {figures.energy(totals.overhead_energy_uj)}",
                f"{totals.item_energy_uj:,} µJ",
            ),
            _saving(report),
            Tile(
                "Measured by counters",
                figures.share(totals.measured_share),
                "of the items' energy; the rest is mixed, estimated or an upper bound",
            ),
            Tile(
                "Work",
                figures.several(totals.items, "item"),
                f"{tokens:,} tokens, {figures.several(totals.entries, 'entry', 'entries')}; "
                f"overhead: {figures.several(totals.overhead_entries, 'entry', 'entries')}",
            ),
        )
    )


def _book(name: str, own: Grams, overhead: Grams, provisional: float | None) -> Tile:
    below = f"{figures.share(provisional)} of the energy provisional"
    if own.known_g is None:
        below = "no entry has a rate"
    if overhead.known_g is not None:
        below += f"; overhead apart: {figures.grams(overhead.known_g)}"
    return Tile(name, figures.grams(own.known_g), below, figures.exact(own.known_g))


def _saving(report: Report) -> Tile:
    name = "Saved against the baseline (impact book)"
    rows = report.saving.rows
    if not rows:
        return Tile(name, figures.UNKNOWN, "no entry can be compared with a baseline")
    saved, baseline = _sum([row.saved_g for row in rows]), _sum([row.baseline_g for row in rows])
    unit = figures.grams_of([baseline, saved])
    part = f", {figures.share(float(saved / baseline))} of it" if baseline else ""
    coverage = (
        f"; compared: {figures.share(report.saving.coverage)} of the items' energy, of whatever status and quality"
    )
    return Tile(name, unit.say(saved), f"baseline {unit.say(baseline)}{part}{coverage}", figures.exact(saved))


def _sum(values: list[Decimal]) -> Decimal:
    total = Decimal(0)
    for value in values:
        total = LEDGER_CONTEXT.add(total, value)
    return total

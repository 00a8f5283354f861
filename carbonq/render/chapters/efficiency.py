"""What a token and an item took: this month beside earlier ones, by model, and as SCI. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from carbonq.render import figures, plots
from carbonq.render.chapters import books
from carbonq.render.plots import Segment
from carbonq.render.sheet import Cell, Chapter, Column, Table, Words, count, energy, grams, name, table, text
from carbonq.render.sheet import chapter as made
from carbonq.render.svg import Drawing
from carbonq.report import Report
from carbonq.report.document import EfficiencyRow

_Value = Callable[[EfficiencyRow], Decimal | None]

_OVER = "Items alone, without overhead; each figure over the entries that have it, and their tokens."


def chapter(report: Report) -> Chapter | None:
    """Return efficiency by month and by model, and the scores."""
    if not report.months:
        return None
    return made(
        "efficiency",
        "Efficiency, month on month",
        [
            _drawing(report.months, lambda row: row.impact_g_per_1000_tokens, "impact", books.IMPACT),
            _drawing(report.months, lambda row: row.inventory_g_per_1000_tokens, "inventory", books.INVENTORY),
            _table("By month", "Month", report.months, lambda row: row.month),
            _table("This month by model", "Model", _of_month(report), lambda row: row.model or "(none named)"),
            *_scores(report),
        ],
    )


def _of_month(report: Report) -> list[EfficiencyRow]:
    own = [row for row in report.models if row.month == report.head.month]
    return sorted(own, key=lambda row: -books.size(row.impact))


def _drawing(rows: Sequence[EfficiencyRow], value: _Value, kind: str, book: str) -> Drawing | None:
    months = list(reversed(rows))
    values = [value(row) for row in months]
    unit = figures.grams_of(values)
    columns = [
        plots.Column(
            row.month,
            () if one is None else (Segment(kind, float(one)),),
            f"{row.month}: {unit.say(one)}",
            is_unknown=one is None and row.items > 0,
            above="" if one is None else unit.write(one),
        )
        for row, one in zip(months, values, strict=True)
    ]
    said = "; ".join(column.says for column in columns)
    alt = f"Columns of gCO2e per thousand tokens by month, {book.lower()}. {said}."
    return plots.columns(f"Grams per thousand tokens, {book.lower()}", alt, columns, unit, note=_OVER)


def _table(
    caption: str, first: str, rows: Sequence[EfficiencyRow], called: Callable[[EfficiencyRow], str]
) -> Table | None:
    tokens = [value for row in rows for value in (row.impact_g_per_1000_tokens, row.inventory_g_per_1000_tokens)]
    unit, per_item = figures.grams_of(tokens), figures.grams_of([row.impact_g_per_item for row in rows])
    energies = figures.energy_of([row.energy_uj for row in rows])
    columns = (
        text(first, 1.3),
        Column("Items", weight=0.8),
        Column("Tokens", weight=1.0),
        Column(f"Energy, {energies.name}", weight=0.8),
        Column("Wh per 1,000 tokens", weight=0.9),
        Column(f"Impact, {unit.name} per 1,000 tokens", weight=1.1),
        Column(f"Inventory, {unit.name} per 1,000 tokens", weight=1.1),
        Column(f"Impact, {per_item.name} per item", weight=0.9),
        Column("Requests per kgCO2e (impact)", weight=1.0),
    )
    cells = [
        (
            name(called(row)),
            count(row.items),
            count(row.tokens),
            energy(energies, row.energy_uj, below=_lacking(row.unmetered_entries, "without a meter")),
            Cell(figures.number(row.wh_per_1000_tokens), figures.exact(row.wh_per_1000_tokens, "Wh")),
            grams(unit, row.impact_g_per_1000_tokens, below=_lacking(row.impact.unknown_entries)),
            grams(unit, row.inventory_g_per_1000_tokens, below=_lacking(row.inventory.unknown_entries)),
            grams(per_item, row.impact_g_per_item),
            Cell("unknown" if row.requests_per_kg is None else f"{row.requests_per_kg:,.0f}"),
        )
        for row in rows
    ]
    return table(caption, columns, cells, _OVER)


def _lacking(number: int, what: str = "unknown") -> str:
    return f"{figures.several(number, 'entry', 'entries')} {what}" if number else ""


def _scores(report: Report) -> list[Table | Words | None]:
    sci = report.sci
    items = figures.grams_of([row.per_item_g for row in sci.rows])
    tokens = figures.grams_of([row.per_million_tokens_g for row in sci.rows])
    sums = figures.grams_of([value for row in sci.rows for value in (row.operational_g, row.embodied_g, row.total_g)])
    columns = (
        text("Book", 1.0),
        text("Energy counted", 1.2),
        Column(f"E x I, {sums.name}"),
        Column(f"M, {sums.name}"),
        Column(f"Total, {sums.name}"),
        Column(f"{items.name} per item"),
        Column(f"{tokens.name} per million tokens", weight=1.2),
    )
    cells = [
        (
            name(row.book),
            Cell(row.counted.replace("_", " ")),
            grams(sums, row.operational_g),
            grams(sums, row.embodied_g),
            grams(sums, row.total_g),
            grams(items, row.per_item_g),
            grams(tokens, row.per_million_tokens_g),
        )
        for row in sci.rows
    ]
    lacking = ", ".join(f"{number:,} without {what.replace('_', ' ')}" for what, number in sci.unknown if number)
    note = f"Entries that keep a score from being given: {lacking}. " if lacking else ""
    if sci.kwh_per_million_tokens is not None:
        note += f"Energy: {figures.number(sci.kwh_per_million_tokens)} kWh per million tokens."
    found = table("SCI = (E x I + M) / R (ISO/IEC 21031); the books are never added", columns, cells, note.strip())
    return [found, Words(sci.boundary, title="Boundary of the scores")] if found is not None else []

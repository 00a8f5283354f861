"""How good the figures are: measured or estimated, settled or not, and how far forecasts were from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from carbonq.render import figures, plots
from carbonq.render.chapters import books
from carbonq.render.plots import Bar, Segment
from carbonq.render.sheet import Cell, Chapter, Column, Table, count, energy, grams, name, table, text
from carbonq.render.sheet import chapter as made
from carbonq.render.svg import Drawing, Key
from carbonq.report import Report
from carbonq.report.document import BookRow, EnergyRow, ForecastRow, KindRow


def chapter(report: Report) -> Chapter | None:
    """Return energy by kind and quality, both books by status, and the forecasts' error."""
    totals = report.totals
    return made(
        "quality",
        "How good the figures are",
        [
            _kinds(report.kinds),
            _energy(totals.energy),
            _book(f"{books.IMPACT} by kind, status and method", totals.impact_rows),
            _book(f"{books.INVENTORY} by kind, status and method", totals.inventory_rows),
            *(_forecast_drawing(report.forecast, book) for book in ("impact", "inventory")),
            _forecast(report.forecast),
        ],
    )


def _kinds(rows: Sequence[KindRow]) -> Table | None:
    energies = figures.energy_of([row.energy_uj for row in rows])
    unit = books.unit_of([book for row in rows for book in (row.impact, row.inventory)])
    columns = (
        text("Kind of entry"),
        Column("Entries"),
        Column(f"Energy, {energies.name}"),
        Column("Share"),
        Column(f"Impact, {unit.name}"),
        Column(f"Inventory, {unit.name}"),
    )
    cells = [
        (
            name(row.kind.replace("_", " ")),
            count(row.entries),
            energy(energies, row.energy_uj, below=_unmetered(row.unmetered_entries)),
            Cell(figures.share(row.share)),
            books.cell(unit, row.impact),
            books.cell(unit, row.inventory),
        )
        for row in rows
    ]
    return table("Energy of items and of overhead", columns, cells)


def _unmetered(number: int) -> str:
    return f"{figures.several(number, 'entry', 'entries')} without a meter" if number else ""


def _energy(rows: Sequence[EnergyRow]) -> Table | None:
    energies = figures.energy_of([row.energy_uj for row in rows])
    columns = (text("Kind"), text("How it is known"), Column("Entries"), Column(f"Energy, {energies.name}"))
    cells = [
        (
            name(row.kind.replace("_", " ")),
            Cell(row.quality.replace("_", " ")),
            count(row.entries),
            energy(energies, row.energy_uj, below=_unmetered(row.unmetered_entries)),
        )
        for row in rows
    ]
    return table("Measured and estimated energy, never added without saying so", columns, cells)


def _book(caption: str, rows: Sequence[BookRow]) -> Table | None:
    unit = figures.grams_of([row.grams for row in rows])
    columns = (
        text("Kind"),
        text("Status"),
        text("Method", 0.8),
        Column("Entries"),
        Column(unit.name),
        Column("Entries without a figure", weight=1.3),
    )
    cells = [
        (
            name(row.kind.replace("_", " ")),
            Cell(row.status),
            Cell(row.method),
            count(row.entries),
            grams(unit, row.grams),
            count(row.unknown_entries),
        )
        for row in rows
    ]
    return table(caption, columns, cells)


def _forecast_drawing(rows: Sequence[ForecastRow], book: str) -> Drawing | None:
    own = [row for row in rows if row.book == book]
    unit = figures.unit_of((("gCO2e/kWh", 1.0),), [row.mae_g_per_kwh for row in own])
    bars = [
        Bar(
            f"{row.zone}, {row.lead}",
            (Segment(book, row.mae_g_per_kwh),),
            f"{row.zone}, {row.lead}: {unit.say(row.mae_g_per_kwh)}",
            label=unit.write(row.mae_g_per_kwh),
        )
        for row in own
    ]
    alt = f"Bars of the mean absolute difference between provisional and settled rates, by zone and lead, {book} book."
    keys = (Key(book, "mean absolute difference, provisional from settled rates"),)
    return plots.bars(f"Forecast against settled, {book} book", alt, bars, unit, keys=keys)


def _forecast(rows: Sequence[ForecastRow]) -> Table | None:
    columns = (
        text("Zone", 1.2),
        text("Book", 0.8),
        text("Lead", 0.8),
        Column("Entries"),
        Column("Mean difference, g/kWh"),
        Column("Mean absolute, g/kWh"),
        Column("Median"),
        Column("95 %"),
    )
    cells = [
        (
            name(row.zone),
            Cell(row.book),
            Cell(row.lead),
            count(row.entries),
            Cell(f"{row.mean_g_per_kwh:+.2f}".replace("-", "−")),
            Cell(f"{row.mae_g_per_kwh:.2f}"),
            Cell(figures.share(row.p50_relative, figures.NONE)),
            Cell(figures.share(row.p95_relative, figures.NONE)),
        )
        for row in rows
    ]
    note = (
        "Provisional minus settled rates of this installation's entries, weighed by their energy. Median and 95 %: "
        "absolute differences relative to the settled rate, within which half and 19 of 20 lie."
    )
    return table("How far provisional rates were from settled ones", columns, cells, note)

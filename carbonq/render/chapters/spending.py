"""What was spent: product lines and workloads beside their budgets, the days, and promises to customers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from carbonq.budget import Book
from carbonq.render import figures, plots
from carbonq.render.chapters import books
from carbonq.render.plots import Bar
from carbonq.render.sheet import Block, Cell, Chapter, Column, Table, Words, count, energy, grams, name, table, text
from carbonq.render.sheet import chapter as made
from carbonq.render.svg import Drawing
from carbonq.report import Report
from carbonq.report.document import BudgetRow, DayRow, Grams, TargetRow


def budgets(report: Report) -> Chapter | None:
    """Return product lines and workloads, each with its budget where it has one."""
    lines, workloads = _sorted(report.product_lines), _sorted(report.workloads)
    is_of_all = report.head.tenant is None
    blocks: list[Block | None] = [
        *(_drawing(lines, book, is_of_all=is_of_all) for book in Book),
        _lines(lines, is_of_all=is_of_all),
        _workloads(workloads, is_of_all=is_of_all),
    ]
    if lines and not any(row.cap_g is not None for row in (*lines, *workloads)):
        blocks.insert(0, Words("No budget is set for any of these; `carbonq budget set` sets one."))
    return made("budgets", "Product lines and workloads against their budgets", blocks)


def _sorted(rows: Sequence[BudgetRow]) -> list[BudgetRow]:
    return sorted(rows, key=lambda row: (-books.size(row.impact), row.name or "", row.tenant or ""))


def _named(row: BudgetRow, *, is_of_all: bool) -> str:
    said = row.name or "(none named)"
    return f"{said} · {row.tenant}" if is_of_all and row.tenant else said


def _spent(row: BudgetRow, grams_: Grams) -> Decimal | None:
    """What stands at the bar: nothing spent under a budget is 0, as in the table."""
    return grams_.known_g if row.items or row.spent_g is None else row.spent_g


def _drawing(rows: Sequence[BudgetRow], book: Book, *, is_of_all: bool) -> Drawing | None:
    """Draw what was spent beside the caps of one book; lines without a budget stand in the impact book's drawing."""
    shown = [row for row in rows if row.book == book.value or (row.book is None and book is Book.IMPACT)]
    if book is Book.INVENTORY and not shown:
        return None
    of = [row.impact if book is Book.IMPACT else row.inventory for row in shown]
    unit = figures.grams_of([*(one.known_g for one in of), *(row.cap_g for row in shown)])
    bars = [
        Bar(
            _named(row, is_of_all=is_of_all),
            books.segments(book, grams_),
            f"{_named(row, is_of_all=is_of_all)}: {unit.say(_spent(row, grams_))}"
            + (f" of {unit.say(row.cap_g)}" if row.cap_g is not None else ", no budget"),
            None if row.cap_g is None else float(row.cap_g),
            unit.say(_spent(row, grams_)),
        )
        for row, grams_ in zip(shown, of, strict=True)
    ]
    capped = [row for row in shown if row.cap_g is not None]
    over = [row for row in capped if row.used_share is not None and row.used_share > 1]
    alt = (
        f"Bars of {figures.several(len(shown), 'product line')}: grams of the {book.value} book in the month, "
        f"{len(capped)} of them with a mark at the budget's cap, {len(over)} above it. The figures stand in the table."
    )
    keys = (*books.keys(book, of), *((books.CAP,) if capped else ()))
    return plots.bars(f"Spent by product line, {books.NAMES[book].lower()}", alt, bars, unit, keys=keys)


def _lines(rows: Sequence[BudgetRow], *, is_of_all: bool) -> Table | None:
    unit = books.unit_of([book for row in rows for book in (row.impact, row.inventory)])
    energies, caps = figures.energy_of([row.energy_uj for row in rows]), _cap_unit(rows, unit)
    columns = (*_columns("Product line", unit, energies, is_of_all=is_of_all), Column(f"Cap, {caps.name}"), _USED)
    cells = [
        (*_start(row, unit, energies, is_of_all=is_of_all), _cap(row, caps), Cell(figures.share(row.used_share, "–")))
        for row in rows
    ]
    return table("Product lines in the month", columns, cells, _NOTE)


def _workloads(rows: Sequence[BudgetRow], *, is_of_all: bool) -> Table | None:
    unit = books.unit_of([book for row in rows for book in (row.impact, row.inventory)])
    energies, caps = figures.energy_of([row.energy_uj for row in rows]), _cap_unit(rows, unit)
    columns = (
        *_columns("Workload", unit, energies, is_of_all=is_of_all),
        Column(f"Cap a day, {caps.name}"),
        Column("Days over", weight=0.7),
        text("Worst day", 1.0),
    )
    cells = [
        (*_start(row, unit, energies, is_of_all=is_of_all), _cap(row, caps), _days_over(row), _worst(row))
        for row in rows
    ]
    return table("Workloads in the month", columns, cells)


_USED = Column("Used", weight=0.7)
_NOTE = "A cap is that of the budget as it is set now, in the book that stands below it; what is used is of that book."


def _columns(first: str, unit: figures.Unit, energies: figures.Unit, *, is_of_all: bool) -> tuple[Column, ...]:
    return (
        text(first, 1.7),
        *((text("Tenant", 1.0),) if is_of_all else ()),
        Column("Items", weight=0.8),
        Column(f"Energy, {energies.name}", weight=0.8),
        Column(f"Impact, {unit.name}"),
        Column(f"Inventory, {unit.name}"),
    )


def _start(row: BudgetRow, unit: figures.Unit, energies: figures.Unit, *, is_of_all: bool) -> tuple[Cell, ...]:
    return (
        name(row.name),
        *((Cell(row.tenant or figures.NONE, is_name=True),) if is_of_all else ()),
        count(row.items),
        energy(energies, row.energy_uj),
        books.cell(unit, row.impact),
        books.cell(unit, row.inventory),
    )


def _cap_unit(rows: Sequence[BudgetRow], unit: figures.Unit) -> figures.Unit:
    """Return the unit of caps: that of what was spent, unless they are far above it."""
    caps = figures.grams_of([row.cap_g for row in rows])
    return unit if caps.size <= unit.size else caps


def _cap(row: BudgetRow, unit: figures.Unit) -> Cell:
    below = "" if row.book is None else f"{row.book}, {row.action}"
    return grams(unit, row.cap_g, below=below, none=figures.NONE)


def _days_over(row: BudgetRow) -> Cell:
    return Cell(figures.NONE if row.days_over is None else f"{row.days_over} of {row.days}")


def _worst(row: BudgetRow) -> Cell:
    return Cell(row.worst_day or figures.NONE, below=figures.grams(row.worst_day_g) if row.worst_day else "")


def days(report: Report) -> Chapter | None:
    """Return the month day by day: a drawing for each book, and the table."""
    rows = report.days
    return made(
        "days",
        "Day by day",
        [
            _days_drawing(rows, [row.impact for row in rows], Book.IMPACT),
            _days_drawing(rows, [row.inventory for row in rows], Book.INVENTORY),
            _days_table(rows),
        ],
    )


def _days_drawing(rows: Sequence[DayRow], of: Sequence[Grams], book: Book) -> Drawing | None:
    unit = books.unit_of(of)
    columns = [
        plots.Column(
            row.day[-2:].lstrip("0"),
            books.segments(book, grams_),
            f"{row.day}: {unit.say(grams_.known_g)}",
            is_unknown=grams_.known_g is None and grams_.unknown_entries > 0,
        )
        for row, grams_ in zip(rows, of, strict=True)
    ]
    most = max(zip(rows, of, strict=True), key=lambda one: books.size(one[1]), default=None)
    alt = f"Columns by day of the month, {books.NAMES[book].lower()}, items and overhead together."
    if most is not None and most[1].known_g is not None:
        alt += f" The most was on {most[0].day}: {unit.say(most[1].known_g)}."
    note = "? is a day of which no figure is known." if any(one.is_unknown for one in columns) else ""
    return plots.columns(
        f"By day, {books.NAMES[book].lower()}", alt, columns, unit, keys=books.keys(book, of), note=note
    )


def _days_table(rows: Sequence[DayRow]) -> Table | None:
    unit = books.unit_of([book for row in rows for book in (row.impact, row.inventory)])
    saved = figures.grams_of([value for row in rows for value in (row.baseline_g, row.saved_g)])
    energies = figures.energy_of([row.energy_uj for row in rows])
    columns = (
        text("Day (UTC)", 1.2),
        Column("Items", weight=0.8),
        Column(f"Energy, {energies.name}", weight=0.9),
        Column(f"Impact, {unit.name}"),
        Column(f"Inventory, {unit.name}"),
        Column(f"Baseline, {saved.name}", weight=0.9),
        Column(f"Saved, {saved.name}", weight=0.9),
    )
    cells = [
        (
            name(row.day),
            count(row.items),
            energy(energies, row.energy_uj),
            books.cell(unit, row.impact),
            books.cell(unit, row.inventory),
            grams(saved, row.baseline_g, below=_compared(saved, row), none=figures.NONE),
            grams(saved, row.saved_g, none=figures.NONE),
        )
        for row in rows
    ]
    note = (
        "Items and overhead together. Baseline and saving: impact book, of the entries that can be compared alone; "
        "what these emitted stands below their baseline."
    )
    return table("The days of the month", columns, cells, note)


def _compared(unit: figures.Unit, row: DayRow) -> str:
    """What the very entries emitted that have the baseline."""
    return "" if row.compared_emission_g is None else f"{unit.write(row.compared_emission_g)} emitted"


def targets(report: Report) -> Chapter | None:
    """Return the promises that a contract makes, and how they stand; None without one."""
    is_of_all = report.head.tenant is None
    columns = (
        text("Model", 1.4),
        *((text("Tenant", 1.0),) if is_of_all else ()),
        text("Book", 0.9),
        Column("Promised"),
        Column("Stands at"),
        Column("Expected at the end", weight=1.2),
        text("State", 0.9),
    )
    cells = [_target(one, is_of_all=is_of_all) for one in report.targets]
    note = "In gCO2e per thousand tokens, over the items that have a rate. What is expected is an estimate."
    found = table("Promised grams per thousand tokens", columns, cells, note)
    return None if found is None else made("targets", "Promises to customers", [found])


def _target(one: TargetRow, *, is_of_all: bool) -> tuple[Cell, ...]:
    has_spread = one.low_g is not None and one.high_g is not None
    standing = [f"{figures.share(one.provisional_share)} provisional"] if one.provisional_share else []
    standing += [f"{figures.several(one.unknown_entries, 'entry', 'entries')} unknown"] if one.unknown_entries else []
    return (
        name(one.model or "all models"),
        *((Cell(one.tenant, is_name=True),) if is_of_all else ()),
        Cell(one.book),
        _per_1000(one.promised_g),
        _per_1000(one.value_g, ", ".join(standing)),
        Cell(
            figures.NONE if one.forecast_g is None else figures.number(one.forecast_g),
            figures.exact(one.forecast_g),
            f"{figures.number(one.low_g)} to {figures.number(one.high_g)}" if has_spread else "",
        ),
        Cell(one.state.replace("_", " ")),
    )


def _per_1000(value: Decimal | None, below: str = "") -> Cell:
    return Cell(figures.number(value), figures.exact(value), below)

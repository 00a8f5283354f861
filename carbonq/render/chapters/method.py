"""What the figures rest on: method, boundary, limits, a provider's statement beside them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from carbonq.render import figures
from carbonq.render.sheet import Block, Cell, Chapter, Column, Table, Words, grams, name, table, text
from carbonq.render.sheet import chapter as made
from carbonq.report import Report
from carbonq.report.document import StatementRow
from carbonq.units import plain


def statement(report: Report) -> Chapter | None:
    """Return a provider's statement beside the inventory book; None where none was given."""
    found = report.statement
    if found is None:
        return None
    stands = f"Stated: {figures.grams(found.stated_g)}; booked: {figures.grams(found.booked_g)}; "
    stands += f"difference (stated - booked): {figures.grams(found.difference_g)}."
    covers = "" if found.covers is None else f" The statement covers {found.covers}."
    return made(
        "statement",
        f"Beside the statement of {found.provider}",
        [
            Words(stands + covers),
            _regions(found.rows),
            _steps(found.rows),
            *_one_sided("stated and not booked", found.only_stated),
            *_one_sided("booked and not stated", found.only_booked),
        ],
    )


def _regions(rows: Sequence[StatementRow]) -> Table | None:
    unit = figures.grams_of([value for row in rows for value in (row.stated_g, row.booked_g)])
    has_market = any(row.market_g is not None for row in rows)
    columns = (
        text("Region", 1.4),
        Column("Stated energy, kWh"),
        Column("Booked energy, kWh"),
        Column("Stated PUE", weight=0.7),
        Column("Booked PUE", weight=0.7),
        Column(f"Stated, {unit.name}"),
        Column(f"Booked, {unit.name}"),
        Column(f"Difference, {unit.name}"),
        *((Column(f"Market-based, {unit.name}"),) if has_market else ()),
    )
    cells = [
        (
            name(row.region, below=", ".join(row.stated_as)),
            Cell(figures.number(row.stated_kwh), figures.exact(row.stated_kwh, "kWh")),
            Cell(figures.number(row.booked_kwh), figures.exact(row.booked_kwh, "kWh")),
            _pue(row.stated_pue),
            _pue(row.booked_pue),
            grams(unit, row.stated_g),
            grams(unit, row.booked_g),
            grams(unit, row.difference_g),
            *((grams(unit, row.market_g, none=figures.NONE),) if has_market else ()),
        )
        for row in rows
    ]
    note = "Energies are the facility's, PUE in them." + (
        " Market-based figures stand outside the comparison." if has_market else ""
    )
    return table("A provider's location-based statement beside the inventory book", columns, cells, note)


def _steps(rows: Sequence[StatementRow]) -> Table | None:
    unit = figures.grams_of(
        [value for row in rows for value in (row.difference_g, row.energy_g, row.pue_g, row.intensity_g, row.rest_g)]
    )
    columns = (
        text("Region", 1.4),
        Column(f"Difference, {unit.name}"),
        Column(f"by energy, {unit.name}"),
        Column(f"by PUE, {unit.name}"),
        Column(f"by intensity, {unit.name}"),
        Column(f"Rest, {unit.name}"),
        text("What cannot be told", 1.8),
    )
    cells = [
        (
            name(row.region),
            grams(unit, row.difference_g),
            *(grams(unit, step) for step in (row.energy_g, row.pue_g, row.intensity_g, row.rest_g)),
            Cell(row.untold or ("intensity implied by grams and energy" if row.is_implied else figures.NONE)),
        )
        for row in rows
    ]
    note = "Difference = stated - booked = energy + PUE + intensity + rest."
    return table("What explains the difference", columns, cells, note)


def _pue(value: Decimal | None) -> Cell:
    return Cell(figures.UNKNOWN if value is None else plain(value))


def _one_sided(what: str, regions: Sequence[str]) -> list[Words]:
    return [Words(f"Regions {what}, and so not compared: {', '.join(regions)}.")] if regions else []


def _paragraph(words: str, title: str) -> Words:
    """Return a paragraph; formulas, which have a line each, keep their lines."""
    lines = words.strip().splitlines()
    return Words("\n".join(lines), title=title, is_code=len(lines) > 1)


def chapter(report: Report) -> Chapter | None:
    """Return the statement of method, boundary and limits, and the way to the same sums."""
    blocks: list[Block | None] = []
    for one in report.method:
        blocks += [_paragraph(words, one.title if not number else "") for number, words in enumerate(one.paragraphs)]
    how = report.recompute
    blocks += [
        Words("The entries behind these sums, exported:", title="Compute it again"),
        Words(how.command, is_code=True),
        None if how.query is None else Words(f"Or over HTTP: {how.query}"),
        Words("Check the export without carbonq's database:"),
        Words(how.check, is_code=True),
        Words(how.note),
    ]
    return made("method", "Method, boundary and limits", blocks)

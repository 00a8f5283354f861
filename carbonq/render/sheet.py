"""What a report looks like before it is a page or a PDF: chapters of tiles, tables, words and drawings. Pure.

``chapters`` makes one of a report; ``html`` and ``pdf`` write it, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from carbonq.render import figures
from carbonq.render.figures import Unit
from carbonq.render.svg import Drawing

#: Rows of a table that are shown at most: what is filed as CSV or JSON has all of them.
MOST_ROWS = 400


@dataclass(frozen=True, slots=True)
class Cell:
    """A field of a table: ``exact`` has all digits, ``below`` stands in small letters under the text."""

    text: str
    exact: str = ""
    below: str = ""
    is_name: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """What a column is called, and how wide it wants to be beside the others."""

    name: str
    is_number: bool = True
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of a row names it. ``note`` stands below."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that stands out, with what it is and what must be said beside it."""

    name: str
    text: str
    below: str = ""
    exact: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Figures side by side."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph; ``title`` stands above it. A notice is one that must not be overlooked."""

    text: str
    title: str = ""
    is_notice: bool = False
    is_code: bool = False


Block = Table | Tiles | Words | Drawing


@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of the report; ``name`` is its place in links."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A whole report. ``facts`` say what it is of and how it was made."""

    title: str
    subtitle: str
    facts: tuple[tuple[str, str], ...]
    chapters: tuple[Chapter, ...]


def chapter(name: str, title: str, blocks: Iterable[Block | None]) -> Chapter:
    """Return a chapter of what there is; None among the blocks is left out."""
    return Chapter(name, title, tuple(block for block in blocks if block is not None))


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], note: str = "") -> Table | None:
    """Return a table with at most ``MOST_ROWS``, and what is said of those left out; None without a row."""
    if not rows:
        return None
    if len(rows) > MOST_ROWS:
        note = f"The first {MOST_ROWS:,} of {len(rows):,} rows; the CSV and the JSON have all. {note}".strip()
    return Table(caption, tuple(columns), tuple(tuple(row) for row in rows[:MOST_ROWS]), note)


def text(name: str, weight: float = 1.4) -> Column:
    """Return a column of words."""
    return Column(name, is_number=False, weight=weight)


def name(words: str | None, below: str = "") -> Cell:
    """Return the cell that names a row; work that names nothing is said to."""
    return Cell(words if words else "(none named)", below=below, is_name=True)


def grams(unit: Unit, value: Decimal | None, *, below: str = "", none: str = figures.UNKNOWN) -> Cell:
    """Return a cell of grams in the column's unit."""
    return Cell(unit.write(value, none), figures.exact(value), below)


def energy(unit: Unit, uj: int | None, *, below: str = "", none: str = figures.UNKNOWN) -> Cell:
    """Return a cell of energy in the column's unit."""
    return Cell(unit.write(uj, none), "" if uj is None else f"{uj:,} µJ", below)


def count(value: int | None, below: str = "") -> Cell:
    """Return a cell of a whole number."""
    return Cell(figures.count(value), below=below)

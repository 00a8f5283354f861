"""What chapters share: sums of one book in cells, with what of them is not final and what is not known. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from carbonq.budget import Book
from carbonq.render import figures
from carbonq.render.figures import Unit
from carbonq.render.plots import Segment
from carbonq.render.sheet import Cell, grams
from carbonq.render.svg import Key
from carbonq.report.document import Grams

#: The two books, as they are called in headings. They never share a sum, a column or an axis.
IMPACT = "Impact book (marginal)"
INVENTORY = "Inventory book (average)"
NAMES = {Book.IMPACT: IMPACT, Book.INVENTORY: INVENTORY}

#: The mark of a budget across a bar.
CAP = Key("limit", "cap of the budget")


def unit_of(books: Sequence[Grams]) -> Unit:
    """Return the unit for a column of one book."""
    return figures.grams_of([one.known_g for one in books])


def cell(unit: Unit, book: Grams) -> Cell:
    """Return a sum with what is not final or not known of it below; a dash where nothing was to be summed up."""
    none = figures.UNKNOWN if book.unknown_entries else figures.NONE
    return grams(unit, book.known_g, below=standing(unit, book), none=none)


def standing(unit: Unit, book: Grams) -> str:
    """Say how final a sum is, and how much is in no sum."""
    said: list[str] = []
    if book.known_g is not None:
        parts = (("provisional", book.provisional_g), ("never settles", book.unsettleable_g))
        for word, part in parts:
            if part and part == book.known_g:
                said.append(word)
            elif part:
                said.append(f"{unit.write(part)} {word}")
    if book.unknown_entries:
        said.append(f"{figures.several(book.unknown_entries, 'entry', 'entries')} unknown")
    return ", ".join(said)


#: What a bar is parted by: how final it is, the field of its grams, and the class of its colour in its book.
_PARTS = (
    ("settled", "settled_g", "{}"),
    ("provisional", "provisional_g", "{}-provisional"),
    ("never settles", "unsettleable_g", "unsettleable"),
)


def segments(book: Book, of: Grams) -> tuple[Segment, ...]:
    """Return the parts of a bar of one book; where nothing is known, each is nothing, and nothing is drawn."""
    return tuple(Segment(kind.format(book.value), float(getattr(of, field))) for _, field, kind in _PARTS)


def keys(book: Book, of: Sequence[Grams]) -> tuple[Key, ...]:
    """Return what the colours of such bars stand for."""
    used = [part for part in _PARTS if any(getattr(one, part[1]) for one in of)]
    return tuple(Key(kind.format(book.value), said) for said, _, kind in used)


def size(book: Grams) -> float:
    """Return what rows are ordered by; what is not known comes last."""
    return -1.0 if book.known_g is None else float(book.known_g)

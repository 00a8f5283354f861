"""What chapters share: sums of one book in cells, with what of them is not final and what is not known. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from carbonq.render import figures
from carbonq.render.figures import Unit
from carbonq.render.plots import Segment
from carbonq.render.sheet import Cell, grams
from carbonq.render.svg import Key
from carbonq.report.document import Grams

#: The two books, as they are called in headings. They never share a sum, a column or an axis.
IMPACT = "Impact book (marginal)"
INVENTORY = "Inventory book (average)"

#: What the parts of a bar of one book are.
KEYS = (Key("settled", "settled"), Key("provisional", "provisional"))
KEYS_UNSETTLEABLE = (*KEYS, Key("unsettleable", "never settles"))

#: The mark of a budget across a bar.
CAP = Key("limit", "cap of the budget")


def unit_of(books: Sequence[Grams]) -> Unit:
    """Return the unit for a column of one book."""
    return figures.grams_of([one.known_g for one in books])


def cell(unit: Unit, book: Grams) -> Cell:
    """Return a sum with what is not final or not known of it below."""
    return grams(unit, book.known_g, below=standing(unit, book))


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


def segments(book: Grams) -> tuple[Segment, ...]:
    """Return the parts of a bar of one book."""
    if book.known_g is None:
        return ()
    parts = (("settled", book.settled_g), ("provisional", book.provisional_g), ("unsettleable", book.unsettleable_g))
    return tuple(Segment(kind, float(part)) for kind, part in parts)


def keys(books: Sequence[Grams]) -> tuple[Key, ...]:
    """Return what the colours of such bars stand for."""
    return KEYS_UNSETTLEABLE if any(one.unsettleable_g for one in books) else KEYS


def size(book: Grams) -> float:
    """Return what rows are ordered by; what is not known comes last."""
    return -1.0 if book.known_g is None else float(book.known_g)

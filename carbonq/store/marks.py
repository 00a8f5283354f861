"""Marks of windows whose entries changed, for the tenants that have budgets: the work list of ``store/spent.py``.

Whoever writes entries leaves its marks in the same transaction; who has counted their windows anew takes away those it
has read. So a sum is exact whatever happens in between, and writers never wait for each other. Times are grid times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import Integer, Text, and_, delete, exists, insert, literal, select

from carbonq.booking import Booking, Entries
from carbonq.budget import Book, Line
from carbonq.model import EntryKind
from carbonq.ratebook import Row
from carbonq.store import compute
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.tables import budgets, engine_batches, entries, spent_marks
from carbonq.store.unsettled import Part
from carbonq.units import QUANTA_PER_GRAM, from_quanta


class Mark(NamedTuple):
    """A window whose entries changed, and what new ones add by book (None: not told, for older ones changed)."""

    line: Line
    window_at: datetime
    emission_g: Decimal | None
    inventory_g: Decimal | None

    def grams(self, book: Book) -> Decimal | None:
        """Return what it adds in a book."""
        return self.emission_g if book is Book.IMPACT else self.inventory_g


def tenants_among(tx: Tx, tenants: Collection[str]) -> set[str]:
    """Return which of some tenants have budgets."""
    statement = select(budgets.c.tenant).where(budgets.c.tenant.in_(sorted(tenants))).distinct()
    return set(tx.execute(statement).scalars())


def mark_booked(tx: Tx, bookings: Sequence[Booking]) -> None:
    """Leave marks of bookings that this transaction has inserted; nothing where no tenant of theirs has a budget."""
    found: dict[tuple[Line, datetime], list[int]] = {}
    for booking in bookings:
        for line, window_at, emission, inventory in _booked(booking.entries):
            sums = found.setdefault((line, window_at), [0, 0])
            sums[0] += emission
            sums[1] += inventory
    # Asked after the entries were inserted: a budget that is set meanwhile waits for this transaction, or is seen.
    chosen = tenants_among(tx, {line.tenant for line, _ in found}) if found else set[str]()
    _insert(tx, [Mark(*key, *map(from_quanta, sums)) for key, sums in found.items() if key[0].tenant in chosen])


def _booked(rows: Sequence[Row]) -> Iterator[tuple[Line, datetime, int, int]]:
    """Give the entries of items: whose each is, its window, and its quanta (1e-15 g) by book, 0 where not known."""
    blocks = rows.blocks if isinstance(rows, Entries) else ()
    for block in blocks:
        if block.shared.get("kind") != EntryKind.ITEM.value or not block.count:
            continue
        window_at: Any = block.shared["window_at"]
        quanta = [block.quanta["emission_g"], block.quanta["inventory_g"]]
        if all(name in block.shared for name in Line._fields):
            line = Line(*(block.shared[name] for name in Line._fields))  # pyright: ignore[reportArgumentType]
            yield line, window_at, sum(filter(None, quanta[0])), sum(filter(None, quanta[1]))
            continue
        columns = [
            [block.shared[name]] * block.count if name in block.shared else block.own[name] for name in Line._fields
        ]
        for *own, emission, inventory in zip(*columns, *quanta, strict=True):
            yield Line(*own), window_at, emission or 0, inventory or 0  # pyright: ignore[reportArgumentType]
    if blocks:
        return
    for row in rows:  # from a spool
        if row["kind"] == EntryKind.ITEM.value:
            line = Line(row["tenant"], row["product_line"], row["workload"])
            emission, inventory = (int((row[name] or 0) * QUANTA_PER_GRAM) for name in ("emission_g", "inventory_g"))
            yield line, row["window_at"], emission, inventory


def mark_revised(tx: Tx, parts: Collection[Part]) -> None:
    """Leave marks of the windows of some parts whose entries this transaction has revised."""
    if not is_any(tx):
        return
    given = {
        "engine_batch_id": (Text(), [engine_batch_id for engine_batch_id, _ in parts]),
        "part": (Integer(), [part for _, part in parts]),
    }
    chosen = compute.first(tx, select(compute.given(tx, "chosen", given)), "revised_parts")
    mine = and_(entries.c.engine_batch_id == chosen.c.engine_batch_id, entries.c.part == chosen.c.part)
    tenants = select(budgets.c.tenant)
    found = (
        select(entries.c.tenant, entries.c.product_line, entries.c.workload, entries.c.window_at)
        .select_from(chosen.join(entries, mine))
        .where(entries.c.kind == EntryKind.ITEM.value, entries.c.tenant.in_(tenants))
        .distinct()
    )
    names = ["tenant", "product_line", "workload", "window_at"]
    tx.execute(insert(spent_marks).from_select(names, found))


def mark_rows(tx: Tx, rows: Iterable[Row]) -> None:
    """Leave marks of single revised entries."""
    keys = {
        (Line(row["tenant"], row["product_line"], row["workload"]), row["window_at"])
        for row in rows
        if row["kind"] == EntryKind.ITEM.value
    }
    chosen = tenants_among(tx, {line.tenant for line, _ in keys}) if keys else set[str]()
    _insert(tx, [Mark(*key, None, None) for key in keys if key[0].tenant in chosen])


def mark_past(tx: Tx, tenant: str, start_at: datetime) -> None:
    """Leave marks of all windows from a time on in which anything ran, for a budget that was not there then."""
    windows = select(literal(tenant), engine_batches.c.window_at).where(engine_batches.c.window_at >= start_at)
    tx.execute(insert(spent_marks).from_select(["tenant", "window_at"], windows.distinct()))


def _insert(tx: Tx, marks: Sequence[Mark]) -> None:
    if marks:
        rows = [dict(zip((*Line._fields, *Mark._fields[1:]), (*one.line, *one[1:]), strict=True)) for one in marks]
        tx.execute(insert(spent_marks), rows)


def is_any(tx: Tx) -> bool:
    """Say whether there is any budget."""
    return bool(tx.execute(select(exists(select(budgets.c.budget_id)))).scalar_one())


def has_marks(tx: Tx, *, until: datetime) -> bool:
    """Say whether anything is to be counted anew, of windows up to a time."""
    return bool(tx.execute(select(exists().where(spent_marks.c.window_at <= until))).scalar_one())


def has_untold(tx: Tx, tenant: str, *, until: datetime) -> bool:
    """Say whether windows up to a time are marked of which nothing is told: older or revised entries of a tenant."""
    mine = spent_marks.c
    untold = exists().where(mine.tenant == tenant, mine.window_at <= until, mine.emission_g.is_(None))
    return bool(tx.execute(select(untold)).scalar_one())


def marks(tx: Tx, tenants: Collection[str]) -> list[Mark]:
    """Return what is marked of some tenants."""
    mine = spent_marks.c
    statement = select(
        mine.tenant, mine.product_line, mine.workload, mine.window_at, mine.emission_g, mine.inventory_g
    ).where(is_any_of(tx, mine.tenant, sorted(tenants)))
    return [Mark(Line(*row[:3]), *row[3:]) for row in tx.execute(statement)]


def marked_windows(tx: Tx, *, until: datetime, limit: int) -> tuple[list[datetime], list[int]]:
    """Return the first marked windows up to a time, at most ``limit``, and the ids of all their marks."""
    at = spent_marks.c.window_at
    windows = list(tx.execute(select(at).where(at <= until).distinct().order_by(at).limit(limit)).scalars())
    ids = tx.execute(select(spent_marks.c.mark_id).where(at.in_(windows))).scalars() if windows else ()
    return windows, list(ids)


def take_marks(tx: Tx, mark_ids: Sequence[int]) -> None:
    """Take away marks whose windows this transaction has counted anew."""
    tx.execute(delete(spent_marks).where(is_any_of(tx, spent_marks.c.mark_id, mark_ids)))

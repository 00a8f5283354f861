"""What ran toward targets, summed up by hour and day, and the list of hours that are to be summed up anew.

``target_hours`` says nothing that the ledger does not: an hour's rows are made from its current entries. Triggers mark
an hour whenever a part of an engine batch or a later revision comes into it; whoever sums it up takes the marks first,
so that what is written meanwhile leaves another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Table,
    and_,
    case,
    delete,
    exists,
    false,
    func,
    insert,
    null,
    select,
)
from sqlalchemy import update as sql_update

from carbonq.budget import Book
from carbonq.clock import ClockKind
from carbonq.model import EntryKind, RateStatus
from carbonq.store import bulk
from carbonq.store.database import Tx
from carbonq.store.dialect import exact_sum, insert_columns, is_any_of, read_exact_sum, serialise
from carbonq.store.ledger import is_current
from carbonq.store.tables import engine_batches, entries, target_days, target_hours, target_marks, targets
from carbonq.target import Ran
from carbonq.units import LEDGER_CONTEXT, from_quanta

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

#: Of each book: the prefix of its columns here, and the entries' columns of its grams and their status.
_BOOKS = {
    Book.IMPACT: ("emission", entries.c.emission_g, entries.c.moer_status),
    Book.INVENTORY: ("inventory", entries.c.inventory_g, entries.c.aer_status),
}

_COUNTS = ("tokens", "unknown", "unknown_tokens")

#: Columns of a book in the order of ``Ran``.
_NAMES = ("tokens", "g", "provisional_g", "unknown", "unknown_tokens")


class Mark(NamedTuple):
    """One row of the list."""

    mark_id: int
    hour_at: datetime


@dataclass(frozen=True, slots=True)
class Hour:
    """What ran of a tenant and a model in an hour (or a day), by book."""

    tenant: str
    model: str
    ran: Mapping[Book, Ran]


def mark(tx: Tx, hours: Iterable[datetime]) -> None:
    """Put hours on the list, as the triggers do."""
    rows = [{"hour_at": at, "is_taken": False} for at in hours]
    if rows:
        tx.execute(insert(target_marks), rows)


def has_marks(tx: Tx) -> bool:
    """Say whether there is anything on the list."""
    return tx.execute(select(target_marks.c.mark_id).limit(1)).first() is not None


def drop_unwanted(tx: Tx) -> None:
    """Empty the list where there is no target: who sets one puts all hours on it that count."""
    tx.execute(delete(target_marks).where(~exists(select(targets.c.target_id))))


def take(tx: Tx, *, hours: int) -> list[Mark]:
    """Take the marks of the newest ``hours`` on the list; what is written into these hours from now on marks anew.

    What somebody took and did not finish is taken again.
    """
    newest = select(target_marks.c.hour_at).distinct().order_by(target_marks.c.hour_at.desc()).limit(hours)
    wanted = list(tx.execute(newest).scalars())
    rows = select(target_marks.c.mark_id, target_marks.c.hour_at).where(target_marks.c.hour_at.in_(wanted))
    found = [Mark(*row) for row in tx.execute(rows)]
    if found:
        mine = is_any_of(tx, target_marks.c.mark_id, [one.mark_id for one in found])
        tx.execute(sql_update(target_marks).where(mine, target_marks.c.is_taken == false()).values(is_taken=True))
    return found


def sums(tx: Tx, hour_at: datetime, tenants: Sequence[str], clock: ClockKind) -> list[Hour]:
    """Sum up the current item entries of an hour of some tenants and one clock. One pass over the hour's entries."""
    tokens = entries.c.prompt_tokens + entries.c.completion_tokens
    exact: list[list[ColumnElement[Any]]] = []
    counts: list[ColumnElement[Any]] = []
    for _, grams, status in _BOOKS.values():
        is_provisional = status == RateStatus.PROVISIONAL.value
        exact += [exact_sum(tx, grams), exact_sum(tx, case((is_provisional, grams), else_=null()))]
        counts += [
            func.sum(case((grams.is_not(None), tokens), else_=0)),
            func.sum(case((grams.is_(None), 1), else_=0)),
            func.sum(case((grams.is_(None), tokens), else_=0)),
        ]
    is_same = and_(
        engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part
    )
    statement = (
        select(entries.c.tenant, engine_batches.c.model, *counts, *(piece for pieces in exact for piece in pieces))
        .select_from(engine_batches.join(entries, is_same))
        .where(
            engine_batches.c.window_at >= hour_at,
            engine_batches.c.window_at < hour_at + HOUR,
            engine_batches.c.clock == clock.value,
            engine_batches.c.model.is_not(None),
            entries.c.kind == EntryKind.ITEM.value,
            is_any_of(tx, entries.c.tenant, tenants),
            is_current(),
        )
        .group_by(entries.c.tenant, engine_batches.c.model)
    )
    return [_hour(list(row), [len(pieces) for pieces in exact]) for row in tx.execute(statement)]


def finish(tx: Tx, marks: Sequence[Mark], found: Mapping[datetime, Sequence[Hour]]) -> bool:
    """Store what was summed up in place of what was there, and end the marks it was summed up for.

    False, and nothing is changed, where somebody else has ended any of them: that one may have read later.
    """
    serialise(tx, "target hours")
    mine = is_any_of(tx, target_marks.c.mark_id, [one.mark_id for one in marks])
    if tx.execute(select(func.count()).where(mine)).scalar_one() != len(marks):
        return False
    tx.execute(delete(target_marks).where(mine))
    tx.execute(delete(target_hours).where(target_hours.c.hour_at.in_(sorted(found))))
    _insert(tx, target_hours, "hour_at", [(at, one) for at, some in sorted(found.items()) for one in some])
    days = sorted({at.replace(hour=0) for at in found})
    tx.execute(delete(target_days).where(target_days.c.day_at.in_(days)))
    _insert(tx, target_days, "day_at", [(day, one) for day in days for one in _of_day(tx, day)])
    return True


def by_day(
    tx: Tx, start_at: datetime, end_at: datetime, *, tenant: str | None = None
) -> dict[tuple[str, str], dict[datetime, Mapping[Book, Ran]]]:
    """Return what ran by (tenant, model) and UTC day, of days that begin in ``[start_at, end_at)``."""
    statement = select(target_days).where(target_days.c.day_at >= start_at, target_days.c.day_at < end_at)
    if tenant is not None:
        statement = statement.where(target_days.c.tenant == tenant)
    found: dict[tuple[str, str], dict[datetime, Mapping[Book, Ran]]] = {}
    for row in tx.execute(statement).mappings():
        ran = {book: Ran(*(row[f"{prefix}_{name}"] for name in _NAMES)) for book, (prefix, _, _) in _BOOKS.items()}
        found.setdefault((row["tenant"], row["model"]), {})[row["day_at"]] = ran
    return found


def _of_day(tx: Tx, day_at: datetime) -> list[Hour]:
    """Return what ran on a day, of its hours. One pass over their rows."""
    exact = [exact_sum(tx, target_hours.c[f"{book}{end}"]) for book in _prefixes() for end in ("_g", "_provisional_g")]
    counts = [func.sum(target_hours.c[f"{book}_{name}"]) for book in _prefixes() for name in _COUNTS]
    key = (target_hours.c.tenant, target_hours.c.model)
    statement = (
        select(*key, *counts, *(piece for pieces in exact for piece in pieces))
        .where(target_hours.c.hour_at >= day_at, target_hours.c.hour_at < day_at + DAY)
        .group_by(*key)
    )
    return [_hour(list(row), [len(pieces) for pieces in exact]) for row in tx.execute(statement)]


def forget(tx: Tx, *, before: datetime) -> int:
    """Remove the hours and days before ``before``; return how many hours' rows."""
    tx.execute(delete(target_days).where(target_days.c.day_at < before))
    return tx.execute(delete(target_hours).where(target_hours.c.hour_at < before)).rowcount


def has_any(tx: Tx, *, before: datetime) -> bool:
    """Say whether hours before ``before`` are kept."""
    return (
        tx.execute(select(target_hours.c.hour_at).where(target_hours.c.hour_at < before).limit(1)).first() is not None
    )


def _hour(row: Sequence[Any], widths: Sequence[int]) -> Hour:
    tenant, model, *values = row
    counts, pieces = [int(one) for one in values[: 3 * len(_BOOKS)]], values[3 * len(_BOOKS) :]
    grams: list[Decimal] = []
    at = 0
    for width in widths:
        grams.append(read_exact_sum(pieces[at : at + width]) or Decimal(0))
        at += width
    ran: dict[Book, Ran] = {}
    for number, book in enumerate(_BOOKS):
        tokens, unknown, unknown_tokens = counts[3 * number : 3 * number + 3]
        ran[book] = Ran(tokens, grams[2 * number], grams[2 * number + 1], unknown, unknown_tokens)
    return Hour(tenant, model, ran)


def _insert(tx: Tx, table: Table, time_column: str, rows: Sequence[tuple[datetime, Hour]]) -> None:
    if not rows:
        return
    columns: dict[str, list[Any]] = {
        "tenant": [one.tenant for _, one in rows],
        time_column: [at for at, _ in rows],
        "model": [one.model for _, one in rows],
    }
    for book, prefix in zip(_BOOKS, _prefixes(), strict=True):
        ran = [one.ran[book] for _, one in rows]
        columns[f"{prefix}_g"] = [_digits(one.grams) for one in ran]
        columns[f"{prefix}_provisional_g"] = [_digits(one.provisional_g) for one in ran]
        columns[f"{prefix}_tokens"] = [one.tokens for one in ran]
        columns[f"{prefix}_unknown"] = [one.unknown_entries for one in ran]
        columns[f"{prefix}_unknown_tokens"] = [one.unknown_tokens for one in ran]
    insert_columns(tx, table, {name: bulk.bound(tx, table, name, values) for name, values in columns.items()})


def _digits(grams: Decimal) -> Decimal:
    """Return grams with the 15 places that ``exact_sum`` reads."""
    return from_quanta(int(grams.scaleb(15, LEDGER_CONTEXT)))


def _prefixes() -> tuple[str, ...]:
    return tuple(prefix for prefix, _, _ in _BOOKS.values())

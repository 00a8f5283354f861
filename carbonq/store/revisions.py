"""Append revisions in bulk: entries whose rates changed alike in one statement, their grams computed by the database.

What is alike in all that settlement looks at (a part's rates, the baseline's) is a *variant*; a part of an engine batch
has one, or one for each baseline. Changes are planned by variant and hold only where the entry is still of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    insert,
    literal,
    null,
    or_,
    select,
)

from carbonq.methods import STRICT
from carbonq.model import EntryReason, RateStatus
from carbonq.store import compute, marks
from carbonq.store.database import Tx
from carbonq.store.dialect import ExactDecimal, UtcDateTime, exact_sum, machine_now, read_exact_sum
from carbonq.store.ledger import is_current
from carbonq.store.tables import engine_batches, entries, facts
from carbonq.store.unsettled import Part

#: The three rates of an entry: columns of the rate's id, its status, the grams.
BOOKS: Mapping[str, tuple[str, str, str]] = {
    "moer": ("moer_rate_id", "moer_status", "emission_g"),
    "aer": ("aer_rate_id", "aer_status", "inventory_g"),
    "baseline": ("baseline_rate_id", "baseline_moer_status", "baseline_g"),
}


class Variant(NamedTuple):
    """Current entries that are alike in their rates, of the parts that were asked for; ``size``: how many they are.

    ``part`` is None unless the parts were asked for one by one.
    """

    engine_batch_id: str | None
    part: int | None
    region: str
    window_at: datetime
    fact_id: str
    moer_rate_id: str | None
    moer_status: str
    aer_rate_id: str | None
    aer_status: str
    baseline_region: str | None
    baseline_window_at: datetime | None
    baseline_fact_id: str | None
    baseline_rate_id: str | None
    baseline_moer_status: str | None
    size: int

    def rate_of(self, book: str) -> tuple[str | None, str | None]:
        """Return the id and status of a book's rate."""
        rate_id, status, _ = BOOKS[book]
        return getattr(self, rate_id), getattr(self, status)


class NewRate(NamedTuple):
    """The rate that a book of a variant gets; ``factor`` is pue x g/kWh, None where the PUE is unknown."""

    rate_id: str
    status: RateStatus
    factor: Decimal | None


@dataclass(frozen=True, slots=True)
class Change:
    """The new rates of a variant by book (``BOOKS``)."""

    variant: Variant
    rates: Mapping[str, NewRate]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What all revisions of one statement carry."""

    reason: EntryReason
    recorded_by: str
    restatement_id: str | None = None


_VARIANT = (
    *("window_at", "moer_rate_id", "moer_status", "aer_rate_id", "aer_status", "baseline_region"),
    *("baseline_window_at", "baseline_fact_id", "baseline_rate_id", "baseline_moer_status"),
)


def variants(tx: Tx, parts: Collection[Part], *, one_by_one: bool = False) -> list[Variant]:
    """Return the variants of some parts, as their entries are now; ``one_by_one``: of each part its own."""
    if not parts:
        return []
    mine = _given_parts(tx, parts)
    which = (entries.c.engine_batch_id, entries.c.part) if one_by_one else ()
    key = (*which, mine.c.region, entries.c.window_at, mine.c.fact_id)
    key = (*key, *(entries.c[name] for name in _VARIANT if name != "window_at"))
    source = mine.join(entries, _is_of(mine))
    found = tx.execute(select(*key, func.count()).select_from(source).where(is_current()).group_by(*key))
    return [Variant(*row) if one_by_one else Variant(None, None, *row) for row in found]


def _given_parts(tx: Tx, parts: Collection[Part]) -> FromClause:
    """Return parts as rows, with their region and fact."""
    columns = {
        "engine_batch_id": (Text(), [engine_batch_id for engine_batch_id, _ in parts]),
        "part": (Integer(), [part for _, part in parts]),
    }
    chosen = compute.given(tx, "chosen", columns)
    is_same = and_(engine_batches.c.engine_batch_id == chosen.c.engine_batch_id, engine_batches.c.part == chosen.c.part)
    stated = [engine_batches.c[name] for name in ("engine_batch_id", "part", "region", "fact_id")]
    return compute.first(tx, select(*stated).select_from(chosen.join(engine_batches, is_same)), "mine")


def _is_of(rows: FromClause) -> ColumnElement[bool]:
    return and_(entries.c.engine_batch_id == rows.c.engine_batch_id, entries.c.part == rows.c.part)


def pues(tx: Tx, wanted: Collection[str]) -> dict[str, Decimal]:
    """Return the PUE of each stored fact id."""
    rows = tx.execute(select(facts.c.fact_id, facts.c.pue).where(facts.c.fact_id.in_(sorted(wanted))))
    return {row.fact_id: row.pue for row in rows}


def append(tx: Tx, parts: Collection[Part], changes: Sequence[Change], stamp: Stamp) -> int:
    """Append a revision to each current entry of some parts that is of a changed variant; return how many.

    Time, who and why are alike; figures that hang on no changed rate stay as they are, to the letter. The rates must
    be stored. The caller sees to it that nobody else revises at the same time.
    """
    if not changes:
        return 0
    revised = _revised(tx, parts, changes, stamp)
    names = [column.name for column in entries.c]
    statement = insert(entries).from_select(names, select(*(revised.c[name] for name in names)))
    count = compute.changed(tx, statement)
    marks.mark_revised(tx, parts)
    return count


@dataclass(frozen=True, slots=True)
class Difference:
    """What changes do to one gram column: entries that have it before and after, and the sums over all."""

    column: str
    before_g: Decimal | None
    after_g: Decimal | None


def preview(tx: Tx, parts: Collection[Part], changes: Sequence[Change]) -> tuple[int, list[Difference]]:
    """Return how many revisions ``append`` would make and what would become of the sums. Changes nothing."""
    if not changes:
        return 0, []
    revised = _revised(tx, parts, changes, Stamp(EntryReason.RESTATED, ""))
    grams = ("emission_g", "inventory_g", "baseline_g", "saved_g")
    sums = [exact_sum(tx, revised.c[name]) for column in grams for name in (f"old_{column}", column)]
    row = list(
        tx.execute(select(func.count(), *(piece for pieces in sums for piece in pieces)).select_from(revised)).one()
    )
    count, at = int(row[0]), 1
    values: list[Decimal | None] = []
    for pieces in sums:
        values.append(read_exact_sum(row[at : at + len(pieces)]))
        at += len(pieces)
    return count, [Difference(name, values[2 * n], values[2 * n + 1]) for n, name in enumerate(grams)]


def _plan(tx: Tx, changes: Sequence[Change]) -> FromClause:
    found = [change.variant for change in changes]
    columns: dict[str, tuple[Any, list[Any]]] = {
        "engine_batch_id": (Text(), [one.engine_batch_id for one in found]),
        "part": (Integer(), [one.part for one in found]),
        "region": (Text(), [one.region for one in found]),
        "fact_id": (Text(), [one.fact_id for one in found]),
        **{f"old_{name}": (entries.c[name].type, [getattr(one, name) for one in found]) for name in _VARIANT},
    }
    for book in BOOKS:
        given = [change.rates.get(book) for change in changes]
        columns[f"{book}_rate_id"] = (Text(), [None if one is None else one.rate_id for one in given])
        columns[f"{book}_status"] = (Text(), [None if one is None else one.status.value for one in given])
        columns[f"{book}_factor"] = (ExactDecimal(), [None if one is None else one.factor for one in given])
    return compute.given(tx, "plan", columns)


def _revised(tx: Tx, parts: Collection[Part], changes: Sequence[Change], stamp: Stamp) -> FromClause:
    """Return the next revisions: all columns of ``entries``, and ``old_*`` for the gram columns as they are."""
    plan, mine = _plan(tx, changes), _given_parts(tx, parts)
    now = literal(machine_now(tx), UtcDateTime())
    changed: dict[str, ColumnElement[Any]] = {
        "revision": entries.c.revision + 1,
        "supersedes": entries.c.entry_id + literal("#") + cast(entries.c.revision, Text()),
        "reason": literal(stamp.reason.value),
        "restatement_id": null() if stamp.restatement_id is None else literal(stamp.restatement_id),
        # The order of revisions is that of their times, whatever a worker's clock said.
        "recorded_at": case((entries.c.recorded_at > now, entries.c.recorded_at), else_=now),
        "recorded_by": literal(stamp.recorded_by),
    }
    for book, (rate_id, status, grams) in BOOKS.items():
        is_new = plan.c[f"{book}_rate_id"].is_not(None)
        changed[rate_id] = func.coalesce(plan.c[f"{book}_rate_id"], entries.c[rate_id])
        changed[status] = func.coalesce(plan.c[f"{book}_status"], entries.c[status])
        changed[grams] = case(
            (is_new, compute.grams(tx, entries.c.energy_uj, plan.c[f"{book}_factor"])), else_=entries.c[grams]
        )
    columns = [changed.get(column.name, column).label(column.name) for column in entries.c]
    old = [entries.c[name].label(f"old_{name}") for name in ("emission_g", "inventory_g", "baseline_g", "saved_g")]
    is_planned = and_(
        mine.c.region == plan.c.region,
        mine.c.fact_id == plan.c.fact_id,  # entries alike in all else may have another PUE
        *(compute.is_alike(tx, entries.c[name], plan.c[f"old_{name}"]) for name in _VARIANT),
        # A region may have moved: only a part alone knows which zone its missing rate is to come from.
        or_(plan.c.engine_batch_id.is_(None), _is_of(plan)),
    )
    source = mine.join(entries, _is_of(mine)).join(plan, is_planned)
    inner: Select[Any] = select(*columns, *old).select_from(source).where(is_current())
    return _with_saving(tx, compute.first(tx, inner, "revised"))


def _with_saving(tx: Tx, inner: FromClause) -> FromClause:
    final = (RateStatus.SETTLED.value, RateStatus.RESTATED.value)
    is_alike = or_(
        inner.c.moer_status == inner.c.baseline_moer_status,
        and_(
            inner.c.method.not_in(sorted(STRICT)),
            inner.c.moer_status.in_(final),
            inner.c.baseline_moer_status.in_(final),
        ),
    )
    saved = compute.less(tx, inner.c.baseline_g, inner.c.emission_g, inner.c.transfer_g)
    others = [column for column in inner.c if column.name != "saved_g"]
    return select(*others, case((is_alike, saved), else_=null()).label("saved_g")).subquery("priced")

"""What accepted work is expected to emit, counted from open jobs, items and chunks; and chunks that budgets hold back.

What ends is in no count any more, however it ended; a kept count (``budget_counts``) only spares counting. Expected
emission is whole picograms for each token (``*_pg_per_token``), sums are whole micrograms, rounded up chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Text, and_, cast, delete, exists, func, insert, select, update

from carbonq.budget import PG_PER_UG, Book, Budget, Level, Line, Reserved, to_ug
from carbonq.model import ChunkState, ItemState
from carbonq.store.database import Tx
from carbonq.store.dialect import as_text, is_any_of
from carbonq.store.tables import budget_counts, chunks, items, jobs

_LINE = (chunks.c.for_tenant, chunks.c.product_line, chunks.c.workload)
_JOB_LINE = (jobs.c.tenant, jobs.c.product_line, jobs.c.workload)

_IDLE = (ChunkState.WAITING.value, ChunkState.PLACED.value)

#: The columns of expected emission by book.
RATES: Mapping[Book, str] = {Book.IMPACT: "impact_pg_per_token", Book.INVENTORY: "inventory_pg_per_token"}


class Part(NamedTuple):
    """Open work alike in whose it is, what holds it back and on which day (UTC) it is planned.

    ``day`` is None of what has no place, and of what runs. ``pieces`` counts chunks, or jobs not cut into chunks yet
    (``is_cut`` False). ``ug`` and ``unknown`` are by book: micrograms, and the pieces of which no rate is known.
    """

    line: Line
    held_by: str | None
    day: date | None
    is_cut: bool
    pieces: int
    ug: Mapping[Book, int]
    unknown: Mapping[Book, int]


def parts(tx: Tx, tenants: Collection[str]) -> list[Part]:
    """Return the open work of some tenants: O(their open chunks), summed up by the database."""
    wanted = sorted(tenants)
    return [*_idle(tx, wanted), *_running(tx, wanted), *_mixed(tx, wanted), *_uncut(tx, wanted)]


def _ug(tokens: ColumnElement[Any], pg_per_token: ColumnElement[Any]) -> ColumnElement[Any]:
    # Whole division on both databases: all three are whole numbers.
    return (tokens * pg_per_token + (PG_PER_UG - 1)).op("/", precedence=8)(PG_PER_UG)


def _idle(tx: Tx, tenants: Sequence[str]) -> list[Part]:
    """Return chunks of one line each that do not run."""
    day = func.substr(cast(as_text(tx, chunks.c.window_at), Text), 1, 10)
    key: list[Any] = [*_LINE, chunks.c.held_by, day.label("day")]
    rates = [chunks.c[name] for name in RATES.values()]
    statement = (
        select(
            *key,
            func.count(),
            *(func.coalesce(func.sum(_ug(chunks.c.est_tokens, rate)), 0) for rate in rates),
            *(func.count() - func.count(rate) for rate in rates),
        )
        .where(is_any_of(tx, chunks.c.for_tenant, tenants), chunks.c.state.in_(_IDLE))
        .group_by(*key[:4], "day")
    )
    return [
        Part(
            Line(*row[:3]),
            row[3],
            None if row[4] is None else date.fromisoformat(row[4]),
            is_cut=True,
            pieces=int(row[5]),
            ug=dict(zip(RATES, map(int, row[6:8]), strict=True)),
            unknown=dict(zip(RATES, map(int, row[8:10]), strict=True)),
        )
        for row in tx.execute(statement)
    ]


def _running(tx: Tx, tenants: Sequence[str]) -> list[Part]:
    """Return what has not ended of running chunks of one line each."""
    rates = [chunks.c[name] for name in RATES.values()]
    key: list[Any] = [*_LINE, chunks.c.chunk_id, *rates]
    statement = (
        select(*key, func.sum(items.c.est_tokens))
        .select_from(chunks.join(items, items.c.chunk_id == chunks.c.chunk_id))
        .where(
            is_any_of(tx, chunks.c.for_tenant, tenants),
            chunks.c.state == ChunkState.RUNNING.value,
            items.c.state == ItemState.WAITING.value,
        )
        .group_by(*key)
    )
    return [_piece(Line(*row[:3]), None, row[4:6], int(row[6]), is_cut=True) for row in tx.execute(statement)]


def _mixed(tx: Tx, tenants: Sequence[str]) -> list[Part]:
    """Return the tenants' items in chunks that hold others' too: from before a budget was set, or a line was noted."""
    is_mixed = and_(chunks.c.for_tenant.is_(None), chunks.c.state != ChunkState.DONE.value)
    if not tx.execute(select(exists().where(is_mixed))).scalar_one():
        return []
    rates = [chunks.c[name] for name in RATES.values()]
    key: list[Any] = [*_JOB_LINE, chunks.c.chunk_id, *rates]
    source = chunks.join(items, items.c.chunk_id == chunks.c.chunk_id).join(jobs, jobs.c.job_id == items.c.job_id)
    statement = (
        select(*key, func.sum(items.c.est_tokens))
        .select_from(source)
        .where(is_mixed, items.c.state == ItemState.WAITING.value, is_any_of(tx, jobs.c.tenant, tenants))
        .group_by(*key)
    )
    return [_piece(Line(*row[:3]), None, row[4:6], int(row[6]), is_cut=True) for row in tx.execute(statement)]


def _uncut(tx: Tx, tenants: Sequence[str]) -> list[Part]:
    """Return jobs that are not cut into chunks yet."""
    ended = jobs.c.items_succeeded + jobs.c.items_failed + jobs.c.items_expired + jobs.c.items_cancelled
    columns: list[Any] = [*_JOB_LINE, *(jobs.c[name] for name in RATES.values())]
    statement = select(*columns, jobs.c.est_tokens, jobs.c.items_total, ended.label("ended")).where(
        is_any_of(tx, jobs.c.tenant, tenants),
        jobs.c.finished_at.is_(None),
        jobs.c.is_chunked.is_(False),
        ended < jobs.c.items_total,
    )
    return [
        _piece(Line(*row[:3]), None, row[3:5], -(-row[5] * (row[6] - row[7]) // row[6]), is_cut=False)
        for row in tx.execute(statement)
    ]


def _piece(line: Line, held_by: str | None, rates: Sequence[int | None], tokens: int, *, is_cut: bool) -> Part:
    known = dict(zip(RATES, rates, strict=True))
    return Part(
        line,
        held_by,
        None,
        is_cut,
        1,
        {book: 0 if rate is None else to_ug(tokens, rate) for book, rate in known.items()},
        {book: int(rate is None) for book, rate in known.items()},
    )


def of(budget: Budget, found: Iterable[Part], now: datetime, *, at: datetime | None = None) -> Reserved:
    """Return what of some open work a budget reserves in the period that runs at ``now``, or in a later one (``at``).

    What is planned for a later period counts there, all else in the running one. Of a budget that holds work back, what
    waits for it and jobs that are not cut yet are not reserved: they are when the budget lets them go.
    """
    running, period = budget.period_at(now), budget.period_at(at or now)
    ug = unknown = waiting = waiting_ug = 0
    for part in found:
        if part.held_by == budget.budget_id and budget.is_holding:
            waiting += part.pieces
        if budget.level is Level.ITEM or not budget.covers(part.line):
            continue
        is_waiting = budget.is_holding and (part.held_by is not None or not part.is_cut)
        if is_waiting:
            waiting_ug += part.ug[budget.book] if part.held_by in (None, budget.budget_id) else 0
        elif _is_in(part.day, period, is_running=period == running):
            ug += part.ug[budget.book]
            unknown += part.unknown[budget.book]
    return Reserved(ug, unknown, waiting, waiting_ug)


def _is_in(day: date | None, period: tuple[datetime, datetime] | None, *, is_running: bool) -> bool:
    if period is None or day is None:
        return is_running
    return day < period[1].date() and (is_running or day >= period[0].date())


class Kept(NamedTuple):
    """A kept count: of the period that began when, and the machine time at which the work itself was counted."""

    started_at: datetime
    counted_at: datetime
    reserved: Reserved


def kept(tx: Tx, budget_ids: Collection[str]) -> dict[str, Kept]:
    """Return what was counted last of some budgets, with what submits added since: at least what is reserved."""
    rows = tx.execute(select(budget_counts).where(is_any_of(tx, budget_counts.c.budget_id, sorted(budget_ids))))
    return {
        row.budget_id: Kept(
            row.started_at, row.counted_at, Reserved(row.reserved_ug, row.unknown, row.waiting, row.waiting_ug)
        )
        for row in rows
    }


def keep(tx: Tx, budget_id: str, count: Kept) -> None:
    """Keep a count; the caller holds the budget's lock."""
    values: dict[str, Any] = {
        "started_at": count.started_at,
        "counted_at": count.counted_at,
        "reserved_ug": count.reserved.ug,
        "unknown": count.reserved.unknown,
        "waiting": count.reserved.waiting,
        "waiting_ug": count.reserved.waiting_ug,
    }
    done = tx.execute(update(budget_counts).where(budget_counts.c.budget_id == budget_id).values(**values))
    if not done.rowcount:
        tx.execute(insert(budget_counts).values(budget_id=budget_id, **values))


def forget_counts(tx: Tx, budget_ids: Collection[str]) -> None:
    """Let the next reservation count the work itself: what is expected of it has changed."""
    tx.execute(delete(budget_counts).where(is_any_of(tx, budget_counts.c.budget_id, sorted(budget_ids))))

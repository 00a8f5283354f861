"""Chunks that budgets hold back or may hold back, and what is expected of chunks. ``held_until`` is grid time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, exists, func, or_, select

from carbonq.budget import Book, Line
from carbonq.model import ChunkState
from carbonq.store.bulk import update_columns
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.reserved import RATES
from carbonq.store.tables import chunks, targets

_IDLE = (ChunkState.WAITING.value, ChunkState.PLACED.value)

#: In SQL, for statements that bind by column: nobody has such a chunk, and no ticket is out for it.
_IS_IDLE = "state IN ('waiting', 'placed') AND dispatched_at IS NULL"
_IS_WAITING = "state = 'waiting' AND dispatched_at IS NULL"


class Chunk(NamedTuple):
    """A chunk as far as budgets are concerned; ``line`` is None where its items are of several.

    ``rates`` are picograms a token by book; ``longest_item`` is tokens.
    """

    chunk_id: str
    line: Line | None
    model: str
    regions: tuple[str, ...] | None
    deadline_at: datetime
    tokens: int
    longest_item: int | None
    rates: Mapping[Book, int | None]
    is_placed: bool
    window_at: datetime | None
    held_by: str | None
    held_until: datetime | None
    region: str | None
    is_downgraded: bool
    may_downgrade: bool | None

    @property
    def day(self) -> date | None:
        """The UTC day it is planned for; None without a place."""
        return self.window_at.astimezone(UTC).date() if self.is_placed and self.window_at is not None else None


_COLUMNS: list[Any] = [
    *(chunks.c.chunk_id, chunks.c.for_tenant, chunks.c.product_line, chunks.c.workload),
    *(chunks.c.model, chunks.c.regions, chunks.c.deadline_at, chunks.c.est_tokens, chunks.c.longest_item),
    *(chunks.c[name] for name in RATES.values()),
    *(chunks.c.state, chunks.c.window_at, chunks.c.held_by, chunks.c.held_until, chunks.c.region),
    *(chunks.c.downgraded.is_not(None), chunks.c.may_downgrade),
]


def _found(tx: Tx, *terms: ColumnElement[bool], limit: int | None = None) -> list[Chunk]:
    statement = select(*_COLUMNS).where(*terms).order_by(chunks.c.deadline_at, chunks.c.chunk_id).limit(limit)
    found: list[Chunk] = []
    for row in tx.execute(statement):
        chunk_id, tenant, product_line, workload, model, regions, deadline_at, tokens, longest, *rest = row
        impact, inventory, state, window_at, held_by, held_until, region, is_downgraded, may_downgrade = rest
        found.append(
            Chunk(
                chunk_id=chunk_id,
                line=None if tenant is None else Line(tenant, product_line, workload),
                model=model,
                regions=None if regions is None else tuple(regions),
                deadline_at=deadline_at,
                tokens=tokens,
                longest_item=longest,
                rates=dict(zip(RATES, (impact, inventory), strict=True)),
                is_placed=state == ChunkState.PLACED.value,
                window_at=window_at,
                held_by=held_by,
                held_until=held_until,
                region=region,
                is_downgraded=bool(is_downgraded),
                may_downgrade=may_downgrade,
            )
        )
    return found


def is_any(tx: Tx) -> bool:
    """Say whether a budget holds any chunk back."""
    return bool(tx.execute(select(exists().where(chunks.c.held_by.is_not(None), chunks.c.state.in_(_IDLE)))).scalar())


def is_any_target(tx: Tx) -> bool:
    """Say whether there is any contract target, which what is expected of open work is asked for as well."""
    return bool(tx.execute(select(exists(select(targets.c.target_id)))).scalar_one())


def waiting(tx: Tx, *, each: int) -> list[Chunk]:
    """Return the chunks that are held back, the most urgent first: of each budget at most so many."""
    place = func.row_number().over(partition_by=chunks.c.held_by, order_by=(chunks.c.deadline_at, chunks.c.chunk_id))
    is_mine = (chunks.c.held_by.is_not(None), chunks.c.state == ChunkState.WAITING.value)
    ranked = select(chunks.c.chunk_id, place.label("place")).where(*is_mine).subquery()
    return _found(tx, chunks.c.chunk_id.in_(select(ranked.c.chunk_id).where(ranked.c.place <= each)))


def among(tx: Tx, chunk_ids: Collection[str]) -> list[Chunk]:
    """Return some chunks, the most urgent first."""
    return _found(tx, is_any_of(tx, chunks.c.chunk_id, sorted(chunk_ids)))


def item_sizes(tx: Tx, tenants: Collection[str]) -> list[tuple[str, Line, int, int]]:
    """Return chunk, line, tokens and the longest item's tokens of the open chunks of some tenants that may be moved."""
    line = (chunks.c.for_tenant, chunks.c.product_line, chunks.c.workload)
    statement = select(chunks.c.chunk_id, *line, chunks.c.est_tokens, chunks.c.longest_item).where(
        is_any_of(tx, chunks.c.for_tenant, sorted(tenants)),
        chunks.c.state.in_(_IDLE),
        chunks.c.longest_item.is_not(None),
    )
    return [(row[0], Line(*row[1:4]), row[4], row[5]) for row in tx.execute(statement)]


def without_rate(tx: Tx, books: Collection[Book], *, limit: int) -> list[Chunk]:
    """Return chunks with no ticket out of which it is not known in one of some books what is expected."""
    unknown = or_(*(chunks.c[RATES[book]].is_(None) for book in books))
    return _found(tx, chunks.c.state.in_(_IDLE), chunks.c.dispatched_at.is_(None), unknown, limit=limit)


def set_rates(tx: Tx, found: Mapping[str, Mapping[Book, int | None]]) -> None:
    """Note what is expected of chunks that wait or are placed with no ticket out, for each of their tokens."""
    values: dict[str, Sequence[Any]] = {"chunk_id": list(found)}
    for book, name in RATES.items():
        values[name] = [rates.get(book) for rates in found.values()]
    update_columns(tx, chunks, "chunk_id", values, where=_IS_IDLE)


def hold(tx: Tx, found: Mapping[str, tuple[str, datetime | None]]) -> None:
    """Hold chunks back that have no place: for which budget each, and until when."""
    values: dict[str, Sequence[Any]] = {
        "chunk_id": list(found),
        "held_by": [budget_id for budget_id, _ in found.values()],
        "held_until": [until for _, until in found.values()],
    }
    update_columns(tx, chunks, "chunk_id", values, where=_IS_WAITING)


def let_go(tx: Tx, chunk_ids: Collection[str]) -> None:
    """Let chunks go that were held back: the planner places them."""
    count = len(chunk_ids)
    values: dict[str, Sequence[Any]] = {
        "chunk_id": sorted(chunk_ids),
        "held_by": [None] * count,
        "held_until": [None] * count,
    }
    update_columns(tx, chunks, "chunk_id", values, where=_IS_WAITING)

"""Sums of current entries by window, for figures to watch: bounded ranges of windows, found by their index."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Float, Text, and_, case, cast, func, literal_column, select, type_coerce

from carbonq.clock import ClockKind
from carbonq.model import EntryKind, ItemState
from carbonq.store.database import Tx
from carbonq.store.ledger import is_current
from carbonq.store.tables import chunks, engine_batches, entries
from carbonq.trends import Groups, Key, Sums


def sums(tx: Tx, start: datetime, end: datetime, clock: ClockKind) -> dict[datetime, Groups]:
    """Return the sums of the windows from ``start`` up to, not including, ``end``; of one clock's entries alone."""
    rows = entries.c
    keys = (
        engine_batches.c.window_at,
        engine_batches.c.region,
        engine_batches.c.model,
        rows["class"],
        rows.kind,
        rows.outcome,
        engine_batches.c.quality,
        rows.moer_status,
        rows.aer_status,
        cast(type_coerce(chunks.c.regions, Text), Text).label("regions"),
    )
    is_item = and_(rows.kind == EntryKind.ITEM.value, rows.outcome == ItemState.SUCCEEDED.value, rows.part == 1)
    is_rated = and_(is_item, rows.emission_g.is_not(None))
    tokens = rows.prompt_tokens + rows.completion_tokens
    statement = (
        select(
            *keys,
            _count(is_item),
            _count(is_rated),
            _count(is_item, tokens),
            _count(is_rated, tokens),
            *(func.sum(cast(rows[name], Float)) for name in Sums._fields[4:]),
        )
        .select_from(
            engine_batches.join(
                entries,
                and_(
                    entries.c.engine_batch_id == engine_batches.c.engine_batch_id,
                    entries.c.part == engine_batches.c.part,
                ),
            ).outerjoin(chunks, chunks.c.chunk_id == entries.c.chunk_id)
        )
        .where(
            engine_batches.c.window_at >= start,
            engine_batches.c.window_at < end,
            engine_batches.c.clock == clock.value,
            is_current(),
        )
        .group_by(*(literal_column(str(number)) for number in range(1, len(keys) + 1)))
    )
    found: dict[datetime, Groups] = {}
    for row in tx.execute(statement):
        values: tuple[Any, ...] = tuple(row)
        counted = [int(one) for one in values[len(keys) : len(keys) + 4]]
        known = [None if one is None else float(one) for one in values[len(keys) + 4 :]]
        found.setdefault(values[0], {})[Key._make(values[1 : len(keys)])] = Sums._make((*counted, *known))
    return found


def edge_before(tx: Tx, end: datetime, oldest: datetime, count: int) -> datetime | None:
    """Return the window where a walk back from ``end`` has passed ``count`` parts; None: it comes to ``oldest``."""
    at = engine_batches.c.window_at
    return tx.execute(
        select(at).where(at >= oldest, at < end).order_by(at.desc()).offset(count - 1).limit(1)
    ).scalar_one_or_none()


def _count(condition: ColumnElement[bool], what: Any = 1) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case((condition, what), else_=0)), 0)

"""Rows of ``items``: one accepted input line each. An item leaves ``waiting`` exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select, update

from carbonq.model import ChunkState, Item, ItemState, NewItem
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_columns, is_any_of, skip_locked
from carbonq.store.tables import chunks, items

_COLUMNS = tuple(items.c[name] for name in Item.__dataclass_fields__)


def insert_many(tx: Tx, job_id: str, new: Sequence[NewItem]) -> None:
    """Store a job's items, all waiting."""
    insert_of_jobs(tx, [(job_id, 0, new)])


def insert_of_jobs(tx: Tx, groups: Sequence[tuple[str, int, Sequence[NewItem]]]) -> None:
    """Store the items of some jobs, all waiting: (job_id, where its input begins in the blob, its items) of each."""
    columns: dict[str, Sequence[int] | Sequence[str]] = {
        "job_id": [job_id for job_id, _, new in groups for _ in new],
        "idx": [item.idx for _, _, new in groups for item in new],
        "custom_id": [item.custom_id for _, _, new in groups for item in new],
        "line_offset": [begin + item.line_offset for _, begin, new in groups for item in new],
        "line_bytes": [item.line_bytes for _, _, new in groups for item in new],
        "est_tokens": [item.est_tokens for _, _, new in groups for item in new],
        "state": [str(ItemState.WAITING)] * sum(len(new) for _, _, new in groups),
    }
    insert_columns(tx, items, columns)


def of_chunk(tx: Tx, chunk_id: str) -> list[Item]:
    """Return the items of a chunk that are still waiting, in order of job and line."""
    statement = (
        select(*_COLUMNS)
        .where(items.c.chunk_id == chunk_id, items.c.state == ItemState.WAITING)
        .order_by(items.c.item_id)
    )
    return [Item(*row) for row in tx.execute(statement).all()]


def unchunked(tx: Tx, job_ids: Sequence[str]) -> list[tuple[int, str, int]]:
    """Return (item_id, job_id, est_tokens) of waiting items that are in no chunk, in order of item_id."""
    statement = (
        select(items.c.item_id, items.c.job_id, items.c.est_tokens)
        .where(is_any_of(tx, items.c.job_id, job_ids), items.c.chunk_id.is_(None), items.c.state == ItemState.WAITING)
        .order_by(items.c.item_id)
    )
    return [(item_id, job_id, tokens) for item_id, job_id, tokens in tx.execute(statement).all()]


def assign(tx: Tx, chunk_id: str, item_ids: Sequence[int], *, from_chunk_id: str | None = None) -> int:
    """Put waiting items into a chunk, out of none or out of ``from_chunk_id``; return how many moved."""
    source = items.c.chunk_id.is_(None) if from_chunk_id is None else items.c.chunk_id == from_chunk_id
    statement = (
        update(items)
        .where(is_any_of(tx, items.c.item_id, item_ids), items.c.state == ItemState.WAITING, source)
        .values(chunk_id=chunk_id)
    )
    return tx.execute(statement).rowcount


def end_many(
    tx: Tx, item_ids: Sequence[int], state: ItemState, *, at: datetime, error_code: str | None = None
) -> list[int]:
    """Move waiting items to a final state; return the ids that were still waiting (the only ones to count)."""
    statement = (
        update(items)
        .where(is_any_of(tx, items.c.item_id, item_ids), items.c.state == ItemState.WAITING)
        .values(state=state, error_code=error_code, finished_at=at)
        .returning(items.c.item_id)
    )
    return list(tx.execute(statement).scalars())


def end_idle(
    tx: Tx, job_id: str, state: ItemState, *, at: datetime, error_code: str | None = None
) -> tuple[int, set[str]]:
    """End a job's waiting items that no worker holds; return how many, and the chunks they were in.

    Items of running chunks stay: their worker commits or gives them back. So do, for this once, items of chunks that
    another transaction is changing at the moment; the next sweep finds them.
    """
    holders = select(items.c.chunk_id).where(items.c.job_id == job_id, items.c.state == ItemState.WAITING)
    idle = select(chunks.c.chunk_id).where(
        chunks.c.chunk_id.in_(holders), chunks.c.state.in_((ChunkState.WAITING, ChunkState.PLACED))
    )
    if skip_locked(tx):
        # A claim holds its chunk and then wants the job; waiting for the chunk here would be a deadlock.
        idle = idle.with_for_update(skip_locked=True)
    chunk_ids = list(tx.execute(idle).scalars())
    statement = (
        update(items)
        .where(
            items.c.job_id == job_id,
            items.c.state == ItemState.WAITING,
            items.c.chunk_id.is_(None) | is_any_of(tx, items.c.chunk_id, chunk_ids),
        )
        .values(state=state, error_code=error_code, finished_at=at)
    )
    return tx.execute(statement).rowcount, set(chunk_ids)


def counts(tx: Tx, job_id: str) -> dict[ItemState, int]:
    """Count a job's items by state."""
    statement = select(items.c.state, func.count()).where(items.c.job_id == job_id).group_by(items.c.state)
    return {ItemState(state): count for state, count in tx.execute(statement)}


def error_codes(tx: Tx, job_id: str) -> list[tuple[str | None, int]]:
    """Return the error codes of a job's failed items with their counts, most frequent first."""
    statement = (
        select(items.c.error_code, func.count().label("count"))
        .where(items.c.job_id == job_id, items.c.state == ItemState.FAILED)
        .group_by(items.c.error_code)
        .order_by(func.count().desc(), items.c.error_code)
    )
    return [(code, count) for code, count in tx.execute(statement)]


def unanswered(
    tx: Tx, job_id: str, states: Sequence[ItemState], *, after_idx: int = -1, limit: int = 5_000
) -> list[tuple[int, str, ItemState, str | None]]:
    """Return (idx, custom_id, state, error_code) of a job's items in some final states, by line, page by page."""
    statement = (
        select(items.c.idx, items.c.custom_id, items.c.state, items.c.error_code)
        .where(items.c.job_id == job_id, items.c.state.in_(list(states)), items.c.idx > after_idx)
        .order_by(items.c.idx)
        .limit(limit)
    )
    return [(idx, custom_id, ItemState(state), code) for idx, custom_id, state, code in tx.execute(statement)]

"""What a batch's items used and what their plan foretold: sums over all its jobs, one pass each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import and_, case, func, select

from carbonq.model import EntryKind, ItemState
from carbonq.store.database import Tx
from carbonq.store.ledger import is_current
from carbonq.store.tables import batches, chunks, engine_batches, entries, facts, items, jobs, placements


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens of the items that succeeded, and the items' energy at one PUE, in uJ."""

    pue: Decimal
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    energy_uj: int
    unmetered: int


@dataclass(frozen=True, slots=True)
class Planned:
    """What a batch has in one chunk: its tokens of the chunk's, and the chunk's estimate and placement."""

    tokens: int
    chunk_tokens: int
    chunk_energy_uj: int
    region: str | None
    g_per_kwh: Decimal | None
    signal: str | None


def used(tx: Tx, batch_id: str) -> list[Used]:
    """Return what the current entries of a batch's items say, by PUE; nothing before any ran."""
    succeeded = entries.c.outcome == ItemState.SUCCEEDED.value
    tokens = (
        func.coalesce(func.sum(case((succeeded, entries.c[name]), else_=0)), 0)
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens")
    )
    is_same = and_(
        engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part
    )
    statement = (
        select(
            facts.c.pue,
            *tokens,
            func.coalesce(func.sum(entries.c.energy_uj), 0),
            func.count() - func.count(entries.c.energy_uj),
        )
        .select_from(entries.join(engine_batches, is_same).join(facts, facts.c.fact_id == engine_batches.c.fact_id))
        .where(
            entries.c.job_id.in_(select(jobs.c.job_id).where(jobs.c.batch_id == batch_id)),
            entries.c.kind == EntryKind.ITEM.value,
            is_current(),
        )
        .group_by(facts.c.pue)
    )
    return [Used(row[0], *(int(value) for value in row[1:])) for row in tx.execute(statement)]


def planned(tx: Tx, batch_id: str) -> list[Planned]:
    """Return what a batch has in each of its chunks, with the placement in force."""
    mine = (
        select(items.c.chunk_id, func.sum(items.c.est_tokens).label("tokens"))
        .join(jobs, jobs.c.job_id == items.c.job_id)
        .where(jobs.c.batch_id == batch_id, items.c.chunk_id.is_not(None))
        .group_by(items.c.chunk_id)
        .subquery()
    )
    statement = select(
        mine.c.tokens,
        chunks.c.est_tokens,
        chunks.c.est_energy_uj,
        chunks.c.region,
        placements.c.g_per_kwh,
        placements.c.signal,
    ).select_from(
        mine.join(chunks, chunks.c.chunk_id == mine.c.chunk_id).outerjoin(
            placements, placements.c.placement_id == chunks.c.placement_id
        )
    )
    return [Planned(int(row[0]), *row[1:]) for row in tx.execute(statement)]


def chunk_ids(tx: Tx, batch_id: str) -> Sequence[str]:
    """Return the ids of a batch's chunks. Takes a pass over its items."""
    statement = (
        select(items.c.chunk_id)
        .join(jobs, jobs.c.job_id == items.c.job_id)
        .where(jobs.c.batch_id == batch_id, items.c.chunk_id.is_not(None))
        .distinct()
    )
    return sorted(tx.execute(statement).scalars())


def is_chunked(tx: Tx, batch_id: str) -> bool:
    """Say whether all items of a batch are in chunks by now."""
    uncut = select(jobs.c.job_id).where(jobs.c.batch_id == batch_id, jobs.c.is_chunked.is_(False)).limit(1)
    is_open = select(batches.c.batch_id).where(batches.c.batch_id == batch_id)
    return tx.execute(is_open).first() is not None and tx.execute(uncut).first() is None

"""Rows of ``chunks``, and the virtual queue of the baseline. Claims and leases are in ``store/leases.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, text, update

from carbonq.errors import NotFound
from carbonq.model import Chunk, ChunkState, DowngradeReason, Endpoint, ItemState, NewChunk, Treatment
from carbonq.store import items as item_rows
from carbonq.store.database import Tx
from carbonq.store.dialect import UtcDateTime, is_any_of, serialise
from carbonq.store.tables import baseline_slots, chunks, items

#: The columns of a ``Chunk``, in the order of its fields.
COLUMNS = tuple(chunks.c[name] for name in Chunk.__dataclass_fields__)

# An upsert, because the first two chunkers of a region find no row to lock.
_SET_FREE_AT = text(
    "INSERT INTO baseline_slots (region, slot, free_at) VALUES (:region, :slot, :free_at) "
    "ON CONFLICT (region, slot) DO UPDATE SET free_at = excluded.free_at"
).bindparams(bindparam("free_at", type_=UtcDateTime()))


def from_row(row: Mapping[Any, Any]) -> Chunk:
    """Turn a row of ``COLUMNS`` (as a mapping) into a chunk."""
    values = {name: row[name] for name in Chunk.__dataclass_fields__}
    values["endpoint"] = Endpoint(values["endpoint"])
    values["state"] = ChunkState(values["state"])
    values["regions"] = None if values["regions"] is None else tuple(values["regions"])
    values["treatment"] = Treatment(values["treatment"] or Treatment.PLANNED)
    values["downgraded"] = None if values["downgraded"] is None else DowngradeReason(values["downgraded"])
    return Chunk(**values)


def insert_many(tx: Tx, new: Sequence[NewChunk], *, created_at: datetime) -> int:
    """Store waiting chunks and put their items into them (out of the parent's chunk, where there is one).

    Returns how many items moved, so that the caller can roll back when some were gone. ``created_at`` is grid time.
    """
    if not new:
        return 0
    tx.execute(insert(chunks), [_row(chunk, created_at) for chunk in new])
    return sum(
        item_rows.assign(tx, chunk.chunk_id, chunk.item_ids, from_chunk_id=chunk.parent_chunk_id) for chunk in new
    )


def _row(chunk: NewChunk, created_at: datetime) -> dict[str, Any]:
    return {
        "chunk_id": chunk.chunk_id,
        "tenant": chunk.tenant,
        "model": chunk.model,
        "endpoint": chunk.endpoint,
        "regions": None if chunk.regions is None else list(chunk.regions),
        "release_at": chunk.release_at,
        "deadline_at": chunk.deadline_at,
        "items_count": len(chunk.item_ids),
        "est_tokens": chunk.est_tokens,
        "est_duration_s": chunk.est_duration_s,
        "est_energy_uj": chunk.est_energy_uj,
        "state": ChunkState.WAITING,
        "attempt": 0,
        "token": 0,
        "latest_start_at": chunk.latest_start_at,
        "baseline_region": chunk.baseline_region,
        "baseline_window_at": chunk.baseline_window_at,
        "parent_chunk_id": chunk.parent_chunk_id,
        "created_at": created_at,
        "treatment": chunk.treatment,
        "downgraded": chunk.downgraded,
        "may_downgrade": chunk.may_downgrade,
        "for_tenant": chunk.for_tenant,
        "product_line": chunk.product_line,
        "workload": chunk.workload,
        "longest_item": chunk.longest_item,
        "impact_pg_per_token": chunk.impact_pg_per_token,
        "inventory_pg_per_token": chunk.inventory_pg_per_token,
        "held_by": chunk.held_by,
        "held_until": chunk.held_until,
    }


def find(tx: Tx, chunk_id: str) -> Chunk | None:
    """Return a chunk; None when there is none of that id."""
    row = tx.execute(select(*COLUMNS).where(chunks.c.chunk_id == chunk_id)).mappings().one_or_none()
    return None if row is None else from_row(row)


def get(tx: Tx, chunk_id: str) -> Chunk:
    """Return a chunk. Raises NotFound."""
    chunk = find(tx, chunk_id)
    if chunk is None:
        raise NotFound(f"there is no chunk {chunk_id!r}")
    return chunk


def open_chunks(tx: Tx) -> list[Chunk]:
    """Return every chunk that is not done, most urgent first."""
    statement = select(*COLUMNS).where(chunks.c.state != ChunkState.DONE)
    return [from_row(row) for row in tx.execute(statement.order_by(chunks.c.deadline_at, chunks.c.chunk_id)).mappings()]


def of_job(tx: Tx, job_id: str) -> list[Chunk]:
    """Return the chunks that hold items of a job, by planned window; other jobs may share them."""
    in_job = select(items.c.chunk_id).where(items.c.job_id == job_id, items.c.chunk_id.is_not(None)).distinct()
    statement = select(*COLUMNS).where(chunks.c.chunk_id.in_(in_job)).order_by(chunks.c.window_at, chunks.c.chunk_id)
    return [from_row(row) for row in tx.execute(statement).mappings()]


def shrink(tx: Tx, chunk_ids: Sequence[str], *, at: datetime) -> int:
    """Bring idle chunks in line after items left them: fewer items, less to do, done when none is left.

    Only waiting or placed chunks are touched. Returns how many became done; ``at`` is grid time.
    """
    idle = (is_any_of(tx, chunks.c.chunk_id, chunk_ids), chunks.c.state.in_((ChunkState.WAITING, ChunkState.PLACED)))
    left = (
        select(items.c.chunk_id, func.count().label("items"), func.sum(items.c.est_tokens).label("tokens"))
        .where(is_any_of(tx, items.c.chunk_id, chunk_ids), items.c.state == ItemState.WAITING)
        .group_by(items.c.chunk_id)
    )
    remaining = {row.chunk_id: (int(row.items), int(row.tokens)) for row in tx.execute(left)}
    done = 0
    for chunk_id, before in tx.execute(select(chunks.c.chunk_id, chunks.c.est_tokens).where(*idle)).all():
        count, tokens = remaining.get(chunk_id, (0, 0))
        change = update(chunks).where(chunks.c.chunk_id == chunk_id)
        if not count:
            done += 1
            tx.execute(change.values(state=ChunkState.DONE, finished_at=at, dispatched_at=None))
            continue
        part = tokens / before if before else 1.0
        tx.execute(
            change.values(
                items_count=count,
                est_tokens=tokens,
                est_duration_s=chunks.c.est_duration_s * part,
                est_energy_uj=func.round(chunks.c.est_energy_uj * part),
            )
        )
    return done


def baseline_queue(tx: Tx, region: str, slots: int, start_at: datetime) -> list[datetime]:
    """Return when each slot of a home region's virtual queue is free, and lock the queue until the transaction ends.

    Slots it has not used yet are free from ``start_at`` on; slots beyond ``slots`` are forgotten.
    """
    serialise(tx, f"baseline {region}")  # the rows are locked below, but at first there are none
    tx.execute(delete(baseline_slots).where(baseline_slots.c.region == region, baseline_slots.c.slot >= slots))
    statement = select(baseline_slots.c.slot, baseline_slots.c.free_at).where(baseline_slots.c.region == region)
    known = {slot: at for slot, at in tx.execute(statement.with_for_update())}
    return [known.get(slot, start_at) for slot in range(slots)]


def set_baseline_queue(tx: Tx, region: str, free_at: Sequence[datetime]) -> None:
    """Store when each slot of a home region's virtual queue is free."""
    tx.execute(_SET_FREE_AT, [{"region": region, "slot": slot, "free_at": at} for slot, at in enumerate(free_at)])


def count_failing(tx: Tx) -> dict[str, int]:
    """Count the open chunks whose last try failed, by model."""
    statement = (
        select(chunks.c.model, func.count())
        .where(chunks.c.state != ChunkState.DONE.value, chunks.c.error.is_not(None))
        .group_by(chunks.c.model)
    )
    return {model: int(count) for model, count in tx.execute(statement)}

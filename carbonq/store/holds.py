"""What operators have paused or drain: regions, tenants, models. ``held_at`` is machine time.

A region's state is also in its own row, which ``services/hold.py`` writes in the same transaction.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, func, insert, or_, select, update

from carbonq.model import ChunkState, HeldKind, Hold, ItemState, RegionState
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of, machine_now, skip_locked
from carbonq.store.tables import api_keys, chunks, holds, items, jobs

_COLUMNS = tuple(holds.c[name] for name in Hold.__dataclass_fields__)
_IDLE = (ChunkState.WAITING.value, ChunkState.PLACED.value)


def get_all(tx: Tx) -> list[Hold]:
    """Return all that is not active, by kind and name."""
    rows = tx.execute(select(*_COLUMNS).order_by(holds.c.kind, holds.c.name))
    return [
        Hold(HeldKind(row.kind), row.name, RegionState(row.state), row.held_at, row.reason, row.held_by) for row in rows
    ]


def put(
    tx: Tx, kind: HeldKind, name: str, state: RegionState, *, reason: str | None = None, held_by: str | None = None
) -> None:
    """Note what was said of something, in place of what was said before; active forgets it."""
    tx.execute(delete(holds).where(holds.c.kind == kind.value, holds.c.name == name))
    if state is not RegionState.ACTIVE:
        tx.execute(
            insert(holds).values(
                kind=kind.value,
                name=name,
                state=state.value,
                held_at=machine_now(tx),
                reason=reason,
                held_by=held_by,
            )
        )


def state_of(tx: Tx, kind: HeldKind, name: str) -> RegionState:
    """Return what was said of something; active where nothing was."""
    state = tx.execute(
        select(holds.c.state).where(holds.c.kind == kind.value, holds.c.name == name)
    ).scalar_one_or_none()
    return RegionState.ACTIVE if state is None else RegionState(state)


def paused(kind: HeldKind) -> Select[Any]:
    """Select the names that are paused."""
    return select(holds.c.name).where(holds.c.kind == kind.value, holds.c.state == RegionState.PAUSED.value)


def may_run() -> ColumnElement[bool]:
    """Say of a chunk that no budget holds it back, and that neither its model nor its own tenant is paused."""
    is_shared = chunks.c.tenant.is_(None)
    return (
        chunks.c.held_by.is_(None)
        & chunks.c.model.not_in(paused(HeldKind.MODEL))
        & or_(is_shared, chunks.c.tenant.not_in(paused(HeldKind.TENANT)))
    )


def is_tenant_paused() -> ColumnElement[bool]:
    """Say of a job that its tenant is paused."""
    return jobs.c.tenant.in_(paused(HeldKind.TENANT))


def job_may_run() -> ColumnElement[bool]:
    """Say of a job that neither its model nor its tenant is paused."""
    return jobs.c.model.not_in(paused(HeldKind.MODEL)) & ~is_tenant_paused()


def set_aside(tx: Tx) -> list[str]:
    """Take waiting items of paused tenants out of shared chunks that nobody runs; return these chunks.

    Their jobs count as not cut into chunks yet, so that they are cut anew when their tenant goes on. Chunks that
    another transaction is changing at the moment are left for the next time.
    """
    tenants = list(tx.execute(paused(HeldKind.TENANT)).scalars())
    if not tenants:
        return []
    of_tenant = select(jobs.c.job_id).where(jobs.c.finished_at.is_(None), is_any_of(tx, jobs.c.tenant, tenants))
    waiting = (items.c.job_id.in_(of_tenant), items.c.state == ItemState.WAITING.value)
    holding = select(items.c.chunk_id).where(*waiting, items.c.chunk_id.is_not(None))
    idle = select(chunks.c.chunk_id).where(
        chunks.c.chunk_id.in_(holding), chunks.c.tenant.is_(None), chunks.c.state.in_(_IDLE)
    )
    if skip_locked(tx):
        # A claim holds its chunk and then wants the job; waiting for the chunk here would be a deadlock.
        idle = idle.with_for_update(skip_locked=True)
    touched = list(tx.execute(idle).scalars())
    if touched:
        moved = (
            update(items)
            .where(*waiting, is_any_of(tx, items.c.chunk_id, touched))
            .values(chunk_id=None)
            .returning(items.c.job_id)
        )
        job_ids = sorted(set(tx.execute(moved).scalars()))
        tx.execute(update(jobs).where(is_any_of(tx, jobs.c.job_id, job_ids)).values(is_chunked=False))
    return touched


def withdraw(tx: Tx) -> int:
    """Give chunks that may not run back to the planner, with their tickets; return how many."""
    found = select(chunks.c.chunk_id).where(chunks.c.state == ChunkState.PLACED.value, ~may_run())
    if skip_locked(tx):
        found = found.with_for_update(skip_locked=True)
    names = list(tx.execute(found).scalars())
    if names:
        tx.execute(
            update(chunks)
            .where(is_any_of(tx, chunks.c.chunk_id, names), chunks.c.state.in_(_IDLE))
            .values(state=ChunkState.WAITING.value, region=None, window_at=None, placement_id=None, dispatched_at=None)
        )
    return len(names)


def is_in_use(tx: Tx, tenant: str) -> bool:
    """Say whether a tenant has an open job or a valid key."""
    has_key = exists().where(api_keys.c.tenant == tenant, api_keys.c.revoked_at.is_(None))
    has_job = exists().where(jobs.c.tenant == tenant, jobs.c.finished_at.is_(None))
    return bool(tx.execute(select(or_(has_key, has_job))).scalar_one())


def tenants(tx: Tx) -> list[dict[str, Any]]:
    """Return the tenants that have open jobs, a valid key or a hold: state, reason, open jobs and items, by name."""
    ended = jobs.c.items_succeeded + jobs.c.items_failed + jobs.c.items_expired + jobs.c.items_cancelled
    open_jobs = (
        select(jobs.c.tenant, func.count(), func.sum(jobs.c.items_total - ended))
        .where(jobs.c.finished_at.is_(None))
        .group_by(jobs.c.tenant)
    )
    busy = {tenant: (int(count), int(left)) for tenant, count, left in tx.execute(open_jobs)}
    held = {one.name: one for one in get_all(tx) if one.kind is HeldKind.TENANT}
    keyed = set(tx.execute(select(api_keys.c.tenant).where(api_keys.c.revoked_at.is_(None)).distinct()).scalars())
    rows: list[dict[str, Any]] = []
    for name in sorted(keyed | set(busy) | set(held)):
        hold = held.get(name)
        count, left = busy.get(name, (0, 0))
        state = RegionState.ACTIVE if hold is None else hold.state
        reason = None if hold is None else hold.reason
        rows.append({"tenant": name, "state": state.value, "open_jobs": count, "open_items": left, "reason": reason})
    return rows

"""Leases: the right to run a chunk, handed out with a fencing token that grows with every change of hands.

``lease_until``, ``not_before`` and every comparison with "now" here are machine times of the database; arguments named
``now`` are grid times, kept only as history. A claim needs a dispatched chunk, so that a late or doubled ticket of a
chunk that went back to the planner does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, insert, select, update

from carbonq import ids
from carbonq.errors import LeaseLost
from carbonq.model import (
    AttemptOutcome,
    Chunk,
    ChunkState,
    Claim,
    Item,
    ItemState,
    NewChunk,
    Placement,
    RegionState,
    Renewal,
    Signal,
)
from carbonq.store import chunks as chunk_rows
from carbonq.store import holds, regions
from carbonq.store import items as item_rows
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of, machine_now, skip_locked
from carbonq.store.tables import attempts, chunks, items, jobs, placements

_OPEN = (ChunkState.WAITING.value, ChunkState.PLACED.value)

#: What a chunk loses when it goes back to the planner.
_UNPLACED: dict[str, Any] = {
    "state": ChunkState.WAITING.value,
    "lease_until": None,
    "worker_id": None,
    "region": None,
    "window_at": None,
    "placement_id": None,
    "dispatched_at": None,
}


@dataclass(frozen=True, slots=True)
class Expired:
    """A chunk whose worker fell silent, with the last report of its attempt."""

    chunk: Chunk
    pending: Mapping[str, Any] | None
    claimed_at: datetime  # grid time


def claim(tx: Tx, chunk_id: str, *, worker_id: str, region: str, lease_s: float, now: datetime) -> Claim | None:
    """Take the right to run a dispatched chunk of ``region``; None if there is nothing (any more) to take.

    A paused or draining region takes nothing, nor does anybody what is paused: the ticket is withdrawn and the chunk
    goes back to the planner.
    """
    # Locked by its key first: the dispatcher publishes before it commits, and on PostgreSQL an UPDATE that looks at
    # dispatched_at would not wait for that commit.
    statement = select(chunks, holds.may_run().label("may_run")).where(chunks.c.chunk_id == chunk_id)
    found = tx.execute(statement.with_for_update(of=chunks)).mappings().one_or_none()
    if found is None or found["state"] not in _OPEN or found["dispatched_at"] is None or found["region"] != region:
        return None
    if regions.state_of(tx, region) is not RegionState.ACTIVE or not found["may_run"]:
        tx.execute(update(chunks).where(chunks.c.chunk_id == chunk_id).values(**_UNPLACED))
        return None
    machine = machine_now(tx)
    token, attempt = found["token"] + 1, found["attempt"] + 1
    lease_until = machine + timedelta(seconds=lease_s)
    tx.execute(
        update(chunks)
        .where(chunks.c.chunk_id == chunk_id, chunks.c.state.in_(_OPEN))
        .values(
            state=ChunkState.RUNNING.value,
            token=token,
            attempt=attempt,
            worker_id=worker_id,
            lease_until=lease_until,
            not_before=None,
        )
    )
    tx.execute(
        insert(attempts).values(
            chunk_id=chunk_id,
            token=token,
            attempt=attempt,
            worker_id=worker_id,
            region=region,
            started_at=now,
            machine_started_at=machine,
        )
    )
    regions.worker_claimed(tx, worker_id)
    running = {
        "state": ChunkState.RUNNING.value,
        "token": token,
        "attempt": attempt,
        "worker_id": worker_id,
        "lease_until": lease_until,
    }
    return Claim(
        chunk=chunk_rows.from_row({**found, **running}),
        token=token,
        attempt=attempt,
        worker_id=worker_id,
        region=region,
        placement=_placement(tx, found["placement_id"]),
        lag_s=None if found["ticket_at"] is None else max(0.0, (machine - found["ticket_at"]).total_seconds()),
    )


def _placement(tx: Tx, placement_id: str | None) -> Placement | None:
    # A statement of its own: what the dispatcher wrote just before its commit is not in the snapshot of the one that
    # waited for it.
    columns = [placements.c[name] for name in Placement.__dataclass_fields__]
    row = tx.execute(select(*columns).where(placements.c.placement_id == placement_id)).mappings().one_or_none()
    if row is None:
        return None
    values: dict[str, Any] = dict(row)
    values["signal"] = Signal(values["signal"] or Signal.MOER)
    return Placement(**values)


def fence(tx: Tx, chunk_id: str, token: int, *, lease_s: float) -> datetime:
    """Lock the chunk for this transaction and renew its lease; the first statement of every commit of a worker.

    A lease that ran out without anybody having noticed still counts: only a changed token means that it is lost.
    Returns the new end of the lease. Raises LeaseLost.
    """
    lease_until = machine_now(tx) + timedelta(seconds=lease_s)
    hit = tx.execute(
        update(chunks)
        .where(chunks.c.chunk_id == chunk_id, chunks.c.token == token, chunks.c.state == ChunkState.RUNNING.value)
        .values(lease_until=lease_until)
    )
    if hit.rowcount != 1:
        raise LeaseLost(f"chunk {chunk_id} is no longer held with token {token}")
    return lease_until


def is_held(tx: Tx, chunk_id: str, token: int) -> bool:
    """Lock the chunk for this transaction and say whether ``token`` still holds it."""
    row = tx.execute(
        select(chunks.c.token, chunks.c.state).where(chunks.c.chunk_id == chunk_id).with_for_update()
    ).one_or_none()
    return row is not None and row.token == token and row.state == ChunkState.RUNNING.value


def renew(
    tx: Tx, chunk_id: str, token: int, *, lease_s: float, pending: Mapping[str, Any] | None, job_ids: Sequence[str]
) -> Renewal:
    """Renew the lease, leave the energy not booked yet as a report, and bring back what operators and clients said.

    Raises LeaseLost.
    """
    lease_until = fence(tx, chunk_id, token, lease_s=lease_s)
    report(tx, chunk_id, token, pending)
    region, may_run = tx.execute(select(chunks.c.region, holds.may_run()).where(chunks.c.chunk_id == chunk_id)).one()
    said = tx.execute(
        select(jobs.c.job_id, jobs.c.is_cancel_requested, holds.is_tenant_paused()).where(jobs.c.job_id.in_(job_ids))
    ).all()
    return Renewal(
        lease_until=lease_until,
        is_paused=not may_run or regions.state_of(tx, region) is RegionState.PAUSED,
        cancelled_jobs=frozenset(job_id for job_id, is_cancelled, _ in said if is_cancelled),
        held_jobs=frozenset(job_id for job_id, _, is_held in said if is_held),
    )


def report(tx: Tx, chunk_id: str, token: int, pending: Mapping[str, Any] | None) -> None:
    """Replace the attempt's report of energy that is metered and not booked yet."""
    tx.execute(
        update(attempts).where(attempts.c.chunk_id == chunk_id, attempts.c.token == token).values(pending=pending)
    )


def reported(tx: Tx, chunk_id: str, token: int) -> Mapping[str, Any] | None:
    """Return the attempt's last report: after a reap, what the reaper booked as wasted."""
    return tx.execute(
        select(attempts.c.pending).where(attempts.c.chunk_id == chunk_id, attempts.c.token == token)
    ).scalar_one_or_none()


def end_attempt(
    tx: Tx, chunk_id: str, token: int, outcome: AttemptOutcome, *, now: datetime, error: str | None = None
) -> None:
    """Say how an attempt ended; only a lost one can still turn into something else (fenced)."""
    is_open = attempts.c.outcome.is_(None) | (attempts.c.outcome == AttemptOutcome.LOST.value)
    tx.execute(
        update(attempts)
        .where(attempts.c.chunk_id == chunk_id, attempts.c.token == token, is_open)
        .values(outcome=outcome.value, ended_at=now, error=error)
    )


def finish(tx: Tx, chunk_id: str, token: int, *, outcome: AttemptOutcome, now: datetime) -> None:
    """End a fenced chunk none of whose items waits any more."""
    _done(tx, chunk_id, now)
    end_attempt(tx, chunk_id, token, outcome, now=now)


def give_back(
    tx: Tx,
    chunk_id: str,
    token: int,
    *,
    is_counted: bool,
    outcome: AttemptOutcome,
    now: datetime,
    backoff_s: float = 0.0,
    error: str | None = None,
) -> bool:
    """Return what is left of a fenced chunk to the planner; False when nothing is left, which ends it.

    ``is_counted`` says whether the try counts as an attempt; ``backoff_s`` is machine seconds before the next.
    """
    end_attempt(tx, chunk_id, token, outcome, now=now, error=error)
    return release(tx, chunk_id, is_counted=is_counted, now=now, backoff_s=backoff_s, error=error)


def release(
    tx: Tx, chunk_id: str, *, is_counted: bool, now: datetime, backoff_s: float = 0.0, error: str | None = None
) -> bool:
    """Return what is left of a chunk to the planner under a new token; False when nothing is left, which ends it."""
    tx.execute(
        update(chunks)
        .where(chunks.c.chunk_id == chunk_id, chunks.c.state == ChunkState.RUNNING.value)
        .values(
            **_UNPLACED,
            token=chunks.c.token + 1,
            attempt=chunks.c.attempt if is_counted else chunks.c.attempt - 1,
            not_before=machine_now(tx) + timedelta(seconds=backoff_s) if backoff_s > 0 else None,
            error=error,
        )
    )
    return chunk_rows.shrink(tx, [chunk_id], at=now) == 0


def _done(tx: Tx, chunk_id: str, now: datetime) -> None:
    tx.execute(
        update(chunks)
        .where(chunks.c.chunk_id == chunk_id)
        .values(state=ChunkState.DONE.value, lease_until=None, finished_at=now)
    )


def has_open_items(tx: Tx, chunk_id: str) -> bool:
    """Say whether any item of a chunk still waits."""
    waiting = select(items.c.item_id).where(items.c.chunk_id == chunk_id, items.c.state == ItemState.WAITING.value)
    return tx.execute(waiting.limit(1)).one_or_none() is not None


def expired_ids(tx: Tx) -> list[str]:
    """Return the running chunks whose lease has ended, the longest silent first: at most one for each slot."""
    statement = select(chunks.c.chunk_id).where(*_has_expired(tx)).order_by(chunks.c.lease_until, chunks.c.chunk_id)
    return list(tx.execute(statement).scalars())


def _has_expired(tx: Tx) -> tuple[ColumnElement[bool], ...]:
    return (chunks.c.state == ChunkState.RUNNING.value, chunks.c.lease_until < machine_now(tx))


def expired(tx: Tx, *, among: Sequence[str]) -> list[Expired]:
    """Return those of some chunks whose lease has ended, locked for this transaction, the longest silent first."""
    statement = (
        select(chunks, attempts.c.pending, attempts.c.started_at)
        .join(attempts, (attempts.c.chunk_id == chunks.c.chunk_id) & (attempts.c.token == chunks.c.token))
        .where(*_has_expired(tx), is_any_of(tx, chunks.c.chunk_id, list(among)))
        .order_by(chunks.c.lease_until)
    )
    if skip_locked(tx):
        statement = statement.with_for_update(of=chunks, skip_locked=True)
    return [
        Expired(chunk=chunk_rows.from_row(row), pending=row["pending"], claimed_at=row["started_at"])
        for row in tx.execute(statement).mappings()
    ]


def split(tx: Tx, chunk_id: str, *, attempt: int, now: datetime) -> list[str]:
    """Replace a running chunk by two waiting halves of its open items, with ``attempt`` attempts behind them.

    The parent ends. Returns the ids of the halves; needs two open items (one alone: the caller fails it instead).
    """
    parent = chunk_rows.get(tx, chunk_id)
    rows = sorted(item_rows.of_chunk(tx, chunk_id), key=lambda item: (item.est_tokens, item.item_id))
    middle = len(rows) // 2
    halves = [part_of(parent, half) for half in (rows[:middle], rows[middle:])]
    chunk_rows.insert_many(tx, halves, created_at=now)
    names = [half.chunk_id for half in halves]
    tx.execute(update(chunks).where(chunks.c.chunk_id.in_(names)).values(attempt=attempt))
    _done(tx, chunk_id, now)
    return names


def part_of(parent: Chunk, half: Sequence[Item]) -> NewChunk:
    """Return a chunk of some of a chunk's items, alike in all else but what budgets hold back."""
    tokens = sum(item.est_tokens for item in half)
    part = tokens / parent.est_tokens if parent.est_tokens else 0.5
    return NewChunk(
        chunk_id=ids.new("chk"),
        tenant=parent.tenant,
        model=parent.model,
        endpoint=parent.endpoint,
        regions=parent.regions,
        release_at=parent.release_at,
        deadline_at=parent.deadline_at,
        item_ids=[item.item_id for item in half],
        est_tokens=tokens,
        est_duration_s=parent.est_duration_s * part,
        est_energy_uj=round(parent.est_energy_uj * part),
        baseline_region=parent.baseline_region,
        baseline_window_at=parent.baseline_window_at,
        latest_start_at=parent.latest_start_at,
        parent_chunk_id=parent.chunk_id,
        treatment=parent.treatment,
        downgraded=parent.downgraded,
        may_downgrade=parent.may_downgrade,
        for_tenant=parent.for_tenant,
        product_line=parent.product_line,
        workload=parent.workload,
        longest_item=max((item.est_tokens for item in half), default=None),
        impact_pg_per_token=parent.impact_pg_per_token,
        inventory_pg_per_token=parent.inventory_pg_per_token,
    )

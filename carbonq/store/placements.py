"""Rows of ``plans`` and ``placements``, and what a plan changes in ``chunks``. Each write is one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import bindparam, insert, or_, select, update

from carbonq.model import FINAL_JOB_STATES, ChunkState, Signal
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of, machine_now
from carbonq.store.tables import attempts, chunks, forecasts, items, jobs, placements, plans

_OPEN = (ChunkState.WAITING.value, ChunkState.PLACED.value)


@dataclass(frozen=True, slots=True)
class NewPlan:
    """A plan's row; times are grid times, ``duration_s`` is machine seconds."""

    plan_id: str
    created_at: datetime
    chunks: int
    moved: int
    late: int
    objective_g: float | None
    lower_bound_g: float | None
    is_overlay: bool
    duration_s: float
    note: str | None
    inputs: str
    signal: Signal = Signal.MOER


@dataclass(frozen=True, slots=True)
class NewPlacement:
    """A placement's row, and the chunk's latest safe start."""

    placement_id: str
    chunk_id: str
    region: str
    window_at: datetime
    g_per_kwh: Decimal | None
    issued_at: datetime | None
    reason: str
    latest_start_at: datetime
    signal: Signal = Signal.MOER


@dataclass(frozen=True, slots=True)
class Busy:
    """A chunk that holds a slot or will take the next: ``elapsed_s`` machine seconds since its claim, None before."""

    chunk_id: str
    region: str
    est_duration_s: float
    elapsed_s: float | None


def last_inputs(tx: Tx) -> str | None:
    """Return what the newest plan was made from."""
    return tx.execute(select(plans.c.inputs).order_by(plans.c.recorded_at.desc()).limit(1)).scalar_one_or_none()


def newest_forecast_id(tx: Tx, signal: Signal) -> int | None:
    """Return the number of the forecast that was stored last: it changes when one arrives, of whatever zone."""
    statement = select(forecasts.c.forecast_id).where(forecasts.c.signal == signal.value)
    # Backwards from the end, which finds one at once; grouping by zone would read all that are kept.
    return tx.execute(statement.order_by(forecasts.c.forecast_id.desc()).limit(1)).scalar_one_or_none()


def busy(tx: Tx) -> list[Busy]:
    """Return the chunks that run, and those that have a ticket out."""
    now = machine_now(tx)
    running = chunks.outerjoin(
        attempts, (attempts.c.chunk_id == chunks.c.chunk_id) & (attempts.c.token == chunks.c.token)
    )
    statement = (
        select(
            chunks.c.chunk_id,
            chunks.c.region,
            chunks.c.est_duration_s,
            chunks.c.state,
            attempts.c.machine_started_at,
        )
        .select_from(running)
        .where(
            chunks.c.state != ChunkState.DONE.value,
            (chunks.c.state == ChunkState.RUNNING.value) | chunks.c.dispatched_at.is_not(None),
            chunks.c.region.is_not(None),
        )
    )
    found: list[Busy] = []
    for row in tx.execute(statement):
        elapsed = None
        if row.state == ChunkState.RUNNING.value:
            elapsed = (now - row.machine_started_at).total_seconds() if row.machine_started_at is not None else 0.0
        found.append(Busy(row.chunk_id, row.region, row.est_duration_s, elapsed))
    return found


def backoffs(tx: Tx) -> dict[str, float]:
    """Return the machine seconds for which chunks that failed must still wait, by chunk."""
    now = machine_now(tx)
    statement = select(chunks.c.chunk_id, chunks.c.not_before).where(
        chunks.c.state.in_(_OPEN), chunks.c.not_before > now
    )
    return {chunk_id: (until - now).total_seconds() for chunk_id, until in tx.execute(statement)}


def caps(tx: Tx) -> dict[str, Decimal]:
    """Return the grams that carbon caps of jobs leave to each open chunk, by its share of the job's tokens."""
    capped = select(jobs.c.job_id, jobs.c.max_carbon_g, jobs.c.est_tokens).where(
        jobs.c.max_carbon_g.is_not(None), jobs.c.state.not_in([state.value for state in FINAL_JOB_STATES])
    )
    found: dict[str, Decimal] = {}
    for job in tx.execute(capped).all():
        statement = (
            select(chunks.c.chunk_id, chunks.c.est_tokens)
            .where(chunks.c.chunk_id.in_(select(items.c.chunk_id).where(items.c.job_id == job.job_id).distinct()))
            .where(chunks.c.state.in_(_OPEN))
        )
        for chunk_id, tokens in tx.execute(statement):
            grams = job.max_carbon_g * tokens / max(job.est_tokens, 1)
            found[chunk_id] = min(grams, found.get(chunk_id, grams))
    return found


def still_plannable(tx: Tx, chunk_ids: Sequence[str]) -> set[str]:
    """Lock the given chunks as far as they are waiting or placed with no ticket out, and return those."""
    statement = (
        select(chunks.c.chunk_id)
        .where(is_any_of(tx, chunks.c.chunk_id, chunk_ids))
        .where(chunks.c.state.in_(_OPEN), chunks.c.dispatched_at.is_(None))
        .order_by(chunks.c.chunk_id)  # one order for every locker: no deadlock
        .with_for_update()
    )
    return set(tx.execute(statement).scalars())


def add_plan(tx: Tx, plan: NewPlan) -> None:
    """Store a plan's row."""
    values = {name: getattr(plan, name) for name in NewPlan.__dataclass_fields__} | {"signal": plan.signal.value}
    tx.execute(insert(plans).values(**values, recorded_at=machine_now(tx)))


# The states are spelled out, because a list cannot be bound in a batch.
_PLACE = (
    update(chunks)
    .where(
        chunks.c.chunk_id == bindparam("chunk"),
        or_(chunks.c.state == ChunkState.WAITING.value, chunks.c.state == ChunkState.PLACED.value),
        chunks.c.dispatched_at.is_(None),
    )
    .values(
        state=ChunkState.PLACED.value,
        region=bindparam("to_region"),
        window_at=bindparam("to_window"),
        placement_id=bindparam("placement"),
        latest_start_at=bindparam("latest"),
    )
)


def place(tx: Tx, plan_id: str, placed: Sequence[NewPlacement], *, created_at: datetime) -> None:
    """Store placements and bring their chunks to them; only chunks that are waiting or placed, no ticket out."""
    if not placed:
        return
    rows = [
        {
            "placement_id": one.placement_id,
            "chunk_id": one.chunk_id,
            "plan_id": plan_id,
            "region": one.region,
            "window_at": one.window_at,
            "g_per_kwh": one.g_per_kwh,
            "issued_at": one.issued_at,
            "reason": one.reason,
            "created_at": created_at,
            "signal": one.signal.value,
        }
        for one in placed
    ]
    tx.execute(insert(placements), rows)
    changes = [
        {
            "chunk": one.chunk_id,
            "to_region": one.region,
            "to_window": one.window_at,
            "placement": one.placement_id,
            "latest": one.latest_start_at,
        }
        for one in placed
    ]
    tx.execute(_PLACE, changes)

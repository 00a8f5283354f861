"""Rows of ``plans`` and ``placements``, and what a plan changes in ``chunks``. Each write is one batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import func, insert, select

from carbonq import ids
from carbonq.model import FINAL_JOB_STATES, ChunkState, Signal, Treatment
from carbonq.store.bulk import bound, update_columns
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_columns, is_any_of, machine_now
from carbonq.store.tables import attempts, chunks, forecasts, items, jobs, placements, plans

_OPEN = (ChunkState.WAITING.value, ChunkState.PLACED.value)


#: ``trigger`` of a plan that placed few new chunks beside the others, which it left where they were.
BESIDE = "new work, beside"


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
    trigger: str | None = None
    gap: float | None = None
    unplaced: int = 0
    at_once: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """Placements by column, all equally long; the last two (picograms a token, by book) empty where nobody asks."""

    chunk_id: list[str] = field(default_factory=list[str])
    region: list[str] = field(default_factory=list[str])
    window_at: list[datetime] = field(default_factory=list[datetime])
    g_per_kwh: list[Decimal | None] = field(default_factory=list["Decimal | None"])
    issued_at: list[datetime | None] = field(default_factory=list["datetime | None"])
    reason: list[str] = field(default_factory=list[str])
    impact_pg: list[int | None] = field(default_factory=list["int | None"])
    inventory_pg: list[int | None] = field(default_factory=list["int | None"])

    def __len__(self) -> int:
        """Count the placements."""
        return len(self.chunk_id)

    def take(self, rows: Iterable[int]) -> Placed:
        """Return some of them."""
        wanted = list(rows)
        return Placed(*([column[row] for row in wanted] if column else [] for column in self.columns()))  # pyright: ignore[reportArgumentType]

    def columns(self) -> tuple[Sequence[Any], ...]:
        """Return the columns in the order of the fields."""
        given = (self.chunk_id, self.region, self.window_at, self.g_per_kwh, self.issued_at, self.reason)
        return (*given, self.impact_pg, self.inventory_pg)


@dataclass(frozen=True, slots=True)
class Busy:
    """A chunk that holds a slot or will take the next: ``elapsed_s`` machine seconds since its claim, None before."""

    chunk_id: str
    region: str
    est_duration_s: float
    elapsed_s: float | None
    model: str = ""
    treatment: str = Treatment.PLANNED.value


def last_inputs(tx: Tx) -> str | None:
    """Return what the newest plan was made from."""
    return tx.execute(select(plans.c.inputs).order_by(plans.c.recorded_at.desc()).limit(1)).scalar_one_or_none()


def newest_forecast_id(tx: Tx, signal: Signal) -> int | None:
    """Return the number of the forecast that was stored last: it changes when one arrives, of whatever zone."""
    statement = select(forecasts.c.forecast_id).where(forecasts.c.signal == signal.value)
    # Backwards from the end, which finds one at once; grouping by zone would read all that are kept.
    return tx.execute(statement.order_by(forecasts.c.forecast_id.desc()).limit(1)).scalar_one_or_none()


def busy(tx: Tx, *, only_running: bool = False) -> list[Busy]:
    """Return the chunks that run, and those that have a ticket out; ``only_running`` finds its rows by the index."""
    now = machine_now(tx)
    running = chunks.outerjoin(
        attempts, (attempts.c.chunk_id == chunks.c.chunk_id) & (attempts.c.token == chunks.c.token)
    )
    is_running = chunks.c.state == ChunkState.RUNNING.value
    statement = (
        select(
            chunks.c.chunk_id,
            chunks.c.region,
            chunks.c.est_duration_s,
            chunks.c.state,
            chunks.c.model,
            chunks.c.treatment,
            attempts.c.machine_started_at,
        )
        .select_from(running)
        .where(
            chunks.c.state != ChunkState.DONE.value,
            is_running if only_running else is_running | chunks.c.dispatched_at.is_not(None),
            chunks.c.region.is_not(None),
        )
    )
    found: list[Busy] = []
    for row in tx.execute(statement):
        elapsed = None
        if row.state == ChunkState.RUNNING.value:
            elapsed = (now - row.machine_started_at).total_seconds() if row.machine_started_at is not None else 0.0
        treatment = row.treatment or Treatment.PLANNED.value
        found.append(Busy(row.chunk_id, row.region, row.est_duration_s, elapsed, row.model, treatment))
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


def count_placed(tx: Tx) -> int:
    """Count the chunks that have a place and do not run."""
    return tx.execute(select(func.count()).where(chunks.c.state == ChunkState.PLACED.value)).scalar_one()


def still_plannable(tx: Tx, chunk_ids: Sequence[str]) -> set[str]:
    """Lock the given chunks as far as they are waiting or placed with no ticket out, and return those."""
    statement = (
        select(chunks.c.chunk_id)
        .where(is_any_of(tx, chunks.c.chunk_id, chunk_ids))
        .where(chunks.c.state.in_(_OPEN), chunks.c.dispatched_at.is_(None))
        .order_by(chunks.c.chunk_id)  # one order for every locker: no deadlock
        .with_for_update()
    )
    return set(tx.execute(statement).scalars().all())


def add_plan(tx: Tx, plan: NewPlan) -> None:
    """Store a plan's row."""
    values = {name: getattr(plan, name) for name in NewPlan.__dataclass_fields__} | {"signal": plan.signal.value}
    tx.execute(insert(plans).values(**values, recorded_at=machine_now(tx)))


#: Which chunks may still be placed or moved; in SQL, for statements that bind by column.
_MAY_MOVE = "state IN ('waiting', 'placed') AND dispatched_at IS NULL"


def place(tx: Tx, plan_id: str, placed: Placed, *, created_at: datetime, signal: Signal) -> int:
    """Store placements and bring their chunks to them; return how many.

    Only of chunks that are waiting or placed with no ticket out; the others are left alone.
    """
    if not placed:
        return 0
    there = still_plannable(tx, placed.chunk_id)
    if len(there) < len(placed):
        placed = placed.take(row for row, chunk_id in enumerate(placed.chunk_id) if chunk_id in there)
    if not placed:
        return 0
    count = len(placed)
    names = ids.many("plc", count)
    values: dict[str, Sequence[Any]] = {
        "placement_id": names,
        "chunk_id": placed.chunk_id,
        "plan_id": [plan_id] * count,
        "region": placed.region,
        "window_at": placed.window_at,
        "g_per_kwh": placed.g_per_kwh,
        "issued_at": placed.issued_at,
        "reason": placed.reason,
        "created_at": [created_at] * count,
        "signal": [signal.value] * count,
    }
    insert_columns(tx, placements, {name: bound(tx, placements, name, column) for name, column in values.items()})
    changes: dict[str, Sequence[Any]] = {
        "chunk_id": placed.chunk_id,
        "region": placed.region,
        "window_at": placed.window_at,
        "placement_id": names,
    }
    if placed.impact_pg:
        changes |= {"impact_pg_per_token": placed.impact_pg, "inventory_pg_per_token": placed.inventory_pg}
    update_columns(tx, chunks, "chunk_id", changes, where=_MAY_MOVE, state=ChunkState.PLACED.value)
    return count


def set_latest_starts(tx: Tx, chunk_ids: Sequence[str], latest_start_at: Sequence[datetime]) -> None:
    """Set the latest safe starts of chunks that are waiting or placed with no ticket out."""
    still_plannable(tx, chunk_ids)  # locks them in the order of every locker
    values = {"chunk_id": chunk_ids, "latest_start_at": latest_start_at}
    update_columns(tx, chunks, "chunk_id", values, where=_MAY_MOVE)

"""Rows of ``shadows``: where chunks that are only observed would have run. Grid times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, literal, select

from carbonq.model import ChunkState, Signal
from carbonq.store import waiting
from carbonq.store.bulk import bound, update_columns
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_columns, is_any_of
from carbonq.store.placements import Placed
from carbonq.store.tables import chunks, shadows

#: No shadow holds its slot for longer.
_LONGEST = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class RunningShadow:
    """A shadow whose window has come: it would hold a slot of its region for so many more grid seconds."""

    region: str
    left_s: float


def movable(tx: Tx, now: datetime) -> waiting.Rows:
    """Return the chunks whose shadow's window has not come yet, placed where it is; rows for ``waiting.arrange``."""
    columns = waiting.columns(
        tx, region=shadows.c.region, window_at=shadows.c.window_at, state=literal(ChunkState.PLACED.value)
    )
    statement = (
        select(*columns)
        .select_from(shadows.join(chunks, chunks.c.chunk_id == shadows.c.chunk_id))
        .where(shadows.c.window_at > now)
    )
    return waiting.fetch(tx, statement)


def is_any_movable(tx: Tx, now: datetime) -> bool:
    """Say whether some shadow's window has not come yet."""
    return tx.execute(select(shadows.c.chunk_id).where(shadows.c.window_at > now).limit(1)).first() is not None


def running(tx: Tx, now: datetime) -> list[RunningShadow]:
    """Return the shadows that would run now."""
    statement = select(shadows.c.region, shadows.c.window_at, shadows.c.duration_s).where(
        shadows.c.window_at <= now, shadows.c.window_at > now - _LONGEST
    )
    found: list[RunningShadow] = []
    for region, at, duration_s in tx.execute(statement):
        left_s = duration_s - (now - at).total_seconds()
        if left_s > 0:
            found.append(RunningShadow(region, left_s))
    return found


def known(tx: Tx, chunk_ids: Sequence[str]) -> set[str]:
    """Return those of some chunks that have a shadow."""
    return set(tx.execute(select(shadows.c.chunk_id).where(is_any_of(tx, shadows.c.chunk_id, chunk_ids))).scalars())


def put(
    tx: Tx, plan_id: str, placed: Placed, duration_s: Sequence[float], *, created_at: datetime, signal: Signal
) -> None:
    """Put shadows where a plan has them; one whose window had come by ``created_at`` stays where it is."""
    if not placed:
        return
    count = len(placed)
    values: dict[str, Sequence[Any]] = {
        "chunk_id": placed.chunk_id,
        "plan_id": [plan_id] * count,
        "region": placed.region,
        "window_at": placed.window_at,
        "duration_s": duration_s,
        "g_per_kwh": placed.g_per_kwh,
        "issued_at": placed.issued_at,
        "signal": [signal.value] * count,
        "reason": placed.reason,
        "created_at": [created_at] * count,
    }
    (now,) = bound(tx, shadows, "created_at", [created_at])
    stamp = f"'{now}'" if isinstance(now, str) else f"'{now.isoformat()}'::timestamptz"
    update_columns(tx, shadows, "chunk_id", values, where=f"shadows.window_at > {stamp}")
    given = {name: bound(tx, shadows, name, column) for name, column in values.items()}
    insert_columns(tx, shadows, given, skip_existing=True)


def remove(tx: Tx, before: datetime) -> int:
    """Delete the shadows whose window was before a time; return how many."""
    return tx.execute(delete(shadows).where(shadows.c.window_at < before)).rowcount

"""The installation's clock: written at the first start, read by every process ever after."""

from __future__ import annotations

from sqlalchemy import insert, select

from carbonq.clock import ClockKind, GridClock
from carbonq.store.database import Tx
from carbonq.store.tables import clocks


def get(tx: Tx) -> GridClock | None:
    """Return the clock in force; None before the first start."""
    row = tx.execute(select(clocks).where(clocks.c.clock_id == 1)).one_or_none()
    if row is None:
        return None
    return GridClock(row.machine_epoch, row.grid_epoch, row.factor, ClockKind(row.kind))


def ensure(tx: Tx, first: GridClock) -> GridClock:
    """Write ``first`` unless a clock is there already, and return the one in force."""
    found = get(tx)
    if found is not None:
        return found
    tx.execute(
        insert(clocks).values(
            clock_id=1,
            kind=first.kind.value,
            factor=first.factor,
            machine_epoch=first.machine_epoch,
            grid_epoch=first.grid_epoch,
        )
    )
    return first

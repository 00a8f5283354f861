"""What waits and runs, by region, for figures to watch. Grid times, but for the ages of tickets (machine seconds)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, func, literal_column, select

from carbonq.model import ChunkState
from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.tables import chunks

#: Written out, or the partial indexes of open chunks would not be used.
_IS_OPEN = chunks.c.state != literal_column(f"'{ChunkState.DONE.value}'")
_WAITS = and_(_IS_OPEN, chunks.c.state != literal_column(f"'{ChunkState.RUNNING.value}'"))


@dataclass(frozen=True, slots=True)
class Depth:
    """Open chunks of a region (None: not placed) in a state, and the items in them."""

    region: str | None
    state: str
    chunks: int
    items: int


@dataclass(frozen=True, slots=True)
class Queue:
    """The open chunks. ``least_slack_s`` is the grid time until the first of those that wait must start at the latest.

    It is None where nothing waits and below 0 where it is too late; ``late`` counts the chunks of which that is so.
    Those that a budget holds back are in neither: they start when it lets them go, which its own figures tell of.
    ``unclaimed`` by region: tickets nobody took, and machine seconds since the oldest of them went out first.
    """

    depths: tuple[Depth, ...]
    least_slack_s: float | None
    late: int
    unclaimed: dict[str, tuple[int, float]]


def of(tx: Tx, now: datetime) -> Queue:
    """Return the open chunks as they are at grid time ``now``."""
    items = func.coalesce(func.sum(chunks.c.items_count), 0).label("held")
    depths = [
        Depth(row.region, row.state, int(row.number), int(row.held))
        for row in tx.execute(
            select(chunks.c.region, chunks.c.state, func.count().label("number"), items)
            .where(_IS_OPEN)
            .group_by(chunks.c.region, chunks.c.state)
        )
    ]
    may_start = and_(_WAITS, chunks.c.held_by.is_(None))
    first = tx.execute(select(func.min(chunks.c.latest_start_at)).where(may_start)).scalar_one()
    late = tx.execute(select(func.count()).where(may_start, chunks.c.latest_start_at < now)).scalar_one()
    machine = machine_now(tx)
    tickets = select(chunks.c.region, func.count().label("number"), func.min(chunks.c.ticket_at).label("at"))
    unclaimed = {
        row.region: (int(row.number), max(0.0, (machine - row.at) / timedelta(seconds=1)))
        for row in tx.execute(tickets.where(_WAITS, chunks.c.dispatched_at.is_not(None)).group_by(chunks.c.region))
        if row.at is not None
    }
    slack_s = None if first is None else (first - now) / timedelta(seconds=1)
    return Queue(tuple(depths), slack_s, int(late), unclaimed)

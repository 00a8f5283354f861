"""Workers that say that they live and take none of the tickets of their region. Times are machine times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select

from carbonq.model import ChunkState, Worker
from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.tables import chunks

#: How long a worker may leave tickets of its region alone, in machine seconds: tickets go out for free slots only.
DEAF_AFTER_S = 30.0

#: How often a ticket must have gone out: one that was lost with a broker is not a worker's fault.
SENDS = 3


@dataclass(frozen=True, slots=True)
class Deaf:
    """A worker that lives and takes nothing; ``since`` is when it should have begun to."""

    worker_id: str
    region: str
    host: str
    pid: int
    tickets: int
    since: datetime
    silent_s: float

    def __str__(self) -> str:
        """Say it in a sentence."""
        tickets = "1 ticket" if self.tickets == 1 else f"{self.tickets} tickets"
        return (
            f"worker {self.worker_id} (pid {self.pid} on {self.host}) says that it lives and has taken none of the "
            f"{tickets} of region {self.region} for {self.silent_s:.0f} s; restart it"
        )


def find(tx: Tx, alive: Sequence[Worker]) -> list[Deaf]:
    """Return those of the live workers that left tickets of their region alone for ``DEAF_AFTER_S``, by region."""
    tickets = {
        row.region: (row.first_at, row.tickets)
        for row in tx.execute(
            select(chunks.c.region, func.min(chunks.c.ticket_at).label("first_at"), func.count().label("tickets"))
            .where(
                chunks.c.state.in_((ChunkState.WAITING.value, ChunkState.PLACED.value)),
                chunks.c.dispatched_at.is_not(None),
                chunks.c.tickets_sent >= SENDS,
            )
            .group_by(chunks.c.region)
        )
    }
    if not tickets:
        return []
    now = machine_now(tx)
    found: list[Deaf] = []
    for worker in alive:
        if worker.region not in tickets:
            continue
        first_at, count = tickets[worker.region]
        since = max(first_at, worker.started_at, worker.last_claimed_at or first_at)
        if now - since >= timedelta(seconds=DEAF_AFTER_S):
            silent_s = (now - since).total_seconds()
            found.append(Deaf(worker.worker_id, worker.region, worker.host, worker.pid, count, since, silent_s))
    return sorted(found, key=lambda one: (one.region, one.worker_id))


def regions_of(tx: Tx, alive: Sequence[Worker]) -> frozenset[str]:
    """Return the regions that have live workers all of which are deaf."""
    found = {one.worker_id for one in find(tx, alive)}
    hearing = {worker.region for worker in alive if worker.worker_id not in found}
    return frozenset({worker.region for worker in alive} - hearing)

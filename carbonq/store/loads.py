"""What was accepted and waits, summed up by the database: chunks with no ticket out, and jobs that are not cut yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Text, cast, func, select

from carbonq.model import ChunkState
from carbonq.store.database import Tx
from carbonq.store.tables import chunks, jobs


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Work alike in model, regions (JSON; None: all) and deadline; ``duration_s`` is machine seconds on one slot.

    ``chunks`` 0: a job that is not cut yet, of which only the tokens are known.
    """

    model: str
    regions: str | None
    deadline_at: datetime
    tokens: int
    chunks: int
    duration_s: float


def open_work(tx: Tx) -> list[OpenWork]:
    """Return it all; one row for each deadline there is."""
    alike = (chunks.c.model, cast(chunks.c.regions, Text), chunks.c.deadline_at)
    cut = (
        select(*alike, func.sum(chunks.c.est_tokens), func.count(), func.sum(chunks.c.est_duration_s))
        .where(chunks.c.state.in_((ChunkState.WAITING, ChunkState.PLACED)), chunks.c.dispatched_at.is_(None))
        .group_by(*alike)
    )
    whole = select(jobs.c.model, cast(jobs.c.regions, Text), jobs.c.deadline_at, jobs.c.est_tokens).where(
        jobs.c.finished_at.is_(None), jobs.c.is_chunked.is_(False)
    )
    found = [
        OpenWork(model, regions, at, int(tokens), count, float(seconds))
        for model, regions, at, tokens, count, seconds in tx.execute(cut)
    ]
    return found + [OpenWork(model, regions, at, tokens, 0, 0.0) for model, regions, at, tokens in tx.execute(whole)]

"""Take chunks from workers that fell silent: book what they last reported, and let others run the rest.

A chunk that used up its attempts is cut in two; an item that is alone by then fails, since it takes workers down.
Idempotent: each lease is reaped once, in one transaction with its consequences.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from carbonq import retry
from carbonq.booking import Fact
from carbonq.clock import Clock
from carbonq.model import AttemptOutcome, Chunk, ItemState, Model
from carbonq.ratebook import RateBook
from carbonq.services import burnt
from carbonq.services.apart import halved
from carbonq.store import events, jobs, leases, regions
from carbonq.store import items as item_rows
from carbonq.store import ledger as ledger_rows
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now
from carbonq.store.leases import Expired

logger = logging.getLogger(__name__)

#: Chunks reaped in one transaction.
BATCH = 20

#: Chunks that may go wrong in one run before no more are tried.
MAX_DEFECTS = 20


def reap(
    db: Database,
    clock: Clock,
    *,
    rates: Callable[[], RateBook],
    models: Mapping[str, Model],
    max_attempts: int,
    recorded_by: str,
) -> int:
    """Reap every lease that has ended and return how many.

    Raises StoreUnavailable, and the first of what else went wrong with a chunk, once the others were reaped.
    """

    def take(names: Sequence[str]) -> int:
        with db.write() as tx:
            lost = leases.expired(tx, among=names)
            for one in lost:
                _book(tx, one, rates(), models, recorded_by)
                _return(tx, one.chunk, clock, max_attempts)
        return len(lost)

    with db.read() as tx:
        ended = leases.expired_ids(tx)
    defects: dict[str, Exception] = {}
    groups = (ended[start : start + BATCH] for start in range(0, len(ended), BATCH))
    reaped = sum(halved(group, take, defects, most=MAX_DEFECTS) for group in groups)
    for defect in defects.values():
        raise defect
    return reaped


def _book(tx: Tx, one: Expired, rates: RateBook, models: Mapping[str, Model], recorded_by: str) -> None:
    for wasted in burnt.from_json(one.pending):
        region = regions.find(tx, wasted.region)
        if region is None:
            logger.error("energy of engine batch %s not booked: no region %s", wasted.engine_batch_id, wasted.region)
            continue
        booking = burnt.book_wasted(
            wasted,
            rates,
            fact=Fact.of(region),
            models=models,
            chunk_id=one.chunk.chunk_id,
            attempt=one.chunk.attempt,
            recorded_at=machine_now(tx),
            recorded_by=recorded_by,
            outcome=AttemptOutcome.LOST.value,
        )
        ledger_rows.insert_booking(tx, booking)


def _return(tx: Tx, chunk: Chunk, clock: Clock, max_attempts: int) -> None:
    now = clock.now()
    reason = f"worker {chunk.worker_id} fell silent"
    logger.warning("chunk %s reaped in attempt %d: %s", chunk.chunk_id, chunk.attempt, reason)
    leases.end_attempt(tx, chunk.chunk_id, chunk.token, AttemptOutcome.LOST, now=now, error=reason)
    data = {"chunk_id": chunk.chunk_id, "attempt": chunk.attempt, "worker_id": chunk.worker_id}
    events.append_many(tx, [events.NewEvent("chunk.lost", now, tenant=chunk.tenant, data=data)])
    if chunk.attempt < max_attempts:
        leases.release(tx, chunk.chunk_id, is_counted=True, now=now, error=reason)
        return
    items = item_rows.of_chunk(tx, chunk.chunk_id)
    if len(items) > 1:
        # Each half gets one attempt, then it is cut again: the poison is found in log2(items) steps.
        leases.split(tx, chunk.chunk_id, attempt=max_attempts - 1, now=now)
        return
    for item in items:
        item_rows.end_many(tx, [item.item_id], ItemState.FAILED, at=now, error_code=retry.ATTEMPTS_EXHAUSTED)
        jobs.bump(tx, item.job_id, failed=1)
    leases.release(tx, chunk.chunk_id, is_counted=True, now=now, error=reason)

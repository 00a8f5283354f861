"""Take a batch, once however often a client repeats itself, and cancel it. What follows is a tick's work.

``validate`` reads the input and makes the jobs; ``finish_batches`` assembles the files. Times are grid times unless
they are called machine times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from carbonq import ids, terms
from carbonq.clock import Clock
from carbonq.errors import Conflict, InvalidRequest
from carbonq.model import Endpoint, Quota
from carbonq.services import hold, quota
from carbonq.store import batches, events, files
from carbonq.store.batches import Batch, BatchState, Origin
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now, serialise
from carbonq.store.events import NewEvent
from carbonq.terms import Terms

#: How long a client's repeated request stands for the batch that an earlier try made, in machine time.
RETRIES_FOR = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What a client asks for, its shape checked; ``expires_at`` is the deadline."""

    tenant: str
    api_key_id: str | None
    endpoint: Endpoint
    input_file_id: str
    completion_window: str
    expires_at: datetime
    terms: Terms
    metadata: Mapping[str, str] | None = None
    output_expires_after_s: int | None = None
    trace_context: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """How it was asked for: ``fingerprint`` of the body, which try of the client's, how many seconds ago it came in."""

    fingerprint: str
    retry_count: int = 0
    idempotency_key: str | None = None
    came_s_ago: float = 0.0


def create(
    db: Database, new: NewBatch, request: Request, clock: Clock, *, limits: Quota = quota.UNLIMITED
) -> tuple[Batch, bool]:
    """Store a batch whose input is still to be read, and return it; False: an earlier request's came back.

    Raises NotFound for an input file that is not there, InvalidRequest for one of another purpose or an idempotency
    key that stands for another request or a tenant that is draining, QuotaExceeded where its lines alone are too many,
    StoreUnavailable.
    """
    now = clock.now()
    with db.write() as tx:
        # Two tries of one request may run side by side, and neither has a row to lock.
        serialise(tx, f"batch {new.tenant} {request.fingerprint}")
        machine_at = machine_now(tx)
        first = _first_of(tx, new, request, machine_at)
        if first is not None:
            return first, False
        file = files.get(tx, new.input_file_id, new.tenant, now, is_locked=True)
        if file.purpose != "batch":
            raise InvalidRequest(
                f"file {file.file_id} is for {file.purpose}; upload the requests with purpose batch",
                param="input_file_id",
            )
        refused = hold.refusal(tx, new.tenant, "")
        if refused is not None:
            raise refused
        # Kept only when its jobs are stored; said here because a client waits here.
        quota.check(
            tx,
            new.tenant,
            items=file.lines,
            input_bytes=file.bytes,
            tokens=file.lines,  # at the least: one each
            now=now,
            limits=quota.limits_of(tx, new.tenant, limits),
            factor=clock.factor,
        )
        batch = _new(new, now)
        origin = Origin(machine_at, request.fingerprint, request.retry_count, request.idempotency_key)
        try:
            batches.insert_batch(tx, batch, origin)
        except Conflict:  # another request with this key came at the same moment, and was first
            again = _first_of(tx, new, request, machine_at)
            if again is None:
                raise
            return again, False
    return batch, True


def _first_of(tx: Tx, new: NewBatch, request: Request, machine_at: datetime) -> Batch | None:
    """Return the batch that this request has made already."""
    if request.idempotency_key is not None:
        repeated = batches.find_repeated(tx, new.tenant, request.idempotency_key)
        if repeated is not None and repeated[1] != request.fingerprint:
            raise InvalidRequest(
                f"Idempotency-Key was used for batch {repeated[0].batch_id} with another body; use a fresh key",
                param="Idempotency-Key",
                code="idempotency_key_reused",
            )
        return None if repeated is None else repeated[0]
    if request.retry_count > 0:
        return batches.find_same(tx, new.tenant, new.api_key_id, request.fingerprint, machine_at - RETRIES_FOR)
    # A retry that overtook this first try: its client has given this one up, and must not get two batches.
    came_at = machine_at - timedelta(seconds=request.came_s_ago)
    return batches.find_same(tx, new.tenant, new.api_key_id, request.fingerprint, came_at, is_retry=True)


def _new(new: NewBatch, now: datetime) -> Batch:
    return Batch(
        batch_id=ids.new("batch"),
        tenant=new.tenant,
        api_key_id=new.api_key_id,
        state=BatchState.VALIDATING,
        endpoint=new.endpoint,
        model=None,
        input_file_id=new.input_file_id,
        completion_window=new.completion_window,
        metadata=None if new.metadata is None else dict(new.metadata),
        terms=terms.dump(new.terms),
        output_expires_after_s=new.output_expires_after_s,
        errors=None,
        items_total=None,
        output_file_id=None,
        error_file_id=None,
        usage=None,
        created_at=now,
        expires_at=new.expires_at,
        trace_context=new.trace_context,
    )


def cancel(db: Database, batch_id: str, tenant: str, clock: Clock) -> Batch:
    """Cancel what of a batch has not run, and return it; what has ended stays, and a final batch is unchanged.

    Its items are ended by the next ``expire`` tick, its files made by ``finish``. Idempotent. Raises NotFound,
    StoreUnavailable.
    """
    now = clock.now()
    with db.write() as tx:
        batches.get(tx, batch_id, tenant)
        if batches.request_cancel(tx, batch_id, now):
            asked = batches.cancel_jobs(tx, batch_id)
            events.append_many(tx, [NewEvent("job.cancelling", now, tenant, job_id) for job_id in asked])
        return batches.get(tx, batch_id)

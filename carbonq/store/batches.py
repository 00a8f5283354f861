"""Rows of ``batches``: what the OpenAI edge calls its jobs by. Every change names the states it leaves.

Times are grid times unless the name says ``machine``. Counts are those of its jobs, which carry the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import and_, exists, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from carbonq.errors import Conflict, InvalidRequest, NotFound
from carbonq.model import Endpoint, JobState
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.tables import batches, jobs


class BatchState(StrEnum):
    """A batch's states, as OpenAI names them."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Batch:
    """A stored batch. ``terms`` as ``terms.dump`` wrote them; ``errors`` are objects with code, line, message, param.

    ``model`` and ``items_total`` are None until its input was read, ``usage`` (tokens by kind) until it is final.
    ``trace_context`` is the span of its create, where that was traced.
    """

    batch_id: str
    tenant: str
    api_key_id: str | None
    state: BatchState
    endpoint: Endpoint
    model: str | None
    input_file_id: str
    completion_window: str
    metadata: Mapping[str, str] | None
    terms: Mapping[str, Any]
    output_expires_after_s: int | None
    errors: Sequence[Mapping[str, Any]] | None
    items_total: int | None
    output_file_id: str | None
    error_file_id: str | None
    usage: Mapping[str, Any] | None
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None = None
    finalizing_at: datetime | None = None
    cancelling_at: datetime | None = None
    finished_at: datetime | None = None
    trace_context: str | None = None

    @property
    def is_final(self) -> bool:
        """Say whether nothing more will happen to this batch."""
        return self.finished_at is not None


@dataclass(frozen=True, slots=True)
class Origin:
    """Which request made a batch: ``fingerprint`` of its body and key, ``retry_count`` 0 for a client's first try."""

    machine_created_at: datetime
    fingerprint: str
    retry_count: int = 0
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch's jobs are together.

    ``is_started``: some part of it ran or runs; ``progress_at``: machine time when an event told of progress last.
    """

    jobs: int = 0
    total: int = 0
    succeeded: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    is_started: bool = False
    infeasible: str | None = None
    progress_at: datetime | None = None

    @property
    def ended(self) -> int:
        """Count the items in a final state."""
        return self.succeeded + self.failed + self.expired + self.cancelled


_COLUMNS = tuple(batches.c[name] for name in Batch.__dataclass_fields__)


def _batch(row: Mapping[Any, Any]) -> Batch:
    values: dict[str, Any] = dict(row)
    values["state"], values["endpoint"] = BatchState(values["state"]), Endpoint(values["endpoint"])
    return Batch(**values)


def insert_batch(tx: Tx, batch: Batch, origin: Origin) -> None:
    """Store a new batch. Raises Conflict when the tenant used the idempotency key before; the transaction lives on."""
    values = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
    made_by = {name: getattr(origin, name) for name in Origin.__dataclass_fields__}
    try:
        with tx.begin_nested():
            tx.execute(insert(batches).values(**values, **made_by))
    except IntegrityError as error:
        raise Conflict(f"idempotency key {origin.idempotency_key!r} stands for another batch already") from error


def find(tx: Tx, batch_id: str, tenant: str | None = None) -> Batch | None:
    """Return a batch, of any tenant when ``tenant`` is None; None when there is no such batch."""
    statement = select(*_COLUMNS).where(batches.c.batch_id == batch_id)
    if tenant is not None:
        statement = statement.where(batches.c.tenant == tenant)
    row = tx.execute(statement).mappings().one_or_none()
    return None if row is None else _batch(row)


def get(tx: Tx, batch_id: str, tenant: str | None = None) -> Batch:
    """Return a batch, of any tenant when ``tenant`` is None. Raises NotFound, also for another tenant's batch."""
    batch = find(tx, batch_id, tenant)
    if batch is None:
        raise NotFound(f"there is no batch {batch_id!r}; GET /v1/batches lists yours")
    return batch


def lock(tx: Tx, batch_id: str) -> Batch:
    """Return a batch and keep others from changing its row until the transaction ends. Raises NotFound."""
    tx.execute(select(batches.c.batch_id).where(batches.c.batch_id == batch_id).with_for_update())
    return get(tx, batch_id)


def find_repeated(tx: Tx, tenant: str, idempotency_key: str) -> tuple[Batch, str] | None:
    """Return the batch a tenant's idempotency key stands for, and the fingerprint of its request."""
    statement = select(*_COLUMNS, batches.c.fingerprint).where(
        batches.c.tenant == tenant, batches.c.idempotency_key == idempotency_key
    )
    row = tx.execute(statement).mappings().one_or_none()
    if row is None:
        return None
    values = dict(row)
    fingerprint = values.pop("fingerprint")
    return _batch(values), fingerprint


def find_same(
    tx: Tx,
    tenant: str,
    api_key_id: str | None,
    fingerprint: str,
    machine_since: datetime,
    *,
    is_retry: bool = False,
) -> Batch | None:
    """Return the newest batch that a key made with the same body since a machine time.

    ``is_retry``: only one that a client's second or later try made.
    """
    statement = select(*_COLUMNS).where(
        batches.c.fingerprint == fingerprint,
        batches.c.tenant == tenant,
        batches.c.api_key_id.is_(None) if api_key_id is None else batches.c.api_key_id == api_key_id,
        batches.c.machine_created_at >= machine_since,
    )
    if is_retry:
        statement = statement.where(batches.c.retry_count > 0)
    row = tx.execute(statement.order_by(batches.c.machine_created_at.desc()).limit(1)).mappings().one_or_none()
    return None if row is None else _batch(row)


def page(tx: Tx, tenant: str, after: str | None, limit: int) -> list[Batch]:
    """Return a tenant's batches, newest first, beginning after the batch ``after``.

    Raises InvalidRequest for an unknown ``after``.
    """
    statement = select(*_COLUMNS).where(batches.c.tenant == tenant).limit(limit)
    if after is not None:
        last = find(tx, after, tenant)
        if last is None:
            raise InvalidRequest(
                f"after: there is no batch {after!r}; pass the last id of the page before", param="after"
            )
        statement = statement.where(
            or_(
                batches.c.created_at < last.created_at,
                and_(batches.c.created_at == last.created_at, batches.c.batch_id < last.batch_id),
            )
        )
    ordered = statement.order_by(batches.c.created_at.desc(), batches.c.batch_id.desc())
    return [_batch(row) for row in tx.execute(ordered).mappings()]


def validating(tx: Tx, limit: int) -> list[str]:
    """Return the batches whose input waits to be read: the oldest of each tenant, then the next of each, and so on."""
    turn = func.row_number().over(partition_by=batches.c.tenant, order_by=(batches.c.created_at, batches.c.batch_id))
    waiting = (
        select(batches.c.batch_id)
        .where(batches.c.finished_at.is_(None), batches.c.state == BatchState.VALIDATING)
        .order_by(turn, batches.c.created_at, batches.c.batch_id)
    )
    return list(tx.execute(waiting.limit(limit)).scalars())


def start(tx: Tx, batch_id: str, *, model: str, items_total: int, expires_at: datetime, at: datetime) -> bool:
    """Move a batch from validating to in progress; False when it is not validating any more.

    ``expires_at`` is the last of its lines' deadlines.
    """
    statement = (
        update(batches)
        .where(batches.c.batch_id == batch_id, batches.c.state == BatchState.VALIDATING)
        .values(
            state=BatchState.IN_PROGRESS, model=model, items_total=items_total, expires_at=expires_at, in_progress_at=at
        )
    )
    return tx.execute(statement).rowcount == 1


def fail(
    tx: Tx,
    batch_id: str,
    errors: Sequence[Mapping[str, Any]],
    *,
    leaving: BatchState,
    at: datetime,
    model: str | None = None,
    items_total: int | None = None,
) -> bool:
    """Move a batch from ``leaving`` to failed; False when it is not there any more."""
    values: dict[str, Any] = {"state": BatchState.FAILED, "errors": [dict(one) for one in errors], "finished_at": at}
    if leaving is BatchState.VALIDATING:
        values |= {"model": model, "items_total": items_total}
    else:
        values |= {"output_file_id": None, "error_file_id": None}
    statement = update(batches).where(batches.c.batch_id == batch_id, batches.c.state == leaving)
    return tx.execute(statement.values(**values)).rowcount == 1


def request_cancel(tx: Tx, batch_id: str, at: datetime) -> bool:
    """Move a batch to cancelling, with its jobs; False when it is past that, or was asked before."""
    statement = (
        update(batches)
        .where(
            batches.c.batch_id == batch_id,
            batches.c.state.in_((BatchState.VALIDATING, BatchState.IN_PROGRESS)),
        )
        .values(state=BatchState.CANCELLING, cancelling_at=at)
    )
    return tx.execute(statement).rowcount == 1


def cancel_jobs(tx: Tx, batch_id: str) -> list[str]:
    """Ask for the end of a batch's open jobs; return those that were not asked before."""
    # In one order everywhere, or a checkpoint that shares these jobs and this lock each other out.
    mine = select(jobs.c.job_id).where(jobs.c.batch_id == batch_id).order_by(jobs.c.job_id)
    tx.execute(mine.with_for_update()).all()
    statement = (
        update(jobs)
        .where(
            jobs.c.batch_id == batch_id,
            jobs.c.state.in_((JobState.WAITING, JobState.RUNNING)),
            jobs.c.is_cancel_requested.is_(False),
        )
        .values(is_cancel_requested=True)
        .returning(jobs.c.job_id)
    )
    return sorted(tx.execute(statement).scalars())


def ended(tx: Tx) -> list[str]:
    """Return open batches without an open job, oldest first: their files are due."""
    has_open_job = exists().where(jobs.c.batch_id == batches.c.batch_id, jobs.c.finished_at.is_(None))
    statement = select(batches.c.batch_id).where(
        batches.c.finished_at.is_(None), batches.c.state != BatchState.VALIDATING, ~has_open_job
    )
    return list(tx.execute(statement.order_by(batches.c.created_at, batches.c.batch_id)).scalars())


def mark_finalizing(
    tx: Tx, batch_id: str, *, output_file_id: str | None, error_file_id: str | None, at: datetime
) -> None:
    """Note which files an open batch gets, and move it from in progress to finalizing; cancelling ones stay so."""
    mine = batches.c.batch_id == batch_id
    tx.execute(
        update(batches)
        .where(mine, batches.c.finished_at.is_(None), batches.c.finalizing_at.is_(None))
        .values(finalizing_at=at, output_file_id=output_file_id, error_file_id=error_file_id)
    )
    tx.execute(
        update(batches).where(mine, batches.c.state == BatchState.IN_PROGRESS).values(state=BatchState.FINALIZING)
    )


def finish(
    tx: Tx,
    batch_id: str,
    state: BatchState,
    *,
    errors: Sequence[Mapping[str, Any]] | None,
    usage: Mapping[str, Any] | None,
    at: datetime,
) -> bool:
    """Move a batch from finalizing or cancelling to a final state; False when another process has done so."""
    statement = (
        update(batches)
        .where(
            batches.c.batch_id == batch_id,
            batches.c.state.in_((BatchState.FINALIZING, BatchState.CANCELLING)),
            batches.c.finished_at.is_(None),
        )
        .values(
            state=state,
            errors=None if errors is None else [dict(one) for one in errors],
            usage=None if usage is None else dict(usage),
            finished_at=at,
        )
    )
    return tx.execute(statement).rowcount == 1


def retire_jobs(tx: Tx, batch_id: str, at: datetime) -> None:
    """Put the files of a batch's jobs out of reach: those of the batch hold the same lines."""
    tx.execute(update(jobs).where(jobs.c.batch_id == batch_id).values(retired_at=at, output_blob=None, error_blob=None))


def job_ids(tx: Tx, batch_id: str) -> list[str]:
    """Return the jobs of a batch in the order they were made."""
    statement = select(jobs.c.job_id).where(jobs.c.batch_id == batch_id)
    return list(tx.execute(statement.order_by(jobs.c.created_at, jobs.c.job_id)).scalars())


def progress(tx: Tx, batch_ids: Sequence[str]) -> dict[str, Progress]:
    """Return how far batches are, by id; those without jobs are left out."""
    names = ("items_total", "items_succeeded", "items_failed", "items_expired", "items_cancelled")
    statement = (
        select(
            jobs.c.batch_id,
            func.count(),
            *(func.sum(jobs.c[name]) for name in names),
            func.count(jobs.c.started_at),
            func.min(jobs.c.infeasible),
            func.max(jobs.c.progress_at),
        )
        .where(is_any_of(tx, jobs.c.batch_id, sorted(batch_ids)))
        .group_by(jobs.c.batch_id)
    )
    found: dict[str, Progress] = {}
    for row in tx.execute(statement):
        values: tuple[Any, ...] = tuple(row)
        batch_id, *counts, started, infeasible, progress_at = values
        made = Progress(
            *(int(count) for count in counts), is_started=started > 0, infeasible=infeasible, progress_at=progress_at
        )
        found[batch_id] = made
    return found

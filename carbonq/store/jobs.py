"""Rows of ``jobs``: what clients submitted and how far it has come. Every change names the states it leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, func, insert, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from carbonq.errors import Conflict, InvalidRequest, NotFound
from carbonq.model import Endpoint, Job, JobState, LatePolicy, Treatment
from carbonq.store import bulk, holds
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_columns, is_any_of, machine_now
from carbonq.store.tables import jobs

#: What ``Job`` holds; the other columns are only asked about, never shown.
_COLUMNS = tuple(jobs.c[name] for name in Job.__dataclass_fields__)

_OPEN = (JobState.WAITING, JobState.RUNNING, JobState.FINISHING)


@dataclass(frozen=True, slots=True)
class Ended:
    """How many items of one job ended, and how."""

    succeeded: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0


def _job(row: Mapping[Any, Any]) -> Job:
    values: dict[str, Any] = dict(row)
    values["endpoint"] = Endpoint(values["endpoint"])
    values["state"] = JobState(values["state"])
    values["late_policy"] = LatePolicy(values["late_policy"])
    values["treatment"] = Treatment(values["treatment"] or Treatment.PLANNED)
    values["regions"] = None if values["regions"] is None else tuple(values["regions"])
    return Job(**values)


def insert_job(
    tx: Tx,
    job: Job,
    *,
    source: str,
    machine_created_at: datetime,
    idempotency_key: str | None = None,
    body_fingerprint: str | None = None,
    trace_context: str | None = None,
) -> None:
    """Store a new job. Raises Conflict when the tenant used the idempotency key before; the transaction lives on."""
    values = {name: getattr(job, name) for name in Job.__dataclass_fields__}
    values["regions"] = None if job.regions is None else list(job.regions)
    values["metadata"] = dict(job.metadata)
    statement = insert(jobs).values(
        **values,
        source=source,
        is_chunked=False,
        machine_created_at=machine_created_at,
        idempotency_key=idempotency_key,
        body_fingerprint=body_fingerprint,
        trace_context=trace_context,
    )
    try:
        with tx.begin_nested():
            tx.execute(statement)
    except IntegrityError as error:
        raise Conflict(f"idempotency key {idempotency_key!r} stands for another job already") from error


@dataclass(frozen=True, slots=True)
class NewRow:
    """A job to be stored, with what is only asked about and never shown."""

    job: Job
    source: str
    idempotency_key: str | None = None
    body_fingerprint: str | None = None
    trace_context: str | None = None


def insert_many(tx: Tx, new: Sequence[NewRow], *, machine_created_at: datetime) -> None:
    """Store new jobs in one statement.

    Raises Conflict when one of their idempotency keys was used before: the transaction is lost then.
    """
    values: dict[str, list[Any]] = {name: [getattr(row.job, name) for row in new] for name in Job.__dataclass_fields__}
    # Enumerations are texts with a name, and the drivers would take the name.
    for name in ("endpoint", "late_policy", "state", "treatment"):
        values[name] = [str(value) for value in values[name]]
    values["regions"] = [None if regions is None else list(regions) for regions in values["regions"]]
    values["metadata"] = [dict(metadata) for metadata in values["metadata"]]
    values["source"] = [row.source for row in new]
    values["idempotency_key"] = [row.idempotency_key for row in new]
    values["body_fingerprint"] = [row.body_fingerprint for row in new]
    values["trace_context"] = [row.trace_context for row in new]
    values["machine_created_at"] = [machine_created_at] * len(new)
    values["is_chunked"] = [False] * len(new)
    given = {name: bulk.bound(tx, jobs, name, column) for name, column in values.items()}
    try:
        insert_columns(tx, jobs, given)
    except IntegrityError as error:
        raise Conflict("an idempotency key of these jobs stands for another one already") from error


def find(tx: Tx, job_id: str, tenant: str | None = None) -> Job | None:
    """Return a job, of any tenant when ``tenant`` is None; None when there is no such job."""
    statement = select(*_COLUMNS).where(jobs.c.job_id == job_id)
    if tenant is not None:
        statement = statement.where(jobs.c.tenant == tenant)
    row = tx.execute(statement).mappings().one_or_none()
    return None if row is None else _job(row)


def get(tx: Tx, job_id: str, tenant: str | None = None) -> Job:
    """Return a job, of any tenant when ``tenant`` is None. Raises NotFound, also for another tenant's job."""
    job = find(tx, job_id, tenant)
    if job is None:
        raise NotFound(f"there is no job {job_id!r}; `carbonq jobs list` shows yours")
    return job


def final_among(tx: Tx, job_ids: Collection[str]) -> set[str]:
    """Return which of some jobs are final."""
    statement = select(jobs.c.job_id).where(
        is_any_of(tx, jobs.c.job_id, sorted(job_ids)), jobs.c.finished_at.is_not(None)
    )
    return set(tx.execute(statement).scalars())


def find_repeated(tx: Tx, tenant: str, idempotency_key: str) -> tuple[Job, str | None] | None:
    """Return the job a tenant's idempotency key stands for, and the fingerprint of its request."""
    statement = select(*_COLUMNS, jobs.c.body_fingerprint).where(
        jobs.c.tenant == tenant, jobs.c.idempotency_key == idempotency_key
    )
    row = tx.execute(statement).mappings().one_or_none()
    if row is None:
        return None
    values = dict(row)
    fingerprint = values.pop("body_fingerprint")
    return _job(values), fingerprint


def find_all_repeated(tx: Tx, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[Job, str | None]]:
    """Return what ``find_repeated`` would for each (tenant, idempotency key) that stands for a job, in one query."""
    statement = select(*_COLUMNS, jobs.c.body_fingerprint, jobs.c.idempotency_key).where(
        tuple_(jobs.c.tenant, jobs.c.idempotency_key).in_(sorted(keys))
    )
    found: dict[tuple[str, str], tuple[Job, str | None]] = {}
    for row in tx.execute(statement).mappings():
        values = dict(row)
        key, fingerprint = values.pop("idempotency_key"), values.pop("body_fingerprint")
        found[values["tenant"], key] = (_job(values), fingerprint)
    return found


def page(
    tx: Tx, tenant: str | None, after: str | None = None, limit: int = 20, *, states: Sequence[JobState] = ()
) -> list[Job]:
    """Return a tenant's jobs, newest first, beginning after the job ``after``.

    Ask for one more than is shown to know whether there are more. Raises InvalidRequest for an unknown ``after``.
    """
    statement = select(*_COLUMNS).order_by(jobs.c.created_at.desc(), jobs.c.job_id.desc()).limit(limit)
    if tenant is not None:
        statement = statement.where(jobs.c.tenant == tenant)
    if states:
        statement = statement.where(jobs.c.state.in_(list(states)))
    if after is not None:
        last = find(tx, after, tenant)
        if last is None:
            raise InvalidRequest(
                f"after: there is no job {after!r}; pass the last id of the page before", param="after"
            )
        statement = statement.where(
            or_(
                jobs.c.created_at < last.created_at,
                and_(jobs.c.created_at == last.created_at, jobs.c.job_id < last.job_id),
            )
        )
    return [_job(row) for row in tx.execute(statement).mappings()]


def open_jobs(tx: Tx) -> list[Job]:
    """Return every job that is not final, oldest first."""
    statement = select(*_COLUMNS).where(jobs.c.finished_at.is_(None), jobs.c.state.in_(_OPEN))
    return [_job(row) for row in tx.execute(statement.order_by(jobs.c.created_at, jobs.c.job_id)).mappings()]


def next_due(tx: Tx, tenant: str, limit: int) -> list[Job]:
    """Return a tenant's jobs that are not final, nearest deadline first."""
    statement = select(*_COLUMNS).where(jobs.c.tenant == tenant, jobs.c.finished_at.is_(None))
    statement = statement.order_by(jobs.c.deadline_at, jobs.c.job_id).limit(limit)
    return [_job(row) for row in tx.execute(statement).mappings()]


def newest_inputs(tx: Tx, limit: int) -> list[str]:
    """Return the input blobs of the newest jobs whose files are kept."""
    # By the id, which begins with the time: its index needs no look at older jobs.
    kept = select(jobs.c.input_blob).where(jobs.c.retired_at.is_(None)).order_by(jobs.c.job_id.desc())
    return list(tx.execute(kept.limit(limit)).scalars())


def unchunked(tx: Tx) -> list[tuple[Job, datetime]]:
    """Return open jobs to be cut into chunks, oldest first, with the machine time they came; none that is paused."""
    statement = (
        select(*_COLUMNS, jobs.c.machine_created_at)
        .where(jobs.c.finished_at.is_(None), jobs.c.is_chunked.is_(False), holds.job_may_run())
        .order_by(jobs.c.created_at, jobs.c.job_id)
    )
    found: list[tuple[Job, datetime]] = []
    for row in tx.execute(statement).mappings():
        values = dict(row)
        came_at: datetime = values.pop("machine_created_at")
        found.append((_job(values), came_at))
    return found


def take_unchunked(tx: Tx, job_ids: Sequence[str]) -> set[str]:
    """Mark jobs as chunked and return those that were not before; the caller's transaction chunks them."""
    statement = (
        update(jobs)
        .where(is_any_of(tx, jobs.c.job_id, sorted(job_ids)), jobs.c.is_chunked.is_(False))
        .values(is_chunked=True)
        .returning(jobs.c.job_id)
    )
    return set(tx.execute(statement).scalars())


def mark_running(tx: Tx, job_ids: Sequence[str], at: datetime) -> list[str]:
    """Move waiting jobs to running and return them; does nothing to jobs in another state."""
    statement = (
        update(jobs)
        .where(is_any_of(tx, jobs.c.job_id, sorted(job_ids)), jobs.c.state == JobState.WAITING)
        .values(state=JobState.RUNNING, started_at=at)
        .returning(jobs.c.job_id)
    )
    return sorted(tx.execute(statement).scalars())


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of a job's items have ended, and how."""

    job_id: str
    tenant: str
    total: int
    succeeded: int
    failed: int
    expired: int
    cancelled: int


_PROGRESS = (
    *(jobs.c.job_id, jobs.c.tenant, jobs.c.items_total, jobs.c.items_succeeded, jobs.c.items_failed),
    *(jobs.c.items_expired, jobs.c.items_cancelled),
)


def due_progress(tx: Tx, job_ids: Sequence[str], *, period_s: float) -> list[Progress]:
    """Return the progress of those jobs of which nothing was told for so many machine seconds; they count as told.

    None whose items have all ended: that is told when it is final.
    """
    now = machine_now(tx)
    is_due = or_(jobs.c.progress_at.is_(None), jobs.c.progress_at <= now - timedelta(seconds=period_s))
    statement = (
        update(jobs)
        .where(is_any_of(tx, jobs.c.job_id, sorted(job_ids)), is_due, _items_ended() < jobs.c.items_total)
        .values(progress_at=now)
        .returning(*_PROGRESS)
    )
    return sorted((Progress(*row) for row in tx.execute(statement)), key=lambda one: one.job_id)


def bump(tx: Tx, job_id: str, *, succeeded: int = 0, failed: int = 0, expired: int = 0, cancelled: int = 0) -> None:
    """Add to a job's counters; call it in the transaction that ends the items."""
    tx.execute(
        update(jobs)
        .where(jobs.c.job_id == job_id)
        .values(
            items_succeeded=jobs.c.items_succeeded + succeeded,
            items_failed=jobs.c.items_failed + failed,
            items_expired=jobs.c.items_expired + expired,
            items_cancelled=jobs.c.items_cancelled + cancelled,
        )
    )


def bump_many(tx: Tx, ended: Mapping[str, Ended]) -> None:
    """Add to the counters of several jobs."""
    # In one order everywhere, or two checkpoints that share jobs lock each other out.
    for job_id in sorted(ended):
        one = ended[job_id]
        bump(
            tx,
            job_id,
            succeeded=one.succeeded,
            failed=one.failed,
            expired=one.expired,
            cancelled=one.cancelled,
        )


def request_cancel(tx: Tx, job_id: str) -> bool:
    """Ask for an open job's end; False when it is final or was asked before."""
    statement = (
        update(jobs)
        .where(
            jobs.c.job_id == job_id,
            jobs.c.state.in_((JobState.WAITING, JobState.RUNNING)),
            jobs.c.is_cancel_requested.is_(False),
        )
        .values(is_cancel_requested=True)
    )
    return tx.execute(statement).rowcount == 1


def lock(tx: Tx, job_id: str) -> Job:
    """Return a job and keep others from changing its row until the transaction ends. Raises NotFound."""
    tx.execute(select(jobs.c.job_id).where(jobs.c.job_id == job_id).with_for_update())
    return get(tx, job_id)


def cancel_requested(tx: Tx, job_ids: Sequence[str] | None = None) -> list[str]:
    """Return the open jobs (of those given) whose end was asked for and whose items have not all ended."""
    statement = select(jobs.c.job_id).where(
        jobs.c.finished_at.is_(None), jobs.c.is_cancel_requested.is_(True), _items_ended() < jobs.c.items_total
    )
    if job_ids is not None:
        statement = statement.where(is_any_of(tx, jobs.c.job_id, job_ids))
    return list(tx.execute(statement.order_by(jobs.c.job_id)).scalars())


def past_deadline(tx: Tx, now: datetime) -> list[str]:
    """Return open jobs of late policy ``expire`` whose deadline has passed and whose items have not all ended."""
    statement = select(jobs.c.job_id).where(
        jobs.c.finished_at.is_(None),
        jobs.c.late_policy == LatePolicy.EXPIRE,
        jobs.c.deadline_at <= now,
        _items_ended() < jobs.c.items_total,
    )
    return list(tx.execute(statement.order_by(jobs.c.job_id)).scalars())


def ended(tx: Tx) -> list[Job]:
    """Return jobs whose items have all ended but whose files are not assembled, oldest first."""
    statement = (
        select(*_COLUMNS)
        .where(jobs.c.finished_at.is_(None), jobs.c.state.in_(_OPEN), _items_ended() == jobs.c.items_total)
        .order_by(jobs.c.created_at, jobs.c.job_id)
    )
    return [_job(row) for row in tx.execute(statement).mappings()]


def mark_finishing(tx: Tx, job_id: str) -> None:
    """Move a job whose items have all ended from waiting or running to finishing."""
    tx.execute(
        update(jobs)
        .where(jobs.c.job_id == job_id, jobs.c.state.in_((JobState.WAITING, JobState.RUNNING)))
        .values(state=JobState.FINISHING)
    )


def finish(
    tx: Tx,
    job_id: str,
    state: JobState,
    *,
    output_blob: str | None,
    error_blob: str | None,
    error: str | None,
    at: datetime,
) -> bool:
    """Move a job from finishing to a final state; False when another process has done so."""
    statement = (
        update(jobs)
        .where(jobs.c.job_id == job_id, jobs.c.state == JobState.FINISHING, jobs.c.finished_at.is_(None))
        .values(state=state, output_blob=output_blob, error_blob=error_blob, error=error, finished_at=at)
    )
    return tx.execute(statement).rowcount == 1


def counts_by_state(tx: Tx, tenant: str | None = None) -> dict[JobState, int]:
    """Count jobs by state, of one tenant or of all."""
    statement = select(jobs.c.state, func.count()).group_by(jobs.c.state)
    if tenant is not None:
        statement = statement.where(jobs.c.tenant == tenant)
    return {JobState(state): count for state, count in tx.execute(statement)}


def count_overdue(tx: Tx, now: datetime) -> int:
    """Count the jobs that are not done though their deadline has passed, whatever their late policy."""
    overdue = select(func.count()).where(jobs.c.finished_at.is_(None), jobs.c.deadline_at <= now)
    return int(tx.execute(overdue).scalar_one())


def _items_ended() -> Any:
    return jobs.c.items_succeeded + jobs.c.items_failed + jobs.c.items_expired + jobs.c.items_cancelled

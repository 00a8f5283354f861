"""Take a job: check its meaning (``meaning.py``) and every line of its input, then store it whole or not at all.

The staged input is read once, in memory bounded by the number of items. Only when all of it is right are the blob
published and the job with its items written, in one transaction. On any error nothing of it stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from io import BufferedReader, BytesIO
from typing import Protocol

import orjson

from carbonq import estimate, ids, jsonl
from carbonq.blobs import BlobStore, Staged
from carbonq.clock import Clock
from carbonq.errors import Conflict, Infeasible, InvalidRequest, StoreUnavailable
from carbonq.model import Job, JobState, Model, NewItem, NewJob, Quota, Region, Throughput
from carbonq.plan import policy
from carbonq.plan.treatment import TreatmentRules, treatment_of
from carbonq.services import accepted, budget_room, hold, quota
from carbonq.services.budget_room import Gate
from carbonq.services.meaning import check_meaning
from carbonq.store import events, items, jobs
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now
from carbonq.store.events import NewEvent
from carbonq.units import WINDOW_S, iso


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may hold, and ``chunk_fill``, the share of a window that one chunk may take."""

    max_items: int = 50_000
    max_line_bytes: int = 4 * 1024 * 1024
    max_input_bytes: int = 200 * 1024 * 1024
    chunk_fill: float = 0.6


class Readable(Protocol):
    """An input of known size that can be read from its beginning."""

    size: int

    def open(self) -> BufferedReader | BytesIO:
        """Return a stream of it. Raises StoreUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Input:
    """What one pass over the input found."""

    items: Sequence[NewItem]
    est_tokens: int
    longest_item: int


def submit(
    db: Database,
    blobs: BlobStore,
    staged: Staged,
    request: NewJob,
    *,
    models: Mapping[str, Model],
    regions: Sequence[Region],
    home_region: str,
    clock: Clock,
    limits: Limits,
    throughputs: Mapping[tuple[str, str], Throughput],
    treatments: TreatmentRules = TreatmentRules(),  # noqa: B008 (frozen)
    quota_limits: Quota = quota.UNLIMITED,
    gate: Gate | None = None,
) -> tuple[Job, bool]:
    """Store a job and return it, and whether it is new (False: the idempotency key's first job came back).

    A job that cannot be in time beside what was accepted before it is taken, and says so (``infeasible``).

    Takes over ``staged``: it is published with the job or discarded. Raises InvalidRequest naming the field or line
    (also when the idempotency key stands for another request), Infeasible with the best that can be done,
    QuotaExceeded where the tenant's ``quota_limits`` leave no room, CarbonBudgetExceeded where a budget does (``gate``
    None: nobody asks), StoreUnavailable.
    """
    try:
        staged.sync()
        fingerprint = fingerprint_of(staged, request)
        with db.read() as tx:
            first = _first_of(tx, request, fingerprint)
            refused = hold.refusal(tx, request.tenant, request.model)
        if first is not None:
            return first, False
        if refused is not None:
            raise refused
        now = clock.now()
        model = check_meaning(request, models, regions, now)
        found = read_input(staged, request, model, limits)
        chunk_s = check_feasible(
            request, model, regions, found, now=now, factor=clock.factor, limits=limits, throughputs=throughputs
        )
        fleet = accepted.Fleet(regions, models, throughputs, now=now, factor=clock.factor)
        asked = accepted.Asked(model, request.regions, found.est_tokens, chunk_s, request.deadline_at)
        of_budgets = None if gate is None else gate.ask(request, found.items, regions, throughputs)
        with db.read() as tx:
            infeasible = accepted.shortage(tx, fleet, asked)
            waits = None if of_budgets is None else budget_room.check(tx, of_budgets, now)
        job = new_job(request, staged.size, found, now, home_region)
        treatment = treatment_of(job.job_id, job.tenant, treatments)
        job = replace(job, infeasible=infeasible or waits, treatment=treatment)
        if of_budgets is not None:
            job = of_budgets.noted(job)
        return _store(
            db,
            blobs,
            staged,
            job=job,
            request=request,
            new_items=found.items,
            fingerprint=fingerprint,
            reserve=lambda tx: _reserve(tx, job, quota_limits, clock.factor, of_budgets),
        )
    finally:
        staged.discard()


def fingerprint_of(staged: Readable, request: NewJob) -> str | None:
    """Return a digest of what a repeated request must have in common with the first; None without a key.

    The deadline is left out: a client that sends ``6h`` again means the same job, though the time has moved on.
    """
    if request.idempotency_key is None:
        return None
    with staged.open() as stream:
        digest = hashlib.file_digest(stream, "sha256")
    fields = (
        request.endpoint,
        request.model,
        request.regions,
        None if request.max_carbon_g is None else str(request.max_carbon_g),
        request.product_line,
        request.workload,
        request.late_policy,
        dict(request.metadata),
        # Where nobody says it the digest is what it was before this could be said.
        *(() if request.may_downgrade is None else (request.may_downgrade,)),
    )
    digest.update(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()


def _first_of(tx: Tx, request: NewJob, fingerprint: str | None) -> Job | None:
    """Return the job that the request's idempotency key stands for. Raises InvalidRequest when it is another one."""
    if request.idempotency_key is None:
        return None
    repeated = jobs.find_repeated(tx, request.tenant, request.idempotency_key)
    if repeated is None:
        return None
    check_alike(*repeated, fingerprint)
    return repeated[0]


def check_alike(job: Job, first_fingerprint: str | None, fingerprint: str | None) -> None:
    """Raise InvalidRequest where an idempotency key that stands for a job comes with another request."""
    if first_fingerprint != fingerprint:
        # Not a Conflict: clients repeat those by themselves, and this one can never succeed.
        raise InvalidRequest(
            f"Idempotency-Key was used for job {job.job_id} with other fields or input; use a fresh key",
            param="Idempotency-Key",
            code="idempotency_key_reused",
        )


def read_input(staged: Readable, request: NewJob, model: Model, limits: Limits) -> Input:
    """Read and check every line of a staged input. Raises InvalidRequest naming the line."""
    if staged.size > limits.max_input_bytes:
        raise InvalidRequest(
            f"the input has {staged.size:,} bytes; the limit is {limits.max_input_bytes:,}: "
            "split it over several jobs or raise CARBONQ_MAX_INPUT_BYTES",
            code="input_too_large",
        )
    found: list[NewItem] = []
    lines_of: dict[str, int] = {}
    tokens_of_all = longest = 0
    with staged.open() as stream:
        for number, offset, data in jsonl.read_lines(stream, max_line_bytes=limits.max_line_bytes):
            if len(found) == limits.max_items:
                raise InvalidRequest(
                    f"line {number}: the job has more than {limits.max_items:,} items; "
                    "split it over several jobs or raise CARBONQ_MAX_ITEMS",
                    line=number,
                    code="too_many_tasks",
                )
            line = jsonl.parse_line(data, number, endpoint=request.endpoint, model=model.name)
            first = lines_of.setdefault(line.custom_id, number)
            if first != number:
                raise jsonl.duplicate(line.custom_id, number, first)
            if line.carbon is not None:  # said, not passed over: whoever wrote it counts on it
                raise InvalidRequest(
                    f"line {number}: carbon cannot be said of single lines of a job; say it of the job, or send a "
                    "batch (POST /v1/batches)",
                    line=number,
                    param="carbon",
                )
            tokens = estimate.body_tokens(line.body, model)
            if estimate.is_surely_over(tokens.longest, model.max_input_tokens):
                raise too_long(number, tokens.longest, model)
            total = tokens.total
            found.append(NewItem(len(found), line.custom_id, offset, len(data), total))
            tokens_of_all += total
            longest = max(longest, total)
    if not found:
        raise jsonl.empty_input()
    return Input(found, tokens_of_all, longest)


def too_long(number: int, tokens: int, model: Model) -> InvalidRequest:
    """Return the error for a line with more tokens than its model takes."""
    param = "body.input" if "embeddings" in model.endpoint else "body.messages"
    return InvalidRequest(
        f"line {number}: {param} has about {tokens:,} tokens; model {model.name!r} takes {model.max_input_tokens:,} "
        "at most: shorten the text or split it over several items",
        line=number,
        param=param,
        code="context_length_exceeded",
    )


def check_feasible(
    request: NewJob,
    model: Model,
    regions: Sequence[Region],
    found: Input,
    *,
    now: datetime,
    factor: float,
    limits: Limits,
    throughputs: Mapping[tuple[str, str], Throughput],
) -> float:
    """Return the machine seconds of the job's longest chunk. Raises Infeasible where it is late even alone.

    ``now`` is the grid time to begin at, ``factor`` grid seconds for each machine second.
    """
    allowed = estimate.allowed_regions(regions, request.regions, model.name)
    lanes = [(region.slots, estimate.speed(model, region.hardware, throughputs).tokens_per_s) for region in allowed]
    alone = estimate.alone(
        found.est_tokens,
        found.longest_item,
        lanes,
        window_s=WINDOW_S / factor,
        chunk_fill=limits.chunk_fill,
    )
    margin = policy.duration_margin(model.name, [region.hardware for region in allowed], throughputs)
    needed_s = alone.shortest_s * factor + policy.guard_s(alone.longest_chunk_s, factor, margin)
    left_s = (request.deadline_at - now).total_seconds()
    if needed_s <= left_s:
        return alone.longest_chunk_s
    best = (
        f"with all {alone.slots} slot{'s' if alone.slots != 1 else ''} of {', '.join(r.name for r in allowed)} "
        f"to itself it would be finished by about {iso(now + timedelta(seconds=needed_s))}, {_span(needed_s)} from now"
    )
    raise Infeasible(
        f"the deadline in {_span(left_s)} cannot be met: {len(found.items):,} items of about {found.est_tokens:,} "
        f"tokens need {_span(needed_s)}; {best}: give a later deadline, more regions or fewer items",
        best=best,
        param="deadline",
    )


def _span(seconds: float) -> str:
    """Write a span of grid time, rounded up so that repeating it as a deadline works."""
    whole = max(0, int(-(-seconds // 1)))
    if whole < 120:
        return f"{whole} s"
    minutes = -(-whole // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def new_job(request: NewJob, size: int, found: Input, now: datetime, home_region: str) -> Job:
    """Return a job that nothing has happened to yet, with an id and a place for ``size`` bytes of input."""
    job_id = ids.new("job")
    return Job(
        job_id=job_id,
        tenant=request.tenant,
        api_key_id=request.api_key_id,
        endpoint=request.endpoint,
        model=request.model,
        requested_model=request.model,
        product_line=request.product_line,
        workload=request.workload,
        home_region=home_region,
        regions=None if request.regions is None else tuple(dict.fromkeys(request.regions)),
        deadline_at=request.deadline_at,
        late_policy=request.late_policy,
        max_carbon_g=request.max_carbon_g,
        state=JobState.WAITING,
        is_cancel_requested=False,
        input_blob=f"jobs/{job_id}/input.jsonl",
        input_bytes=size,
        items_total=len(found.items),
        items_succeeded=0,
        items_failed=0,
        items_expired=0,
        items_cancelled=0,
        est_tokens=found.est_tokens,
        created_at=now,
        started_at=None,
        finished_at=None,
        output_blob=None,
        error_blob=None,
        infeasible=None,
        error=None,
        metadata=dict(request.metadata),
        may_downgrade=request.may_downgrade,
    )


def created_event(job: Job) -> NewEvent:
    """Return what is told of a new job."""
    return NewEvent("job.created", job.created_at, job.tenant, job.job_id, {"items": job.items_total})


def _store(
    db: Database,
    blobs: BlobStore,
    staged: Staged,
    *,
    job: Job,
    request: NewJob,
    new_items: Sequence[NewItem],
    fingerprint: str | None,
    reserve: Callable[[Tx], None],
) -> tuple[Job, bool]:
    staged.prepare(job.input_blob)  # an upload must not hold a lock; the key is fresh, so nobody reads it yet
    try:
        with db.write() as tx:
            reserve(tx)
            try:
                jobs.insert_job(
                    tx,
                    job,
                    source=request.source,
                    machine_created_at=machine_now(tx),
                    idempotency_key=request.idempotency_key,
                    body_fingerprint=fingerprint,
                    trace_context=request.trace_context,
                )
            except Conflict:  # the same request came twice at once, and the other one was first
                first = _first_of(tx, request, fingerprint)
                if first is None:
                    raise
                quota.release(tx, job)
                return first, False
            items.insert_many(tx, job.job_id, new_items)
            events.append_many(tx, [created_event(job)])
            staged.publish(job.input_blob)  # prepared above: at most a rename is left to do under the lock
    except StoreUnavailable:
        if not _is_stored(db, blobs, job):
            raise
    except BaseException:
        _is_stored(db, blobs, job)
        raise
    return job, True


def _reserve(tx: Tx, job: Job, limits: Quota, factor: float, of_budgets: budget_room.Asked | None) -> None:
    quota.reserve(
        tx,
        job.tenant,
        items=job.items_total,
        input_bytes=job.input_bytes,
        tokens=job.est_tokens,
        now=job.created_at,
        limits=limits,
        factor=factor,
    )
    if of_budgets is not None:
        budget_room.reserve(tx, [of_budgets], job.created_at)


def _is_stored(db: Database, blobs: BlobStore, job: Job) -> bool:
    """Say whether a job outlived an error of its commit (the answer may have been lost, not the job); else tidy up."""
    try:
        with db.read() as tx:
            is_stored = jobs.find(tx, job.job_id) is not None
    except StoreUnavailable:
        return False  # a blob without a job is only untidy; a job without its blob would be broken
    if not is_stored:
        blobs.delete(job.input_blob)
    return is_stored

"""Read the input of batches that wait for it, and make their jobs: all of them or none.

Runs as a tick. What is wrong is said of many lines, not of the first alone, and ends the batch as ``failed``. Killed
anywhere it has done nothing, and the next run begins anew; of two at once one stores the jobs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from carbonq import terms
from carbonq.blobs import BlobStore
from carbonq.clock import Clock
from carbonq.errors import CarbonBudgetExceeded, InvalidRequest, NotFound, QuotaExceeded, StoreUnavailable
from carbonq.model import Job, LatePolicy, Model, NewItem, NewJob, Quota, Region, Throughput
from carbonq.plan.treatment import TreatmentRules, treatment_of
from carbonq.services import accepted, batch_input, blob_place, budget_room, hold, meaning, quota, quote, submit, traced
from carbonq.services.apart import Postponed
from carbonq.services.batch_input import MAX_ERRORS, Group, Reading, error_view
from carbonq.services.budget_room import Asked, Gate
from carbonq.store import batches, events, files, items, jobs, regions, throughputs
from carbonq.store.batches import Batch, BatchState
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now
from carbonq.store.events import NewEvent
from carbonq.terms import OnBudget
from carbonq.tracing import OFF, Traces
from carbonq.units import plain

logger = logging.getLogger(__name__)

#: Batches read in one tick, and how long one may last before it begins no further batch, in machine seconds: the next
#: tick sees who came meanwhile.
TICK_BATCHES = 20
TICK_S = 10.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What a batch is judged by; regions are read anew each time, for an operator may have paused one."""

    models: Mapping[str, Model]
    home_region: str
    limits: submit.Limits
    worker_alive_s: float
    max_stale_s: float
    max_chunk_items: int = 10_000
    price_weight_g: float = 0.0
    treatments: TreatmentRules = TreatmentRules()  # noqa: RUF009 (frozen)
    quota: Quota = quota.UNLIMITED
    gate: Gate | None = None


def validate(  # noqa: PLR0917 - what a tick is given
    db: Database,
    blobs: BlobStore,
    clock: Clock,
    rules: Rules,
    postponed: Postponed | None = None,
    traces: Traces = OFF,
) -> int:
    """Read some batches that wait, tenants in turn, oldest first; return how many left ``validating``.

    What cannot be read now is ``postponed`` from one call to the next, longer each time, so that it takes no turn of
    others. Raises StoreUnavailable, and whatever else went wrong with one batch once the others have been read.
    """
    postponed = Postponed() if postponed is None else postponed
    with db.read() as tx:
        waiting = batches.validating(tx, TICK_BATCHES + len(postponed))
    done, defects = 0, list[Exception]()
    until_s = time.monotonic() + TICK_S
    for batch_id in postponed.due(waiting, TICK_BATCHES):
        try:
            began_ns = time.time_ns()
            if _validate(db, blobs, clock, rules, batch_id):
                done += 1
                _tell(db, traces, batch_id, began_ns)
            else:
                postponed.put_off(batch_id)
        except Exception as defect:  # raised below: what one client sent must not stop the batches of all others
            postponed.put_off(batch_id)
            defects.append(defect)
            if not isinstance(defect, StoreUnavailable):
                done += _give_up(db, batch_id, defect, clock.now())
        if time.monotonic() > until_s:
            break
    if defects:
        raise defects[0]
    return done


def _tell(db: Database, traces: Traces, batch_id: str, began_ns: int) -> None:
    """Make a span of the reading of a batch, linked to its create."""
    if not traces.is_on:
        return
    with db.read() as tx:
        batch = batches.get(tx, batch_id)
    traces.record(
        "validate",
        began_ns,
        time.time_ns(),
        links=[] if batch.trace_context is None else [batch.trace_context],
        attributes=traced.of_batch(batch),
        error="invalid_batch" if batch.state is BatchState.FAILED else None,
    )


def _give_up(db: Database, batch_id: str, defect: Exception, now: datetime) -> bool:
    """End a batch that a defect of ours keeps from being read, once its deadline has passed; an update may come first.

    Raises StoreUnavailable.
    """
    with db.read() as tx:
        batch = batches.get(tx, batch_id)
    if now < batch.expires_at:
        return False
    logger.error("batch %s could not be read by its deadline", batch_id, exc_info=defect)
    message = (
        f"an error of the server ({type(defect).__name__}) kept this batch from being read by its deadline; nothing of "
        "it ran. The log of the control worker has the error; tell whoever runs this server, then send it again"
    )
    told = {"code": "internal_error", "line": None, "message": message, "param": None}
    return _fail(db, batch, Reading(errors=[told]), now)


def _validate(db: Database, blobs: BlobStore, clock: Clock, rules: Rules, batch_id: str) -> bool:
    with db.read() as tx:
        batch = batches.get(tx, batch_id)
        blob = files.blob_of(tx, batch.input_file_id)
        there, learned = regions.load_all(tx, worker_alive_s=rules.worker_alive_s), throughputs.get_all(tx)
    now = clock.now()
    try:
        if blob is None:
            raise NotFound(f"the input file {batch.input_file_id} is not there any more", code="input_file_missing")
        with blobs.open(blob) as stream:
            reading = batch_input.read(stream, batch, rules.models, rules.limits)
        made: list[_Made] = []
        if not reading.errors:
            made = _Maker(db, batch, reading, rules, blob=blob, there=there, learned=learned, clock=clock).jobs()
    except NotFound as lost:
        wrong = blob_place.elsewhere(db, blobs)
        if wrong is not None:
            logger.error("batch %s is read later: %s", batch_id, wrong)
            return False
        return _fail(db, batch, Reading(errors=[error_view(lost)]), now)
    except StoreUnavailable as away:
        logger.warning("batch %s is read later: %s", batch_id, away)
        return False
    if reading.errors:
        return _fail(db, batch, reading, now)
    try:
        with db.write() as tx:
            return _store(tx, batch, reading, made, now, limits=rules.quota, factor=clock.factor)
    except (QuotaExceeded, CarbonBudgetExceeded) as error:
        reading.errors.append(error_view(error))
        return _fail(db, batch, reading, now)


class _Made(NamedTuple):
    """A job on its way into the database, with its items and what is asked of budgets for it."""

    job: Job
    items: Sequence[NewItem]
    asked: Asked | None


class _Maker:
    """Makes the jobs of one batch."""

    def __init__(
        self,
        db: Database,
        batch: Batch,
        reading: Reading,
        rules: Rules,
        *,
        blob: str,
        there: Sequence[Region],
        learned: Mapping[tuple[str, str], Throughput],
        clock: Clock,
    ) -> None:
        self._db, self._batch, self._blob, self._reading = db, batch, blob, reading
        self._rules, self._regions, self._learned, self._clock = rules, there, learned, clock
        self._now = clock.now()
        self._base = terms.load(batch.terms)

    def jobs(self) -> list[_Made]:
        """Return the jobs with their items; what is wrong with their terms goes to the reading's errors."""
        made: list[_Made] = []
        for group in self._reading.groups:
            try:
                made.append(self._job(group))
            except CarbonBudgetExceeded as error:
                self._reading.errors.append(error_view(error))
            except InvalidRequest as error:
                line = group.first_line
                if line is not None:
                    message = f"line {line}: {error.message}"
                    error = InvalidRequest(message, param=error.param, line=line, code=error.code)
                self._reading.errors.append(error_view(error))
        return made

    def _job(self, group: Group) -> _Made:
        rules, request = self._rules, self._request(group)
        # Judged as of the batch's creation: what was asked in time is not refused because it was read late.
        asked_at = self._batch.created_at
        model = meaning.check_meaning(request, rules.models, self._regions, asked_at)
        chunk_s = submit.check_feasible(
            request,
            model,
            self._regions,
            group.found,
            now=asked_at,
            factor=self._clock.factor,
            limits=rules.limits,
            throughputs=self._learned,
        )
        on_budget = group.terms.on_budget or OnBudget.REJECT
        if request.max_carbon_g is not None and on_budget is OnBudget.REJECT and request.deadline_at > self._now:
            self._check_budget(request, request.max_carbon_g, model, group)
        fleet = accepted.Fleet(self._regions, rules.models, self._learned, now=self._now, factor=self._clock.factor)
        asked = accepted.Asked(model, request.regions, group.est_tokens, chunk_s, request.deadline_at)
        gate = rules.gate
        of_budgets = None if gate is None else gate.ask(request, group.items, self._regions, self._learned)
        with self._db.read() as tx:
            refused = hold.refusal(tx, request.tenant, model.name)
            infeasible = accepted.shortage(tx, fleet, asked)
            if of_budgets is not None:
                waits = budget_room.check(tx, of_budgets, self._now)  # asked in any case: it may refuse
                infeasible = infeasible or waits
        if refused is not None:
            raise refused
        job = submit.new_job(request, group.input_bytes, group.found, self._now, rules.home_region)
        job = replace(
            job,
            batch_id=self._batch.batch_id,
            input_blob=self._blob,
            infeasible=infeasible,
            max_carbon_g=None if on_budget is OnBudget.RUN_ANYWAY else job.max_carbon_g,
            treatment=treatment_of(job.job_id, job.tenant, rules.treatments),
        )
        return _Made(job if of_budgets is None else of_budgets.noted(job), group.items, of_budgets)

    def _request(self, group: Group) -> NewJob:
        batch, asked = self._batch, group.terms
        return NewJob(
            tenant=batch.tenant,
            api_key_id=batch.api_key_id,
            endpoint=batch.endpoint,
            model=str(self._reading.model),
            deadline_at=asked.deadline or batch.expires_at,
            regions=asked.regions,
            max_carbon_g=self._cap(group),
            product_line=asked.product_line,
            workload=asked.workload,
            late_policy=asked.late_policy or LatePolicy.EXPIRE,
            source="batches",
            metadata=batch.metadata or {},
            may_downgrade=asked.downgrade,
        )

    def _cap(self, group: Group) -> Decimal | None:
        """Return the grams of a group: the sum of its lines' own caps, or its share of the batch's by tokens."""
        cap = group.terms.max_gco2e
        if cap is None:
            return None
        if group.has_own_cap:
            return cap * len(group.items)
        share = sum(one.est_tokens for one in self._reading.groups if not one.has_own_cap)
        return cap * group.est_tokens / max(share, 1)

    def _check_budget(self, request: NewJob, cap: Decimal, model: Model, group: Group) -> None:
        """Raise InvalidRequest where even the best plan is foreseen to emit more than the cap."""
        rules = self._rules
        ask = quote.Ask(len(group.items), group.est_tokens, group.longest_item, request.regions, request.deadline_at)
        foreseen = quote.quote(
            self._db,
            ask,
            model,
            regions=self._regions,
            home_region=rules.home_region,
            clock=self._clock,
            chunk_fill=rules.limits.chunk_fill,
            max_chunk_items=rules.max_chunk_items,
            throughputs=self._learned,
            max_stale_s=rules.max_stale_s,
            models=rules.models,
            price_weight_g=rules.price_weight_g,
        ).asked
        best_g = None if foreseen is None else foreseen.point.grams
        if best_g is None or Decimal(repr(best_g)) <= cap:
            return
        raise InvalidRequest(
            f"max_gco2e {plain(cap)} cannot be kept: the best that is foreseen for these {len(group.items):,} requests "
            f"by their deadline is {best_g:.6g} gCO2e; allow more grams, more regions or more time, or say on_budget "
            "run_anyway or wait",
            param="carbon.max_gco2e",
            code="carbon_budget_infeasible",
        )


def _store(
    tx: Tx,
    batch: Batch,
    reading: Reading,
    made: Sequence[_Made],
    now: datetime,
    *,
    limits: Quota,
    factor: float,
) -> bool:
    last_at = max(one.job.deadline_at for one in made)
    if not batches.start(
        tx, batch.batch_id, model=str(reading.model), items_total=reading.lines, expires_at=last_at, at=now
    ):
        return False  # cancelled meanwhile, or another process was faster
    limits = quota.limits_of(tx, batch.tenant, limits)
    quota.reserve(  # all at once: what is not stored yet is in no count
        tx,
        batch.tenant,
        jobs=len(made),
        items=sum(one.job.items_total for one in made),
        input_bytes=sum(one.job.input_bytes for one in made),
        tokens=sum(one.job.est_tokens for one in made),
        now=now,
        limits=limits,
        factor=factor,
    )
    budget_room.reserve(tx, [one.asked for one in made if one.asked is not None], now)
    machine_at = machine_now(tx)
    for job, new_items, _ in made:
        jobs.insert_job(tx, job, source="batches", machine_created_at=machine_at, trace_context=batch.trace_context)
        items.insert_many(tx, job.job_id, new_items)
    events.append_many(
        tx, [NewEvent("job.created", now, job.tenant, job.job_id, {"items": job.items_total}) for job, _, _ in made]
    )
    return True


def _fail(db: Database, batch: Batch, reading: Reading, now: datetime) -> bool:
    told = reading.errors[:MAX_ERRORS]
    with db.write() as tx:
        is_done = batches.fail(
            tx,
            batch.batch_id,
            told,
            leaving=BatchState.VALIDATING,
            at=now,
            model=reading.model,
            items_total=reading.lines,
        )
        if is_done:
            data = {"id": batch.batch_id, "error": told[0]["message"]}
            events.append_many(tx, [NewEvent("batch.failed", now, batch.tenant, data=data)])
    return is_done

"""Run one chunk: claim it, put its items through the engine in metered engine batches, commit checkpoint by checkpoint.

A ticket that is late, doubled or of another region does nothing. A bad item fails alone: an engine batch that fails as
a whole is cut in halves until the poison stands alone. All seconds are machine seconds, all energies uJ.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial

from carbonq import batching, retry, telemetry, tiers
from carbonq.engines.protocol import ENGINE_FAILED, EngineResult, Stopped
from carbonq.errors import EngineAway, EngineError, LeaseLost, NotFound, StoreUnavailable
from carbonq.model import AttemptOutcome, Chunk, Claim, Item
from carbonq.services import blob_place, traced
from carbonq.services.attempt import Attempt
from carbonq.services.burnt import Burnt
from carbonq.services.checkpoint import Final, Learned, Ran
from carbonq.services.commit import Committer, Refused, Spooled, abandon, spool_refused
from carbonq.services.lines import Lines
from carbonq.services.site import Site
from carbonq.store import events, jobs, leases, results
from carbonq.store import items as item_rows
from carbonq.store.results import JobInfo

logger = logging.getLogger(__name__)

#: Engine calls that may fail one after the other, with no success between, before the engine itself counts as down.
#: A poison item in an engine batch of 4,096 needs 13.
MAX_FAILURES = 16

#: Longest wait of a flexible engine batch for realtime calls in front of it, in seconds.
MAX_GATE_S = 1.0

#: How long after its deadline a chunk goes on waiting for an engine that is away, in grid time; from then on its tries
#: count, so that nothing stays open for ever.
PATIENCE = timedelta(days=1)


class Result(StrEnum):
    """What became of a ticket."""

    NOTHING = "nothing"  # late, doubled, of a paused region
    DONE = "done"
    GIVEN_BACK = "given_back"
    LOST = "lost"
    SPOOLED = "spooled"


@dataclass(frozen=True, slots=True)
class _Taken:
    claim: Claim
    items: Sequence[Item]
    infos: Mapping[str, JobInfo]


def run_chunk(site: Site, chunk_id: str, stop: threading.Event) -> Result:
    """Run a chunk for which a ticket came; ``stop`` ends it at the next step and gives the rest back.

    Raises StoreUnavailable when the database is away at the claim: nothing is held then, the ticket comes again.
    """
    began_ns = time.time_ns()
    taken = _take(site, chunk_id)
    if taken is None:
        return Result.NOTHING
    trace = traced.Run(site.traces, taken.claim, taken.infos, items=len(taken.items), began_ns=began_ns)
    model = site.models[taken.claim.chunk.model]
    _expect_baseline(site, taken.claim.chunk)
    cancelled = frozenset(info.job_id for info in taken.infos.values() if info.is_cancel_requested)
    attempt = Attempt(
        site,
        taken.claim,
        model=model,
        engine=site.engine_of(model.name),
        job_ids=sorted(taken.infos),
        cancelled=cancelled,
        held=frozenset(info.job_id for info in taken.infos.values() if info.is_held),
        stop=stop,
        trace=trace,
    )
    with attempt, trace:
        result = trace.result_of(_Run(attempt, taken).run())
    # The slot is free now: what is due next need not wait for the schedule.
    for tick in ("dispatch", "finish" if result is Result.DONE else "plan"):
        site.tickets.nudge(tick)
    return result


def _expect_baseline(site: Site, chunk: Chunk) -> None:
    try:
        site.expect([(chunk.baseline_region, chunk.baseline_window_at)])
    except StoreUnavailable as error:
        # Entries then begin with a missing baseline and settle like any other.
        logger.warning("baseline rates of %s not loaded: %s", chunk.chunk_id, error)


def _take(site: Site, chunk_id: str) -> _Taken | None:
    with site.db.write() as tx:
        now = site.clock.now()
        claim = leases.claim(
            tx,
            chunk_id,
            worker_id=site.worker_id,
            region=site.region.name,
            lease_s=site.limits.lease_s,
            now=now,
        )
        if claim is None:
            return None
        items = item_rows.of_chunk(tx, chunk_id)
        job_ids = sorted({item.job_id for item in items})
        infos = results.job_infos(tx, job_ids)
        data = {"region": claim.region}
        begun = jobs.mark_running(tx, job_ids, now)
        events.append_many(
            tx, [events.NewEvent("job.running", now, infos[job_id].tenant, job_id, data) for job_id in begun]
        )
    if claim.lag_s is not None:
        telemetry.DISPATCH_LAG_SECONDS.labels(claim.region).observe(claim.lag_s)
    return _Taken(claim, items, infos)


class _GiveUp(Exception):
    """The rest of the chunk goes back with a backoff; not counted as an attempt where no item is at fault."""

    def __init__(self, reason: str, *, is_counted: bool = True) -> None:
        super().__init__(reason)
        self.is_counted = is_counted


@dataclass(slots=True)
class _Since:
    """What happened since the last checkpoint."""

    began: float = field(default_factory=time.monotonic)
    ran: list[Ran] = field(default_factory=list[Ran])
    wasted: list[Burnt] = field(default_factory=list[Burnt])
    cancelled: list[Item] = field(default_factory=list[Item])
    items: int = 0


class _Run:
    def __init__(self, attempt: Attempt, taken: _Taken) -> None:
        self._attempt = attempt
        self._site = attempt.site
        self._taken = taken
        self._lines, self._may_return = self._downgraded(taken)
        chunk, longest_s = taken.claim.chunk, batching.longest_s(self._site.limits.lease_s)
        self._cutter = batching.Cutter(taken.items, attempt.model, longest_s=longest_s)
        is_foretold = chunk.est_tokens > 0 and chunk.est_duration_s > 0
        foretold = chunk.est_tokens / chunk.est_duration_s if is_foretold else attempt.model.tokens_per_s
        self._pace = batching.Pace(foretold)
        self._since = _Since()
        self._began = time.monotonic()
        self._tokens = 0
        self._energy_uj = 0
        self._failures = 0
        self._left = 0  # items that failed in a way that another attempt may mend
        self._held = 0  # items of jobs that are paused
        self._cancelled = 0  # items that had not run when their jobs were cancelled

    def _downgraded(self, taken: _Taken) -> tuple[Lines, bool]:
        """Return the input lines as they are asked of the model, and whether what it refuses may go back to a larger.

        ``services/downgrade.restore`` brings it there; were that in vain, its tries would end as others do.
        """
        if taken.claim.chunk.downgraded is None or not taken.infos:
            return Lines(self._site.blobs, taken.items, taken.infos), False
        requested = self._site.models.get(next(iter(taken.infos.values())).requested_model)
        body_of = partial(tiers.body_for, model=self._attempt.model, requested=requested)
        lines = Lines(self._site.blobs, taken.items, taken.infos, body_of=body_of)
        return lines, requested is not None and taken.claim.attempt <= self._site.limits.max_attempts

    def run(self) -> Result:
        committer = Committer(self._attempt, self._taken.infos)
        chunk_id = self._taken.claim.chunk.chunk_id
        result, reason = Result.LOST, "the run ended unexpectedly; the worker's log says why"
        is_counted = True
        try:
            final = self._loop(committer)
            self._submit(committer, final)
            committer.wait()
            result = Result.DONE if final.action == "finish" else Result.GIVEN_BACK
        except LeaseLost as error:
            logger.warning("run of %s dropped: %s", chunk_id, error)
        except Spooled:
            result = Result.SPOOLED
        except (StoreUnavailable, NotFound) as error:  # the disk refused a segment, or has lost the input
            logger.error("run of %s dropped: %s", chunk_id, error)
            reason = error.message
            is_counted = isinstance(error, NotFound) and not self._is_elsewhere()
        finally:
            committer.close()
            self._lines.close()
            self._attempt.interrupt()
            if result in {Result.LOST, Result.SPOOLED}:
                self._abandon(result, reason, is_counted=is_counted)
        return result

    def _is_elsewhere(self) -> bool:
        """Say whether the input may be missing only because this host looks in the wrong place."""
        try:
            wrong = blob_place.elsewhere(self._site.db, self._site.blobs)
        except StoreUnavailable as error:
            wrong = error.message
        if wrong is not None:
            logger.error("%s", wrong)
        return wrong is not None

    def _abandon(self, result: Result, reason: str, *, is_counted: bool) -> None:
        claim = self._taken.claim
        rest = Refused(claim.chunk.chunk_id, claim.token, claim.attempt, self._attempt.unbooked())
        if result is Result.SPOOLED:
            spool_refused(self._site, rest)  # after the spooled checkpoint, which still needs the lease
        else:
            # A store that is away is no fault of the items: they do not use up their attempts, but wait for long.
            backoff_s = self._backoff_s() if is_counted else self._site.limits.backoff_cap_s
            abandon(self._site, rest, reason=reason, is_counted=is_counted, backoff_s=backoff_s)

    def _loop(self, committer: Committer) -> Final:
        try:
            while batch := self._cutter.take(self._pace.tokens_per_s):
                if self._attempt.must_end:
                    return self._ending()
                self._site.gate.wait(MAX_GATE_S)
                self._run_batch(self._wanted(batch))
                if self._is_due():
                    self._submit(committer, None)
        except Stopped:
            return self._ending()
        except _GiveUp as error:
            return self._failing(str(error), is_counted=error.is_counted)
        if self._left:
            where = " on the model that was asked for" if self._may_return else ""
            return self._failing(f"{self._left} items failed in the engine; they are tried again{where}")
        if self._held:
            return Final("give_back", AttemptOutcome.YIELDED, is_counted=False)
        # Cut short by a cancel, and not by one of several jobs that shared the chunk.
        is_cut = self._cancelled > 0 and self._attempt.cancelled_jobs >= self._taken.infos.keys()
        return Final("finish", AttemptOutcome.CANCELLED if is_cut else AttemptOutcome.COMMITTED)

    def _ending(self) -> Final:
        if self._attempt.is_lost:
            raise LeaseLost(f"the lease of chunk {self._taken.claim.chunk.chunk_id} is lost")
        return Final("give_back", AttemptOutcome.YIELDED, is_counted=False)

    def _failing(self, reason: str, *, is_counted: bool = True) -> Final:
        backoff_s = self._backoff_s() if is_counted else self._site.limits.backoff_cap_s
        return Final("give_back", AttemptOutcome.FAILED, is_counted=is_counted, backoff_s=backoff_s, error=reason)

    def _backoff_s(self) -> float:
        limits = self._site.limits
        attempt = self._taken.claim.attempt
        return retry.backoff_s(attempt, base=limits.backoff_base_s, cap=limits.backoff_cap_s, jitter=random.random())

    def _wanted(self, batch: Sequence[Item]) -> Sequence[Item]:
        """Return what is still wanted now of an engine batch: cancelled items end, held ones go back."""
        cancelled, held = self._attempt.cancelled_jobs, self._attempt.held_jobs - self._attempt.cancelled_jobs
        if not cancelled and not held:
            return batch
        ended = [item for item in batch if item.job_id in cancelled]
        self._since.cancelled.extend(ended)
        self._cancelled += len(ended)
        self._held += sum(item.job_id in held for item in batch)
        return [item for item in batch if item.job_id not in cancelled and item.job_id not in held]

    def _is_due(self) -> bool:
        limits = self._site.limits
        # One engine batch more must still fit, or a checkpoint would grow beyond its limit.
        room = limits.checkpoint_items - self._attempt.model.batch_items
        return self._since.items > room or time.monotonic() - self._since.began > limits.checkpoint_s

    def _submit(self, committer: Committer, final: Final | None) -> None:
        since, self._since = self._since, _Since()
        if not (since.ran or since.wasted or since.cancelled or final):
            return
        known = self._attempt.known
        ran = [replace(one, burnt=None if one.burnt is None else known(one.burnt)) for one in since.ran]
        wasted = [known(one) for one in since.wasted]
        self._energy_uj += sum(one.burnt.energy_uj for one in ran if one.burnt is not None)
        learned = None
        if final is not None and self._tokens:
            hardware = self._site.region.hardware
            seconds = time.monotonic() - self._began
            learned = Learned(self._attempt.model.name, hardware, self._tokens, seconds, self._energy_uj)
        committer.submit(ran, wasted, since.cancelled, learned=learned, final=final)

    # --- engine -------------------------------------------------------------------------------------------------

    def _run_batch(self, batch: Sequence[Item]) -> None:
        """Put items through the engine, in halves where a whole fails. Raises Stopped, _GiveUp."""
        if not batch:
            return
        if self._attempt.must_end:
            raise Stopped
        try:
            requests = self._lines.requests(batch)
        except NotFound as error:
            self._lose(batch, error)
            return
        self._attempt.begin(frozenset(item.job_id for item in batch))
        began = time.monotonic()
        try:
            answers = self._attempt.engine.run(requests, self._attempt.should_stop)
        except Stopped:
            self._since.wasted.append(self._attempt.end("stopped"))
            # What stopped it may be over by now (a lease renewed late, a pause): only a cancel is for good.
            if self._attempt.must_end or self._wanted(batch):
                raise
            # All of its jobs were cancelled or are held: go on with the others.
        except EngineAway as error:
            self._wait_for_engine(batch, error)
        except EngineError as error:
            self._failed(batch, error)
        else:
            self._failures = 0
            self._pace.learn(sum(item.est_tokens for item in batch), time.monotonic() - began)
            self._sort(batch, answers, self._attempt.end("refused"))

    def _sort(self, batch: Sequence[Item], answers: Sequence[EngineResult], burnt: Burnt) -> None:
        """Keep the answers, but leave the items that another attempt may mend; their energy is the others'.

        What a smaller model refuses, the one that was asked for may take.
        """
        if self._may_return or self._taken.claim.attempt < self._site.limits.max_attempts:
            again = [answer.is_retryable or (self._may_return and answer.error_code is not None) for answer in answers]
            self._left += sum(again)
            batch = [item for item, is_again in zip(batch, again, strict=True) if not is_again]
            answers = [answer for answer, is_again in zip(answers, again, strict=True) if not is_again]
        if batch:
            self._keep(batch, answers, burnt)
        else:
            self._since.wasted.append(burnt)

    def _failed(self, batch: Sequence[Item], error: EngineError) -> None:
        self._failures += 1
        may_retry = error.is_retryable and self._taken.claim.attempt < self._site.limits.max_attempts
        may_retry |= self._may_return
        logger.warning("engine failed on %d items: %s", len(batch), error)
        if len(batch) == 1 and not may_retry:
            failed = EngineResult(ENGINE_FAILED, None, 0, error_code=error.code, error_message=error.message)
            self._keep(batch, [failed], self._attempt.end("failed"))
            return
        self._since.wasted.append(self._attempt.end("failed"))
        if self._failures >= MAX_FAILURES and may_retry:
            raise _GiveUp(f"the engine failed {self._failures} times in a row: {error.message}")
        if len(batch) == 1:
            self._left += 1
            return
        middle = len(batch) // 2
        self._run_batch(batch[:middle])
        self._run_batch(batch[middle:])

    def _wait_for_engine(self, batch: Sequence[Item], error: EngineAway) -> None:
        """Give up for now, without counting the attempt; long after the deadline it counts, and the last one fails."""
        claim = self._taken.claim
        logger.warning("engine of %s is away: %s", self._attempt.model.name, error)
        is_counted = self._site.clock.now() > claim.chunk.deadline_at + PATIENCE
        if is_counted and claim.attempt >= self._site.limits.max_attempts and not self._may_return:
            gone = EngineResult(503, None, 0, error_code=error.code, error_message=error.message)
            self._keep(batch, [gone] * len(batch), self._attempt.end("failed"))
            return
        self._since.wasted.append(self._attempt.end("failed"))
        raise _GiveUp(error.message, is_counted=is_counted) from error

    def _lose(self, batch: Sequence[Item], error: NotFound) -> None:
        """End items whose job's input is gone for good. Raises NotFound while it may come back, or lies elsewhere."""
        if self._taken.claim.attempt < self._site.limits.max_attempts or self._is_elsewhere():
            raise error
        by_job = {item.job_id: [one for one in batch if one.job_id == item.job_id] for item in batch}
        if len(by_job) > 1:
            for part in by_job.values():
                self._run_batch(part)
            return
        message = f"the input of the job is lost ({error.message}); submit it again"
        gone = EngineResult(500, None, 0, error_code="input_lost", error_message=message)
        self._attempt.begin(frozenset(by_job))
        self._keep(batch, [gone] * len(batch), self._attempt.end("failed"))

    def _keep(self, batch: Sequence[Item], answers: Sequence[EngineResult], burnt: Burnt) -> None:
        self._since.ran.append(Ran(batch, answers, burnt))
        self._since.items += len(batch)
        self._tokens += sum(item.est_tokens for item in batch)

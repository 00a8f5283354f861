"""Store jobs that arrive within a few milliseconds together: one durable blob and one transaction for all of them.

Those that come while a group is being stored are the next group, so that nobody waits for company. Each caller is
answered when its own job is durable, in the order they came; one that cannot be stored hurts no other, because a group
that fails as a whole is stored again job by job. docs/adr/0013 says why, and what a crash leaves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime

from carbonq import ids
from carbonq.blobs import BlobStore
from carbonq.clock import Clock
from carbonq.errors import CarbonqError, StoreUnavailable, Unavailable
from carbonq.model import Job, Quota, Region, Throughput
from carbonq.plan.treatment import TreatmentRules, treatment_of
from carbonq.services import budget_room, hold, inputs, quota, submit
from carbonq.services.budget_room import Asked, Gate
from carbonq.services.checked import Checked
from carbonq.services.quota import UNLIMITED
from carbonq.services.standing import Standing
from carbonq.store import events, holds, items, jobs
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import write_now

logger = logging.getLogger(__name__)

#: Most jobs, items and bytes of one group: SQLite's one write lock is held for some ten milliseconds.
MAX_JOBS = 200
MAX_ITEMS = 2_000
MAX_BYTES = 4 * 1024 * 1024

#: Most bytes that may wait; a caller beyond them is told to come back.
MAX_WAITING_BYTES = 64 * 1024 * 1024

#: How long a group waits for more after one that had more than one job, in machine seconds.
GATHER_S = 0.002

#: How long the end may take, in machine seconds: a database that does not answer must not hold a process for ever.
_CLOSE_S = 15.0

#: What a caller is told to wait where too much waits, in machine seconds.
_RETRY_S = 1.0

Stored = tuple[Job, bool]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A checked job and who waits for it; its future gets the stored job and whether it is new."""

    checked: Checked
    data: bytes
    future: Future[Stored] = field(default_factory=Future[Stored])


@dataclass(frozen=True, slots=True)
class _Made:
    """A job on its way into the database; its input begins at ``offset`` of the group's blob."""

    one: Waiting
    job: Job
    offset: int
    asked: Asked | None = None


@dataclass(frozen=True, slots=True)
class _Ready:
    """A job that nothing refuses, with what is expected of it and the sentence where it will have to wait."""

    waiting: Waiting
    asked: Asked | None = None
    waits: str | None = None


class GroupCommit:
    """Takes checked jobs from any thread and has them stored, group by group, by one of its own."""

    def __init__(self, settle: Callable[[Sequence[Waiting]], None]) -> None:
        """Prepare; the thread starts with the first job. ``settle`` ends every future of a group and never raises."""
        self._settle = settle
        self._queue: list[Waiting] = []
        self._bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._was_shared = False

    def put(self, checked: Checked, data: bytes) -> Future[Stored]:
        """Take a job whose input is ``data``; the future gets what ``submit`` would return or raise.

        Raises Unavailable where too much waits already, or the process is about to end.
        """
        one = Waiting(checked, data)
        with self._changed:
            if self._is_closed or self._bytes + len(data) > MAX_WAITING_BYTES:
                why = "this process is about to end" if self._is_closed else "too many jobs wait to be stored"
                raise Unavailable(f"{why}; send it again", retry_after_s=_RETRY_S)
            self._queue.append(one)
            self._bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
                self._thread.start()
            self._changed.notify()
        return one.future

    @property
    def waiting(self) -> int:
        """How many jobs wait for the next group."""
        return len(self._queue)

    def close(self) -> None:
        """Store what waits and end; what comes later is refused."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (group := self._take()) is not None:
            try:
                self._settle(group)
            except Exception as error:
                # The loop of this thread: a defect must leave nobody waiting for ever, now or later.
                logger.exception("a group of %d jobs came to nothing", len(group))
                for one in group:
                    if not one.future.done():
                        one.future.set_exception(error)

    def _take(self) -> list[Waiting] | None:
        """Wait for jobs and return the next group; None once all is done and no more may come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            may_wait = self._was_shared and not self._is_closed
        if may_wait:
            time.sleep(GATHER_S)  # under load it brings more than it costs; a lone caller never waits
        with self._changed:
            if not self._queue:
                return None
            count = fitting(self._queue)
            group, self._queue = self._queue[:count], self._queue[count:]
            self._bytes -= sum(len(one.data) for one in group)
            self._was_shared = count > 1
        # A caller that went away before its turn is gone with its job; from here on it cannot be taken back.
        return [one for one in group if one.future.set_running_or_notify_cancel()]


class GroupStore:
    """Stores a group of checked jobs.

    ``regions`` returns the regions as they are now, ``quota_of`` the limits of a tenant, ``learned`` the speeds that
    were learned; ``gate`` asks budgets, None: nobody does.
    """

    def __init__(
        self,
        db: Database,
        blobs: BlobStore,
        clock: Clock,
        standing: Standing,
        *,
        home_region: str,
        regions: Callable[[], Sequence[Region]],
        quota_of: Callable[[str], Quota] = lambda _: UNLIMITED,
        treatments: TreatmentRules = TreatmentRules(),  # noqa: B008 (frozen)
        gate: Gate | None = None,
        learned: Callable[[], Mapping[tuple[str, str], Throughput]] = dict[tuple[str, str], Throughput],
    ) -> None:
        self._db, self._blobs, self._clock, self._standing = db, blobs, clock, standing
        self._gate, self._learned = gate, learned
        self._home_region, self._regions, self._treatments = home_region, regions, treatments
        self._quota_of = quota_of

    def settle(self, group: Sequence[Waiting]) -> None:
        """Store a group, or each of it by itself; every future is done afterwards."""
        try:
            self._store(group)
        except Exception as error:
            if len(group) == 1 or isinstance(error, StoreUnavailable):
                for one in group:
                    if not one.future.done():
                        one.future.set_exception(error)
                return
            logger.info("a group of %d jobs is stored one by one: %s", len(group), error)
            for one in group:
                if not one.future.done():
                    self.settle([one])

    def _store(self, group: Sequence[Waiting]) -> None:
        with self._db.read() as tx:
            ready = self._admit(tx, group)
        ready = self._ask_budgets(ready)
        if not ready:
            return
        pieces = _pieces([one.waiting for one in ready])
        made = self._make(ready, pieces)
        key = made[0].job.input_blob
        with self._blobs.stage() as staged:
            staged.write(b"".join(pieces))
            staged.prepare(key)  # synced here; a rename is left to do under the lock
            try:
                with self._db.write() as tx:
                    self._reserve(tx, made, made[0].job.created_at)
                    _insert(tx, made)
                    staged.publish(key)
            except StoreUnavailable:
                if not self._is_stored(made):
                    raise
            except BaseException:
                self._is_stored(made)
                raise
        for one in made:
            one.one.future.set_result((one.job, True))

    def _admit(self, tx: Tx, group: Sequence[Waiting]) -> list[Waiting]:
        """Answer what was stored before or is refused, and return the others."""
        requests = [one.checked.request for one in group]
        keys = {(one.tenant, one.idempotency_key) for one in requests if one.idempotency_key is not None}
        known = jobs.find_all_repeated(tx, keys) if keys else {}
        held = holds.get_all(tx)
        ready: list[Waiting] = []
        for one in group:
            request = one.checked.request
            try:
                first = known.get((request.tenant, request.idempotency_key or ""))
                if first is not None:
                    submit.check_alike(*first, one.checked.fingerprint)
                    one.future.set_result((first[0], False))
                    continue
                refused = hold.refusal_of(held, request.tenant, request.model) or one.checked.infeasible
                if refused is not None:
                    raise refused
                self._count(quota.check, tx, [one], self._clock.now())
            except CarbonqError as error:
                one.future.set_exception(error)
            else:
                ready.append(one)
        return ready

    def _ask_budgets(self, ready: Sequence[Waiting]) -> list[_Ready]:
        """Answer what budgets refuse, and return the others with what is expected of them."""
        if self._gate is None:
            return [_Ready(one) for one in ready]
        found: list[_Ready] = []
        now, regions, learned = self._clock.now(), self._regions(), self._learned()
        for one in ready:
            try:
                asked = self._gate.ask(one.checked.request, one.checked.found.items, regions, learned)
                waits = None
                if asked is not None:
                    with self._db.read() as tx:
                        waits = budget_room.check(tx, asked, now)
                found.append(_Ready(one, asked, waits))
            except CarbonqError as error:
                one.future.set_exception(error)
        return found

    def _make(self, ready: Sequence[_Ready], pieces: Sequence[bytes]) -> list[_Made]:
        now = self._clock.now()
        # In order of arrival, whatever the same millisecond brought.
        names = sorted(ids.new("job") for _ in ready)
        key = inputs.key_for(names)
        made: list[_Made] = []
        offset = 0
        regions = self._regions()
        for name, found, piece in zip(names, ready, pieces, strict=True):
            one, checked = found.waiting, found.waiting.checked
            size = len(one.data)
            job = submit.new_job(checked.request, size, checked.found, now, self._home_region)
            treatment = treatment_of(name, job.tenant, self._treatments)
            infeasible = self._standing.shortage(regions, checked.asked, now) or found.waits
            job = replace(job, job_id=name, input_blob=key, infeasible=infeasible, treatment=treatment)
            made.append(_Made(one, job if found.asked is None else found.asked.noted(job), offset, found.asked))
            offset += len(piece)
        return made

    def _reserve(self, tx: Tx, made: Sequence[_Made], now: datetime) -> None:
        """Count a group in, each tenant's jobs together, and reserve of their budgets.

        Raises QuotaExceeded, CarbonBudgetExceeded: they are stored one by one then.
        """
        # In one order everywhere, or the groups of two processes lock each other out.
        for tenant in sorted({one.job.tenant for one in made}):
            self._count(quota.reserve, tx, [one.one for one in made if one.job.tenant == tenant], now)
        budget_room.reserve(tx, [one.asked for one in made if one.asked is not None], now)

    def _count(self, act: Callable[..., None], tx: Tx, alike: Sequence[Waiting], now: datetime) -> None:
        """Ask whether there is room for some jobs of one tenant. Raises QuotaExceeded."""
        tenant = alike[0].checked.request.tenant
        limits = self._quota_of(tenant)
        if limits != UNLIMITED:
            act(
                tx,
                tenant,
                jobs=len(alike),
                items=sum(len(one.checked.found.items) for one in alike),
                input_bytes=sum(len(one.data) for one in alike),
                tokens=sum(one.checked.found.est_tokens for one in alike),
                now=now,
                limits=limits,
                factor=self._clock.factor,
            )

    def _is_stored(self, made: Sequence[_Made]) -> bool:
        """Say whether a group outlived an error of its commit (the answer may have been lost, not the jobs)."""
        first = made[0].job
        try:
            with self._db.read() as tx:
                is_stored = jobs.find(tx, first.job_id) is not None
        except StoreUnavailable:
            return False  # a blob without jobs is only untidy; jobs without their blob would be broken
        if not is_stored:
            self._blobs.delete(first.input_blob)
        return is_stored


def fitting(queue: Sequence[Waiting]) -> int:
    """Count the jobs from the front that make a group: within its bounds, no idempotency key twice."""
    keys: set[tuple[str, str]] = set()
    items_in = bytes_in = 0
    for count, one in enumerate(queue):
        request = one.checked.request
        items_in += len(one.checked.found.items)
        bytes_in += len(one.data)
        key = (request.tenant, request.idempotency_key or "")
        is_full = count >= MAX_JOBS or items_in > MAX_ITEMS or bytes_in > MAX_BYTES
        if count and (is_full or key in keys):
            return count
        if request.idempotency_key is not None:
            keys.add(key)
    return len(queue)


def _pieces(ready: Sequence[Waiting]) -> list[bytes]:
    """Return the input of each, ended by a line feed where others follow."""
    if len(ready) == 1:
        return [ready[0].data]
    return [one.data if one.data.endswith(b"\n") else one.data + b"\n" for one in ready]


def _insert(tx: Tx, made: Sequence[_Made]) -> None:
    rows: list[jobs.NewRow] = []
    for one in made:
        request = one.one.checked.request
        told = (request.source, request.idempotency_key, one.one.checked.fingerprint, request.trace_context)
        rows.append(jobs.NewRow(one.job, *told))
    machine_at = write_now(tx)
    jobs.insert_many(tx, rows, machine_created_at=machine_at)
    items.insert_of_jobs(tx, [(one.job.job_id, one.offset, one.one.checked.found.items) for one in made])
    events.append_of_new(tx, [submit.created_event(one.job) for one in made], machine_at)

"""One claimed chunk on one worker: its lease kept alive, what is asked of it, and the energy not yet in the ledger.

A thread renews the lease, so that a long engine batch does not lose it; each renewal reports the energy burnt so far
and brings back what operators and clients said. All seconds are machine seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from carbonq import ids
from carbonq.engines.protocol import Engine
from carbonq.errors import LeaseLost, StoreUnavailable
from carbonq.meters.hub import Closing, Handle
from carbonq.model import Claim, Model
from carbonq.services import burnt, traced
from carbonq.services.burnt import Burnt
from carbonq.services.site import Site
from carbonq.store import leases
from carbonq.tracing import OFF

logger = logging.getLogger(__name__)

#: Cancel, pause and stop are heard of at least this often, whatever ``renew_s`` says.
LISTEN_S = 2.0


class Attempt:
    """The running of one claim; a context that keeps the lease. Its public state may be read from any thread."""

    def __init__(
        self,
        site: Site,
        claim: Claim,
        *,
        model: Model,
        engine: Engine,
        job_ids: Sequence[str],
        cancelled: frozenset[str],
        held: frozenset[str] = frozenset(),
        stop: threading.Event,
        trace: traced.Run | None = None,
    ) -> None:
        self.site = site
        self.claim = claim
        self.trace = trace or traced.Run(OFF, claim, {}, items=0)
        self.model = model
        self.engine = engine
        self.cancelled_jobs = cancelled
        self.held_jobs = held
        self.is_lost = False
        self.is_paused = False
        #: Held while energy moves into the ledger, so that no renewal reports what a commit has just booked.
        self.booking = threading.Lock()
        self._job_ids = list(job_ids)
        self._stop = stop
        self._batch_jobs: frozenset[str] = frozenset()
        self._meter = threading.Lock()
        self._open: tuple[str, Handle] | None = None
        self._unbooked: dict[str, Burnt] = {}
        self._closings: dict[str, Closing] = {}
        self._renewed = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease-{claim.chunk.chunk_id}", daemon=True)

    def __enter__(self) -> Attempt:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def must_end(self) -> bool:
        """Say whether no further engine batch may begin: lost, stopped, paused, or the database is away too long."""
        return self.is_lost or self.is_paused or self._stop.is_set() or self.is_overdue

    @property
    def is_overdue(self) -> bool:
        """Say whether the lease has ended without our having been able to renew it."""
        return time.monotonic() - self._renewed > self.site.limits.lease_s

    def should_stop(self) -> bool:
        """Tell the engine to stop in the middle: also when all jobs of the batch at hand were cancelled or are held."""
        return self.must_end or (bool(self._batch_jobs) and self._batch_jobs <= self.cancelled_jobs | self.held_jobs)

    def ended(self) -> None:
        """Note, under ``booking``, that a commit ended the lease: there is nothing to renew any more."""
        self._is_over.set()

    def renewed(self) -> None:
        """Note that a commit renewed the lease."""
        self._renewed = time.monotonic()

    # --- energy -------------------------------------------------------------------------------------------------

    def begin(self, job_ids: frozenset[str]) -> str:
        """Open the meter interval of one engine call; return its engine batch id."""
        engine_batch_id = ids.new("eb")
        self._batch_jobs = job_ids
        with self._meter:
            self._open = (engine_batch_id, self.site.hub.start(self.model.tokens_per_s))
        self.trace.began(engine_batch_id)
        return engine_batch_id

    def end(self, outcome: str) -> Burnt:
        """Close the interval; the energy stays reported until ``booked`` is told its id.

        Where a meter trails, it may lack what the meter shows only later: ``known`` waits for that.
        """
        with self._meter:
            assert self._open is not None
            engine_batch_id, handle = self._open
            self._open = None
            closing = self.site.hub.finish(handle)
            if not closing.is_known:
                self._closings[engine_batch_id] = closing
            parts, info = closing.so_far()
            one = replace(self._burnt(engine_batch_id, outcome, is_over=True), parts=parts, info=info)
            self._unbooked[engine_batch_id] = one
        self.trace.ended(engine_batch_id)
        self._batch_jobs = frozenset()
        return one

    def known(self, one: Burnt) -> Burnt:
        """Return the energy of a call that has ended in full; waits at most the lag of the meters."""
        closing = self._closings.get(one.engine_batch_id)
        if closing is None:
            with self._meter:  # another thread may just have learned it
                return self._unbooked.get(one.engine_batch_id, one)
        parts, info = closing.result()
        full = replace(one, parts=parts, info=info)
        with self._meter:
            if one.engine_batch_id in self._unbooked:
                self._unbooked[one.engine_batch_id] = full
            self._closings.pop(one.engine_batch_id, None)
        return full

    def interrupt(self) -> None:
        """Close an interval that an unexpected error left open, or the meters would feed it for ever; wait for all."""
        if self._open is not None:
            self.end("failed")
        for one in list(self._unbooked.values()):
            self.known(one)

    def booked(self, engine_batch_ids: Sequence[str]) -> None:
        """Forget energy that is in the ledger now."""
        with self._meter:
            for engine_batch_id in engine_batch_ids:
                self._unbooked.pop(engine_batch_id, None)

    def unbooked(self, *, without: Sequence[str] = ()) -> list[Burnt]:
        """Return all energy burnt and not booked, that of the engine call in progress too."""
        for one in list(self._unbooked.values()):
            if one.engine_batch_id in self._closings and self._closings[one.engine_batch_id].is_known:
                self.known(one)
        with self._meter:
            burning = [one for key, one in self._unbooked.items() if key not in without]
            if self._open is not None:
                engine_batch_id, handle = self._open
                open_parts = self.site.hub.peek(handle)
                burning.append(replace(self._burnt(engine_batch_id, "lost", is_over=False), parts=open_parts))
        return burning

    def _burnt(self, engine_batch_id: str, outcome: str, *, is_over: bool) -> Burnt:
        return Burnt(
            engine_batch_id=engine_batch_id,
            worker_id=self.site.worker_id,
            region=self.site.region.name,
            model=self.model.name,
            engine=self.engine.name,
            engine_version=self.engine.version,
            software_version=self.site.software_version,
            clock=self.site.clock.kind,
            parts=(),
            info=self.site.hub.info(),
            outcome=outcome,
            is_over=is_over,
        )

    # --- lease --------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._is_over.wait(min(self.site.limits.renew_s, LISTEN_S)):
            try:
                self.renew()
            except LeaseLost as error:
                logger.warning("%s", error)
                self.is_lost = True
                return
            except StoreUnavailable as error:
                logger.warning("lease of %s not renewed: %s", self.claim.chunk.chunk_id, error)
            except Exception:  # a process loop: without it the lease would run out under a worker that lives
                logger.exception("lease of %s not renewed", self.claim.chunk.chunk_id)

    def renew(self) -> None:
        """Renew the lease now and hear what was said. Raises LeaseLost, StoreUnavailable."""
        with self.booking:
            if self._is_over.is_set():
                return
            with self.site.db.write() as tx:
                renewal = leases.renew(
                    tx,
                    self.claim.chunk.chunk_id,
                    self.claim.token,
                    lease_s=self.site.limits.lease_s,
                    pending=burnt.to_json(self.unbooked()),
                    job_ids=self._job_ids,
                )
        self.renewed()
        self.is_paused = renewal.is_paused
        self.cancelled_jobs = self.cancelled_jobs | renewal.cancelled_jobs
        self.held_jobs = renewal.held_jobs

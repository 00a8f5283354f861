"""Commit checkpoints beside the engine, through trouble: items that ended meanwhile, a lost lease, a database away.

While the database is away a commit is tried again until the lease has run out; then the checkpoint goes to the spool,
from where ``replay`` brings it through the same fence later. Energy of a refused attempt is booked as wasted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from carbonq import telemetry
from carbonq.errors import LeaseLost, StoreUnavailable
from carbonq.model import AttemptOutcome, Item, ItemState
from carbonq.services import burnt as burnt_rows
from carbonq.services import checkpoint
from carbonq.services.attempt import Attempt
from carbonq.services.burnt import Burnt
from carbonq.services.checkpoint import Checkpoint, Final, Learned, Overtaken, Ran, Writer
from carbonq.services.site import Site
from carbonq.store import leases
from carbonq.store import ledger as ledger_rows
from carbonq.store.database import Tx
from carbonq.store.results import JobInfo

logger = logging.getLogger(__name__)

#: Machine seconds between tries while the database is away.
RETRY_S = 0.5

#: What a fenced attempt says of itself, and one whose last checkpoint waited in the spool.
TAKEN_AWAY = "it came back after its lease had ended and its chunk was taken away"
AWAY = "the database was away until the lease had ended"

#: How often items may be overtaken within one commit before something else must be wrong.
MAX_OVERTAKEN = 20


class Spooled(Exception):
    """The checkpoint could not be committed and waits in the spool; the run must end."""


class Committer:
    """Commits the checkpoints of one attempt in a thread of its own, one after the other, one ahead at most."""

    def __init__(self, attempt: Attempt, infos: Mapping[str, JobInfo]) -> None:
        """Prepare for one attempt."""
        self._attempt = attempt
        self._writer = Writer(attempt.site, attempt.claim, infos)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"commit-{attempt.claim.chunk.chunk_id}")
        self._last: Future[None] | None = None
        self._pause = threading.Event()

    def submit(
        self,
        ran: Sequence[Ran],
        wasted: Sequence[Burnt],
        cancelled: Sequence[Item],
        *,
        learned: Learned | None = None,
        final: Final | None = None,
    ) -> None:
        """Commit in the background; waits for the one before. Raises what that one raised: LeaseLost, Spooled."""
        self.wait()
        self._last = self._pool.submit(self._commit, ran, wasted, cancelled, learned, final)

    def wait(self) -> None:
        """Wait until everything submitted is committed. Raises LeaseLost, Spooled."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()

    def _commit(
        self,
        ran: Sequence[Ran],
        wasted: Sequence[Burnt],
        cancelled: Sequence[Item],
        learned: Learned | None,
        final: Final | None,
    ) -> None:
        overtaken: dict[int, ItemState] = {}
        trace, began_ns = self._attempt.trace, time.time_ns()
        for _ in range(MAX_OVERTAKEN):
            made = self._writer.write(ran, wasted, cancelled, overtaken=overtaken, learned=learned, final=final)
            try:
                self._store(made)
            except Overtaken as error:
                self._writer.discard(made)
                overtaken |= dict.fromkeys(error.item_ids, ItemState.EXPIRED)
            except LeaseLost as error:
                self._writer.discard(made)
                trace.refused(began_ns, error.code)
                raise
            except Spooled:
                trace.committed(made.bookings, began_ns, items=made.items_ended, error="spooled")
                raise
            else:
                trace.committed(made.bookings, began_ns, items=made.items_ended)
                return
        raise LeaseLost(f"chunk {self._attempt.claim.chunk.chunk_id}: its items keep ending by other hands")

    def _store(self, made: Checkpoint) -> None:
        attempt = self._attempt
        while True:
            try:
                with attempt.booking:
                    left = attempt.unbooked(without=made.batch_ids)
                    is_end = _apply(attempt.site, made, burnt_rows.to_json(left) if left else None)
                    attempt.booked(made.batch_ids)
                    if is_end:
                        attempt.ended()
                attempt.renewed()
                return
            except StoreUnavailable as error:
                logger.warning("checkpoint of %s not committed: %s", made.chunk_id, error)
                if attempt.is_overdue:
                    _spool(attempt.site, made)
                    attempt.booked(made.batch_ids)
                    raise Spooled from error
                self._pause.wait(RETRY_S)


def _apply(site: Site, made: Checkpoint, pending: Mapping[str, Any] | None) -> bool:
    """Apply a checkpoint; True if its run ended with it. Raises LeaseLost, Overtaken, StoreUnavailable.

    One that is refused because it is stored already (the answer to its commit was lost, or another process replayed it)
    counts as applied: its results and its energy are there.
    """
    try:
        with site.db.write() as tx:
            is_end = checkpoint.apply(tx, made, lease_s=site.limits.lease_s, pending=pending)
    except (LeaseLost, Overtaken):
        with site.db.read() as tx:
            if not ledger_rows.is_any_stored(tx, made.first_entries):
                raise
        return made.final is not None
    telemetry.count_booked(made.bookings)
    return is_end


def _spool(site: Site, made: Checkpoint) -> None:
    site.spool.put(checkpoint.to_record(_returning(made)))
    logger.warning("checkpoint of %s spooled: it is brought through its fence when the database answers", made.chunk_id)


def _returning(made: Checkpoint) -> Checkpoint:
    """Let a spooled checkpoint give back what it leaves open, since nobody runs it any more."""
    if made.final is None:
        made.final = Final("give_back", AttemptOutcome.YIELDED, is_counted=False, error=AWAY)
    return made


@dataclass(frozen=True, slots=True)
class Refused:
    """Energy of an attempt that may not commit any more."""

    chunk_id: str
    token: int
    attempt: int
    burnt: Sequence[Burnt]


def abandon(site: Site, refused: Refused, *, reason: str, is_counted: bool, backoff_s: float) -> None:
    """End an attempt that cannot go on: book its energy as wasted, and give the chunk back if it is still held.

    What the reaper booked from the last report is not booked again. Spooled while the database is away.
    """
    try:
        with site.db.write() as tx:
            if _book_refused(tx, site, refused):
                leases.give_back(
                    tx,
                    refused.chunk_id,
                    refused.token,
                    is_counted=is_counted,
                    outcome=AttemptOutcome.FAILED,
                    now=site.clock.now(),
                    backoff_s=backoff_s,
                    error=reason,
                )
            else:
                _end_fenced(tx, site, refused)
    except StoreUnavailable as error:
        logger.warning("energy of the ended attempt at %s not booked: %s", refused.chunk_id, error)
        spool_refused(site, refused)


def spool_refused(site: Site, refused: Refused) -> None:
    """Keep an ended attempt's energy for later. Raises StoreUnavailable when the disk refuses."""
    if refused.burnt:
        names = {"chunk_id": refused.chunk_id, "token": refused.token, "attempt": refused.attempt}
        site.spool.put({"kind": "refused", **names, **burnt_rows.to_json(refused.burnt)})


def _end_fenced(tx: Tx, site: Site, refused: Refused) -> None:
    now = site.clock.now()
    leases.end_attempt(tx, refused.chunk_id, refused.token, AttemptOutcome.FENCED, now=now, error=TAKEN_AWAY)


def _book_refused(tx: Tx, site: Site, refused: Refused) -> bool:
    """Book what is not booked yet and report it as such; True if the chunk is still held with the token."""
    is_held = leases.is_held(tx, refused.chunk_id, refused.token)
    # While it is held nobody has booked the report. Afterwards the reaper has, and it is the start of the same calls.
    reported = [] if is_held else burnt_rows.from_json(leases.reported(tx, refused.chunk_id, refused.token))
    bookings = [
        burnt_rows.book_wasted(
            one,
            site.rates(),
            fact=site.fact,
            models=site.models,
            chunk_id=refused.chunk_id,
            attempt=refused.attempt,
            recorded_at=site.machine.now(),
            recorded_by=site.worker_id,
            outcome=one.outcome if is_held else AttemptOutcome.FENCED.value,
        )
        for one in burnt_rows.remainders(refused.burnt, reported)
    ]
    ledger_rows.record_bookings(tx, bookings)
    # The report grows to all that is booked, so that the same energy given twice is booked once.
    known = {one.engine_batch_id: one for one in (*reported, *refused.burnt)}
    leases.report(tx, refused.chunk_id, refused.token, burnt_rows.to_json(list(known.values())))
    return is_held


def replay(site: Site, record: Mapping[str, Any]) -> bool:
    """Bring a spooled checkpoint through its fence, or book spooled energy; False if a checkpoint was refused.

    A refused checkpoint's energy is booked as wasted. Raises StoreUnavailable (try again later) and ValueError or
    KeyError when it is neither.
    """
    if record["kind"] == "refused":
        burnt = burnt_rows.from_json(record)
        refused = Refused(record["chunk_id"], record["token"], record["attempt"], burnt)
        with site.db.write() as tx:
            if not _book_refused(tx, site, refused):
                _end_fenced(tx, site, refused)
        return True
    if record["kind"] != "checkpoint":
        raise ValueError(f"spooled record of kind {record['kind']!r}")
    made = checkpoint.from_record(record)
    try:
        _apply(site, made, None)
    except (LeaseLost, Overtaken) as error:
        logger.warning("spooled checkpoint of %s refused: %s", made.chunk_id, error)
        rest = Refused(made.chunk_id, made.token, made.attempt, made.burnt)
        abandon(site, rest, reason="items ended while they ran", is_counted=True, backoff_s=0.0)
        for segment in made.segments:
            site.blobs.delete(segment.blob)
        return False
    return True

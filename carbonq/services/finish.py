"""Assemble the output and error files of jobs whose items have all ended, and make the jobs final.

Runs every second. A crash between any two steps, or two processes at it at once, change nothing: files are assembled
beside their place, and one statement decides who makes the job final.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson

from carbonq import ids
from carbonq.blobs import BlobStore
from carbonq.clock import Clock
from carbonq.errors import NotFound, StoreUnavailable
from carbonq.model import ItemState, Job, JobState
from carbonq.retry import ATTEMPTS_EXHAUSTED
from carbonq.services import blob_place, carbon, quota
from carbonq.services.apart import each
from carbonq.store import events, items, jobs, results
from carbonq.store.database import Database
from carbonq.store.events import NewEvent
from carbonq.store.results import Segment
from carbonq.units import iso

logger = logging.getLogger(__name__)

#: Items read at a time while error lines are written for those that never ran.
_PAGE = 5_000


def finish_jobs(db: Database, blobs: BlobStore, clock: Clock) -> int:
    """Finish every job whose items have all ended; return how many became final here.

    A job whose files cannot be written now (the disk is full, say) is logged, left for the next run, and stops no other
    job; neither does one that meets a defect, which is raised in the end. Raises StoreUnavailable when the database
    does not answer.
    """
    with db.read() as tx:
        ready = jobs.ended(tx)
    return each(ready, lambda job: _finish(db, blobs, job, clock.now()))


def _finish(db: Database, blobs: BlobStore, job: Job, now: datetime) -> bool:
    with db.write() as tx:
        if jobs.lock(tx, job.job_id).is_final:
            return False  # another process was faster, and the files must stay as they are
        jobs.mark_finishing(tx, job.job_id)
        output = results.segments_of(tx, job.job_id, "output")
        errors = results.segments_of(tx, job.job_id, "error")
        codes = items.error_codes(tx, job.job_id)
    state, error = _final_state(job), _summary(job, codes)
    output_blob = f"jobs/{job.job_id}/output.jsonl" if job.items_succeeded else None
    error_blob = f"jobs/{job.job_id}/errors.jsonl" if job.items_succeeded < job.items_total else None
    try:
        if output_blob:
            blobs.concatenate([segment.blob for segment in output], output_blob)
        if error_blob:
            blobs.put(error_blob, _error_file(db, blobs, job, errors))
    except NotFound as lost:
        logger.error("job %s cannot be finished: %s", job.job_id, lost)
        if _is_elsewhere(db, blobs):
            return False
        state, output_blob, error_blob = JobState.FAILED, None, None
        error = f"results are missing from the data folder ({lost}); submit the job again"
    except StoreUnavailable as away:
        logger.warning("job %s is finished later: %s", job.job_id, away)
        return False
    with db.read() as tx:
        figures = carbon.of_job(tx, job.job_id)
    with db.write() as tx:
        if not jobs.finish(tx, job.job_id, state, output_blob=output_blob, error_blob=error_blob, error=error, at=now):
            return False
        quota.give_back(tx, job)
        events.append_many(tx, [_event(job, state, now, figures)])
    return True


def _is_elsewhere(db: Database, blobs: BlobStore) -> bool:
    """Say whether segments may be missing only because this host looks in the wrong place: then another finishes."""
    try:
        wrong = blob_place.elsewhere(db, blobs)
    except StoreUnavailable as away:
        wrong = away.message
    if wrong is not None:
        logger.error("%s", wrong)
    return wrong is not None


def _final_state(job: Job) -> JobState:
    if job.items_cancelled:
        return JobState.CANCELLED
    return JobState.EXPIRED if job.items_expired else JobState.COMPLETED


def _summary(job: Job, codes: Sequence[tuple[str | None, int]]) -> str | None:
    """Say it plainly when not one item succeeded: ``completed`` alone reads as if all were well."""
    if job.items_succeeded or not job.items_failed:
        return None
    code, count = codes[0]
    return (
        f"{job.items_failed:,} of {job.items_total:,} items failed; most common: {code or 'unknown'} ({count:,}); "
        "the error file says why for each"
    )


def _event(job: Job, state: JobState, now: datetime, figures: Mapping[str, Any] | None) -> NewEvent:
    counts = {
        "total": job.items_total,
        "succeeded": job.items_succeeded,
        "failed": job.items_failed,
        "expired": job.items_expired,
        "cancelled": job.items_cancelled,
    }
    return NewEvent(f"job.{state.value}", now, job.tenant, job.job_id, {**counts, "carbon": figures})


def _error_file(db: Database, blobs: BlobStore, job: Job, segments: Sequence[Segment]) -> Iterator[bytes]:
    """Yield the lines that workers wrote, then one for each item that ended without any line of its own."""
    for segment in segments:
        yield from blobs.pieces(segment.blob)
    yield from _unsent_lines(db, job, (ItemState.EXPIRED, ItemState.CANCELLED), frozenset())
    if sum(segment.items for segment in segments) < job.items_failed:
        written = frozenset(_custom_ids(blobs, segments))
        yield from _unsent_lines(db, job, (ItemState.FAILED,), written)


def _custom_ids(blobs: BlobStore, segments: Sequence[Segment]) -> Iterator[str]:
    for segment in segments:
        with blobs.open(segment.blob) as lines:
            for line in lines:
                yield orjson.loads(line)["custom_id"]


def _unsent_lines(db: Database, job: Job, states: Sequence[ItemState], written: frozenset[str]) -> Iterator[bytes]:
    last = -1
    while True:
        with db.read() as tx:
            page = items.unanswered(tx, job.job_id, states, after_idx=last, limit=_PAGE)
        if not page:
            return
        yield b"".join(
            _unsent_line(custom_id, *_why(job, state, code))
            for _, custom_id, state, code in page
            if custom_id not in written
        )
        last = page[-1][0]


def _why(job: Job, state: ItemState, code: str | None) -> tuple[str, str]:
    if state is ItemState.CANCELLED:
        return "batch_cancelled", "the job was cancelled before this item ran"
    if state is ItemState.EXPIRED:
        return "batch_expired", f"the deadline {iso(job.deadline_at)} passed before this item ran"
    if code == ATTEMPTS_EXHAUSTED:
        return code, "every attempt to run this item ended without an answer; submit it again, by itself if need be"
    return code or "unknown", "this item ended without an answer; submit it again"


def _unsent_line(custom_id: str, code: str, message: str) -> bytes:
    line = {
        "id": ids.new("batch_req"),
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)

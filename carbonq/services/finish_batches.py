"""Assemble the files of batches whose jobs have all ended, and make the batches final.

Runs every second after ``finish``. A crash between any two steps, or two processes at it at once, change nothing: the
ids of the files are fixed before the first byte, files are assembled beside their place, and one transaction stores
their rows, makes the batch final and says so in the events.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from carbonq import ids
from carbonq.blobs import BlobStore
from carbonq.clock import Clock
from carbonq.errors import NotFound, StoreUnavailable
from carbonq.model import Job, JobState
from carbonq.services import blob_place, carbon
from carbonq.services.apart import each
from carbonq.store import batch_figures, batches, events, files, jobs
from carbonq.store.batches import Batch, BatchState
from carbonq.store.database import Database
from carbonq.store.events import NewEvent
from carbonq.store.files import File

logger = logging.getLogger(__name__)


def finish_batches(db: Database, blobs: BlobStore, clock: Clock, *, keep_results_days: float | None) -> int:
    """Finish every batch whose jobs have all ended; return how many became final here.

    A batch whose files cannot be written now is logged, left for the next run, and stops no other; neither does one
    that meets a defect, which is raised in the end. Raises StoreUnavailable when the database does not answer.
    """
    with db.read() as tx:
        ready = batches.ended(tx)
    return each(ready, lambda batch_id: _finish(db, blobs, batch_id, clock.now(), keep_results_days))


def _finish(db: Database, blobs: BlobStore, batch_id: str, now: datetime, keep_results_days: float | None) -> bool:
    with db.write() as tx:
        if batches.lock(tx, batch_id).is_final:
            return False  # another process was faster, and the files must stay as they are
        mine = [jobs.get(tx, job_id) for job_id in batches.job_ids(tx, batch_id)]
        batches.mark_finalizing(
            tx,
            batch_id,
            output_file_id=ids.new("file", "-") if any(job.output_blob for job in mine) else None,
            error_file_id=ids.new("file", "-") if any(job.error_blob for job in mine) else None,
            at=now,
        )
        batch = batches.get(tx, batch_id)
    broken = [job for job in mine if job.state is JobState.FAILED]
    try:
        if broken:
            return _fail(db, batch, broken, now)
        made = _assemble(blobs, batch, mine, now, keep_results_days)
    except NotFound as lost:
        logger.error("batch %s cannot be finished: %s", batch_id, lost)
        return False if blob_place.elsewhere(db, blobs) else _fail(db, batch, [], now)
    except StoreUnavailable as away:
        logger.warning("batch %s is finished later: %s", batch_id, away)
        return False
    is_done = _end(db, batch, mine, made, now)
    if is_done:
        _tidy(blobs, mine)
    return is_done


def _assemble(
    blobs: BlobStore, batch: Batch, mine: Sequence[Job], now: datetime, keep_results_days: float | None
) -> list[File]:
    """Write the batch's files and return their rows, which are not stored yet."""
    kept_s = batch.output_expires_after_s
    if kept_s is None and keep_results_days is not None:
        kept_s = int(keep_results_days * 86_400)
    expires_at = None if kept_s is None else now + timedelta(seconds=kept_s)
    lines = sum(job.items_succeeded for job in mine)
    made: list[File] = []
    for file_id, keys, count, name in (
        (batch.output_file_id, [job.output_blob for job in mine], lines, "output"),
        (batch.error_file_id, [job.error_blob for job in mine], sum(job.items_total for job in mine) - lines, "errors"),
    ):
        if file_id is None:
            continue
        blob = files.blob_key(file_id)
        size = blobs.concatenate([key for key in keys if key is not None], blob)
        made.append(
            File(
                file_id=file_id,
                tenant=batch.tenant,
                api_key_id=batch.api_key_id,
                purpose="batch_output",
                filename=f"{batch.batch_id}_{name}.jsonl",
                bytes=size,
                lines=count,
                blob=blob,
                created_at=now,
                expires_at=expires_at,
            )
        )
    return made


def _end(db: Database, batch: Batch, mine: Sequence[Job], made: Sequence[File], now: datetime) -> bool:
    state = _final_state(batch, mine)
    with db.read() as tx:
        figures = carbon.of_batch(tx, batch.batch_id)
    with db.write() as tx:
        if not batches.finish(
            tx,
            batch.batch_id,
            state,
            errors=_summary(mine),
            usage=usage(batch_figures.used(tx, batch.batch_id)),
            at=now,
        ):
            return False
        files.insert_many(tx, made)
        batches.retire_jobs(tx, batch.batch_id, now)
        counts = batches.progress(tx, [batch.batch_id]).get(batch.batch_id, batches.Progress())
        data = {
            "id": batch.batch_id,
            "request_counts": request_counts(counts),
            "output_file_id": batch.output_file_id,
            "error_file_id": batch.error_file_id,
            "carbon": figures,
        }
        events.append_many(tx, [NewEvent(f"batch.{state.value}", now, batch.tenant, data=data)])
    return True


def _fail(db: Database, batch: Batch, broken: Sequence[Job], now: datetime) -> bool:
    message = next((job.error for job in broken if job.error), None) or (
        "results of this batch are missing from the data folder; send it again"
    )
    error = {"code": "results_missing", "line": None, "message": message, "param": None}
    with db.write() as tx:
        if not batches.fail(tx, batch.batch_id, [error], leaving=batch.state, at=now):
            return False
        data = {"id": batch.batch_id, "error": message}
        events.append_many(tx, [NewEvent("batch.failed", now, batch.tenant, data=data)])
    return True


def _tidy(blobs: BlobStore, mine: Sequence[Job]) -> None:
    """Remove the jobs' own copies; what is left behind by a crash here goes with the jobs' items."""
    for job in mine:
        for blob in (job.output_blob, job.error_blob):
            if blob is not None:
                try:
                    blobs.delete(blob)
                except StoreUnavailable as away:
                    logger.warning("files of job %s are removed later: %s", job.job_id, away)


def _final_state(batch: Batch, mine: Sequence[Job]) -> BatchState:
    if batch.state is BatchState.CANCELLING or any(job.items_cancelled for job in mine):
        return BatchState.CANCELLED
    return BatchState.EXPIRED if any(job.items_expired for job in mine) else BatchState.COMPLETED


def _summary(mine: Sequence[Job]) -> list[dict[str, Any]] | None:
    """Say it plainly when not one line succeeded: ``completed`` alone reads as if all were well."""
    failed, total = sum(job.items_failed for job in mine), sum(job.items_total for job in mine)
    if not failed or any(job.items_succeeded for job in mine):
        return None
    said = max(mine, key=lambda job: job.items_failed).error
    if len(mine) > 1 or said is None:
        said = f"{failed:,} of {total:,} requests failed; the error file says why for each" + (
            "" if said is None else f" (of one part: {said})"
        )
    return [{"code": "all_requests_failed", "line": None, "message": said, "param": None}]


def request_counts(counts: batches.Progress) -> dict[str, int]:
    """Return OpenAI's counts; ``failed`` are the lines of the error file, whatever kept them from an answer."""
    return {
        "total": counts.total,
        "completed": counts.succeeded,
        "failed": counts.failed + counts.expired + counts.cancelled,
    }


def usage(used: Sequence[batch_figures.Used]) -> dict[str, Any] | None:
    """Return OpenAI's usage of the lines that succeeded; None before any ran."""
    if not used:
        return None
    prompt = sum(one.prompt_tokens for one in used)
    completion = sum(one.completion_tokens for one in used)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in used)},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }

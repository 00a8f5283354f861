"""The two tasks of a region worker. Thin: the work is in ``carbonq.services``."""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery import Celery
from celery.worker import state as worker_state

from carbonq import telemetry
from carbonq.errors import BrokerUnavailable, StoreUnavailable
from carbonq.services import realtime
from carbonq.services.run import run_chunk
from carbonq.services.site import Site
from carbonq.services.writebehind import WriteBehind
from carbonq.tickets import REALTIME, RUN_CHUNK, piece_sender

logger = logging.getLogger(__name__)

#: How long a ticket waits for a slot before it goes back to its queue, in machine seconds.
SLOT_WAIT_S = 0.02


def register(app: Celery, site: Site, behind: WriteBehind, stop: threading.Event) -> None:
    """Make the tasks known to the worker."""
    # The pool has more threads than slots: without this, chunks would fill the threads kept for realtime calls.
    slots = threading.BoundedSemaphore(site.region.slots)
    region = site.region.name
    # A doubled ticket of a chunk that runs here would go round and round until the chunk ends.
    running: set[str] = set()

    @app.task(name=RUN_CHUNK, ignore_result=True, shared=False, bind=True)
    def run(task: Any, chunk_id: str) -> None:  # pyright: ignore[reportUnusedFunction]
        if stop.is_set() or chunk_id in running:
            return  # if it was the only one, the dispatcher sends it again
        if not slots.acquire(timeout=SLOT_WAIT_S):
            try:
                shown = getattr(task.request, "kwargsrepr", None)
                site.tickets.flexible([(region, chunk_id)], {chunk_id: shown} if shown else None)
            except BrokerUnavailable as error:
                logger.debug("ticket of %s dropped, it comes again: %s", chunk_id, error)
            return
        running.add(chunk_id)
        try:
            result = run_chunk(site, chunk_id, stop)
            telemetry.CHUNKS.labels(region, result.value).inc()
        except StoreUnavailable as error:
            logger.warning("chunk %s not claimed: %s", chunk_id, error)
        finally:
            running.discard(chunk_id)
            slots.release()

    @app.task(name=REALTIME, ignore_result=False, shared=False, bind=True)
    def answer(task: Any, payload: dict[str, Any]) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        call_id = task.request.id  # a call whose client went away is revoked, and stops where it is
        with telemetry.timed(telemetry.REALTIME_SECONDS, region):
            told = piece_sender(app, task.request.reply_to, call_id) if payload.get("is_streamed") else None
            return realtime.answer(site, payload, behind.put, lambda: call_id in worker_state.revoked, told)

"""Realtime calls: nearest region, one ticket, one answer. Nothing here touches the database or the planner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from carbonq.api.directory import Directory
from carbonq.errors import BrokerUnavailable, QuotaExceeded, Unavailable
from carbonq.model import Model, Region

#: What a caller over the limit is told to wait, in seconds.
_RETRY_AFTER_S = 1.0


class RealtimeCaller(Protocol):
    """The seam to the broker (``tickets.Tickets``); blocking, called from many threads."""

    def realtime(self, region: str, payload: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one call and wait for its answer. Raises Unavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """What a region's worker answered; ``elapsed_s`` is machine seconds seen from here."""

    region: Region
    values: Mapping[str, Any]
    elapsed_s: float


class Dispatcher:
    """Sends realtime calls, at most ``queue_limit`` at a time; belongs to one event loop."""

    def __init__(self, caller: RealtimeCaller, directory: Directory, *, timeout_s: float, queue_limit: int) -> None:
        """Make the threads that wait for answers; ``timeout_s`` bounds each wait."""
        self._caller = caller
        self._directory = directory
        self._timeout_s = timeout_s
        self._queue_limit = queue_limit
        # Threads of its own: a realtime call must not stand behind a long download in the shared pool.
        self._pool = ThreadPoolExecutor(max_workers=queue_limit, thread_name_prefix="realtime")
        self.in_flight = 0

    async def call(self, payload: dict[str, Any], *, model: Model, allowed: Collection[str] | None) -> Reply:
        """Answer one request in the nearest region.

        Raises InvalidRequest, QuotaExceeded above the limit, Unavailable (no region, no broker, no answer in time).
        """
        region = self._directory.nearest(model, allowed)
        if self.in_flight >= self._queue_limit:
            raise QuotaExceeded(
                f"{self.in_flight} realtime calls are in flight here, which is the limit (realtime_queue_limit)",
                retry_after_s=_RETRY_AFTER_S,
            )
        self.in_flight += 1
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        waiting = self._pool.submit(self._caller.realtime, region.name, payload, self._timeout_s)
        # Counted down when the thread is free again, also if the client has gone away meanwhile.
        waiting.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended))
        try:
            values = await asyncio.wrap_future(waiting)
        except BrokerUnavailable:
            raise  # no region's fault
        except Unavailable:
            # A region that does not answer is as far away as the timeout: the next call tries another one.
            self._directory.observe(region.name, self._timeout_s * 1000)
            raise
        elapsed_s = time.monotonic() - started
        engine_s = float(values.get("engine_s") or 0.0)
        self._directory.observe(region.name, max(0.0, elapsed_s - engine_s) * 1000)
        return Reply(region, values, elapsed_s)

    def _ended(self) -> None:
        self.in_flight -= 1

    def close(self) -> None:
        """Stop taking calls; those in flight end by their timeout."""
        self._pool.shutdown(wait=False, cancel_futures=True)

"""Realtime calls: one ticket to a region, one answer. Nothing here touches the database or the planner."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from carbonq.api.directory import Directory
from carbonq.api.load import Load
from carbonq.errors import BrokerUnavailable, QuotaExceeded, Unavailable
from carbonq.model import Model, Region

#: What a caller over the limit is told to wait, in seconds.
_RETRY_AFTER_S = 1.0


#: ``code`` of the error that ends the wait for a call that was dropped.
CALLER_GONE = "caller_gone"

#: ``code`` of the error for a call that had no answer in time.
TIMED_OUT = "realtime_timeout"


class RealtimeCaller(Protocol):
    """The seam to the broker (``tickets.Tickets``); blocking, called from many threads."""

    def realtime(
        self,
        region: str,
        payload: dict[str, Any],
        timeout_s: float,
        call_id: str | None = None,
        on_piece: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Send one call and wait for its answer. Raises Unavailable."""
        ...

    def drop(self, call_id: str) -> None:
        """Tell the worker that nobody waits for a call any more; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """What a region's worker answered; ``elapsed_s`` is machine seconds seen from here."""

    region: Region
    values: Mapping[str, Any]
    elapsed_s: float


class Dispatcher:
    """Sends realtime calls, at most ``queue_limit`` at a time; belongs to one event loop."""

    def __init__(
        self,
        caller: RealtimeCaller,
        directory: Directory,
        *,
        timeout_s: float,
        queue_limit: int,
        slo_s: float = math.inf,
    ) -> None:
        """Make the threads that wait for answers; ``timeout_s`` bounds each wait, ``slo_s`` the one for an engine."""
        self._caller = caller
        self._directory = directory
        self._timeout_s = timeout_s
        self._slo_s = slo_s
        self.load = Load()
        self._queue_limit = queue_limit
        # Threads of its own: a realtime call must not stand behind a long download in the shared pool.
        self._pool = ThreadPoolExecutor(max_workers=queue_limit, thread_name_prefix="realtime")
        self.in_flight = 0

    async def call(
        self,
        payload: dict[str, Any],
        *,
        model: Model,
        region: Region,
        slo_s: float | None = None,
        call_id: str | None = None,
        on_piece: Callable[[str], None] | None = None,
    ) -> Reply:
        """Answer one request in a region; ``slo_s`` is the call's own budget, ``call_id`` a name to ``drop`` it by.

        ``on_piece`` is called in the loop with each piece of text that comes before the answer.

        Raises QuotaExceeded above the limit or where the queue is longer than the budget, Unavailable (no broker, no
        answer in time).
        """
        self._check_load(region, model, self._budget_s(slo_s))
        self.in_flight += 1
        self.load.in_flight[region.name] += 1
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        told = None if on_piece is None else _in_loop(loop, on_piece)
        waiting = self._pool.submit(self._caller.realtime, region.name, payload, self._timeout_s, call_id, told)
        # Counted down when the thread is free again, also if the client has gone away meanwhile.
        waiting.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended, region.name))
        try:
            values = await asyncio.wrap_future(waiting)
        except BrokerUnavailable:
            raise  # no region's fault
        except Unavailable as error:
            if error.code == CALLER_GONE:
                raise
            # A region that does not answer is as far away as the timeout: the next call tries another one.
            self._directory.observe(region.name, self._timeout_s * 1000)
            if error.code == TIMED_OUT:
                self.load.answered(region.name, model.name, self._timeout_s)  # at least: the next ones must not pile up
            raise
        elapsed_s = time.monotonic() - started
        engine_s = float(values.get("engine_s") or 0.0)
        self._directory.observe(region.name, max(0.0, elapsed_s - engine_s) * 1000)
        if values.get("engine_s") is not None:
            self.load.answered(region.name, model.name, engine_s)
        return Reply(region, values, elapsed_s)

    def has_room(self, region: str, model: str, slo_s: float | None = None) -> bool:
        """Say whether a call in a region would have its turn within its budget; at once, where nobody can tell."""
        lanes = self._directory.lanes(region)
        if self.load.engine_s(region, model) is None:
            return self.load.in_flight[region] < max(1, lanes)
        return self.load.wait_s(region, model, lanes) <= self._budget_s(slo_s)

    def _budget_s(self, slo_s: float | None) -> float:
        return min(self._slo_s, math.inf if slo_s is None else slo_s)

    def _check_load(self, region: Region, model: Model, slo_s: float) -> None:
        if self.in_flight >= self._queue_limit:
            raise QuotaExceeded(
                f"{self.in_flight} realtime calls are in flight here, which is the limit (realtime_queue_limit)",
                retry_after_s=_RETRY_AFTER_S,
            )
        wait_s = self.load.wait_s(region.name, model.name, self._directory.lanes(region.name))
        if wait_s > slo_s:
            raise QuotaExceeded(
                f"a call to {model.name} in {region.name} would wait about {wait_s:.1f} s for its turn, "
                f"longer than the {slo_s:g} s it may",
                retry_after_s=max(_RETRY_AFTER_S, wait_s - slo_s),
            )

    def drop(self, call_id: str) -> None:
        """Tell the worker that nobody waits for a call any more; blocking, never raises."""
        self._caller.drop(call_id)

    def _ended(self, region: str) -> None:
        self.in_flight -= 1
        self.load.in_flight[region] -= 1

    def close(self) -> None:
        """Stop taking calls; those in flight end by their timeout."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _in_loop(loop: asyncio.AbstractEventLoop, act: Callable[[str], None]) -> Callable[[str], None]:
    def call(piece: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads it any more
            loop.call_soon_threadsafe(act, piece)

    return call

"""``Prefer: wait=N`` (RFC 7240): hold an answer until a job is final, with one query a second however many wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio.to_thread
from fastapi import Request

from carbonq.errors import Unavailable

#: Longest wait that is granted, in machine seconds: below what proxies usually allow.
MAX_WAIT_S = 60

#: Requests that may wait at the same time; more are answered at once, as the preference allows.
MOST_WAITING = 1_000

#: How often the database is asked, in machine seconds.
PERIOD_S = 1.0

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Preference:
    """What a client prefers: ``wait_s`` whole seconds (None: says nothing of it), and an answer before it is done."""

    wait_s: int | None = None
    respond_async: bool = False


def preference(headers: Sequence[str]) -> Preference:
    """Read ``Prefer`` headers; the first of each name counts, and what is not understood is passed over."""
    wait_s: int | None = None
    respond_async = False
    for part in ",".join(headers).split(","):
        name, _, value = part.partition(";")[0].partition("=")
        name, value = name.strip().lower(), value.strip().strip('"')
        if name == "wait" and wait_s is None and value.isascii() and value.isdigit():
            wait_s = min(int(value[:9]), MAX_WAIT_S)
        elif name == "respond-async":
            respond_async = True
    return Preference(wait_s, respond_async)


class Finals:
    """Wakes those who wait for jobs to become final. Belongs to one event loop at a time."""

    period_s = PERIOD_S
    most = MOST_WAITING

    def __init__(self, look: Callable[[Collection[str]], Collection[str]]) -> None:
        """Begin without anybody waiting; ``look`` returns which of some jobs are final and may raise Unavailable."""
        self._look = look
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._poller: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many wait now."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_full(self) -> bool:
        """Whether no more may wait."""
        return self.count >= self.most

    async def wait(self, job_id: str, timeout_s: float) -> bool:
        """Wait until a job is final; False when it was not within ``timeout_s`` machine seconds."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, set()).add(future)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        else:
            return True
        finally:
            others = self._waiting.get(job_id, set())
            others.discard(future)
            if not others:
                self._waiting.pop(job_id, None)

    async def _poll(self) -> None:
        while self._waiting:
            await asyncio.sleep(self.period_s)
            final: Collection[str] = ()
            with contextlib.suppress(Unavailable):  # the next look may find the database again
                final = await anyio.to_thread.run_sync(self._look, tuple(self._waiting))
            for job_id in final:
                for future in self._waiting.pop(job_id, ()):
                    if not future.done():
                        future.set_result(None)


async def unless_gone(request: Request, work: Coroutine[Any, Any, Value]) -> Value | None:
    """Return what ``work`` returns; None when the client went away before, and then the work is cancelled."""
    done, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
        return done.result() if done.done() else None
    finally:
        gone.cancel()
        done.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

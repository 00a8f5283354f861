"""Looks at the same thing, shared: whoever asks while a look is under way gets what the next one finds.

So each answer is of a moment after its question, and however many clients poll a job or batch, there is one look at it
at a time. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio.to_thread
from fastapi.responses import Response


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a job or batch, as it is sent; ``retry_after_s`` hints when to look again."""

    content: bytes
    retry_after_s: int | None = None
    etag: str = ""

    def __post_init__(self) -> None:
        """Name the content once, however many get it."""
        object.__setattr__(self, "etag", f'"{hashlib.sha256(self.content).hexdigest()[:32]}"')

    def answer(self, headers: dict[str, str], if_none_match: str | None) -> Response:
        """Return the response; 304 where the client has this already."""
        headers["ETag"] = self.etag
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if is_known(self.etag, if_none_match):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type="application/json", headers=headers)


def is_known(etag: str, if_none_match: str | None) -> bool:
    """Say whether a client has what an ``ETag`` names (RFC 9110: a list of tags, weak ones count; ``*`` is any)."""
    tags = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    return etag in tags or "*" in tags


Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


@dataclass(slots=True)
class _Flight(Generic[Found]):
    """The look under way, and what those wait for who came after it began (None: nobody)."""

    now: asyncio.Task[Found]
    next: asyncio.Future[Found] | None = None


class Flights(Generic[Key, Found]):
    """Shares what ``look`` finds, by key; it runs in a thread."""

    def __init__(self, look: Callable[[Key], Found]) -> None:
        """Begin with nobody asking."""
        self._look = look
        self._flights: dict[Key, _Flight[Found]] = {}

    async def of(self, key: Key) -> Found:
        """Return what is found from now on. Raises what ``look`` raises."""
        flight = self._flights.get(key)
        if flight is None:
            # Shielded: that the first one went away must not take the answer from the others.
            return await asyncio.shield(self._begin(key))
        if flight.next is None:
            flight.next = asyncio.get_running_loop().create_future()
        return await asyncio.shield(flight.next)

    def _begin(self, key: Key) -> asyncio.Task[Found]:
        task = asyncio.get_running_loop().create_task(anyio.to_thread.run_sync(self._look, key))
        flight = self._flights[key] = _Flight(task)
        task.add_done_callback(lambda _: self._ended(key, flight))
        return task

    def _ended(self, key: Key, flight: _Flight[Found]) -> None:
        del self._flights[key]
        if not flight.now.cancelled():
            flight.now.exception()  # looked at, though everybody may have gone away
        if flight.next is not None:
            waiting = flight.next
            self._begin(key).add_done_callback(lambda done: _pass_on(done, waiting))


def _pass_on(done: asyncio.Task[Found], waiting: asyncio.Future[Found]) -> None:
    if waiting.cancelled():
        return
    if done.cancelled():
        waiting.cancel()
        return
    error = done.exception()
    if error is None:
        waiting.set_result(done.result())
    else:
        waiting.set_exception(error)
        waiting.exception()  # looked at, though everybody may have gone away

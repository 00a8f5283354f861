"""One request to an OpenAI-compatible server, tried again while that can help. Asynchronous; machine seconds.

Tried again: 408, 409, 425, 429, 5xx, a connection that is refused or breaks, silence, and an answer that is none; with
doubling waits, or as long as ``Retry-After`` says, within a budget and a number of tries. What a server asks of one
request (429, 503) holds back the others, too. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx
from httpx_retries import Retry

from carbonq import retry
from carbonq.engines.openai_answers import Answer, ChatStream, MalformedError, Said, said

logger = logging.getLogger(__name__)

#: Longest answer that is read, in bytes: 2,048 vectors of 4,096 numbers are 170 MB.
MAX_ANSWER_BYTES = 256 * 1024 * 1024

_RETRIED = frozenset({408, 409, 425, 429})

#: Statuses that say something of the server or of our rights and nothing of the item.
_OURS = frozenset({401, 402, 403, 404, 405, 407})

#: Statuses by which a server asks all callers to wait.
_BUSY = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request is waited for. ``budget_s``: no try begins later than this after the first.

    ``base_s`` and ``cap_s`` bound the wait between two tries where the server names none.
    """

    connect_s: float = 5.0
    read_s: float = 120.0
    budget_s: float = 60.0
    tries: int = 6
    base_s: float = 0.5
    cap_s: float = 15.0


class RefusedError(Exception):
    """The server will not answer this request however often it is asked: the item's own fault."""

    def __init__(self, status: int, what: Said) -> None:
        super().__init__(what.message)
        self.status = status
        self.said = what


class FailedError(Exception):
    """No answer within the budget. ``is_away``: no other request would fare better now."""

    def __init__(self, message: str, *, is_away: bool) -> None:
        super().__init__(message)
        self.message = message
        self.is_away = is_away


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why a try gave nothing, and how long the server asked to be left alone (None: it did not say)."""

    message: str
    is_away: bool
    wait_s: float | None = None


class Caller:
    """Posts requests to one server; all methods are for one event loop."""

    def __init__(self, client: httpx.AsyncClient, patience: Patience) -> None:
        """Use a client whose ``base_url`` is the server's."""
        self._client = client
        self._patience = patience
        self._not_before = 0.0

    async def post(self, path: str, body: bytes, read: Callable[[bytes], Answer], turns: asyncio.Semaphore) -> Answer:
        """Return the answer as ``read`` makes it, which raises MalformedError. Raises RefusedError, FailedError.

        A try waits for one of ``turns``; a wait between tries gives it back.
        """
        return await self._patiently(lambda: self._whole(path, body, read), turns)

    async def stream(
        self, path: str, body: bytes, begin: Callable[[float], ChatStream], turns: asyncio.Semaphore
    ) -> Answer:
        """Return a streamed answer; ``begin`` is told when the request was sent. As ``post`` otherwise."""
        return await self._patiently(lambda: self._streamed(path, body, begin), turns)

    async def get(self, url: str) -> bytes | None:
        """Return what a GET answers, asked once and for two seconds at most; None for anything but 200."""
        try:
            response = await self._client.get(url, timeout=2.0)
        except (httpx.HTTPError, httpx.InvalidURL):
            return None
        return response.content if response.status_code == 200 else None

    async def _patiently(self, once: Callable[[], Awaitable[Answer | _Trouble]], turns: asyncio.Semaphore) -> Answer:
        limits = self._patience
        give_up_at = math.inf  # the budget begins with the first try, however long its turn was waited for
        tries = 0
        while True:
            async with turns:
                give_up_at = min(give_up_at, time.monotonic() + limits.budget_s)
                await self._hold(give_up_at)
                tries += 1
                found = await once()
            if isinstance(found, Answer):
                return found
            own_s = retry.backoff_s(tries, base=limits.base_s, cap=limits.cap_s, jitter=random.random())
            wait_s = own_s if found.wait_s is None else max(found.wait_s, 0.0)
            if tries >= limits.tries or time.monotonic() + wait_s > give_up_at:
                asked = "" if found.wait_s is None else f"; it asked to wait {found.wait_s:g} s"
                raise FailedError(f"{found.message} after {tries} tries{asked}", is_away=found.is_away)
            logger.debug("asked again in %.1f s: %s", wait_s, found.message)
            await asyncio.sleep(wait_s)

    async def _hold(self, give_up_at: float) -> None:
        """Wait out what the server asked of another request. Raises FailedError where that is too long."""
        while (wait_s := self._not_before - time.monotonic()) > 0:
            if self._not_before > give_up_at:
                raise FailedError(f"the server asked not to be called for {wait_s:.0f} s more", is_away=True)
            await asyncio.sleep(wait_s)

    async def _whole(self, path: str, body: bytes, read: Callable[[bytes], Answer]) -> Answer | _Trouble:
        try:
            async with self._client.stream("POST", path, content=body, timeout=self._timeout()) as response:
                data = await _body(response)
                if response.status_code != 200:
                    return self._refusal(response, data)
                return read(data)
        except (MalformedError, httpx.HTTPError) as error:
            return self._lost(error)

    async def _streamed(self, path: str, body: bytes, begin: Callable[[float], ChatStream]) -> Answer | _Trouble:
        try:
            gathered = begin(time.monotonic())
            async with self._client.stream("POST", path, content=body, timeout=self._timeout()) as response:
                if response.status_code != 200:
                    return self._refusal(response, await _body(response))
                async for line in response.aiter_lines():
                    gathered.take(line, time.monotonic())
                    if gathered.is_over:
                        break
                return gathered.answer()
        except (MalformedError, httpx.HTTPError) as error:
            return self._lost(error)

    def _timeout(self) -> httpx.Timeout:
        # A turn is waited for above, not in the pool.
        return httpx.Timeout(self._patience.read_s, connect=self._patience.connect_s, pool=None)

    def _refusal(self, response: httpx.Response, data: bytes) -> _Trouble:
        status = response.status_code
        words = said(data, status)
        message = f"the server answered {status}: {words.message}"
        if status in _OURS or status // 100 == 3:
            raise FailedError(message, is_away=True)
        if status // 100 == 4 and status not in _RETRIED:
            raise RefusedError(status, words)
        wait_s = retry_after_s(response.headers)
        if status in _BUSY and wait_s is not None:
            self._not_before = max(self._not_before, time.monotonic() + wait_s)
        return _Trouble(message, is_away=status in _BUSY, wait_s=wait_s)

    def _lost(self, error: MalformedError | httpx.HTTPError) -> _Trouble:
        if isinstance(error, MalformedError):
            return _Trouble(f"the server answered {error}", is_away=False)
        words = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            return _Trouble(f"the server could not be reached ({words})", is_away=True)
        if isinstance(error, httpx.TimeoutException):
            return _Trouble(f"the server was silent for {self._patience.read_s:g} s", is_away=False)
        return _Trouble(f"the connection broke ({words})", is_away=False)


async def _body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for block in response.aiter_bytes():
        body += block
        if len(body) > MAX_ANSWER_BYTES:
            raise MalformedError(f"more than {MAX_ANSWER_BYTES:,} bytes")
    return bytes(body)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds a server asks to wait: ``retry-after-ms``, or ``Retry-After`` as a number or a date.

    None where it does not say, or says what is no time.
    """
    with contextlib.suppress(KeyError, ValueError):
        return _positive(float(headers["retry-after-ms"]) / 1000.0)
    given = headers.get("retry-after", "")
    with contextlib.suppress(ValueError):
        return _positive(float(given))  # model servers also send fractions
    with contextlib.suppress(ValueError):
        return Retry().parse_retry_after(given)
    return None


def _positive(seconds: float) -> float | None:
    return max(0.0, seconds) if math.isfinite(seconds) else None

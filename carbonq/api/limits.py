"""Rate limits by machine minute, for each key and each tenant: requests, and tokens of realtime calls.

Counted in the broker's Redis, so that all API processes count together; in this process's memory where the broker is
another one or does not answer. Off unless a limit is set: then a request costs nothing here.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage, Storage
from redis.exceptions import RedisError

from carbonq.api.auth import Caller
from carbonq.errors import QuotaExceeded
from carbonq.model import Quota

logger = logging.getLogger(__name__)

#: Length of what is counted together, in seconds: machine minutes since the epoch, so that all processes agree.
WINDOW_S = 60

#: How long Redis may take, and how long it is left alone after it failed, in seconds.
_REDIS_TIMEOUT_S = 0.25
_REDIS_PAUSE_S = 15.0

#: Where a request carries the headers that its answer is to show.
HEADERS = "carbonq.headers"


@dataclass(frozen=True, slots=True)
class _Bound:
    """One limit: of what, whose, how many, and the name under which it is counted."""

    kind: str  # requests | tokens
    whose: str  # key | tenant
    limit: int
    name: str


class RateLimits:
    """Counts and refuses. Used on one event loop."""

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        quota_of: Callable[[str], Quota] = lambda _: Quota(),
        redis_url: str | None = None,
        prefix: str = "",
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; nothing is connected yet.

        The rates are those of keys that have none of their own (None: no limit). ``quota_of`` returns a tenant's
        limits, ``wall`` the Unix time; ``prefix`` keeps installations apart that share a Redis.
        """
        self._of_keys = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._quota_of = quota_of
        self._wall = wall
        self._memory = MemoryStorage()
        self._redis: RedisStorage | None = None
        if redis_url is not None:
            self._redis = RedisStorage(
                f"async+{redis_url}",
                implementation="redispy",
                key_prefix=f"{prefix}carbonq.rate",
                socket_timeout=_REDIS_TIMEOUT_S,
                socket_connect_timeout=_REDIS_TIMEOUT_S,
            )
        self._redis_again_at = 0.0

    async def take(self, request: Request, caller: Caller) -> None:
        """Count a request of a caller, and put the headers of its limits on the answer. Raises QuotaExceeded."""
        bounds = self._bounds(caller, "requests")
        if not bounds:
            return
        window, left_s = self._window()
        counts = await self._counts(bounds, window, 1)
        tightest, count = _tightest(bounds, counts)
        _say(request, tightest, tightest.limit - count, left_s)
        if count > tightest.limit:
            raise self._refusal(tightest, left_s)

    async def check_tokens(self, request: Request, caller: Caller) -> None:
        """Refuse a realtime call where the minute's tokens are used up. Raises QuotaExceeded."""
        bounds = self._bounds(caller, "tokens")
        if not bounds:
            return
        window, left_s = self._window()
        tightest, count = _tightest(bounds, await self._counts(bounds, window, 0))
        _say(request, tightest, tightest.limit - count, left_s)
        if count >= tightest.limit:
            raise self._refusal(tightest, left_s)

    async def count_tokens(self, request: Request, caller: Caller, tokens: int) -> None:
        """Count the tokens of a call that was answered; never refuses."""
        bounds = self._bounds(caller, "tokens")
        if not bounds or tokens <= 0:
            return
        window, left_s = self._window()
        tightest, count = _tightest(bounds, await self._counts(bounds, window, tokens))
        _say(request, tightest, tightest.limit - count, left_s)

    async def attempt(self, kind: str, whose: str, limit: int) -> None:
        """Count an attempt of somebody who has shown no key yet (a login, by address). Raises QuotaExceeded."""
        window, left_s = self._window()
        (count,) = await self._counts([_Bound(kind, "address", limit, whose)], window, 1)
        if count > limit:
            raise QuotaExceeded(
                f"{limit:,} {kind} a minute are taken from one address; the next minute begins in {left_s:.0f} s",
                code="rate_limit_exceeded",
                retry_after_s=left_s,
            )

    async def close(self) -> None:
        """Close the connections to Redis."""
        if self._redis is not None:
            bridge: Any = self._redis.bridge  # the one of redis-py, which has more than the library's type says
            await bridge.get_connection().aclose()

    def _bounds(self, caller: Caller, kind: str) -> list[_Bound]:
        quota = self._quota_of(caller.tenant)
        if kind == "requests":
            own, of_tenant = caller.requests_per_minute, quota.requests_per_minute
        else:
            own, of_tenant = caller.tokens_per_minute, quota.tokens_per_minute
        of_key = self._of_keys[kind] if own is None else own
        found: list[_Bound] = []
        if of_key is not None:
            found.append(_Bound(kind, "key", of_key, caller.api_key_id or f"settings.{caller.tenant}"))
        if of_tenant is not None:
            found.append(_Bound(kind, "tenant", of_tenant, caller.tenant))
        return found

    def _window(self) -> tuple[int, float]:
        now = self._wall()
        return int(now // WINDOW_S), WINDOW_S - now % WINDOW_S

    async def _counts(self, bounds: list[_Bound], window: int, amount: int) -> list[int]:
        """Add to each count and return what it is then."""
        storage = self._redis
        if storage is not None and time.monotonic() >= self._redis_again_at:
            try:
                return await _add(storage, bounds, window, amount)
            except (RedisError, OSError, TimeoutError) as error:
                if not self._redis_again_at:
                    logger.warning(
                        "rate limits are counted by this process alone: the broker does not answer (%s)",
                        type(error).__name__,
                    )
                self._redis_again_at = time.monotonic() + _REDIS_PAUSE_S
            else:
                self._redis_again_at = 0.0
        return await _add(self._memory, bounds, window, amount)

    def _refusal(self, bound: _Bound, left_s: float) -> QuotaExceeded:
        whose = "this API key" if bound.whose == "key" else "this key's tenant"
        return QuotaExceeded(
            f"{whose} may send {bound.limit:,} {bound.kind} a minute and has; the next minute begins in {left_s:.0f} s",
            code="rate_limit_exceeded",
            retry_after_s=left_s,
        )


async def _add(storage: Storage, bounds: Sequence[_Bound], window: int, amount: int) -> list[int]:
    names = [
        RateLimitItemPerMinute(bound.limit).key_for(bound.kind, bound.whose, bound.name, window) for bound in bounds
    ]
    if not amount:
        return list(await asyncio.gather(*(storage.get(name) for name in names)))
    if len(names) == 1:  # most often, and a task less
        return [await storage.incr(names[0], 2 * WINDOW_S, amount=amount)]
    return list(await asyncio.gather(*(storage.incr(name, 2 * WINDOW_S, amount=amount) for name in names)))


def _tightest(bounds: Sequence[_Bound], counts: Sequence[int]) -> tuple[_Bound, int]:
    """Return the limit of which least is left."""
    return min(zip(bounds, counts, strict=True), key=lambda one: one[0].limit - one[1])


def _say(request: Request, bound: _Bound, left: int, left_s: float) -> None:
    headers: dict[str, str] = request.scope.setdefault(HEADERS, {})
    headers[f"x-ratelimit-limit-{bound.kind}"] = str(bound.limit)
    headers[f"x-ratelimit-remaining-{bound.kind}"] = str(max(0, left))
    headers[f"x-ratelimit-reset-{bound.kind}"] = f"{math.ceil(left_s)}s"

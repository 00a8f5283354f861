"""Rate limits: at the limit, by key and tenant, in Redis and without it, and what answers say of them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import redis

from carbonq.api.auth import Caller
from carbonq.api.limits import HEADERS, RateLimits
from carbonq.errors import QuotaExceeded
from carbonq.model import Quota
from tests.api.harness import EMBEDDER, Harness, serving
from tests.conftest import require

ACME = Caller("acme", "key_a")
OTHER = Caller("acme", "key_b")

#: A port on which nothing listens.
NO_REDIS = "redis://127.0.0.1:1/0"

LOCAL_REDIS = "redis://127.0.0.1:6379/0"


class Asked:
    """A request, as far as limits look at it."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}


async def taken(limits: RateLimits, caller: Caller, count: int) -> list[dict[str, str]]:
    """Send requests and return the headers of each."""
    found: list[dict[str, str]] = []
    for _ in range(count):
        request: Any = Asked()
        await limits.take(request, caller)
        found.append(request.scope[HEADERS])
    return found


def test_a_key_is_refused_above_its_limit_and_goes_on_in_the_next_minute() -> None:
    now = [1_000_000_060.0]
    limits = RateLimits(requests_per_minute=3, wall=lambda: now[0])

    async def run() -> None:
        said = await taken(limits, ACME, 3)
        assert [one["x-ratelimit-remaining-requests"] for one in said] == ["2", "1", "0"]
        assert said[0]["x-ratelimit-limit-requests"] == "3"
        assert said[0]["x-ratelimit-reset-requests"] == "20s"
        with pytest.raises(QuotaExceeded, match="this API key may send 3 requests a minute") as refused:
            await taken(limits, ACME, 1)
        assert (refused.value.code, refused.value.retry_after_s) == ("rate_limit_exceeded", 20.0)
        await taken(limits, OTHER, 3)  # each key has its own
        await taken(limits, replace(ACME, api_key_id="key_c", requests_per_minute=5), 5)  # and maybe a limit of its own
        now[0] += 20
        await taken(limits, ACME, 1)

    asyncio.run(run())


def test_all_keys_of_a_tenant_count_together() -> None:
    limits = RateLimits(quota_of=lambda tenant: Quota(requests_per_minute=3) if tenant == "acme" else Quota())

    async def run() -> None:
        await taken(limits, ACME, 2)
        await taken(limits, OTHER, 1)
        for caller in (ACME, OTHER):
            with pytest.raises(QuotaExceeded, match="this key's tenant may send 3 requests a minute"):
                await taken(limits, caller, 1)
        request: Any = Asked()
        await limits.take(request, Caller("rival", "key_r"))
        assert request.scope == {}  # no limit, no header

    asyncio.run(run())


def test_tokens_are_counted_after_and_refused_before_a_call() -> None:
    limits = RateLimits(tokens_per_minute=10)
    request: Any = Asked()

    async def run() -> None:
        await limits.check_tokens(request, ACME)
        await limits.count_tokens(request, ACME, 9)
        await limits.check_tokens(request, ACME)  # one is left: nobody knows yet how many the call takes
        await limits.count_tokens(request, ACME, 5)
        assert request.scope[HEADERS]["x-ratelimit-remaining-tokens"] == "0"
        with pytest.raises(QuotaExceeded, match="10 tokens a minute"):
            await limits.check_tokens(request, ACME)

    asyncio.run(run())


@pytest.fixture
def prefix() -> Iterator[str]:
    """A prefix of the machine's Redis that is tidied up."""
    client = redis.Redis.from_url(LOCAL_REDIS, socket_connect_timeout=1)
    try:
        client.ping()
    except redis.RedisError:
        require("no Redis on 127.0.0.1:6379")
    name = f"test-{uuid.uuid4().hex[:8]}."
    yield name
    for key in client.scan_iter(f"{name}*"):
        client.delete(key)
    client.close()


def test_processes_count_together_in_redis(prefix: str) -> None:
    async def run() -> None:
        one, other = (RateLimits(requests_per_minute=4, redis_url=LOCAL_REDIS, prefix=prefix) for _ in range(2))
        await taken(one, ACME, 2)
        await taken(other, ACME, 2)
        with pytest.raises(QuotaExceeded):
            await taken(one, ACME, 1)
        await one.close()
        await other.close()

    asyncio.run(run())


def test_a_broker_that_is_away_stops_nobody_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def run() -> None:
        limits = RateLimits(requests_per_minute=2, redis_url=NO_REDIS.replace("//", "//:hush-hush@"))
        await taken(limits, ACME, 2)
        with pytest.raises(QuotaExceeded):
            await taken(limits, ACME, 1)
        await limits.close()

    asyncio.run(run())
    assert [record.message for record in caplog.records] == [
        "rate limits are counted by this process alone: the broker does not answer (ConnectionError)"
    ]
    assert "hush-hush" not in caplog.text


def test_a_refusal_by_http_says_when_to_come_again(harness: Harness) -> None:
    api = replace(harness.api, rate_limits=RateLimits(requests_per_minute=2, tokens_per_minute=4))
    with serving(api) as url, httpx.Client(base_url=url, headers=harness.headers()) as client:
        call = {"model": EMBEDDER, "input": "x"}
        answered = client.post("/v1/embeddings", json=call)
        assert answered.status_code == 200
        assert answered.headers["x-ratelimit-limit-tokens"] == "4"
        assert answered.headers["x-ratelimit-remaining-tokens"] == "1"  # the harness's engine says three
        assert answered.headers["x-ratelimit-remaining-requests"] == "1"
        assert client.get("/v1/models").status_code == 200
        refused = client.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert httpx.get(f"{url}/healthz").status_code == 200

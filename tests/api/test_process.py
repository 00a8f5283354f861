"""The real API process: what it refuses to start with, and how it lives without a broker."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from carbonq import wiring
from carbonq.api import process
from carbonq.api.background import Background, Refresh
from carbonq.client import Client
from carbonq.config import Settings, load
from carbonq.errors import ConfigError, StoreUnavailable, Unavailable
from carbonq.model import Quota
from carbonq.store import keys
from tests.api.harness import EMBEDDER, until

#: A port on which nothing listens.
NO_BROKER = "redis://127.0.0.1:1/0"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(data_dir=tmp_path, port=0, broker_url=NO_BROKER)


def test_an_installation_that_was_never_prepared(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="carbonq db upgrade"):
        process.main(settings)


def test_an_open_address_with_only_the_local_key(settings: Settings) -> None:
    runtime, local = wiring.prepare(settings)
    open_settings = settings.model_copy(update={"host": "0.0.0.0"})
    with pytest.raises(ConfigError, match="carbonq keys create"):
        process.main(open_settings)
    # The embedded stack hands the local key on as the setting: still nobody was invited.
    handed_on = wiring.open_runtime(load(data_dir=settings.data_dir, api_key=local))
    assert not process.has_shared_key(handed_on)
    own = wiring.open_runtime(load(data_dir=settings.data_dir, api_key="cq-own"))
    assert process.has_shared_key(own)
    with runtime.db.write() as tx:
        keys.create(tx, "acme", "ci", False)
    assert process.has_shared_key(runtime)
    for opened in (runtime, handed_on, own):
        opened.close()


def test_a_loopback_address_is_checked_by_name_and_limits_are_those_of_the_settings(tmp_path: Path) -> None:
    given = {"data_dir": tmp_path, "broker_url": NO_BROKER, "quota_open_jobs": 3, "tenant_requests_per_minute": 60}
    runtime, _ = wiring.prepare(load(**given, allowed_hosts=("carbon.internal",)))
    tickets = wiring.make_tickets(runtime.settings)
    api = process.make_api(runtime, tickets)
    assert api.allowed_hosts == ("carbon.internal",)
    assert api.allowance.of("acme") == Quota(open_jobs=3, requests_per_minute=60)
    elsewhere = replace(runtime, settings=load(**given, host="0.0.0.0"))
    assert process.make_api(elsewhere, tickets).allowed_hosts is None
    runtime.close()
    tickets.close()


@pytest.mark.parametrize(
    ("broker_url", "found"),
    [
        ("redis://:secret@queue:6379/1", "redis://:secret@queue:6379/1"),
        ("rediss://queue/0", "rediss://queue/0"),
        ("amqp://queue//", None),
        ("redis://one/0;redis://two/0", None),
        (None, None),
    ],
)
def test_rates_are_counted_in_a_redis_that_is_the_broker(broker_url: str | None, found: str | None) -> None:
    assert wiring.redis_url(load(broker_url=broker_url)) == found


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """asyncio switches Nagle's algorithm off for sockets that name their protocol only."""
    with process.listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_port_in_use_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is already in use.*CARBONQ_PORT"):
            process.listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match="CARBONQ_HOST"):
        process.listen("203.0.113.7", 8750)


@pytest.mark.system
def test_without_a_broker_jobs_are_taken_and_realtime_says_why_not(settings: Settings) -> None:
    runtime, key = wiring.prepare(settings)
    runtime.close()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "CARBONQ_DATA_DIR": str(settings.data_dir),
        "CARBONQ_BROKER_URL": NO_BROKER,
        "CARBONQ_PORT": str(port),
    }
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, "-m", "carbonq", "process", "api"], env=environment) as child:
        try:
            until(lambda: _answers(url) or child.poll() is not None, "the API", timeout_s=30)
            with Client(url, key) as client:
                ready = client.health()
                assert ready["status"] == "not ready"
                assert ready["checks"] == {"database": "ok", "broker": "broker_unavailable"}
                line = b'{"custom_id":"a","body":{"input":"x"}}'
                began_at = time.monotonic()
                job = client.submit([line], endpoint="/v1/embeddings", model=EMBEDDER, deadline="6h")
                assert time.monotonic() - began_at < 3  # the nudge that cannot be sent is not waited for
                assert client.job(job["id"])["state"] == "waiting"
                with pytest.raises(Unavailable, match="no worker is alive"):
                    client.embeddings("x", model=EMBEDDER)
                assert [region["is_healthy"] for region in client.regions()] == [False, False]
        finally:
            child.terminate()
            assert child.wait(20) == 0


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_a_failing_refresh_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    counts = {"down": 0, "broken": 0, "good": 0}

    def down() -> None:
        counts["down"] += 1
        raise StoreUnavailable("away")

    def broken() -> None:
        counts["broken"] += 1
        if counts["broken"] < 3:
            raise ValueError("a defect")

    def good() -> None:
        counts["good"] += 1

    background = Background([Refresh(f.__name__, 0.01, f) for f in (down, broken, good)])
    background.start()
    until(lambda: min(counts.values()) > 5, "five rounds")
    background.stop()
    messages = [record.message for record in caplog.records]
    assert sum("refresh of down failed" in message for message in messages) == 1  # not one a round
    assert sum("refresh of broken failed" in message for message in messages) == 1

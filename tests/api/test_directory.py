"""Which region a realtime call goes to."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from carbonq.api.directory import Directory
from carbonq.api.dispatcher import Dispatcher
from carbonq.errors import InvalidRequest, QuotaExceeded, Unavailable
from carbonq.model import RegionState
from carbonq.models import WORDLLAMA_256
from carbonq.store import regions
from carbonq.store.database import Database
from carbonq.testing import FakeClock, MemoryTickets
from tests.api.harness import REGIONS, Harness, until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def directory(sqlite_database: Database, clock: FakeClock) -> Directory:
    with sqlite_database.write() as tx:
        regions.sync(tx, REGIONS)
        for region in ("fr", "se"):
            regions.register_worker(
                tx, worker_id=region, region=region, host="h", pid=1, slots=1, software_version="1", hardware="cpu"
            )
    found = Directory(sqlite_database, worker_alive_s=3600.0, monotonic=clock.machine)
    found.refresh()
    return found


def test_the_stated_latency_counts_until_it_was_measured(directory: Directory, clock: FakeClock) -> None:
    assert directory.nearest(WORDLLAMA_256).name == "fr"
    directory.observe("fr", 75.0)  # a first call that also opened connections
    assert directory.measured_ms("fr") == pytest.approx(19.0)
    assert directory.nearest(WORDLLAMA_256).name == "fr"
    directory.observe("fr", 75.0)
    assert directory.nearest(WORDLLAMA_256).name == "se"
    for _ in range(40):
        directory.observe("fr", 3.0)
    assert directory.measured_ms("fr") == pytest.approx(3.0, abs=0.1)
    assert directory.nearest(WORDLLAMA_256).name == "fr"


def test_an_old_measurement_is_forgotten(directory: Directory, clock: FakeClock) -> None:
    directory.observe("fr", 800.0)
    assert directory.nearest(WORDLLAMA_256).name == "se"
    clock.advance_machine(61)
    assert directory.measured_ms("fr") is None
    assert directory.nearest(WORDLLAMA_256).name == "fr"


def test_only_allowed_healthy_active_regions_are_taken(directory: Directory, sqlite_database: Database) -> None:
    assert directory.nearest(WORDLLAMA_256, ("se",)).name == "se"
    with pytest.raises(InvalidRequest, match="known regions: fr, se"):
        directory.nearest(WORDLLAMA_256, ("mars",))
    with sqlite_database.write() as tx:
        regions.worker_stopped(tx, "fr")
    directory.refresh()
    assert directory.nearest(WORDLLAMA_256).name == "se"
    with pytest.raises(Unavailable, match="no worker is alive in fr") as raised:
        directory.nearest(WORDLLAMA_256, ("fr",))
    assert raised.value.code == "no_region_available"
    with sqlite_database.write() as tx:
        regions.set_state(tx, "se", RegionState.PAUSED)
    directory.refresh()
    with pytest.raises(Unavailable, match="paused or draining"):
        directory.nearest(WORDLLAMA_256, ("se",))


def test_a_region_that_does_not_answer_is_avoided(directory: Directory) -> None:
    calls: list[str] = []

    def answer(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        calls.append(region)
        if region == "fr":
            raise Unavailable("no answer", code="realtime_timeout")
        return {"engine_s": 0.0}

    async def run() -> None:
        dispatcher = Dispatcher(MemoryTickets(answer=answer), directory, timeout_s=1, queue_limit=2)
        with pytest.raises(Unavailable):
            await dispatcher.call({}, model=WORDLLAMA_256, region=directory.nearest(WORDLLAMA_256))
        await dispatcher.call({}, model=WORDLLAMA_256, region=directory.nearest(WORDLLAMA_256))
        dispatcher.close()

    asyncio.run(run())
    assert calls == ["fr", "se"]


def test_calls_above_the_limit_are_sent_away_at_once(harness: Harness, directory: Directory) -> None:
    hold = threading.Event()

    def answer(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert hold.wait(10)
        return {"engine_s": 0.0}

    async def run() -> None:
        dispatcher = Dispatcher(MemoryTickets(answer=answer), directory, timeout_s=5, queue_limit=2)
        region = directory.nearest(WORDLLAMA_256)
        waiting = [asyncio.create_task(dispatcher.call({}, model=WORDLLAMA_256, region=region)) for _ in range(2)]
        await asyncio.to_thread(until, lambda: dispatcher.in_flight == 2, "two calls")
        with pytest.raises(QuotaExceeded) as raised:
            await dispatcher.call({}, model=WORDLLAMA_256, region=region)
        assert raised.value.retry_after_s == 1.0
        hold.set()
        await asyncio.gather(*waiting)
        await asyncio.to_thread(until, lambda: dispatcher.in_flight == 0, "the calls to end")
        dispatcher.close()

    asyncio.run(run())

"""Realtime on the worker: an answer with its carbon, an entry written behind, errors that are the client's to see."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carbonq.booking import Booking
from carbonq.errors import EngineAway, EngineError, StoreUnavailable
from carbonq.services import heartbeat, realtime
from carbonq.services.writebehind import WriteBehind
from carbonq.spool import Spool
from carbonq.store.database import Database
from carbonq.store.tables import entries, workers
from carbonq.testing import FakeEngine
from tests.services.running import ITEM_UJ, MODEL, Bench


@pytest.fixture
def bench(sqlite_database: Database, tmp_path: Path) -> Bench:
    return Bench(sqlite_database, tmp_path)


def payload(**changes: Any) -> dict[str, Any]:
    return {
        "request_id": "req_1",
        "tenant": "acme",
        "api_key_id": "key_1",
        "product_line": "search",
        "workload": None,
        "endpoint": "/v1/embeddings",
        "model": MODEL.name,
        "requested_model": MODEL.name,
        "body": {"model": MODEL.name, "input": "two words"},
        **changes,
    }


def test_an_answer_carries_usage_and_carbon_and_is_booked(bench: Bench) -> None:
    behind = WriteBehind(bench.db, bench.site.spool)
    behind.start()
    answer = realtime.answer(bench.site, payload(), behind.put)
    behind.close()
    assert answer["status_code"] == 200
    assert answer["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert json.loads(answer["carbon_json"])["region"] == "fr"
    assert answer["energy_uj"] == ITEM_UJ
    (entry,) = bench.rows(entries)
    assert (getattr(entry, "class"), entry.tenant, entry.job_id, entry.custom_id) == ("realtime", "acme", None, "req_1")
    assert (entry.baseline_g, entry.energy_uj, entry.outcome) == (None, ITEM_UJ, "succeeded")
    bench.check_shares()


def test_the_clients_mistakes_come_back_as_errors(bench: Bench) -> None:
    kept: list[Booking] = []
    assert realtime.answer(bench.site, payload(model="nope"), kept.append)["error"]["code"] == "model_not_found"
    bench.engine = FakeEngine(bad_items={"req_1": "context_length_exceeded"})
    answer = realtime.answer(bench.site, payload(), kept.append)
    assert (answer["status_code"], answer["error"]["code"]) == (400, "context_length_exceeded")
    assert [one.entries[0]["outcome"] for one in kept] == ["failed"]


def test_an_engine_that_fails_is_said_and_its_energy_is_wasted(bench: Bench) -> None:
    kept: list[Booking] = []
    bench.engine = FakeEngine(failures=[EngineError("no memory", is_retryable=True), EngineAway("refused")])
    answer = realtime.answer(bench.site, payload(), kept.append)
    assert (answer["status_code"], answer["error"]["message"], answer["is_final"]) == (502, "no memory", False)
    answer = realtime.answer(bench.site, payload(), kept.append)
    assert (answer["status_code"], answer["error"]["code"]) == (503, "engine_away")
    assert [one.entries[0]["kind"] for one in kept] == ["wasted", "wasted"]


def test_a_call_whose_client_has_gone_stops_and_what_it_burnt_is_wasted(bench: Bench) -> None:
    kept: list[Booking] = []
    bench.burn()
    answer = realtime.answer(bench.site, payload(**{"class": "interactive"}), kept.append, lambda: True)
    assert (answer["status_code"], answer["error"]["code"]) == (499, "caller_gone")
    ((entry,),) = [one.entries for one in kept]
    assert (entry["kind"], entry["outcome"], entry["class"]) == ("wasted", "cancelled", "interactive")
    assert entry["custom_id"] is None


class _Away(Database):
    is_away = True

    def write(self):  # type: ignore[no-untyped-def]
        if self.is_away:
            raise StoreUnavailable("away on purpose")
        return super().write()


def test_bookings_wait_in_the_spool_while_the_database_is_away(bench: Bench) -> None:
    away = _Away(bench.db.url)
    site = bench.make_site("worker-9", db=away)
    behind = WriteBehind(away, site.spool)
    behind.start()
    for _ in range(3):
        realtime.answer(site, payload(), behind.put)
    behind.close()
    assert heartbeat.replay_spool(site) == 0
    away.is_away = False
    assert heartbeat.replay_spool(site) == 1
    assert len(bench.rows(entries)) == 3
    bench.check_shares()
    away.dispose()


class _Noted(Spool):
    """A spool that says when it got something."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.got = threading.Event()

    def put(self, record: dict[str, Any]) -> Path:
        path = super().put(record)
        self.got.set()
        return path


def test_bookings_that_cannot_be_stored_stop_no_others(bench: Bench) -> None:
    kept: list[Booking] = []
    for _ in range(2):
        realtime.answer(bench.site, payload(), kept.append)
    kept[0] = replace(kept[0], entries=[row | {"no_such_column": "x"} for row in kept[0].entries])
    spool = _Noted(bench.site.spool.root)
    behind = WriteBehind(bench.db, spool)
    behind.start()
    behind.put(kept[0])
    assert spool.got.wait(10)  # so that the good one does not travel with the bad one
    behind.put(kept[1])
    behind.close()
    (entry,) = bench.rows(entries)
    assert entry.entry_id == kept[1].entries[0]["entry_id"]
    assert heartbeat.replay_spool(bench.site) == 0
    assert [path.suffix for path in bench.site.spool.root.iterdir()] == [".bad"]


def test_a_useless_spooled_record_does_not_block_the_others(bench: Bench) -> None:
    bench.site.spool.put({"kind": "riddle"})
    bench.site.spool.put({"kind": "bookings", "bookings": []})
    assert heartbeat.replay_spool(bench.site) == 1
    assert heartbeat.replay_spool(bench.site) == 0


def test_idle_is_nobodys_and_all_energy_is_accounted_for(bench: Bench) -> None:
    kept: list[Booking] = []
    bench.meter.burn(5_000)
    bench.clock.advance(600)
    bench.site.hub.tick()
    realtime.answer(bench.site, payload(), kept.append)
    bench.meter.burn(300)
    heartbeat.book_idle(bench.site, bench.site.hub.flush(), kept.append)
    rows = [entry for one in kept for entry in one.entries]
    assert sum(row["energy_uj"] for row in rows) == bench.meter.uj
    assert {row["tenant"] for row in rows if row["kind"] == "idle"} == {None}


def test_a_heartbeat_enters_a_worker_the_database_does_not_know(bench: Bench) -> None:
    for _ in range(2):
        heartbeat.beat(bench.site, host="h", pid=1)
    (row,) = bench.rows(workers)
    assert (row.worker_id, row.region, row.stopped_at) == ("worker-1", "fr", None)
    heartbeat.stop(bench.site)
    (row,) = bench.rows(workers)
    assert row.stopped_at is not None

"""Webhooks are delivered at least once, in order, one endpoint apart from the other, whatever dies in between."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from carbonq import events as rules
from carbonq.errors import StoreUnavailable
from carbonq.services import deliver, webhooks
from carbonq.services.deliver import Deliverer
from carbonq.store import events, retention
from carbonq.store import webhooks as rows
from carbonq.store.database import Database
from carbonq.store.events import NewEvent
from carbonq.store.tables import jobs, webhook_deliveries
from carbonq.store.tables import webhooks as endpoints
from carbonq.testing import FakeClock
from carbonq.webhooks.schedule import DELAYS_S, Outcome
from tests.store.rows import T0, store_job

pytestmark = pytest.mark.timeout(60)


class Receivers:
    """Stands for all receivers: keeps what comes, and answers what ``answer`` says."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, str]] = []
        self.answer: Callable[[str], Outcome] = lambda _url: Outcome(200)

    def send(self, url: str, message_id: str, body: bytes, secrets: Sequence[str], at: datetime) -> Outcome:
        assert secrets and at.tzinfo is not None
        self.got.append((url, message_id, json.loads(body)["type"]))
        return self.answer(url)

    def types(self, url: str = "https://a.example/") -> list[str]:
        return [kind for to, _, kind in self.got if to == url]


class World:
    def __init__(self, db: Database) -> None:
        self.db = db
        self.clock = FakeClock()
        self.receivers = Receivers()
        self.deliverer = self.another()

    def another(self, **options: Any) -> Deliverer:
        return Deliverer(self.db, self.receivers, self.clock, chance=lambda: 0.5, **options)

    def hook(self, url: str = "https://a.example/", tenant: str = "acme", **fields: Any) -> str:
        given: dict[str, Any] = {"name": None, "event_types": None, "secret": None, **fields}
        made = webhooks.create(self.db, tenant, url=url, may_be_private=False, actor="ci", **given)
        return made.webhook_id

    def happen(self, *types: str, tenant: str = "acme", job_id: str | None = "job_1") -> None:
        with self.db.write() as tx:
            events.append_many(tx, [NewEvent(one, T0, tenant, job_id) for one in types])

    def run(self, *others: Deliverer) -> None:
        """Let deliverers look until all events were looked at, and send what is due."""
        mine = others or (self.deliverer,)
        # On PostgreSQL whoever writes on the same server, such as another test, can hold readers up for a moment.
        until(lambda: [one.run() for one in mine] != [] and self.is_routed())
        for one in mine:
            one.run()
            assert one.wait_idle(20)

    def is_routed(self) -> bool:
        with self.db.read() as tx:
            newest = max((one.event_id for one in events.after(tx, None)), default=0)
            return rows.routed_up_to(tx) == newest

    def hurry(self) -> None:
        """Let all that waits be due now."""
        with self.db.write() as tx:
            past = T0 - timedelta(days=1)
            tx.execute(update(webhook_deliveries).where(webhook_deliveries.c.state == "pending").values(next_at=past))
            tx.execute(update(endpoints).values(not_before=None, busy_until=None))

    def deliveries(self, webhook_id: str) -> list[rows.Delivery]:
        with self.db.read() as tx:
            return rows.deliveries(tx, webhook_id, limit=100)[::-1]

    def endpoint(self, webhook_id: str, tenant: str = "acme") -> rows.Endpoint:
        with self.db.read() as tx:
            return rows.get(tx, webhook_id, tenant)


@pytest.fixture
def world(sqlite_database: Database) -> World:
    return World(sqlite_database)


def test_events_go_to_who_asked_for_them_in_their_order(database: Database) -> None:
    world = World(database)
    world.happen("job.completed")  # before there was anybody
    mine = world.hook()
    world.hook("https://all.example/", event_types=sorted(rules.DELIVERABLE))
    world.hook("https://rival.example/", tenant="rival")
    world.happen("job.created", "job.running", "job.progress", "chunk.lost", "job.completed", "job.failed")
    world.run()
    assert world.receivers.types() == ["job.completed", "job.failed"]
    assert world.receivers.types("https://all.example/") == [
        "job.created",
        "job.running",
        "job.completed",
        "job.failed",
    ]
    assert world.receivers.types("https://rival.example/") == []
    one, two = world.deliveries(mine)
    assert (one.state, one.attempts, one.last_status, one.last_error, one.next_at) == ("delivered", 1, 200, None, None)
    body = json.loads(one.body)
    assert body == {
        "id": one.message_id,
        "object": "event",
        "created_at": int(T0.timestamp()),
        "type": "job.completed",
        "data": {"id": "job_1"},
    }
    assert one.message_id < two.message_id
    world.run()
    assert len(world.receivers.got) == 6
    world.happen("job.expired")
    world.hook("https://late.example/")  # before anybody looked at that one
    world.run()
    assert world.receivers.types("https://late.example/") == []
    assert world.receivers.types()[2:] == ["job.expired"]


def test_a_batch_speaks_for_its_jobs(world: World) -> None:
    job = store_job(world.db, tenant="acme")
    with world.db.write() as tx:
        tx.execute(update(jobs).values(batch_id="batch_1"))
    world.hook()
    world.happen("job.completed", job_id=job.job_id)
    with world.db.write() as tx:
        done = NewEvent("batch.completed", T0, "acme", data={"id": "batch_1", "carbon": {"gco2e": 1.5}})
        events.append_many(tx, [done])
    world.run()
    assert world.receivers.types() == ["batch.completed"]


def test_what_fails_comes_again_with_the_same_id_and_body_until_it_is_taken(database: Database) -> None:
    world = World(database)
    mine = world.hook()
    world.receivers.answer = lambda _url: Outcome(500)
    world.happen("job.completed")
    world.run()
    (first,) = world.deliveries(mine)
    assert (first.state, first.attempts, first.last_status, first.last_error) == ("pending", 1, 500, "it answered 500")
    assert first.next_at is not None and first.last_at is not None
    assert (first.next_at - first.last_at).total_seconds() == DELAYS_S[1]
    assert world.endpoint(mine).failing_since == first.last_at
    world.run()
    assert len(world.receivers.got) == 1, "not before its time"
    world.receivers.answer = lambda _url: Outcome(204)
    world.hurry()
    world.run()
    (last,) = world.deliveries(mine)
    assert (last.state, last.attempts, last.body) == ("delivered", 2, first.body)
    assert world.endpoint(mine).failing_since is None
    assert len({message_id for _, message_id, _ in world.receivers.got}) == 1


def test_a_message_that_is_never_taken_ends_and_its_endpoint_after_days(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    mine = world.hook()
    world.receivers.answer = lambda _url: Outcome(500)
    world.happen("job.completed", "job.failed")
    for _ in DELAYS_S:
        world.hurry()
        world.run()
    ended = world.deliveries(mine)
    assert [(one.state, one.attempts) for one in ended] == [("failed", len(DELAYS_S))] * 2
    assert world.endpoint(mine).state == "enabled", "three days have not passed"
    with world.db.write() as tx:
        since = rows.machine_now(tx) - timedelta(days=3)
        tx.execute(update(endpoints).values(failing_since=since))
    world.happen("job.expired", "job.completed")
    with caplog.at_level(logging.WARNING):
        for _ in DELAYS_S:
            world.hurry()
            world.run()
    found = world.endpoint(mine)
    assert (found.state, found.disabled_reason) == (
        "disabled",
        "it has taken nothing for 3 days; last: it answered 500",
    )
    assert f"webhook {mine} of tenant acme is disabled" in caplog.text
    with world.db.read() as tx:
        (event,) = (one for one in events.after(tx, "acme") if one.type == "webhook.disabled")
    assert event.data["id"] == mine
    assert [one.state for one in world.deliveries(mine)].count("pending") == 1


def test_gone_is_gone_and_what_waits_goes_on_when_it_is_enabled_again(world: World) -> None:
    mine = world.hook()
    world.receivers.answer = lambda _url: Outcome(410)
    world.happen("job.completed", "job.failed")
    world.run()
    assert [one.state for one in world.deliveries(mine)] == ["failed", "pending"]
    assert world.endpoint(mine).disabled_reason == "it answered 410: nobody is there any more"
    world.receivers.answer = lambda _url: Outcome(200)
    world.happen("job.expired")
    world.hurry()
    world.run()
    assert len(world.receivers.got) == 1
    webhooks.change(world.db, "acme", mine, is_enabled=True, may_be_private=False, actor="ci")
    world.run()
    assert world.receivers.types() == ["job.completed", "job.failed"], "what happened meanwhile is not sent"


def test_who_is_busy_gets_nothing_until_its_time(world: World) -> None:
    mine = world.hook()
    world.receivers.answer = lambda _url: Outcome(429, retry_after_s=600)
    world.happen("job.completed", "job.failed")
    world.run()
    assert len(world.receivers.got) == 1
    first, second = world.deliveries(mine)
    assert (first.attempts, second.attempts) == (1, 0)
    before = world.endpoint(mine).not_before
    assert before is not None and first.last_at is not None
    assert before - first.last_at == timedelta(seconds=600)
    world.run()
    assert len(world.receivers.got) == 1


def test_a_kill_between_send_and_record_sends_again_and_loses_nothing(database: Database) -> None:
    world = World(database)
    mine = world.hook()
    world.happen("job.completed", "job.failed")

    def die(_url: str) -> Outcome:
        raise StoreUnavailable("this process is no more")

    world.receivers.answer = die
    world.run()
    assert len(world.receivers.got) == 1
    assert [one.state for one in world.deliveries(mine)] == ["pending", "pending"]
    world.receivers.answer = lambda _url: Outcome(200)
    other = world.another()
    world.run(other)
    assert len(world.receivers.got) == 1, "its right to send has not run out"
    world.hurry()
    world.run(other)
    first, again, last = world.receivers.got
    assert first == again
    assert last[2] == "job.failed"


def test_a_receiver_that_hangs_holds_up_nobody_else(world: World) -> None:
    hangs, go = threading.Event(), threading.Event()

    def answer(url: str) -> Outcome:
        if "slow" in url:
            hangs.set()
            assert go.wait(20)
        return Outcome(200)

    world.receivers.answer = answer
    for number in range(3):
        world.hook(f"https://slow.example/{number}")
    world.hook(tenant="rival")
    world.deliverer = world.another(max_threads=3, tenant_threads=2)
    world.happen("job.completed")
    world.deliverer.run()
    assert hangs.wait(20)
    world.happen("job.completed", tenant="rival")
    world.deliverer.run()  # returns at once
    until(lambda: len(world.receivers.got) == 3)
    assert world.receivers.types() == ["job.completed"], "two of the slow ones, and the rival's"
    go.set()
    world.run()
    world.run()
    assert len(world.receivers.got) == 4


def test_two_processes_send_each_message_once(database: Database) -> None:
    world = World(database)
    for number in range(4):
        world.hook(f"https://{number}.example/")
    both = [world.another(), world.another()]
    for _ in range(3):
        world.happen("job.completed", "job.failed")
        threads = [threading.Thread(target=one.run) for one in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    world.run(*both)
    world.run(*both)
    assert len(world.receivers.got) == len(set(world.receivers.got)) == 4 * 6


def test_a_long_backlog_is_looked_at_page_by_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "ROUTE_PAGE", 2)
    world.hook()
    world.happen(*["job.completed"] * 5)
    world.run()
    assert world.receivers.types() == ["job.completed"] * 5


def test_a_process_that_ends_begins_nothing_more(world: World) -> None:
    world.hook()
    world.happen("job.completed")
    world.deliverer.close()
    world.deliverer.run()
    assert world.deliverer.wait_idle(0)
    assert world.receivers.got == []


def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("the condition did not come true")


def test_old_messages_are_removed_with_old_events(database: Database) -> None:
    world = World(database)
    mine = world.hook()
    world.happen("job.completed", "job.failed")
    world.run()
    with database.write() as tx:
        old = rows.machine_now(tx) - timedelta(days=91)
        first = webhook_deliveries.c.delivery_id == world.deliveries(mine)[0].delivery_id
        tx.execute(update(webhook_deliveries).where(first).values(recorded_at=old))
        before = rows.machine_now(tx) - timedelta(days=90)
        assert retention.delete_deliveries(tx, before=before, limit=10) == 1
        assert retention.delete_deliveries(tx, before=before, limit=10) == 0
    assert [one.type for one in world.deliveries(mine)] == ["job.failed"]

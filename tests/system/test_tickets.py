"""Tickets and realtime answers over a real broker and a real Celery worker thread in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis
from kombu.entity import Exchange, Queue

from carbonq.errors import BrokerUnavailable, Unavailable
from carbonq.tickets import REALTIME, RUN_CHUNK, Tickets, make_celery, piece_sender, tick_task
from tests.system.backends import redis_server
from tests.system.processes import until

pytestmark = pytest.mark.system


@pytest.fixture
def broker() -> Iterator[str]:
    with redis_server() as url:
        yield url


def answer_one(url: str) -> threading.Thread:
    """Answer realtime calls of region fr as a region worker does, without the weight of a worker."""
    app = make_celery(url, has_replies=True)

    @app.task(name=REALTIME, ignore_result=False, shared=False)
    def answer(payload: dict[str, object]) -> dict[str, object]:
        return {"echo": payload}

    def serve() -> None:
        with app.connection_for_read() as connection:
            queue = app.amqp.queues["realtime.fr"]
            with connection.SimpleQueue(queue) as waiting:
                for _ in range(8):
                    message = waiting.get(timeout=20)
                    message.ack()
                    request = type("Request", (), dict(message.headers, **message.properties))
                    if message.decode()[0][0].get("is_streamed"):
                        tell = piece_sender(app, message.properties["reply_to"], message.headers["id"])
                        for piece in ("the ", "answer"):
                            tell(piece)
                    answer.backend.store_result(
                        message.headers["id"],
                        {"echo": message.decode()[0][0]},
                        "SUCCESS",
                        request=request,
                    )

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_realtime_answers_find_their_callers(broker: str) -> None:
    tickets = Tickets(broker)
    thread = answer_one(broker)
    got: list[object] = []
    told: dict[int, list[str]] = {number: [] for number in range(8)}

    def call(number: int) -> None:
        on_piece = told[number].append if number % 2 else None
        got.append((number, tickets.realtime("fr", {"number": number}, 15, on_piece=on_piece)["echo"]["number"]))

    callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    thread.join(20)
    assert sorted(got) == [(number, number) for number in range(8)]  # type: ignore[type-var]
    assert list(told.values()) == [[], ["the ", "answer"]] * 4, "all pieces come before the answer, to their caller"
    assert tickets._replies._pieces == {}  # pyright: ignore[reportPrivateUsage]
    tickets.close()


def test_a_region_that_does_not_answer_is_said(broker: str) -> None:
    tickets = Tickets(broker)
    with make_celery(broker).connection_for_read() as connection:
        workers = connection.SimpleQueue(Queue("worker", Exchange("celery.pidbox", "fanout", durable=False)))
        with suppress(workers.Empty):
            workers.get(timeout=0.2)  # listens from now on
        with pytest.raises(Unavailable, match="no answer within") as caught:
            tickets.realtime("nobody", {}, 0.2, "call-1")
        told = workers.get(timeout=10).payload
    assert caught.value.code == "realtime_timeout"
    # Nobody waits for it any more: its worker stops it.
    assert (told["method"], told["arguments"]["task_id"], told["pattern"]) == ("revoke", "call-1", "nobody-*")
    tickets.close()


def test_tickets_survive_a_flushed_broker(broker: str) -> None:
    tickets = Tickets(broker)
    client = redis.Redis.from_url(broker)
    tickets.flexible([("fr", "chk_1"), ("se", "chk_2")])
    assert client.llen("carbonq:flexible.fr") == 1
    client.flushall()
    tickets.flexible([("fr", f"chk_{i}") for i in range(50)])
    tickets.nudge("plan")
    until(lambda: client.llen("carbonq:flexible.fr") == 50, 5, "tickets")
    assert client.llen("carbonq:control.slow") == 1
    assert RUN_CHUNK.encode() in client.lrange("carbonq:flexible.fr", 0, 0)[0]
    assert tick_task("plan").encode() in client.lrange("carbonq:control.slow", 0, 0)[0]
    client.close()
    tickets.close()


def test_installations_with_prefixes_share_a_broker_and_never_meet(broker: str) -> None:
    one, other = Tickets(broker, queue_prefix="one."), Tickets(broker)
    one.flexible([("fr", "chk_1")])
    one.nudge("plan")
    other.flexible([("fr", "chk_2"), ("fr", "chk_3")])
    client = redis.Redis.from_url(broker)
    queues = ("one.flexible.fr", "one.control.slow", "flexible.fr", "control.slow")
    assert [client.llen(f"carbonq:{queue}") for queue in queues] == [1, 1, 2, 0]
    client.close()
    # What workers tell Flower, and what it asks them, stays apart too.
    conf = make_celery(broker, queue_prefix="one.").conf
    assert {conf[name] for name in ("control_exchange", "event_exchange", "event_queue_prefix")} == {
        "one.celery",
        "one.celeryev",
    }
    one.close()
    other.close()


def test_a_broker_that_is_away_is_said_at_once() -> None:
    tickets = Tickets("redis://127.0.0.1:1/0")
    with pytest.raises(BrokerUnavailable):
        tickets.ping()
    with pytest.raises(BrokerUnavailable):
        tickets.flexible([("fr", "chk_1")])
    with pytest.raises(BrokerUnavailable):
        tickets.realtime("fr", {}, 1)
    tickets.nudge("plan")
    tickets.close()

"""What a broker's own errors turn into: RabbitMQ's are neither OSErrors nor kombu's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from amqp.exceptions import ConnectionForced, NotFound

from carbonq.errors import BrokerUnavailable
from carbonq.tickets import Tickets

URL = "amqp://guest:guest@127.0.0.1:1//"


@pytest.mark.parametrize("error", [ConnectionForced("shutdown"), NotFound("no queue")])
def test_what_rabbitmq_says_is_a_broker_that_is_away(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tickets = Tickets(URL)

    def send_task(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(tickets._app, "send_task", send_task)
    monkeypatch.setattr(tickets._replies, "expect", lambda _task_id: None)
    tickets.nudge("plan")
    with pytest.raises(BrokerUnavailable):
        tickets.realtime("fr", {}, 1.0)
    tickets.close()


@pytest.mark.parametrize("error", [ConnectionForced("shutdown"), RuntimeError("a bug")])
def test_the_reply_queue_is_read_again_after_any_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tickets = Tickets(URL)
    replies: Any = tickets._replies
    again = threading.Event()
    tries: list[int] = []

    def consume() -> None:
        tries.append(1)
        replies._is_ready.set()
        if len(tries) == 1:
            raise error
        again.set()
        replies._is_closed.wait(10)

    monkeypatch.setattr(replies, "_consume", consume)
    replies.expect("task")
    assert again.wait(10)
    tickets.close()

"""What a broker's own errors turn into: RabbitMQ's are neither OSErrors nor kombu's."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from amqp.exceptions import ConnectionForced, NotFound

from carbonq import tickets as tickets_module
from carbonq.errors import BrokerUnavailable
from carbonq.tickets import Tickets, make_celery, wait_for_broker

URL = "amqp://guest:guest@127.0.0.1:1//"


@pytest.mark.parametrize("error", [ConnectionForced("shutdown"), NotFound("no queue")])
def test_what_rabbitmq_says_is_a_broker_that_is_away(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tickets = Tickets(URL)

    def send_task(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(tickets._app, "send_task", send_task)
    monkeypatch.setattr(tickets._replies, "expect", lambda *_: None)
    tickets.nudge("plan")
    with pytest.raises(BrokerUnavailable):
        tickets.realtime("fr", {}, 1.0)
    tickets.close()


def test_a_streamed_answer_is_waited_for_as_long_as_pieces_come() -> None:
    answer: Future[dict[str, Any]] = Future()
    pieces = tickets_module._Pieces(lambda text: None)
    with pytest.raises(TimeoutError):
        pieces.wait(answer, 0.01)
    pieces.last_at = time.monotonic() + 60  # one came just now, by a clock that runs ahead
    threading.Timer(0.05, answer.set_result, ({"status": "SUCCESS"},)).start()
    assert pieces.wait(answer, 0.01) == {"status": "SUCCESS"}


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


def test_a_start_without_a_broker_says_what_it_waits_for_and_then_the_way_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tickets = Tickets("redis://:geheim@127.0.0.1:1/0")
    with pytest.raises(BrokerUnavailable, match="refused; check CARBONQ_BROKER_URL") as error:
        wait_for_broker(tickets, 0.2)
    tickets.close()
    (said,) = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert said.endswith("refused; waiting for it up to 0.2 s")
    assert "geheim" not in said + error.value.message


def test_after_a_lost_connection_no_thread_of_the_pool_talks_on_the_one_that_the_main_thread_reads() -> None:
    # Celery raises a reduced prefetch count again from the thread that answers the first call, and waits there for
    # RabbitMQ's answer, which the main thread may read instead: that call, and its thread, would hang for ever.
    conf = make_celery("amqp://guest@localhost//").conf
    assert not conf.worker_enable_prefetch_count_reduction
    assert not conf.task_acks_late, "nothing is fetched that is not taken at once"


def test_flower_is_shown_what_a_task_is_about_and_nothing_that_a_client_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    tickets = Tickets("memory://")
    sent: list[dict[str, Any]] = []

    def send_task(_name: str, **options: Any) -> None:
        sent.append(options)

    monkeypatch.setattr(tickets._app, "send_task", send_task)
    monkeypatch.setattr(tickets._replies, "expect", lambda *_: _answered())
    tickets.flexible([("fr", "chk_1"), ("se", "chk_2")], {"chk_1": "region=fr, model=m, items=3"})
    payload = {"endpoint": "/v1/embeddings", "model": "m", "body": {"input": "a secret"}}
    tickets.realtime("fr", payload, 1.0)
    tickets.close()
    shown = [(one.get("argsrepr"), one["kwargsrepr"]) for one in sent]
    assert shown == [
        (None, "region=fr, model=m, items=3"),
        (None, "region=se"),
        ("(...)", "region=fr, model=m, endpoint=/v1/embeddings"),
    ]


def _answered() -> Future[dict[str, Any]]:
    answer: Future[dict[str, Any]] = Future()
    answer.set_result({"status": "SUCCESS", "result": {}})
    return answer

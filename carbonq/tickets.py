"""Tickets: "do it now" messages through Celery. They hold no truth: each may be lost or doubled without harm.

Queues: ``flexible.<region>`` and ``realtime.<region>`` (region workers), ``control`` and ``control.slow`` (ticks), all
with the installation's ``queue_prefix`` in front, so that two can share a broker. Only realtime calls have answers,
which come back on one reply queue per process, read by one thread. Units: machine seconds.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from celery import Celery
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.exceptions import KombuError, OperationalError
from kombu.messaging import Consumer

from carbonq.errors import BrokerUnavailable, Unavailable

logger = logging.getLogger(__name__)

RUN_CHUNK = "carbonq.run_chunk"
REALTIME = "carbonq.realtime"

#: ``status`` of a message that holds a piece of a streamed answer; Celery's own are those of the answer.
PIECE = "PIECE"

CONTROL = "control"
CONTROL_SLOW = "control.slow"

#: Which control queue runs each tick. Slow ones hold the GIL (the solver) or wait for the network.
TICK_QUEUES = {
    "dispatch": CONTROL,
    "expire": CONTROL,
    "finish": CONTROL,
    "reap": CONTROL,
    "deliver": CONTROL_SLOW,
    "plan": CONTROL_SLOW,
    "refresh": CONTROL_SLOW,
    "retire": CONTROL_SLOW,
    "seal": CONTROL_SLOW,
    "settle": CONTROL_SLOW,
    "targets": CONTROL_SLOW,
    "validate": CONTROL_SLOW,
}

#: A nudge that nobody took within this many seconds is worthless: the next scheduled tick does its work.
NUDGE_EXPIRES_S = 2.0


def flexible_queue(region: str) -> str:
    """Name the queue of chunk tickets of a region."""
    return f"flexible.{region}"


def realtime_queue(region: str) -> str:
    """Name the queue of realtime calls of a region."""
    return f"realtime.{region}"


def tick_task(tick: str) -> str:
    """Name the Celery task of a tick."""
    return f"carbonq.tick.{tick}"


def shown_ticket(region: str, **known: object) -> str:
    """Say for Flower what a task is about; None is left out."""
    words = (f"{name}={value}" for name, value in ({"region": region} | known).items() if value is not None)
    return ", ".join(words)


class TicketPublisher(Protocol):
    """What services need of the broker."""

    def flexible(self, pairs: Sequence[tuple[str, str]], shown: Mapping[str, str] | None = None) -> None:
        """Send one ticket for each (region, chunk_id). Raises BrokerUnavailable; some may be out by then.

        ``shown`` says for people what a chunk is, by its id: Flower shows it, nothing reads it.
        """
        ...

    def nudge(self, tick: str) -> None:
        """Ask for a tick before its time; never raises, since the schedule brings it anyhow."""
        ...


def make_celery(broker_url: str, *, queue_prefix: str = "", has_replies: bool = False) -> Celery:
    """Make the Celery application; ``has_replies`` in region workers, which answer realtime calls.

    Early acks and no result backend for chunks: leases in the database replace both.
    """
    app = Celery("carbonq", broker=broker_url, backend="rpc://" if has_replies else None, set_as_current=False)
    is_redis = urlsplit(broker_url).scheme.startswith("redis")
    app.conf.update(
        accept_content=["json"],
        broker_connection_max_retries=None,
        broker_connection_retry_on_startup=True,
        broker_heartbeat=30,
        broker_pool_limit=16,
        broker_transport_options={
            "global_keyprefix": "carbonq:",
            "health_check_interval": 10,
            "socket_connect_timeout": 2,
            "socket_keepalive": True,
            "socket_timeout": 5,
            "visibility_timeout": 600,
        }
        if is_redis
        else {"confirm_publish": True},
        control_exchange=f"{queue_prefix}celery",
        enable_utc=True,
        event_exchange=f"{queue_prefix}celeryev",
        event_queue_prefix=f"{queue_prefix}celeryev",
        result_expires=120,
        task_acks_late=False,
        task_default_queue=queue_prefix + CONTROL,
        task_ignore_result=True,
        task_publish_retry=True,  # once and at once: a pooled connection may have died since its last use
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0},
        task_serializer="json",
        timezone="UTC",
        worker_cancel_long_running_tasks_on_connection_loss=True,  # concerns late acks only, of which there are none
        worker_disable_prefetch=False,  # with the thread pool it would block the slot reserved for realtime
        # It would be raised again from the pool's threads, on a connection that the main thread reads: such a thread
        # waits for ever. Tickets are acknowledged as they are taken, so there is nothing to fetch too much of.
        worker_enable_prefetch_count_reduction=False,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        worker_soft_shutdown_timeout=20,
    )
    return app


class Tickets:
    """Publishes tickets and waits for realtime answers; may be used from many threads."""

    def __init__(self, broker_url: str, *, queue_prefix: str = "") -> None:
        """Prepare; nothing is connected until the first ticket."""
        self._app = make_celery(broker_url, queue_prefix=queue_prefix)
        self._prefix = queue_prefix
        self._regions: dict[str, str] = {}  # of the realtime calls that wait for their answer
        self._replies = _Replies(broker_url, self._app.conf.broker_transport_options, queue_prefix)

    def flexible(self, pairs: Sequence[tuple[str, str]], shown: Mapping[str, str] | None = None) -> None:
        """Send one ticket for each (region, chunk_id) in one pipeline. Raises BrokerUnavailable."""
        with _broker_errors(), self._app.producer_pool.acquire(block=True, timeout=5) as producer, producer.batch():
            for region, chunk_id in pairs:
                self._app.send_task(
                    RUN_CHUNK,
                    args=(chunk_id,),
                    queue=self._prefix + flexible_queue(region),
                    producer=producer,
                    kwargsrepr=(shown or {}).get(chunk_id) or shown_ticket(region),
                )

    def nudge(self, tick: str) -> None:
        """Ask for a tick before its time; never raises."""
        try:
            with _broker_errors():
                self._app.send_task(tick_task(tick), queue=self._prefix + TICK_QUEUES[tick], expires=NUDGE_EXPIRES_S)
        except BrokerUnavailable as error:
            logger.debug("nudge %s not sent: %s", tick, error)

    def realtime(
        self,
        region: str,
        payload: Mapping[str, Any],
        timeout_s: float,
        call_id: str | None = None,
        on_piece: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Send one realtime call to a region's worker and wait for its answer; ``call_id`` is to ``drop`` it by.

        ``payload`` and answer are as in ``services/realtime.py``; ``on_piece`` is told text that comes before. Raises
        BrokerUnavailable, and Unavailable (``realtime_timeout``) when nothing came for ``timeout_s``: it is dropped.
        """
        task_id = call_id or uuid.uuid4().hex
        pieces = None if on_piece is None else _Pieces(on_piece)
        answer = self._replies.expect(task_id, pieces)
        self._regions[task_id] = region
        try:
            with _broker_errors():
                self._app.send_task(
                    REALTIME,
                    args=(dict(payload),) if pieces is None else ({**payload, "is_streamed": True},),
                    # Celery would tell Flower, and all who listen to its events, what the client wrote.
                    argsrepr="(...)",
                    kwargsrepr=shown_ticket(region, model=payload.get("model"), endpoint=payload.get("endpoint")),
                    task_id=task_id,
                    queue=self._prefix + realtime_queue(region),
                    expires=timeout_s,
                    reply_to=self._replies.queue,
                    ignore_result=False,
                )
            message = answer.result(timeout_s) if pieces is None else pieces.wait(answer, timeout_s)
        except FutureTimeout:
            self.drop(task_id)
            raise Unavailable(
                f"region {region} gave no answer within {timeout_s:g} s", code="realtime_timeout", retry_after_s=1.0
            ) from None
        finally:
            self._replies.forget(task_id)
            self._regions.pop(task_id, None)
        if message.get("status") != "SUCCESS":
            raise Unavailable(f"the worker of region {region} failed on the request", code="realtime_failed")
        result: dict[str, Any] = message["result"]
        return result

    def drop(self, call_id: str) -> None:
        """Give a realtime call up: nobody waits for it here any more, and its worker stops it. Never raises."""
        region = self._regions.get(call_id)
        self._replies.give_up(call_id)
        if region is None:
            return
        try:
            with _broker_errors():
                # To that region's workers alone: others would only wonder at it in their logs.
                self._app.control.revoke(call_id, pattern=f"{region}-*", matcher="glob")
        except BrokerUnavailable as error:
            logger.debug("call %s not revoked: %s", call_id, error)

    def ping(self) -> None:
        """Raise BrokerUnavailable unless the broker answers now."""
        with _broker_errors(), self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=2)
            connection.default_channel.close()

    def remove_queues(self, regions: Sequence[str]) -> None:
        """Delete an installation's queues from a broker that others go on using. Raises BrokerUnavailable."""
        named = [queue(region) for region in regions for queue in (flexible_queue, realtime_queue)]
        queues = [self._prefix + name for name in (*named, CONTROL, CONTROL_SLOW)]
        others = [self._prefix + name for name in ("celery.pidbox", "reply.celery.pidbox", "celeryev")]
        with _broker_errors(), self._app.connection_for_write() as connection:
            for name in queues:
                _delete(connection, lambda channel, name=name: channel.queue_delete(name))
            for name in (*queues, *others):
                _delete(connection, lambda channel, name=name: channel.exchange_delete(name))

    def close(self) -> None:
        """Close all connections."""
        self._replies.close()
        self._app.close()


@dataclass(slots=True)
class _Pieces:
    """Hands pieces of a streamed answer on and knows when the last one came."""

    on_piece: Callable[[str], None]
    last_at: float = field(default_factory=time.monotonic)

    def take(self, text: str) -> None:
        self.last_at = time.monotonic()
        self.on_piece(text)

    def wait(self, answer: Future[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
        """Wait for an answer as long as there is a piece every ``timeout_s``. Raises TimeoutError."""
        while (left_s := self.last_at + timeout_s - time.monotonic()) > 0:
            with suppress(FutureTimeout):
                return answer.result(left_s)
        raise FutureTimeout


def piece_sender(app: Celery, reply_to: str, call_id: str) -> Callable[[str], None]:
    """Return what tells a streamed answer's text; nothing after a loss, for the answer has the whole of it."""
    named, lost = {"exchange": "", "routing_key": reply_to, "correlation_id": call_id}, threading.Event()

    def send(text: str) -> None:
        if lost.is_set():
            return
        try:
            with _broker_errors(), app.producer_pool.acquire(block=True, timeout=1) as producer:
                producer.publish({"status": PIECE, "result": text}, serializer="json", delivery_mode=1, **named)
        except BrokerUnavailable as error:
            lost.set()
            logger.debug("a piece of call %s not sent: %s", call_id, error)

    return send


class _Replies:
    """One reply queue for the whole process, read by one thread that hands each answer to whoever waits for it.

    Celery's own rpc consumer shares a connection between the threads that wait, which is not safe with many of them.
    """

    def __init__(self, broker_url: str, transport_options: Mapping[str, Any], queue_prefix: str) -> None:
        self.queue = f"{queue_prefix}reply.{uuid.uuid4().hex}"
        self._url = broker_url
        self._options = dict(transport_options)
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._pieces: dict[str, _Pieces] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._is_closed = threading.Event()

    def expect(self, task_id: str, pieces: _Pieces | None = None) -> Future[dict[str, Any]]:
        """Register a call before it is sent; waits shortly for the reply queue to be there."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._waiting[task_id] = future
            if pieces is not None:
                self._pieces[task_id] = pieces
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="replies", daemon=True)
                self._thread.start()
        if not self._is_ready.wait(3.0):
            self.forget(task_id)
            raise BrokerUnavailable("the broker does not answer")
        return future

    def forget(self, task_id: str) -> None:
        """Stop waiting for an answer."""
        with self._lock:
            self._waiting.pop(task_id, None)
            self._pieces.pop(task_id, None)

    def give_up(self, task_id: str) -> None:
        """End the wait for an answer."""
        with self._lock:
            future = self._waiting.pop(task_id, None)
        if future is not None:
            future.set_exception(Unavailable("the caller has gone away", code="caller_gone"))

    def close(self) -> None:
        """Stop the thread."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(3.0)

    def _loop(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._consume()
            except (KombuError, OSError, *_transport_errors()) as error:
                self._is_ready.clear()
                logger.warning("reply queue lost (%s); connecting again", error)
                self._is_closed.wait(0.5)
            except Exception:  # a process loop: without it no realtime call would ever hear its answer
                self._is_ready.clear()
                logger.exception("reply queue lost; connecting again")
                self._is_closed.wait(0.5)

    def _consume(self) -> None:
        with Connection(self._url, transport_options=self._options, connect_timeout=2) as connection:
            queue = Queue(self.queue, durable=False, auto_delete=True, exclusive=True)
            with Consumer(connection.channel(), [queue], callbacks=[self._received], no_ack=True, accept=["json"]):
                self._is_ready.set()
                while not self._is_closed.is_set():
                    try:
                        connection.drain_events(timeout=1.0)
                    except (TimeoutError, socket.timeout):  # noqa: UP041 - kombu raises either, by Python version
                        connection.heartbeat_check()

    def _received(self, body: dict[str, Any], message: Any) -> None:
        task_id = message.properties.get("correlation_id")
        if body.get("status") == PIECE:
            if pieces := self._pieces.get(task_id):
                pieces.take(body["result"])
            return
        with self._lock:
            future = self._waiting.pop(task_id, None)
        if future is not None:
            future.set_result(body)


def _delete(connection: Connection, act: Callable[[Any], object]) -> None:
    # What is not there cannot be deleted, and costs the channel.
    with suppress(*connection.channel_errors), connection.channel() as channel:
        act(channel)


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return what the transports raise by themselves: neither is an OSError or one of kombu's."""
    from amqp.exceptions import AMQPError
    from redis.exceptions import RedisError

    return (RedisError, AMQPError)


@contextmanager
def _broker_errors() -> Generator[None]:
    try:
        yield
    except (OperationalError, KombuError, OSError, *_transport_errors()) as error:
        raise BrokerUnavailable(f"the broker does not answer: {error}") from error


def wait_for_broker(tickets: Tickets, timeout_s: float) -> None:
    """Return when the broker answers. Raises BrokerUnavailable after ``timeout_s``, with the way out."""
    end = time.monotonic() + timeout_s
    is_said = False
    while True:
        try:
            return tickets.ping()
        except BrokerUnavailable as error:
            reason = error.message.rstrip(".")
            if not is_said:
                logger.warning("%s; waiting for it up to %g s", reason, timeout_s)
            is_said = True
            if time.monotonic() > end:
                way_out = "check CARBONQ_BROKER_URL (host, port, user, password)"
                raise BrokerUnavailable(f"{reason}; {way_out}") from error
            time.sleep(0.1)

"""Which database and broker a system test runs on: the machine's own services where they answer, each test apart.

A test gets a PostgreSQL database of its own, and queues with a prefix of its own, which are removed at its end.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import redis
from kombu.connection import Connection

from carbonq.embedded import ports
from carbonq.embedded.broker import HOST, Broker, find_program
from carbonq.tickets import CONTROL, CONTROL_SLOW, Tickets, flexible_queue, realtime_queue, wait_for_broker
from tests.conftest import require

#: The combinations that must work by settings alone.
NAMES = ("sqlite-redis", "postgresql-redis", "postgresql-rabbitmq")

REDIS = ("127.0.0.1", 6379)
RABBITMQ = ("127.0.0.1", 5672)


@dataclass(frozen=True)
class Backend:
    """What one installation of a test is set to; no ``database_url``: SQLite in its folder."""

    name: str
    broker_url: str
    database_url: str | None = None
    queue_prefix: str = ""

    def settings(self) -> dict[str, Any]:
        """The settings that choose this backend, and nothing else."""
        chosen = {"broker_url": self.broker_url, "queue_prefix": self.queue_prefix}
        return chosen if self.database_url is None else {**chosen, "database_url": self.database_url}

    def queues(self, *regions: str) -> list[str]:
        names = [queue(region) for region in regions for queue in (flexible_queue, realtime_queue)]
        return [self.queue_prefix + name for name in (*names, CONTROL, CONTROL_SLOW)]

    def lose_tickets(self, *regions: str) -> None:
        """Throw away what the broker holds: on Redis everything, as a restart without a disk does."""
        if self.broker_url.startswith("redis"):
            self._delete_keys()
            return
        with Connection(self.broker_url) as connection:
            for name in self.queues(*regions):
                _quietly(connection, lambda channel, name=name: channel.queue_purge(name))

    def remove_queues(self, *regions: str) -> None:
        """Leave nothing in a broker that others use too."""
        if self.broker_url.startswith("redis"):
            self._delete_keys()
            return
        tickets = Tickets(self.broker_url, queue_prefix=self.queue_prefix)
        tickets.remove_queues(regions)
        tickets.close()

    def _delete_keys(self) -> None:
        client = redis.Redis.from_url(self.broker_url)
        for pattern in (f"carbonq:{self.queue_prefix}*", f"carbonq:_kombu.binding.{self.queue_prefix}*"):
            for key in client.scan_iter(pattern, count=1000):
                client.delete(key)
        client.close()


def _quietly(connection: Connection, act: Callable[[Any], object]) -> None:
    # What is not there cannot be deleted, and costs the channel.
    with contextlib.suppress(*connection.channel_errors), connection.channel() as channel:
        act(channel)


@contextmanager
def backend(name: str, request: pytest.FixtureRequest) -> Generator[Backend]:
    """One of ``NAMES``: the services on their standard ports, else embedded ones; RabbitMQ has no embedded one."""
    database, _, broker = name.partition("-")
    with contextlib.ExitStack() as stack:
        prefix = f"test-{uuid.uuid4().hex[:10]}."
        if broker == "rabbitmq":
            if not answers(RABBITMQ):
                require(f"no RabbitMQ on {RABBITMQ[0]}:{RABBITMQ[1]}")
            made = Backend(name, f"amqp://guest:guest@{RABBITMQ[0]}:{RABBITMQ[1]}//", queue_prefix=prefix)
        elif answers(REDIS):
            made = Backend(name, f"redis://{REDIS[0]}:{REDIS[1]}/0", queue_prefix=prefix)
        else:
            made = Backend(name, stack.enter_context(redis_server()), queue_prefix=prefix)
        if database == "postgresql":
            made = replace(made, database_url=request.getfixturevalue("postgres_database_url"))
        stack.callback(made.remove_queues, "north", "south")
        yield made


def answers(address: tuple[str, int]) -> bool:
    """Say whether somebody listens there."""
    try:
        socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True


@contextmanager
def redis_server() -> Iterator[str]:
    """A broker of its own on a free port, as embedded mode starts it; gives its URL."""
    server = Broker(find_program(), ports.choose(HOST, 0, what="a test's broker", setting="none"))
    process = subprocess.Popen(server.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert process.stdin is not None
        process.stdin.write(server.config(server.program.parent))
        process.stdin.close()
        tickets = Tickets(server.url)
        wait_for_broker(tickets, 10)
        tickets.close()
        yield server.url
    finally:
        process.terminate()
        process.wait(10)

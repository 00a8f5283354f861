"""The embedded stack: which processes carbonq consists of on one machine, in which order they start and stop.

The same processes run on many hosts without this module; here one supervisor holds them. Settings and secrets reach the
children by environment variables only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from pydantic import SecretStr

from carbonq import config, wiring
from carbonq.api.auth import is_loopback
from carbonq.client import Client
from carbonq.clock import GridClock
from carbonq.config import Settings
from carbonq.embedded import address, broker, checkup, ports
from carbonq.embedded.supervisor import ProcessSpec, Supervisor
from carbonq.errors import CarbonqError
from carbonq.store import keys, sessions

#: How long the whole stack may take to become ready, in seconds (a model of some GB loads in it).
READY_S = 120.0


class Stack:
    """All processes of one installation on this machine; a context manager that starts and stops them.

    ``clock`` is written into a new database only; one that exists keeps its own. ``report`` gets one sentence a step.
    """

    def __init__(
        self, settings: Settings, *, report: Callable[[str], None], clock: GridClock | None = None, flower: bool = True
    ) -> None:
        self.data_dir = settings.data_dir.resolve()
        self._given = settings
        self._report = report
        self._clock = clock
        self._has_flower = flower
        self._supervisor = Supervisor(self.data_dir / "logs", report=report)
        self._lock: int | None = None
        self.settings = settings
        self.api_key = ""

    def __enter__(self) -> Stack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def api_url(self) -> str:
        """Where the API of this stack answers."""
        return address.api_url(self.settings)

    @property
    def flower_url(self) -> str:
        """Where Flower answers."""
        return address.flower_url(self.settings)

    def login_url(self) -> str | None:
        """Make a link that opens the dashboard once with the local key; None where others could reach the API.

        Raises StoreUnavailable.
        """
        if not is_loopback(self.settings.host):
            return None
        db = wiring.open_database(self.settings)
        try:
            with db.write() as tx:
                return f"{self.api_url}/login?link={sessions.make_link(tx, keys.hash_key(self.api_key))}"
        finally:
            db.dispose()

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each child that runs now."""
        return self._supervisor.pids()

    def client(self) -> Client:
        """Return a client of this stack's API with the local key."""
        return Client(self.api_url, self.api_key)

    def start(self) -> None:
        """Start everything and return when the API is ready and every region has a live worker.

        Raises ConfigError: folder in use, port in use, no broker program, a process that does not start.
        """
        began_at = time.monotonic()
        self._lock = address.lock(self.data_dir)
        host = self._given.host
        port = ports.choose(host, self._given.port, what="the API", setting="CARBONQ_PORT")
        flower_port = self._given.flower_port
        if self._has_flower:
            flower_port = ports.choose(
                self._given.flower_host, flower_port, what="Flower", setting="CARBONQ_FLOWER_PORT"
            )
        found_flower = address.flower_url(self._given.model_copy(update={"flower_port": flower_port}))
        self.settings = self._given.model_copy(
            update={
                "flower_url": self._given.flower_url or (found_flower if self._has_flower else None),
                "data_dir": self.data_dir,
                "port": port,
                "flower_port": flower_port,
                "metrics_port": 0 if self._given.metrics_port is None else self._given.metrics_port,
                "flower_password": self._given.flower_password
                or SecretStr(_kept_secret(self.data_dir / "flower-password")),
            }
        )
        checkup.check_before_start(self.settings)
        # Before any process looks: schema, regions, clock and the local key are made once, here.
        runtime, self.api_key = wiring.prepare(self.settings, clock=self._clock)
        try:
            _check_exposure(runtime)
        finally:
            runtime.close()
        if self.settings.broker_url is None:
            self._start_broker()
        environment = _environment(self.settings)
        for name, command in _commands(self.settings, flower=self._has_flower):
            self._supervisor.start(ProcessSpec(name, command, environment))
        self._write_address()
        self._supervisor.wait(self._is_ready, what="the stack", timeout_s=READY_S)
        self._supervisor.mark_started()
        self._report(f"ready after {time.monotonic() - began_at:.1f} s")

    def stop(self) -> None:
        """Stop in order: API, beat, region workers, control workers, Flower, broker. Does nothing the second time."""
        if self._lock is None:
            return
        workers = [f"worker-{region}" for region in self.settings.regions]
        order: Sequence[Sequence[str]] = (
            ("api",), ("beat",), workers, ("control", "control-slow"), ("flower",), ("broker",)
        )  # fmt: skip
        self._supervisor.stop(order)
        address.remove(self.data_dir)
        os.close(self._lock)
        self._lock = None

    def interrupt(self) -> None:
        """Give up starting, if it is; ``stop`` has to follow. Safe in a signal handler."""
        self._supervisor.interrupt()

    def stop_hard(self) -> None:
        """Kill everything that is left instead of waiting for it."""
        self._supervisor.stop_hard()

    def _start_broker(self) -> None:
        program = broker.find_program()
        server = broker.Broker(program, ports.choose(broker.HOST, 0, what="the broker", setting="CARBONQ_BROKER_URL"))
        spec = ProcessSpec("broker", server.command, stdin=server.config(self.data_dir), stop_s=5.0)
        self._supervisor.start(spec)
        self._supervisor.wait(server.is_ready, what=f"the broker ({program})", timeout_s=20.0)
        self._report(f"broker: {program.name} on {broker.HOST}:{server.port}")
        self.settings = self.settings.model_copy(update={"broker_url": SecretStr(server.url)})

    def _is_ready(self) -> bool:
        if not self._supervisor.is_complete():
            return False
        with self.client() as client, contextlib.suppress(CarbonqError):
            health = client.health()
            workers = health.get("live_workers", {})
            return health.get("status") == "ready" and all(workers.get(region) for region in self.settings.regions)
        return False

    def _write_address(self) -> None:
        assert self.settings.broker_url is not None
        broker_url = self.settings.broker_url.get_secret_value()
        address.write(self.data_dir, address.Address(self.api_url, self.flower_url, broker_url))


def _check_exposure(runtime: wiring.Runtime) -> None:
    """Refuse at once what the API would refuse after some seconds. Raises ConfigError."""
    host = runtime.settings.host
    if host not in {address.LOOPBACK, "localhost", "::1"}:
        from carbonq.api import auth, process

        auth.check_exposure(host, has_shared_key=process.has_shared_key(runtime))


def _commands(settings: Settings, *, flower: bool) -> list[tuple[str, tuple[str, ...]]]:
    python = (sys.executable, "-m", "carbonq")
    commands = [("control", (*python, "process", "control")), ("control-slow", (*python, "process", "control-slow"))]
    commands += [(f"worker-{name}", (*python, "worker", "--region", name)) for name in settings.regions]
    commands += [("beat", (*python, "process", "beat")), ("api", (*python, "process", "api"))]
    if flower:
        commands.append(("flower", (*python, "process", "flower")))
    return commands


def _environment(settings: Settings) -> dict[str, str]:
    given = config.environment(settings)
    path = config.config_path()
    if path is not None:
        given["CARBONQ_CONFIG"] = str(path.resolve())
    # One core each: several processes whose libraries all start a thread per core only take turns.
    return {**given, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _kept_secret(path: Path) -> str:
    """Return the secret in a private file, made at first use."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8").strip()
    secret = secrets.token_urlsafe(18)
    address.write_private(path, secret + "\n")
    return secret

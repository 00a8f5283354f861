"""The processes that ``carbonq bench api`` measures: an API, what it needs beside it, and the plain server.

No region worker runs: nothing is computed, only accepted, looked at and handed out.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from carbonq import config, wiring
from carbonq.bench.api_load import Load, text_of
from carbonq.config import Settings
from carbonq.embedded import address, broker, ports
from carbonq.embedded.supervisor import ProcessSpec, Supervisor

#: Seconds that the processes may take to answer.
_READY_S = 60.0

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ApiSite:
    """An API process on an installation of its own; a context that begins and ends it. ``file`` is the plain server's.

    ``with_control`` also starts what validates batches: beat and the slow control process.
    """

    def __init__(
        self, settings: Settings, file: Path, *, with_control: bool, report: Callable[[str], None] = lambda _: None
    ) -> None:
        self._given = settings
        self._file = file
        self._names = ["api", *(["beat", "control-slow"] if with_control else [])]
        self._supervisor = Supervisor(settings.data_dir / "logs", report=report)
        self._database = urlsplit(settings.resolved_database_url).path.strip("/")
        self.runtime: wiring.Runtime
        self.key = ""
        self.port = ports.choose(address.LOOPBACK, 0, what="the API", setting="CARBONQ_PORT")
        self.plain_port = ports.choose(address.LOOPBACK, 0, what="the plain server", setting="CARBONQ_PORT")

    def __enter__(self) -> ApiSite:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._supervisor.stop((("api", "plain"), ("beat", "control-slow"), ("broker",)))
        if hasattr(self, "runtime"):
            self.runtime.close()

    def _start(self) -> None:
        settings = self._given.model_copy(update={"port": self.port})
        if settings.broker_url is None:
            server = broker.Broker(
                broker.find_program(), ports.choose(broker.HOST, 0, what="the broker", setting="CARBONQ_BROKER_URL")
            )
            spec = ProcessSpec("broker", server.command, stdin=server.config(settings.data_dir), stop_s=5.0)
            self._supervisor.start(spec)
            self._supervisor.wait(server.is_ready, what="the broker", timeout_s=_READY_S)
            settings = settings.model_copy(update={"broker_url": SecretStr(server.url)})
        self.runtime, self.key = wiring.prepare(settings)
        environment = {**config.environment(settings), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        for name in self._names:
            command = (sys.executable, "-m", "carbonq", "process", name)
            self._supervisor.start(ProcessSpec(name, command, environment))
        plain = (sys.executable, "-m", "carbonq.bench.api_plain", str(self.plain_port), str(self._file))
        given = {"CARBONQ_BENCH_URL": settings.resolved_database_url}  # a URL may hold a password: not in argv
        self._supervisor.start(ProcessSpec("plain", plain, given))
        self._supervisor.wait(self._is_ready, what="the API", timeout_s=_READY_S)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            for port, path in ((self.port, "/healthz"), (self.plain_port, "/healthz")):
                httpx.get(f"http://{address.LOOPBACK}:{port}{path}", trust_env=False).raise_for_status()
            return True
        return False

    @contextlib.contextmanager
    def http(self) -> Generator[httpx.Client]:
        """A client of the API with the local key."""
        with httpx.Client(
            base_url=f"http://{address.LOOPBACK}:{self.port}",
            headers={"Authorization": f"Bearer {self.key}"},
            trust_env=False,
            timeout=120.0,
        ) as http:
            yield http

    def loaded(self, load: Load, server: str) -> dict[str, Any]:
        """Put a load on ``api`` or ``plain`` and return its figures, with the CPU seconds of each process beside."""
        before = self.cpu_s(server)
        found = subprocess.run(
            [sys.executable, "-m", "carbonq.bench.api_load"],
            input=text_of(load),
            check=True,
            capture_output=True,
            text=True,
        )
        figures: dict[str, Any] = json.loads(found.stdout)
        figures["cpu_s"] = {**self.cpu_since(before), "load": figures["cpu_s"]}
        return figures

    def cpu_s(self, *servers: str) -> dict[str, float | None]:
        """Return the CPU seconds so far of some of the processes, and of PostgreSQL's for this installation."""
        pids = self._supervisor.pids()
        return {**{name: _cpu_s(pids[name]) for name in servers}, "database": _backends_cpu_s(self._database)}

    def cpu_since(self, before: dict[str, float | None]) -> dict[str, float | None]:
        """Return what has been used since; None where it cannot be seen (SQLite works inside the server)."""
        found: dict[str, float | None] = {}
        for name, now in self.cpu_s(*(name for name in before if name != "database")).items():
            began = before[name]
            found[name] = None if now is None or began is None else now - began
        return found

    def forget_peaks(self, *names: str) -> dict[str, float]:
        """Begin the measuring of peaks anew and return the resident MB now."""
        pids = self._supervisor.pids()
        for name in names:
            Path(f"/proc/{pids[name]}/clear_refs").write_text("5", encoding="ascii")
        return {name: _status_mb(pids[name], "VmRSS") for name in names}

    def peaks_mb(self, *names: str) -> dict[str, float]:
        """Return the highest resident MB since ``forget_peaks``."""
        pids = self._supervisor.pids()
        return {name: _status_mb(pids[name], "VmHWM") for name in names}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _backends_cpu_s(database: str) -> float | None:
    """Return the CPU seconds of the PostgreSQL processes that serve a database: their titles name it."""
    found: list[float] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f" {database} ".encode() in (folder / "cmdline").read_bytes():
                found.append(_cpu_s(int(folder.name)))
    return sum(found) if found else None


def _status_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/{pid}/status has no {name}")

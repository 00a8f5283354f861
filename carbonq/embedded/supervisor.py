"""Keep a set of child processes running: start in order, restart with backoff, stop in order, leave no orphans.

Each child has a session of its own (the terminal's Ctrl-C reaches only the supervisor) and dies with the supervisor
(``tether.py``). All durations are machine seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from carbonq.errors import ConfigError

#: First wait before a restart, and the longest; doubled after each quick death.
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0

#: A child that lived this long starts again with the first backoff.
STEADY_S = 30.0

#: Deaths of one child before the set is ready after which the start is given up.
START_TRIES = 3

#: A log file larger than this is set aside (``NAME.log.1``) when its process starts, in bytes.
LOG_LIMIT = 10_000_000

_TICK_S = 0.1
_TETHER = Path(__file__).with_name("tether.py")


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One child: what to run and how to stop it.

    ``stdin`` is written at every start, for what must not be seen in the argument list. ``stop_s`` is how long it may
    take to stop after SIGTERM before it is killed.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    stdin: bytes | None = field(default=None, repr=False)
    stop_s: float = 20.0


@dataclass(slots=True)
class _Child:
    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    started_at: float
    deaths: int = 0
    restart_at: float | None = None


class Supervisor:
    """Start, watch and stop children. ``report`` is told in one sentence about every death and restart."""

    def __init__(self, logs: Path, *, report: Callable[[str], None]) -> None:
        self._logs = logs
        self._report = report
        self._children: dict[str, _Child] = {}
        self._lock = threading.RLock()
        self._is_stopping = threading.Event()
        self._is_hard = threading.Event()
        self._is_started = False
        # The kernel ties a child to the *thread* that started it, so restarts come from one that lives to the end.
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._may_end = threading.Event()

    def start(self, spec: ProcessSpec) -> None:
        """Start one child; the main thread calls this."""
        with self._lock:
            self._children[spec.name] = _Child(spec, self._spawn(spec), time.monotonic())
        if not self._watcher.is_alive():
            self._watcher.start()

    def wait(self, is_ready: Callable[[], bool], *, what: str, timeout_s: float) -> None:
        """Wait until ``is_ready``; raises ConfigError with the log's last line when a child keeps dying instead."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            for child in list(self._children.values()):
                if child.deaths >= START_TRIES:
                    raise ConfigError(f"{child.spec.name} does not start: {self.last_line(child.spec.name)}")
            if self._is_stopping.is_set():
                raise ConfigError("stopped while starting")
            if time.monotonic() > deadline:
                raise ConfigError(f"{what} did not become ready within {timeout_s:.0f} s; see the logs in {self._logs}")
            self._is_stopping.wait(_TICK_S)

    def mark_started(self) -> None:
        """From now on a child that dies is restarted for ever."""
        self._is_started = True

    def pids(self) -> dict[str, int]:
        """Return the process id of each child that runs now."""
        with self._lock:
            return {name: child.process.pid for name, child in self._children.items() if child.process.poll() is None}

    def is_complete(self) -> bool:
        """Say whether every child runs now."""
        with self._lock:
            return all(child.process.poll() is None for child in self._children.values())

    def log(self, name: str) -> Path:
        """Return the log file of a child."""
        return self._logs / f"{name}.log"

    def last_line(self, name: str) -> str:
        """Return the last line a child wrote, with the place of its log."""
        path = self.log(name)
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.is_file() else []
        return f"{lines[-1].strip()} ({path})" if lines else f"it wrote nothing to {path}"

    def stop(self, order: Sequence[Sequence[str]]) -> None:
        """Stop all children: each group of names together, one group after the other, then whatever is left."""
        self._is_stopping.set()
        named = {name for group in order for name in group}
        for group in (*order, [name for name in self._children if name not in named]):
            self._stop_together([self._children[name] for name in group if name in self._children])
        self._may_end.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def interrupt(self) -> None:
        """Let ``wait`` give up and start nothing more; safe in a signal handler."""
        self._is_stopping.set()

    def stop_hard(self) -> None:
        """Kill everything now; safe in a signal handler while ``stop`` is at work."""
        self._is_stopping.set()
        self._is_hard.set()

    def _stop_together(self, children: Sequence[_Child]) -> None:
        for child in children:
            _send(child.process, signal.SIGTERM)
        began_at = time.monotonic()
        for child in children:
            while child.process.poll() is None:
                if self._is_hard.is_set() or time.monotonic() - began_at > child.spec.stop_s:
                    if not self._is_hard.is_set():
                        self._report(f"{child.spec.name} did not stop within {child.spec.stop_s:.0f} s and was killed")
                    _send(child.process, signal.SIGKILL)
                    child.process.wait()
                else:
                    time.sleep(0.02)
            # What it may have started itself, in its own session.
            _send_group(child.process.pid, signal.SIGKILL)

    def _watch(self) -> None:
        while not self._may_end.wait(_TICK_S):
            if self._is_stopping.is_set():
                continue
            with self._lock:
                for child in list(self._children.values()):
                    if not self._is_stopping.is_set():
                        self._look_at(child)

    def _look_at(self, child: _Child) -> None:
        now = time.monotonic()
        if child.restart_at is not None:
            if now >= child.restart_at:
                child.process, child.started_at, child.restart_at = self._spawn(child.spec), now, None
            return
        code = child.process.poll()
        if code is None:
            return
        _send_group(child.process.pid, signal.SIGKILL)
        child.deaths = 1 if now - child.started_at > STEADY_S else child.deaths + 1
        wait_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** (child.deaths - 1))
        child.restart_at = now + wait_s
        if self._is_started:
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            self._report(
                f"{child.spec.name} ended ({how}) and starts again in {wait_s:g} s; log: {self.log(child.spec.name)}"
            )

    def _spawn(self, spec: ProcessSpec) -> subprocess.Popen[bytes]:
        self._logs.mkdir(parents=True, exist_ok=True)
        path = self.log(spec.name)
        if path.is_file() and path.stat().st_size > LOG_LIMIT:
            path.replace(path.with_suffix(".log.1"))
        # 0600: requests' texts may show up in error messages.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
            process = subprocess.Popen(
                (sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *spec.command),
                stdin=subprocess.DEVNULL if spec.stdin is None else subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **spec.environment},
                start_new_session=True,
            )
        if process.stdin is not None and spec.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(spec.stdin)
                process.stdin.close()
        return process


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _send_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)

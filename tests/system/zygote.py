"""Start carbonq processes by forking one that has imported everything: its imports are paid once and not six times.

``python -m tests.system.zygote`` reads requests from stdin, one JSON object a line, and answers on stdout. It has one
thread and no connection, model or handler of carbonq's; a child is as one that ``python -m carbonq`` has just started.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1

_IMPORTS = ("api.process", "cli.main", "cli.worker", "engines.wordllama", "embedded.address", "wiring")

_ROOMS = (("workers", "region"), ("workers", "control"), ("beat", "process"))


class Forked:
    """A forked process, with what the tests use of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._has_ended = threading.Event()

    def ended(self, returncode: int) -> None:
        self.returncode = returncode
        self._has_ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and the zygote has not said so yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that forks; it ends with this one, and its children with it."""

    def __init__(self) -> None:
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.zygote"],
            env={**os.environ, **one_thread},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._forked: dict[int, Forked] = {}
        self._answer = threading.Event()
        self._last: Forked | None = None
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="zygote", daemon=True)
        self._listener.start()
        atexit.register(self.close)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
        request = {"arguments": list(arguments), "environment": dict(environment), "log": str(log), "cwd": os.getcwd()}
        with self._lock:
            self._answer.clear()
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            assert self._answer.wait(60), "the zygote does not answer"
            assert self._last is not None
            return self._last

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "returncode" in told:
                self._forked.pop(told["pid"]).ended(told["returncode"])
            else:
                self._last = self._forked[told["pid"]] = Forked(told["pid"])
                self._answer.set()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        self._listener.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


_zygotes: list[Zygote] = []


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
    """Start ``carbonq ARGUMENT...`` in a session of its own, with a whole environment, its output added to a file."""
    if not _zygotes:
        _zygotes.append(Zygote())
    return _zygotes[0].start(arguments, environment, log)


# --- the other side ---------------------------------------------------------------------------------------------------


def _tell(**words: Any) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell(pid=pid, returncode=os.waitstatus_to_exitcode(status))


def _serve() -> None:
    from importlib import import_module

    from carbonq import rooms

    for module in _IMPORTS:
        import_module(f"carbonq.{module}")
    for names in _ROOMS:
        rooms.load(*names)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    left = b""
    while True:
        ready, _, _ = select.select([0, reading], [], [])
        if reading in ready:
            os.read(reading, 1024)
            _reap()
        if 0 not in ready:
            continue
        got = os.read(0, 1 << 16)
        if not got:
            return
        *lines, left = (left + got).split(b"\n")
        for line in lines:
            request = json.loads(line)
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                os.close(reading)
                os.close(writing)
                _become(request, parent)
            _tell(pid=pid)


def _become(request: Mapping[str, Any], parent: int) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # what TMPDIR said to this process
    os.chdir(request["cwd"])
    sys.argv = ["carbonq", *request["arguments"]]
    code = 1
    try:
        from tests.system import flawed

        flawed.install(sys.argv[-1])
        from carbonq.cli.main import main

        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()

"""Real processes: nothing outlives its supervisor, stops come in order, a dead child comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from carbonq.embedded import broker, ports
from carbonq.embedded.supervisor import START_TRIES, ProcessSpec, Supervisor
from carbonq.errors import ConfigError

pytestmark = pytest.mark.system

#: Writes its name when told to stop, then stops.
_POLITE = """
import signal, sys, time
def stop(*_):
    open(sys.argv[2], "a").write(sys.argv[1] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(sys.argv[3], "a").write("up\\n")
while True:
    time.sleep(60)
"""


def until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    said: list[str] = []
    made = Supervisor(tmp_path / "logs", report=said.append)
    made.said = said  # type: ignore[attr-defined]
    yield made
    made.stop_hard()
    made.stop(())


def polite(tmp_path: Path, name: str) -> ProcessSpec:
    command = (sys.executable, "-c", _POLITE, name, str(tmp_path / "order"), str(tmp_path / f"{name}.up"))
    return ProcessSpec(name, command, stop_s=5)


def test_children_stop_in_the_order_given(supervisor: Supervisor, tmp_path: Path) -> None:
    for name in ("broker", "worker", "api"):
        supervisor.start(polite(tmp_path, name))
    until(lambda: all((tmp_path / f"{name}.up").exists() for name in ("broker", "worker", "api")))
    supervisor.stop((("api",), ("worker",)))
    assert (tmp_path / "order").read_text().split() == ["api", "worker", "broker"]
    assert supervisor.pids() == {}


def test_children_have_sessions_of_their_own(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(polite(tmp_path, "one"))
    pid = supervisor.pids()["one"]
    assert os.getsid(pid) == pid != os.getsid(0)


def test_a_killed_child_comes_back(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(polite(tmp_path, "one"))
    supervisor.mark_started()
    until((tmp_path / "one.up").exists)
    first = supervisor.pids()["one"]
    os.kill(first, signal.SIGKILL)
    until(lambda: supervisor.pids().get("one", first) != first)
    until(lambda: (tmp_path / "one.up").read_text().count("up") == 2)
    assert "one ended (signal 9)" in supervisor.said[0]  # type: ignore[attr-defined]


def test_a_child_that_never_starts_is_given_up_with_its_last_words(supervisor: Supervisor) -> None:
    command = (sys.executable, "-c", "raise SystemExit('the moon is in the way')")
    supervisor.start(ProcessSpec("api", command))
    with pytest.raises(ConfigError, match=r"api does not start: the moon is in the way \("):
        supervisor.wait(lambda: False, what="the API", timeout_s=30)
    assert START_TRIES == 3


def test_a_stubborn_child_is_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "open(sys.argv[1], 'w').close(); time.sleep(600)"
    )
    supervisor.start(ProcessSpec("deaf", (sys.executable, "-c", code, str(tmp_path / "up")), stop_s=0.3))
    until((tmp_path / "up").exists)
    supervisor.stop((("deaf",),))
    assert supervisor.pids() == {}
    assert "killed" in supervisor.said[-1]  # type: ignore[attr-defined]


def test_the_secret_input_is_not_in_the_argument_list(supervisor: Supervisor, tmp_path: Path) -> None:
    server = broker.Broker(broker.find_program(), ports.choose("127.0.0.1", 0, what="broker", setting="x"))
    supervisor.start(ProcessSpec("broker", server.command, stdin=server.config(tmp_path), stop_s=5))
    supervisor.wait(server.is_ready, what="the broker", timeout_s=20)
    process = psutil.Process(supervisor.pids()["broker"])
    assert server.password not in " ".join(process.cmdline())
    assert not broker.Broker(server.program, server.port, "wrong").is_ready()
    supervisor.stop((("broker",),))
    assert not server.is_ready()
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


_PARENT = """
import sys, time
from pathlib import Path
from carbonq.embedded.supervisor import ProcessSpec, Supervisor
supervisor = Supervisor(Path(sys.argv[1]) / "logs", report=print)
for name in ("one", "two"):
    supervisor.start(ProcessSpec(name, (sys.executable, "-c", "import time; time.sleep(600)")))
supervisor.mark_started()
print(*supervisor.pids().values(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("restarted_first", [False, True])
def test_killing_the_parent_leaves_no_orphans(tmp_path: Path, restarted_first: bool) -> None:
    parent = subprocess.Popen((sys.executable, "-c", _PARENT, str(tmp_path)), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    try:
        if restarted_first:
            os.kill(pids[0], signal.SIGKILL)
            pids.append(_replacement(parent.pid, pids))
        # exec() has happened: the kernel's tie holds from before it.
        until(lambda: all("time.sleep" in " ".join(_cmdline(pid)) for pid in pids[1:]))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    until(lambda: not any(_is_running(pid) for pid in pids))


def _replacement(parent: int, known: list[int]) -> int:
    found: list[int] = []

    def look() -> bool:
        found[:] = [child.pid for child in psutil.Process(parent).children() if child.pid not in known]
        return bool(found)

    until(look)
    return found[0]


def _cmdline(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

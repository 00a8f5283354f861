"""Signs of life: what a frozen, a killed and an ended process look like, and that two never hide each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carbonq import liveness
from carbonq.liveness import SignOfLife, signs

#: Touches its sign of life for each line it reads, until its input ends.
_PROCESS = """
import sys
from pathlib import Path
from carbonq.liveness import SignOfLife
alive = SignOfLife(Path(sys.argv[1]), sys.argv[2])
for line in sys.stdin:
    alive.touch()
    print("touched", flush=True)
alive.close()
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def one(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _PROCESS, str(tmp_path), name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        touch(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def touch(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "touched\n"


def age(folder: Path, by_s: float) -> None:
    """Set all files back, as if nobody had touched them."""
    for path in (folder / "run").glob("*.alive"):
        made = path.stat().st_mtime - by_s
        os.utime(path, (made, made))


def test_no_sign_without_a_process(tmp_path: Path) -> None:
    assert signs(tmp_path, "beat") == []


def test_a_process_that_was_silent_shows_for_how_long(tmp_path: Path, start: Start) -> None:
    process = start("beat")
    assert signs(tmp_path, "beat")[0].age_s < 5
    age(tmp_path, 60)
    (sign,) = signs(tmp_path, "beat")
    assert sign.pid == process.pid and 60 <= sign.age_s < 65
    touch(process)
    assert signs(tmp_path, "beat")[0].age_s < 5


def test_two_workers_of_one_region_do_not_hide_each_other(tmp_path: Path, start: Start) -> None:
    silent = start("worker-se")
    age(tmp_path, 60)
    lively = start("worker-se")
    assert [sign.pid for sign in signs(tmp_path, "worker-se")] == [silent.pid, lively.pid]  # the silent one first
    assert signs(tmp_path, "worker-s") == []


def test_a_frozen_process_is_still_seen_and_a_killed_one_is_not(tmp_path: Path, start: Start) -> None:
    frozen, killed = start("control"), start("control")
    frozen.send_signal(signal.SIGSTOP)
    killed.kill()
    killed.wait(10)
    assert [sign.pid for sign in signs(tmp_path, "control")] == [frozen.pid]
    assert len(list((tmp_path / "run").iterdir())) == 2
    fresh = start("control")  # takes away what the killed one left
    assert {sign.pid for sign in signs(tmp_path, "control")} == {frozen.pid, fresh.pid}
    assert len(list((tmp_path / "run").iterdir())) == 2


def test_a_process_that_ends_in_order_leaves_nothing(tmp_path: Path, start: Start) -> None:
    process = start("beat")
    process.communicate(timeout=10)
    assert list((tmp_path / "run").iterdir()) == []


def test_processes_of_another_host_are_not_ours(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start("beat")
    monkeypatch.setattr(liveness.socket, "gethostname", lambda: "elsewhere")
    assert signs(tmp_path, "beat") == []


def test_without_a_folder_the_process_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    alive = SignOfLife(tmp_path / "file", "beat")
    alive.touch()
    alive.touch()
    alive.close()
    assert caplog.text.count("no signs of life") == 1

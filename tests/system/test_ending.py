"""SIGTERM ends every process with status 0, also one that is still starting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from carbonq import config, wiring
from tests.system.processes import until

pytestmark = pytest.mark.system

#: A port on which nothing listens: what needs the broker waits for it.
NO_BROKER = "redis://127.0.0.1:1/0"


def _catches(pid: int, number: int) -> bool:
    """Say whether a process has a handler for a signal (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


@pytest.mark.parametrize("words", [("process", "control"), ("process", "beat"), ("worker", "--region", "norcal")])
def test_a_process_that_waits_for_the_broker_ends_at_once(words: tuple[str, ...], tmp_path: Path) -> None:
    runtime, _ = wiring.prepare(config.load(data_dir=tmp_path, broker_url=NO_BROKER))
    runtime.close()
    environment = {**os.environ, "CARBONQ_DATA_DIR": str(tmp_path), "CARBONQ_BROKER_URL": NO_BROKER}
    process = subprocess.Popen([sys.executable, "-m", "carbonq", *words], env=environment)
    try:
        until(lambda: process.poll() is not None or _catches(process.pid, signal.SIGTERM), 20, "handler")
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(10)


#: The signal falls where Python and C code swallow what is raised.
_SWALLOWS = """
import signal
from carbonq.cli import worker
worker._end_in_order()
class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
Dying()
print("it goes on")
"""


def test_a_stop_signal_that_falls_into_c_code_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", _SWALLOWS], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

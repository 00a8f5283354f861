"""What must not cross into a worker's libraries or its children: others' GPUs, CUDA, database connections."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from carbonq import rooms
from carbonq.meters.protocol import MIG_SLICE, Component, MeterKind
from carbonq.testing import FakeMeter


def test_engines_see_the_gpus_that_their_worker_meters_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    pin = rooms.load("workers", "devices").pin
    environment: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environment)
    meter = FakeMeter(Component.GPU, kind=MeterKind.NVML_COUNTER, device_ids=("GPU-a", "GPU-5f0", MIG_SLICE))
    pin((), [meter])
    assert environment == {}
    pin(("2", "GPU-5f"), [FakeMeter(), meter])
    assert environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-5f"}
    pin(("1",), [meter])
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-5f", "what is set stays"
    environment.clear()
    pin(("0", "MIG-7"), [meter])
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,MIG-7"
    environment.clear()
    pin(("0",), [FakeMeter()])
    assert environment["CUDA_VISIBLE_DEVICES"] == "0", "no UUID is known"


def test_no_cuda_library_is_there_before_the_gpus_are_pinned() -> None:
    """Metering comes before the engines; this is what was imported by then."""
    code = """
import sys
from carbonq import rooms
from carbonq.meters import discover
rooms.load("workers", "region")
found = {"cupy", "llama_cpp", "sentence_transformers", "torch", "xllamacpp"} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


#: A connection that parent and child shared would be closed by whichever ends first, in the middle of the other's talk.
_FORKS = """
import os, sys
from carbonq.store.database import Database
from sqlalchemy import text
for url in sys.argv[1:]:
    database = Database(url)
    def ask():
        with database.read() as tx:
            raw = tx.connection.driver_connection
            assert tx.execute(text("SELECT 1")).scalar_one() == 1
            return raw
    parents = ask()
    pid = os.fork()
    if not pid:
        os._exit(0 if ask() is not parents else 1)
    assert os.waitpid(pid, 0)[1] == 0, "the child used its parent's connection"
    assert ask() is parents
    database.dispose()
"""


def test_no_database_connection_crosses_a_fork(tmp_path: Path, postgres_database_url: str) -> None:
    urls = (f"sqlite:///{tmp_path / 'carbonq.db'}", postgres_database_url)
    subprocess.run([sys.executable, "-c", _FORKS, *urls], check=True, timeout=60)

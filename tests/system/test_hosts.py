"""Workers on hosts of their own: what they need, what is compared, and that several of a region do no harm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carbonq.model import JobState, Worker
from carbonq.store import regions
from tests.conftest import require
from tests.system.backends import backend
from tests.system.processes import Installation, until

pytestmark = pytest.mark.system

FAKE_NVML = Path(__file__).parents[1] / "data" / "fake_nvml.c"


class Host:
    """A host that knows three addresses and has a folder, and GPUs, of its own."""

    def __init__(self, root: Path, installation: Installation) -> None:
        self.root = root
        self.root.mkdir()
        settings = installation.settings
        assert settings.database_url is not None and settings.broker_url is not None
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CARBONQ_")},
            "CARBONQ_BROKER_URL": settings.broker_url.get_secret_value(),
            "CARBONQ_DATABASE_URL": settings.database_url.get_secret_value(),
            "CARBONQ_BLOB_URL": f"file://{settings.data_dir.resolve() / 'blobs'}",
            "TMPDIR": str(self.root),
            "OMP_NUM_THREADS": "1",
        }

    def add_gpus(self, *uuids: str) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            require("no C compiler to build the fake NVML with")
        target = self.root / "libnvidia-ml.so.1"
        subprocess.run([str(compiler), "-shared", "-fPIC", "-O1", "-o", str(target), str(FAKE_NVML)], check=True)
        state = self.root / "gpus"
        state.write_text("\n".join(["0", *(f"{uuid} 0 0" for uuid in uuids)]))
        self.environment |= {"LD_LIBRARY_PATH": str(self.root), "FAKE_NVML": str(state)}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "carbonq", *arguments]

    def ask(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            env={**self.environment, **more},
            cwd=self.root,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.root / "worker.log").open("ab") as log:
            return subprocess.Popen(
                self.command(*arguments), env=self.environment, cwd=self.root, stdout=log, stderr=subprocess.STDOUT
            )

    def log(self) -> str:
        return (self.root / "worker.log").read_text()


@pytest.fixture
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    with backend("postgresql-redis", request) as made:
        (tmp_path / "installation").mkdir()
        installation = Installation(tmp_path / "installation", made)
        yield installation
        installation.close()


def workers(installation: Installation) -> list[Worker]:
    with installation.db.read() as tx:
        return regions.live_workers(tx, worker_alive_s=5)


def test_a_host_needs_three_addresses_and_may_run_two_workers(installation: Installation, tmp_path: Path) -> None:
    host = Host(tmp_path / "a", installation)
    host.add_gpus("GPU-a", "GPU-b", "GPU-c")
    started = [host.start("worker", "--region", "north", "--gpus", gpus) for gpus in ("0,2", "GPU-b")]
    try:
        for name in ("control", "control-slow", "beat"):
            installation.start(name, "process", name)
        live = until(lambda: len(workers(installation)) == 2 and workers(installation), 90, "two workers")
        assert {worker.region for worker in live} == {"north"}
        assert {worker.gpus for worker in live} == {("GPU-a", "GPU-c"), ("GPU-b",)}
        assert len({worker.settings_digest for worker in live}) == 1
        pinned = [line for line in host.log().splitlines() if "CUDA sees" in line or "wordllama-256 loaded" in line]
        assert {line.rpartition(" ")[2] for line in pinned if "CUDA" in line} == {"GPU-a,GPU-c", "GPU-b"}
        assert all("CUDA sees" in next(line for line in pinned if f" {worker.pid} " in line) for worker in live)
        assert all(worker.clock_offset_s is not None and abs(worker.clock_offset_s) < 2 for worker in live)
        job_id = installation.submit(60)
        until(lambda: installation.job(job_id).is_final, 90, "end of the job")
        job = installation.job(job_id)
        assert (job.state, job.items_succeeded) == (JobState.COMPLETED, 60)
        installation.check(job_id)
    finally:
        for process in started:
            process.terminate()
        codes = [process.wait(30) for process in started]
    assert codes == [0, 0], host.log()


def test_a_host_is_told_at_once_what_is_wrong(installation: Installation, tmp_path: Path) -> None:
    host = Host(tmp_path / "a", installation)
    host.add_gpus("GPU-a", "GPU-b")
    (installation.settings.data_dir / "blobs").mkdir(parents=True)
    slots = {"CARBONQ_REGIONS__NORTH__SLOTS": "7"}
    asked = {
        "GPU 5 cannot be metered: Invalid Argument; this host has 0 (GPU-a), 1 (GPU-b)": host.ask(
            "worker", "--region", "north", "--gpus", "5"
        ),
        "this host says regions.north.slots = 7, the installation says 1": host.ask(
            "worker", "--region", "north", **slots
        ),
        "not ready: settings, blobs": host.ask(
            "doctor", "--region", "north", CARBONQ_BLOB_URL="file:///proc/no", **slots
        ),
    }
    ready, shown = host.ask("doctor", "--region", "north"), host.ask("config", "show")
    for sentence, process in asked.items():
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert sentence in errors and "Traceback" not in errors
    output, errors = ready.communicate(timeout=120)
    assert ready.returncode == 0, output + errors
    assert "agree with the installation's" in output
    lines = shown.communicate(timeout=120)[0].splitlines()
    line = next(line for line in lines if line.startswith("regions.north.zone"))
    assert line.split(maxsplit=1)[1].strip() == "the installation's database  LEVEL"
    assert workers(installation) == []

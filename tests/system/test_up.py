"""``carbonq up`` as a person runs it: killed, started again, and everything that can keep it from starting."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from carbonq.bench.level_grid import level_settings
from carbonq.client import Client
from carbonq.config import environment, load
from carbonq.embedded import address
from tests.docs import pages
from tests.system import processes
from tests.system.processes import REGIONS

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

CARBONQ = (sys.executable, "-m", "carbonq")


def until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


class Up:
    """One ``carbonq up`` on a level grid."""

    def __init__(self, folder: Path, **more: str) -> None:
        self.data_dir = folder / "data"
        self.folder = folder
        given = load(**{**level_settings(folder), "regions": REGIONS})
        self.env = {**os.environ, **environment(given), **more}
        self.process: subprocess.Popen[str] | None = None

    def start(self, **more: str) -> None:
        self.process = subprocess.Popen(
            (*CARBONQ, "up", "--json"),
            env={**self.env, **more},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            line = self.process.stdout.readline()
            if not line:
                assert self.process.stderr is not None
                pytest.fail(f"it did not start: {self.process.stderr.read()}{self.logs()}")
            lines.append(line)
        self.pids: dict[str, int] = json.loads("".join(lines))["pids"]

    def logs(self) -> str:
        return "".join(f"\n--- {path.name}\n{path.read_text()[-1500:]}" for path in self.data_dir.glob("logs/*.log"))

    def run(self, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*CARBONQ, *words),
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,  # type: ignore[call-overload]
        )

    def client(self) -> Client:
        found = address.running(self.data_dir)
        assert found is not None
        return Client(found.api_url, (self.data_dir / "api-key").read_text().strip())

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        assert self.process is not None
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.communicate()


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def documents(folder: Path, count: int = 5) -> Path:
    path = folder / "docs.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{n}", "text": f"document number {n}"}) + "\n" for n in range(count)))
    return path


def walk_through_the_tutorial(up: Up) -> None:
    """Run every command of docs/tutorial.md as it stands, but the one that `up` stands for, in another folder."""
    started, *rest = pages.blocks(pages.ROOT / "docs" / "tutorial.md")
    assert started == "carbonq up\n" and len(rest) > 5
    found = address.running(up.data_dir)
    assert found is not None
    folder = up.folder / "tutorial"
    folder.mkdir()
    (folder / ".carbonq").symlink_to(up.data_dir)
    text = "set -euo pipefail\n" + "".join(rest).replace("http://127.0.0.1:8750", found.api_url)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ("bash", "-c", text), cwd=folder, env={**up.env, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr + up.logs()
    assert "consistent: 2 lines recomputed" in done.stdout
    assert len((folder / "vectors.jsonl").read_text().splitlines()) == 2
    assert "gco2e" in json.loads((folder / "answer.json").read_text())["usage"]["carbon"]


def test_a_whole_life(up: Up, tmp_path: Path) -> None:
    up.start(PATH="/nonexistent")
    assert set(up.pids) == {
        "broker",
        "control",
        "control-slow",
        "worker-north",
        "worker-south",
        "beat",
        "api",
        "flower",
    }
    # Without a server on PATH the wheel serves.
    assert psutil.Process(up.pids["broker"]).name().startswith("valkey-server")
    arguments = " ".join(" ".join(psutil.Process(pid).cmdline()) for pid in up.pids.values())
    found = address.running(up.data_dir)
    assert found is not None
    secrets = [found.broker_url.split("@")[0].split(":")[-1], (up.data_dir / "api-key").read_text().strip()]
    assert not any(secret in arguments for secret in secrets)

    # Flower knows the queues of workers that started after it.
    password = (up.data_dir / "flower-password").read_text().strip()
    queues = {
        "control",
        "control.slow",
        *(f"{kind}.{name}" for kind in ("flexible", "realtime") for name in ("north", "south")),
    }
    with httpx.Client(base_url=found.flower_url, auth=("carbonq", password)) as flower:
        until(lambda: {one["name"] for one in flower.get("/api/queues/length").json()["active_queues"]} == queues)

        assert httpx.get(f"{found.flower_url}/api/workers").status_code == 401, "Flower asks for its password"

    out = tmp_path / "out.jsonl"
    done = up.run("submit", "embeddings", str(documents(tmp_path)), "--deadline", "2h", "--wait", "-o", str(out))
    assert done.returncode == 0, done.stderr + up.logs()
    assert sorted(json.loads(line)["custom_id"] for line in out.read_text().splitlines()) == [f"d{n}" for n in range(5)]

    # Each worker tells Prometheus where it serves what it did.
    told = [json.loads(path.read_text())[0] for path in (up.data_dir / "metrics").glob("*.json")]
    assert {one["labels"]["process"] for one in told} == {"control", "control-slow", "worker-north", "worker-south"}
    shown_there = "".join(httpx.get(f"http://{one['targets'][0]}/metrics", trust_env=False).text for one in told)
    assert 'carbonq_chunk_tickets_total{region="' in shown_there and "carbonq_tick_seconds_bucket" in shown_there
    assert 'carbonq_energy_joules_total{kind="item"' in shown_there

    # Flower shows the ticks of the beat, and what the chunks are.
    with httpx.Client(base_url=found.flower_url, auth=("carbonq", password)) as flower:
        shown = list(flower.get("/api/tasks", params={"taskname": "carbonq.run_chunk"}).json().values())
        assert shown and all(f"model={processes.MODEL}, items=" in one["kwargs"] for one in shown), shown
        assert {one["kwargs"].partition(",")[0] for one in shown} <= {"region=north", "region=south"}
        assert flower.get("/api/tasks", params={"taskname": "carbonq.tick.plan"}).json()

    # The dashboard links it, for whoever is logged in.
    key = (up.data_dir / "api-key").read_text().strip()
    with httpx.Client(base_url=found.api_url, trust_env=False, timeout=30, follow_redirects=True) as person:
        csrf = person.get("/login").text.partition('name="csrf" value="')[2].partition('"')[0]
        overview = person.post("/login", data={"csrf": csrf, "next": "/", "key": key}).text
    assert f'<a href="{found.flower_url}"' in overview

    # A contract target knows what ran before it was set, once the control worker has summed it up.
    def target() -> dict[str, Any]:
        return json.loads(up.run("target", "show", "--json").stdout)[0]["status"]

    assert up.run("target", "set", "--g-per-1k-tokens", "1000").returncode == 0
    until(lambda: target()["tokens"] + target()["unknown_tokens"] > 0)

    walk_through_the_tutorial(up)

    # Killed, it leaves nothing behind.
    for pid in (up.pids["worker-north"], up.pids["worker-south"]):
        os.kill(pid, signal.SIGSTOP)  # so that nothing runs before the end
    with up.client() as client:
        job = client.submit(processes.documents(1), endpoint="/v1/embeddings", model=processes.MODEL, deadline="2h")
    assert up.process is not None
    up.process.kill()
    up.process.communicate()
    until(lambda: not any(is_running(pid) for pid in up.pids.values()))

    # The next start resumes: the first job is there, and the work that waited runs. (Ctrl-C: test_wheel.py.)
    up.start()
    with up.client() as client:
        assert client.wait(job["id"], timeout_s=90)["state"] == "completed"
    listed = json.loads(up.run("jobs", "list", "--json").stdout)
    assert [job["state"] for job in listed] == ["completed"] * 3

    second = up.run("up")
    assert second.returncode == 1
    assert "another carbonq runs on" in second.stderr
    assert len(second.stderr.splitlines()) == 1

    code, told = up.stop(signal.SIGTERM)
    assert code == 0, told
    assert "stopped" in told
    assert not any(is_running(pid) for pid in up.pids.values())
    assert address.running(up.data_dir) is None


def test_a_used_port_is_one_sentence_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        up = Up(tmp_path, CARBONQ_PORT=str(server.getsockname()[1]))
        refused = up.run("up")
    assert refused.returncode == 1
    assert "is already in use" in refused.stderr
    assert "CARBONQ_PORT" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert address.running(up.data_dir) is None


def test_a_public_address_without_a_key_is_refused(tmp_path: Path) -> None:
    up = Up(tmp_path, CARBONQ_HOST="0.0.0.0")
    refused = up.run("up")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "carbonq keys create" in refused.stderr

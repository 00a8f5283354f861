"""Uploads and downloads pass through a real process in constant memory, and a broken one leaves nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from sqlalchemy import update

from carbonq.blobs.folder import FolderStore
from carbonq.client import Client
from carbonq.errors import InvalidRequest
from carbonq.model import JobState
from carbonq.store.database import Database
from carbonq.store.tables import jobs as job_rows
from carbonq.testing import FAKE_EPOCH
from tests.api.harness import EMBEDDER, build_harness, serving, until
from tests.api.test_jobs import NDJSON, QUERY, assert_nothing_stays, lines

MIB = 1024 * 1024

#: How much more memory the process may take at its peak than before, in bytes.
GROWTH = 64 * MIB


@dataclass
class Process:
    url: str
    acme: str
    folder: Path
    process: psutil.Process

    def client(self) -> Client:
        return Client(self.url, self.acme)

    def peak(self) -> int:
        """Return the most resident memory since the last ``forget``, in bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM")

    def forget(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("process")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CARBONQ_")}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.api.serve", str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        told = json.loads(child.stdout.readline())
        yield Process(told["url"], told["acme"], folder, psutil.Process(child.pid))
        child.terminate()
        child.wait(20)


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_200_mb_up_and_down_in_constant_memory(process: Process) -> None:
    text = "a word " * 583

    def source() -> Iterator[bytes]:
        for number in range(49_000):
            yield json.dumps({"custom_id": f"a-{number}", "body": {"input": text + str(number)}}).encode()

    with process.client() as client:
        client.models()
        process.forget()
        before = process.peak()
        job = client.submit(source(), endpoint="/v1/embeddings", model=EMBEDDER, deadline="48h")
        assert job["progress"]["total"] == 49_000 and job["input_bytes"] > 190 * MIB
        grown = process.peak() - before
        assert grown < GROWTH, f"the upload took {grown / MIB:.0f} MiB"

        blobs = FolderStore(process.folder / "blobs")
        line = b"x" * 4095 + b"\n"
        blobs.put("out.jsonl", (line * 256 for _ in range(200)))
        database = Database(f"sqlite:///{process.folder / 'carbonq.db'}")
        with database.write() as tx:
            tx.execute(
                update(job_rows).values(state=JobState.COMPLETED, finished_at=FAKE_EPOCH, output_blob="out.jsonl")
            )
        database.dispose()
        process.forget()
        before = process.peak()
        assert sum(len(one) for one in client.result_lines(job["id"])) == 200 * MIB
        grown = process.peak() - before
        assert grown < GROWTH, f"the download took {grown / MIB:.0f} MiB"


@pytest.mark.system
def test_a_stop_signal_ends_the_process_in_order(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.api.serve", str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        url = json.loads(child.stdout.readline())["url"]
        until(lambda: httpx.get(f"{url}/healthz", trust_env=False).status_code == 200, "an answer")
        child.terminate()
        assert child.wait(20) in {0, -15}


@pytest.mark.parametrize("is_declared", [True, False])
def test_an_upload_over_the_limit_gets_its_sentence(
    sqlite_database: Database, tmp_path: Path, is_declared: bool
) -> None:
    harness = build_harness(sqlite_database, tmp_path / "blobs", max_input_bytes=MIB)
    body = lines(1, pad="x" * 1000) * 8_000

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    with serving(harness.api) as url:
        response = httpx.post(
            f"{url}/v1/jobs",
            params=QUERY,
            content=body if is_declared else pieces(),
            headers={**NDJSON, **harness.headers()},
            trust_env=False,
        )
        assert response.status_code == 413
        assert (
            "1,048,576 bytes: split it over several jobs or raise CARBONQ_MAX_INPUT_BYTES"
            in response.json()["error"]["message"]
        )
        with Client(url, harness.acme) as client, pytest.raises(InvalidRequest, match="CARBONQ_MAX_INPUT_BYTES"):
            client.submit(pieces(), endpoint="/v1/embeddings", model=EMBEDDER, deadline="6h")
    assert_nothing_stays(harness)


def test_a_client_that_goes_away_leaves_nothing(sqlite_database: Database, tmp_path: Path) -> None:
    harness = build_harness(sqlite_database, tmp_path / "blobs")
    staging = harness.api.blobs.root / ".staging"
    with serving(harness.api) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        query = "&".join(f"{name}={value}" for name, value in QUERY.items())
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                f"POST /v1/jobs?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {harness.acme}\r\n"
                "Content-Type: application/x-ndjson\r\nContent-Length: 9000000\r\n\r\n".encode()
            )
            connection.sendall(lines(1) * 1000)
            until(lambda: staging.exists() and list(staging.iterdir()), "the upload to begin")
        until(lambda: not list(staging.iterdir()), "the broken upload to be removed")
    assert_nothing_stays(harness)


def test_a_typo_costs_no_upload(sqlite_database: Database, tmp_path: Path) -> None:
    """The fields are in the query, so a refusal comes before the body was read."""
    harness = build_harness(sqlite_database, tmp_path / "blobs")
    with serving(harness.api) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(
                f"POST /v1/jobs?dealine=6h HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {harness.acme}\r\n"
                "Content-Type: application/x-ndjson\r\nContent-Length: 200000000\r\n\r\n".encode()
            )
            assert connection.recv(4096).startswith(b"HTTP/1.1 400")

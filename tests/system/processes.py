"""Real processes for system tests: a private redis-server, SQLite, and carbonq's own processes by their commands."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from carbonq import config, wiring
from carbonq.bench.level_grid import level_settings
from carbonq.clock import GridClock
from carbonq.model import Endpoint, Job, NewJob
from carbonq.services import submit
from carbonq.store import items as item_rows
from carbonq.store import jobs, regions
from carbonq.store.tables import engine_batches, entries
from carbonq.tickets import Tickets, wait_for_broker
from tests.conftest import require

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "carbon", "grid", "window", "planner"]


def until(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Wait for a condition with a deadline."""
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.05)):
        found = condition()
        if found:
            return found
        pause.wait(0.05)
    raise AssertionError(f"no {what} within {timeout_s} s")


def _is_stopped(pid: int) -> bool:
    """Say whether every thread of a process has stopped (Linux)."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(states) and set(states) == {"T"}


@contextmanager
def redis_server() -> Iterator[str]:
    """A redis-server of its own on a free port; gives its URL."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        require("no redis-server on PATH")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        url = f"redis://127.0.0.1:{port}/0"
        tickets = Tickets(url)
        wait_for_broker(tickets, 10)
        tickets.close()
        yield url
    finally:
        server.terminate()
        server.wait(10)


class Installation:
    """carbonq on two regions of a level grid, so that work starts at once, process by process."""

    def __init__(self, root: Path, broker_url: str, **settings: Any) -> None:
        self.root = root
        self.settings = config.load(**level_settings(root), broker_url=broker_url, **settings)
        self._environment = {**os.environ, **config.environment(self.settings), "OMP_NUM_THREADS": "1"}
        # A window lasts 15 s: what is planned for the next one is soon due.
        clock = GridClock.accelerated(datetime.now(UTC), 20.0)
        self.runtime, _ = wiring.prepare(self.settings, clock=clock)
        self.db = self.runtime.db
        self.tickets = wiring.make_tickets(self.settings)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "carbonq", *arguments],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def start_all(self, workers: Sequence[str] = ("north", "south")) -> None:
        self.start("control", "process", "control")
        self.start("control-slow", "process", "control-slow")
        self.start("beat", "process", "beat")
        for region in workers:
            self.start(region, "worker", "--region", region)
        until(lambda: self.live() >= set(workers), 90, f"live workers of {workers}")

    def stop_outside_a_transaction(self, name: str) -> None:
        """Freeze a process at a moment when it does not hold SQLite's one write lock, which would freeze all others."""
        process = self.processes[name]
        path = self.settings.resolved_database_url.removeprefix("sqlite:///")

        def is_free() -> bool:
            process.send_signal(signal.SIGSTOP)
            # A stop takes a moment to reach every thread; one that still runs could take the lock after the look.
            until(lambda: _is_stopped(process.pid), 5, "stopped process")
            with closing(sqlite3.connect(path, timeout=0.3, isolation_level=None)) as connection:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute("ROLLBACK")
                except sqlite3.OperationalError:
                    process.send_signal(signal.SIGCONT)
                    return False
            return True

        until(is_free, 20, "moment without a lock")

    def live(self) -> set[str]:
        with self.db.read() as tx:
            return {worker.region for worker in regions.live_workers(tx, worker_alive_s=5)}

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self.tickets.close()
        self.runtime.close()

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.root.glob("*.log")))

    def submit(self, count: int, *, deadline: timedelta = timedelta(minutes=40)) -> str:
        """Submit an embeddings job of ``count`` documents of 60 words."""
        chance = random.Random(1)
        staged = self.runtime.blobs.stage()
        for i in range(count):
            body = {"model": "wordllama-256", "input": " ".join(chance.choices(WORDS, k=60))}
            line = {"custom_id": f"c{i}", "method": "POST", "url": "/v1/embeddings", "body": body}
            staged.write(json.dumps(line).encode() + b"\n")
        job, _ = submit.submit(
            self.db,
            self.runtime.blobs,
            staged,
            NewJob("default", Endpoint.EMBEDDINGS, "wordllama-256", self.runtime.clock.now() + deadline),
            models=self.runtime.models,
            regions=self.runtime.regions,
            home_region="north",
            clock=self.runtime.clock,
            limits=submit.Limits(
                max_items=self.settings.max_items,
                max_line_bytes=self.settings.max_line_bytes,
                max_input_bytes=self.settings.max_input_bytes,
            ),
            throughputs={},
        )
        return job.job_id

    def job(self, job_id: str) -> Job:
        with self.db.read() as tx:
            return jobs.get(tx, job_id)

    def realtime(self, region: str, timeout_s: float = 10.0) -> dict[str, Any]:
        return self.tickets.realtime(
            region,
            {
                "request_id": "req_test",
                "tenant": "default",
                "api_key_id": None,
                "product_line": None,
                "workload": None,
                "endpoint": "/v1/embeddings",
                "model": "wordllama-256",
                "requested_model": "wordllama-256",
                "body": {"model": "wordllama-256", "input": "hello world"},
            },
            timeout_s,
        )

    def check(self, job_id: str) -> None:
        """Invariants 1 and 3 of a finished job: every item once in the files and in the ledger, shares exact."""
        job = self.job(job_id)
        output = [json.loads(line) for line in self._file(job.output_blob)]
        errors = [json.loads(line) for line in self._file(job.error_blob)]
        names = [line["custom_id"] for line in (*output, *errors)]
        assert sorted(names) == sorted(f"c{i}" for i in range(job.items_total))
        assert len(output) == job.items_succeeded
        with self.db.read() as tx:
            states = {str(state): count for state, count in item_rows.counts(tx, job_id).items()}
            assert "waiting" not in states
            first = (entries.c.job_id == job_id, entries.c.kind == "item", entries.c.revision == 1)
            booked = tx.execute(
                select(entries.c.custom_id, entries.c.engine_batch_id, func.count())
                .where(*first, entries.c.part == 1)
                .group_by(entries.c.custom_id, entries.c.engine_batch_id)
            ).all()
            assert sorted(row.custom_id for row in booked) == sorted(names)
            assert all(row[2] == 1 for row in booked)
            sums = {
                (batch_id, part): energy_uj
                for batch_id, part, energy_uj in tx.execute(
                    select(entries.c.engine_batch_id, entries.c.part, func.sum(entries.c.energy_uj))
                    .where(entries.c.revision == 1)
                    .group_by(entries.c.engine_batch_id, entries.c.part)
                )
            }
            for part in tx.execute(select(engine_batches)):
                assert (sums[part.engine_batch_id, part.part] or 0) == (part.energy_uj or 0)

    def _file(self, blob: str | None) -> list[bytes]:
        return [] if blob is None else b"".join(self.runtime.blobs.pieces(blob)).splitlines()

"""Real processes for system tests: carbonq's own, by their commands, on whatever backend a test chooses."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from carbonq import config, wiring
from carbonq.bench.level_grid import level_settings
from carbonq.client import Client
from carbonq.clock import GridClock
from carbonq.embedded import ports
from carbonq.errors import CarbonqError
from carbonq.model import Endpoint, Job, NewJob
from carbonq.services import submit
from carbonq.store import items as item_rows
from carbonq.store import jobs, regions
from carbonq.store.tables import engine_batches, entries
from carbonq.tickets import make_celery
from tests.system import zygote
from tests.system.backends import Backend
from tests.system.zygote import Forked

MODEL = "wordllama-256"

#: Both serve one model: loading another one takes a worker seconds.
REGIONS: Mapping[str, Mapping[str, Any]] = {name: {"zone": "LEVEL", "models": [MODEL]} for name in ("north", "south")}

#: What the CPU-time meters of chaos tests are told, in W per busy core.
WATTS_PER_CORE = 10.0

#: Codes of items that ended without an answer.
UNANSWERED = {"attempts_exhausted", "batch_expired", "batch_cancelled"}

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "carbon", "grid", "window", "planner"]


def until(condition: Callable[[], Any], timeout_s: float, what: str, *, pause_s: float = 0.05) -> Any:
    """Wait for a condition with a deadline; a longer pause is for what costs a process each time."""
    pause = threading.Event()
    for _ in range(int(timeout_s / pause_s)):
        found = condition()
        if found:
            return found
        pause.wait(pause_s)
    raise AssertionError(f"no {what} within {timeout_s} s")


def _is_stopped(pid: int) -> bool:
    """Say whether every thread of a process has stopped (Linux)."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(states) and set(states) == {"T"}


def documents(count: int, *, poison: int | None = None) -> Iterator[bytes]:
    """Input lines of an embeddings job, of 60 words each; one of them may hold a word of its own, POISON."""
    chance = random.Random(1)
    for i in range(count):
        words = chance.choices(WORDS, k=60) if i != poison else [*chance.choices(WORDS, k=59), "POISON"]
        body = {"model": MODEL, "input": " ".join(words)}
        line = {"custom_id": f"c{i}", "method": "POST", "url": "/v1/embeddings", "body": body}
        yield json.dumps(line).encode() + b"\n"


class Installation:
    """carbonq on two regions of a level grid, so that work starts at once, process by process."""

    def __init__(self, root: Path, backend: Backend, **settings: Any) -> None:
        self.root = root
        self.backend = backend
        self.settings = config.load(**{**level_settings(root), "regions": REGIONS, **backend.settings(), **settings})
        self.environment = {**os.environ, **config.environment(self.settings), "OMP_NUM_THREADS": "1"}
        # A window lasts 15 s: what is planned for the next one is soon due.
        clock = GridClock.accelerated(datetime.now(UTC), 20.0)
        self.runtime, self.api_key = wiring.prepare(self.settings, clock=clock)
        self.db = self.runtime.db
        self.tickets = wiring.make_tickets(self.settings)
        self.processes: dict[str, Forked] = {}

    def start(self, name: str, *arguments: str, **environment: str) -> Forked:
        process = zygote.start(arguments, {**self.environment, **environment}, self.root / f"{name}.log")
        self.processes[name] = process
        return process

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command of carbonq to its end; return its status and what it said."""
        said = self.root / f"{arguments[0]}.txt"
        said.unlink(missing_ok=True)
        status = zygote.start(arguments, self.environment, said).wait(120)
        return status, said.read_text()

    def start_all(self, workers: Sequence[str] = ("north", "south")) -> dict[str, tuple[str, ...]]:
        """Start all but the API, wait for the workers, and return what was started: name and arguments."""
        commands = {name: ("process", name) for name in ("control", "control-slow", "beat")}
        commands |= {region: ("worker", "--region", region) for region in workers}
        for name, arguments in commands.items():
            self.start(name, *arguments)
        until(lambda: self.live() >= set(workers), 90, f"live workers of {workers}")
        return commands

    def start_api(self, name: str = "api") -> Client:
        """Start an API process and return a client of it when it is ready."""
        port = ports.choose("127.0.0.1", 0, what="the API", setting="CARBONQ_PORT")
        self.start(name, "process", "api", CARBONQ_PORT=str(port))
        client = Client(f"http://127.0.0.1:{port}", self.api_key)

        def is_ready() -> bool:
            try:
                return client.health()["status"] == "ready"
            except CarbonqError:
                return False

        until(is_ready, 60, f"ready API {name}")
        return client

    def kill(self, name: str) -> None:
        """End a process as a power cut does."""
        self.processes[name].kill()
        self.processes[name].wait(10)

    def stop_outside_a_transaction(self, name: str) -> None:
        """Freeze a process at a moment when it does not hold SQLite's one write lock, which would freeze all others."""
        process = self.processes[name]
        if not self.runtime.db.is_sqlite:
            process.send_signal(signal.SIGSTOP)  # what it holds there is let go after a while
            return
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
        return set(self.count_live())

    def count_live(self) -> Counter[str]:
        """Count the live workers of each region."""
        with self.db.read() as tx:
            return Counter(worker.region for worker in regions.live_workers(tx, worker_alive_s=5))

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

    def node_names(self, count: int) -> set[str]:
        """The names of the Celery workers that answer, when ``count`` have."""
        app = make_celery(self.backend.broker_url, queue_prefix=self.backend.queue_prefix)
        try:
            return {name for one in app.control.ping(timeout=15, limit=count) for name in one}
        finally:
            app.close()

    def unexpected_log_lines(self) -> list[str]:
        """What no process may ever say, whatever happens to the others: a traceback, an error."""
        marks = ("Traceback", " ERROR", " CRITICAL")
        paths = sorted(self.root.glob("*.log"))
        return [
            f"{path.name}: {line}"
            for path in paths
            for line in path.read_text().splitlines()
            if any(mark in line for mark in marks)
        ]

    def submit(
        self,
        count: int,
        *,
        deadline: timedelta = timedelta(minutes=40),
        poison: int | None = None,
        regions: tuple[str, ...] | None = None,
    ) -> str:
        """Submit an embeddings job of ``count`` documents."""
        staged = self.runtime.blobs.stage()
        for line in documents(count, poison=poison):
            staged.write(line)
        job, _ = submit.submit(
            self.db,
            self.runtime.blobs,
            staged,
            NewJob("default", Endpoint.EMBEDDINGS, MODEL, self.runtime.clock.now() + deadline, regions=regions),
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
                "model": MODEL,
                "requested_model": MODEL,
                "body": {"model": MODEL, "input": "hello world"},
            },
            timeout_s,
        )

    def check(self, job_id: str) -> None:
        """Invariants 1 and 3 of a finished job: every item once in the files and in the ledger, shares exact."""
        job = self.job(job_id)
        output = [json.loads(line) for line in self.lines_of(job.output_blob)]
        errors = [json.loads(line) for line in self.lines_of(job.error_blob)]
        names = [line["custom_id"] for line in (*output, *errors)]
        assert sorted(names) == sorted(f"c{i}" for i in range(job.items_total))
        assert len(output) == job.items_succeeded
        with self.db.read() as tx:
            parts = tx.execute(select(engine_batches)).all()  # first: idle parts keep coming while this reads
            states = {str(state): count for state, count in item_rows.counts(tx, job_id).items()}
            assert "waiting" not in states
            first = (entries.c.job_id == job_id, entries.c.kind == "item", entries.c.revision == 1)
            booked = tx.execute(
                select(entries.c.custom_id, entries.c.engine_batch_id, func.count())
                .where(*first, entries.c.part == 1)
                .group_by(entries.c.custom_id, entries.c.engine_batch_id)
            ).all()
            # One that was never answered has no entry, unless it ran and ended by other hands meanwhile.
            unanswered = {line["custom_id"] for line in errors if (line["error"] or {}).get("code") in UNANSWERED}
            assert {row.custom_id for row in booked} | unanswered == set(names)
            assert all(row[2] == 1 for row in booked) and len(booked) == len({row.custom_id for row in booked})
            sums = {
                (batch_id, part): energy_uj
                for batch_id, part, energy_uj in tx.execute(
                    select(entries.c.engine_batch_id, entries.c.part, func.sum(entries.c.energy_uj))
                    .where(entries.c.revision == 1)
                    .group_by(entries.c.engine_batch_id, entries.c.part)
                )
            }
            for part in parts:
                assert (sums[part.engine_batch_id, part.part] or 0) == (part.energy_uj or 0)

    def lines_of(self, blob: str | None) -> list[bytes]:
        return [] if blob is None else b"".join(self.runtime.blobs.pieces(blob)).splitlines()

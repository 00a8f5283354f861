"""The chaos framework: a scenario does something terrible to an installation at work; one check follows them all.

A scenario is a function on a ``Run``, with a name and the backends it applies to. Installations are shared by scenarios
one after the other (their ledger grows), except where a scenario needs settings of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from carbonq.client import Client
from carbonq.embedded import ports
from carbonq.errors import CarbonqError, StoreUnavailable
from carbonq.store import regions
from carbonq.store.tables import attempts, chunks, items
from tests.system import invariants, processes
from tests.system.backends import NAMES
from tests.system.flawed import REGIONS, Flaws
from tests.system.processes import MODEL, WATTS_PER_CORE, Installation, until
from tests.system.servers import Services

LEASE_S = 4.0

#: What the target adds to the lease, in machine seconds.
MARGIN_S = 10.0

#: Items of a job, and of an engine batch: two chunks of two engine batches each.
ITEMS, BATCH_ITEMS = 200, 64

#: Every process of an installation and its command.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "control": ("process", "control"),
    "control-slow": ("process", "control-slow"),
    "beat": ("process", "beat"),
    **{region: ("worker", "--region", region) for region in REGIONS},
}

#: Settings of every chaos installation: short leases, chunks of two engine batches, one commit for each of them.
SETTINGS: Mapping[str, Any] = {
    "lease_s": LEASE_S,
    "renew_s": 1,
    "models": {MODEL: {"engine": "wordllama", "batch_items": BATCH_ITEMS}},
    "checkpoint_items": BATCH_ITEMS - 2,
    "max_chunk_items": ITEMS // 2,
    "redispatch_after_s": 2,
    "worker_alive_s": 5,
    "regions": {name: {**values, "watts_per_core": WATTS_PER_CORE} for name, values in processes.REGIONS.items()},
}


@dataclass(frozen=True)
class Scenario:
    """One terrible thing."""

    name: str
    act: Callable[[Run], None]
    backends: Sequence[str]
    settings: Mapping[str, Any]
    says: str | None
    all_succeed: bool
    is_alone: bool


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *backends: str, says: str | None = None, all_succeed: bool = True, is_alone: bool = False, **settings: Any
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Register a scenario; no backends: all.

    ``says`` is a pattern of the error lines that it may leave in logs; one that ``is_alone`` shares its installation
    with no other, like one that has settings of its own.
    """

    def register(act: Callable[[Run], None]) -> Callable[[Run], None]:
        name = act.__name__
        SCENARIOS[name] = Scenario(name, act, backends or NAMES, settings, says, all_succeed, is_alone)
        return act

    return register


class Stack:
    """A whole installation that scenarios share."""

    def __init__(self, root: Path, name: str, settings: Mapping[str, Any]) -> None:
        self._closing = ExitStack()
        try:
            self.name = name
            self.services = Services(name, self._closing)
            self.flaws = Flaws(root / "flaws")
            self.installation = Installation(root, self.services.backend, **{**SETTINGS, **settings})
            self.installation.environment["FLAWED_FOLDER"] = str(self.flaws.folder)
            self._closing.callback(self.installation.close)
            self._closing.callback(self.flaws.clear)
            self.api_port = ports.choose("127.0.0.1", 0, what="the API", setting="CARBONQ_PORT")
            self.client = Client(f"http://127.0.0.1:{self.api_port}", self.installation.api_key)
            self._closing.callback(self.client.close)
            self.heal()
        except BaseException:
            self.close()
            raise

    def start(self, name: str) -> None:
        if name == "api":
            self.installation.start("api", "process", "api", CARBONQ_PORT=str(self.api_port))
        else:
            self.installation.start(name, *COMMANDS[name.removesuffix("-2")])

    def heal(self) -> None:
        """Start what does not run, end what is too much, and wait until all is as it was."""
        started = self.installation.processes
        self.flaws.clear()
        for name in [*started]:
            if name not in COMMANDS and name != "api":
                started[name].terminate()
                started.pop(name).wait(30)
        for name in (*COMMANDS, "api"):
            if name not in started or started[name].poll() is not None:
                self.start(name)
        pids = {started[name].pid for name in REGIONS}
        until(lambda: self._live_pids() >= pids, 90, "live workers")
        until(self.is_ready, 60, "ready API")

    def _live_pids(self) -> set[int]:
        ended = [name for name in REGIONS if self.installation.processes[name].poll() is not None]
        assert ended == [], f"{ended} ended\n{self.installation.logs()}"
        with self.installation.db.read() as tx:
            return {worker.pid for worker in regions.live_workers(tx, worker_alive_s=5)}

    def is_ready(self) -> bool:
        try:
            return self.client.health()["status"] == "ready"
        except CarbonqError:
            return False

    def close(self) -> None:
        self._closing.close()


@dataclass
class Fault:
    """Something that happened, and the work it hit: the open items of chunks that were out."""

    at: float
    items: frozenset[int]


@dataclass
class Run:
    """One scenario on one installation."""

    stack: Stack
    scenario: Scenario
    job_ids: list[str] = field(default_factory=list[str])
    recovery_s: float | None = None
    lasted_s: float | None = None

    @property
    def on(self) -> Installation:
        return self.stack.installation

    @property
    def is_sqlite(self) -> bool:
        return self.on.db.is_sqlite

    def submit(self, count: int = ITEMS, **more: Any) -> str:
        job_id = self.on.submit(count, **more)
        self.job_ids.append(job_id)
        self.on.tickets.nudge("plan")
        return job_id

    def when(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """Wait for a condition; a database that is away is waited for, too."""

        def tried() -> Any:
            try:
                return condition()
            except StoreUnavailable:
                return None

        return until(tried, timeout_s, what)

    # --- faults -------------------------------------------------------------------------------------------------

    def caught(self, point: str = "engine", among: Sequence[str] = REGIONS, **submitted: Any) -> tuple[str, str]:
        """Submit a job and hold a process of ``among`` at a point; return the job and the process."""
        self.stack.flaws.arm(point, *among, act="hold")
        job_id = self.submit(**submitted)
        name = self.when(lambda: self.stack.flaws.reached(point, *among), f"process held at {point}")
        self.stack.flaws.disarm(point, *(one for one in among if one != name))
        return job_id, name

    def dies(self, point: str, *among: str, act: Callable[[], Any]) -> tuple[Fault, str]:
        """Let whichever process comes to a point first be killed there; return the fault and the process."""
        self.stack.flaws.arm(point, *among, act="die")
        act()

        def dead() -> str | None:
            return next((name for name in among if self.on.processes[name].poll() is not None), None)

        name = self.when(dead, f"process killed at {point}")
        fault = self.fault()
        self.stack.flaws.disarm(point, *among)
        assert self.on.processes[name].returncode == -signal.SIGKILL
        return fault, name

    def fault(self, region: str | None = None) -> Fault:
        """Note that it happens now, and what was out: in a region, or anywhere."""
        at = time.monotonic()
        is_out = [chunks.c.state != "done", chunks.c.dispatched_at.is_not(None)]
        if region is not None:
            is_out.append(chunks.c.region == region)

        def hit() -> list[int] | None:
            with self.on.db.read() as tx:
                statement = select(items.c.item_id).join(chunks, chunks.c.chunk_id == items.c.chunk_id)
                return list(tx.execute(statement.where(items.c.state == "waiting", *is_out)).scalars())

        return Fault(at, frozenset(self.when(lambda: [hit()], "look at what was out")[0]))

    def kill(self, name: str) -> None:
        self.on.kill(name)

    def restart(self, name: str) -> None:
        self.stack.start(name)

    def release(self, name: str, point: str = "engine") -> None:
        self.stack.flaws.disarm(point, name)

    @contextmanager
    def frozen(self, name: str) -> Generator[None]:
        self.on.stop_outside_a_transaction(name)
        try:
            yield
        finally:
            self.on.processes[name].send_signal(signal.SIGCONT)

    def over(self, fault: Fault) -> Fault:
        """Note that a fault that lasted is over: recovering from it begins now."""
        self.lasted_s = time.monotonic() - fault.at
        return replace(fault, at=time.monotonic())

    @contextmanager
    def no_database(self) -> Generator[None]:
        """The database does not answer: its server is down, or somebody holds SQLite's one write lock."""
        postgres = self.stack.services.postgres
        if postgres is not None:
            postgres.stop()
            try:
                yield
            finally:
                postgres.start()
            return
        path = self.on.settings.resolved_database_url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        finally:
            connection.close()

    # --- looking ------------------------------------------------------------------------------------------------

    def is_final(self, job_id: str) -> bool:
        return self.on.job(job_id).is_final

    def recovered(self, fault: Fault) -> None:
        """Wait until everything that a fault hit is committed by somebody, and keep how long that took."""

        def left() -> bool:
            with self.on.db.read() as tx:
                mine = items.c.job_id.in_(self.job_ids)
                waiting = select(items.c.item_id).where(mine, items.c.state == "waiting")
                return not (set(tx.execute(waiting).scalars()) & fault.items)

        self.when(left, "recovery", 120)
        self.recovery_s = max(self.recovery_s or 0.0, time.monotonic() - fault.at)

    def finished(self, *, succeeded: bool = True) -> None:
        for job_id in self.job_ids:
            self.when(lambda job_id=job_id: self.is_final(job_id), "finished job", 120)
            job = self.on.job(job_id)
            if succeeded:
                assert (job.state.value, job.items_succeeded) == ("completed", job.items_total)

    def outcomes(self) -> list[str | None]:
        """How the attempts at the jobs' chunks ended."""
        mine = select(items.c.chunk_id).where(items.c.job_id.in_(self.job_ids))

        def look() -> list[list[str | None]]:
            with self.on.db.read() as tx:
                return [list(tx.execute(select(attempts.c.outcome).where(attempts.c.chunk_id.in_(mine))).scalars())]

        return self.when(look, "look at the attempts")[0]

    def spooled(self, kind: str = "") -> list[Path]:
        """The spooled records, or those of a kind: workers also spool what they booked of idle windows."""
        found: list[Path] = []
        for path in sorted((self.on.settings.data_dir / "spool").glob("*/*.json")):
            with suppress(FileNotFoundError):  # replayed just now
                if not kind or json.loads(path.read_bytes())["kind"] == kind:
                    found.append(path)
        return found

    def check(self) -> list[invariants.Wasted]:
        """The one check that follows every scenario, on a healed installation."""
        self.stack.heal()
        self.when(lambda: not self.spooled(), "empty spool", 30)
        assert list((self.on.settings.data_dir / "spool").glob("*/*.bad")) == []
        explained = invariants.check(self.on, self.job_ids)
        print(f"\n{self.scenario.name} on {self.stack.name}: recovered in {self.recovery_s} s")
        print(invariants.table(explained))
        lines = self.on.unexpected_log_lines()
        if self.scenario.says is not None:
            lines = [line for line in lines if not re.search(self.scenario.says, line)]
        assert lines == []
        return explained


def run(stack: Stack, name: str) -> None:
    """Run one scenario, check everything, and write down how long the recovery took."""
    made = Run(stack, SCENARIOS[name])
    for path in stack.installation.root.glob("*.log"):
        os.truncate(path, 0)
    made.scenario.act(made)
    made.finished(succeeded=made.scenario.all_succeed)
    explained = made.check()
    limit_s = LEASE_S + MARGIN_S
    _write_figures(
        {
            "scenario": name,
            "backend": stack.name,
            "lasted_s": None if made.lasted_s is None else round(made.lasted_s, 2),
            "recovery_s": None if made.recovery_s is None else round(made.recovery_s, 2),
            "lease_s": LEASE_S,
            "limit_s": limit_s,
            "wasted": [{**asdict(one), "why": one.why} for one in explained],
        }
    )


def _write_figures(figures: Mapping[str, Any]) -> None:
    """Append to the file that ``CHAOS_FIGURES`` names, if it does."""
    target = os.environ.get("CHAOS_FIGURES")
    if target is None:
        return
    path = Path(target)
    known = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*known, figures], indent=1) + "\n")


class Stacks:
    """One stack at a time: kept while the next scenario is on the same backend and no scenario failed on it."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._factory = tmp_path_factory
        self._stack: Stack | None = None
        self._key: tuple[Any, ...] = ()

    def of(self, backend: str, scenario: Scenario | None = None) -> Stack:
        settings = {} if scenario is None else scenario.settings
        key = (backend, json.dumps(dict(settings)), scenario.name if scenario is not None and scenario.is_alone else "")
        if self._stack is not None and self._key == key:
            self._stack.heal()
            return self._stack
        self.close()
        self._stack = Stack(self._factory.mktemp("chaos"), backend, settings)
        self._key = key
        return self._stack

    def close(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()


@contextmanager
def healed(stacks: Stacks, backend: str, scenario: Scenario | None = None) -> Iterator[Stack]:
    """A healed stack; it is thrown away, with its logs shown, when the test fails."""
    stack = stacks.of(backend, scenario)
    try:
        yield stack
    except BaseException:
        print(stack.installation.logs())
        stacks.close()
        raise

"""What must hold after whatever happened, read from the database and from the exported CSV (invariants 1 to 4)."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from dataclasses import dataclass

import psutil
from sqlalchemy import func, select

from carbonq import verify
from carbonq.store.database import Tx
from carbonq.store.ledger import is_current
from carbonq.store.tables import attempts, chunks, engine_batches, entries, items, segments, workers
from tests.system.processes import WATTS_PER_CORE, Installation

FINAL = {"succeeded", "failed", "expired", "cancelled"}

#: Why energy served no result, by what its entry says and how its attempt ended; what is not here is not explained.
WHY = {
    ("lost", "lost"): "the worker fell silent; this is its last report",
    ("lost", "fenced"): "the worker fell silent, and came back after its chunk was taken away",
    ("fenced", "fenced"): "it ran after its chunk was taken away, so its commit was refused",
    ("fenced", "yielded"): "it ran on after its last checkpoint had been spooled, which ended the attempt",
    ("stopped", "yielded"): "the engine call was stopped with the worker",
    ("stopped", "lost"): "the engine call was stopped, and then the worker fell silent",
    ("stopped", "fenced"): "the engine call was stopped when the lease was lost",
    ("stopped", "failed"): "the engine call was stopped, and its attempt could not go on",
    ("refused", "failed"): "its results could not be stored",
    ("refused", "yielded"): "its results could not be stored while the database was away",
    ("failed", "failed"): "the engine failed",
    ("stopped", "cancelled"): "the engine call was stopped: all of its jobs were cancelled",
    ("stopped", "committed"): "the engine call was stopped: its jobs were cancelled, others of the chunk were not",
    ("failed", "committed"): "the engine failed on items that then ran again in halves",
}

#: Attempts that must say in their own words what went wrong.
MUST_SAY = {"lost", "fenced", "failed"}


@dataclass(frozen=True)
class Wasted:
    """One wasted entry with the attempt that burnt it."""

    chunk_id: str | None
    attempt: int | None
    worker_id: str
    energy_uj: int
    outcome: str
    attempt_outcome: str | None
    error: str | None

    @property
    def why(self) -> str | None:
        known = WHY.get((self.outcome, self.attempt_outcome or ""))
        if known is None or (self.attempt_outcome in MUST_SAY and not self.error):
            return None
        return f"{known}: {self.error}" if self.error else known


def wasted(tx: Tx) -> list[Wasted]:
    """Every wasted entry, each with its attempt; the newest where an uncounted one had the same number."""
    rows = tx.execute(
        select(entries, engine_batches.c.worker_id)
        .join(
            engine_batches,
            (engine_batches.c.engine_batch_id == entries.c.engine_batch_id) & (engine_batches.c.part == entries.c.part),
        )
        .where(entries.c.kind == "wasted", is_current())
        .order_by(entries.c.recorded_at, entries.c.entry_id)
    ).all()
    found: list[Wasted] = []
    for row in rows:
        tries = tx.execute(
            select(attempts.c.outcome, attempts.c.error)
            .where(
                attempts.c.chunk_id == row.chunk_id,
                attempts.c.attempt == row.attempt,
                attempts.c.worker_id == row.worker_id,
            )
            .order_by(attempts.c.token)
        ).all()
        ended = [one for one in tries if (row.outcome, one.outcome) in WHY] or tries
        last = ended[-1] if ended else None
        found.append(
            Wasted(
                row.chunk_id,
                row.attempt,
                row.worker_id,
                row.energy_uj or 0,
                row.outcome,
                None if last is None else last.outcome,
                None if last is None else last.error,
            )
        )
    return found


def table(rows: list[Wasted]) -> str:
    """The explanation of each wasted entry."""
    lines = [f"{'chunk':30} try {'uJ':>12}  {'entry':8} {'attempt':10} why"]
    lines += [
        f"{one.chunk_id!s:30} {one.attempt!s:>3} {one.energy_uj:>12}  {one.outcome:8} {one.attempt_outcome!s:10} "
        f"{one.why or 'NOT EXPLAINED'}"
        for one in rows
    ]
    return "\n".join(lines)


def check(installation: Installation, job_ids: list[str]) -> list[Wasted]:
    """Check everything; returns the explained waste of the whole installation."""
    for job_id in job_ids:
        installation.check(job_id)
        with installation.db.read() as tx:
            _check_items(tx, installation, job_id)
    with installation.db.read() as tx:
        _check_energy(tx, installation)
        explained = wasted(tx)
    assert all(one.why for one in explained), table([one for one in explained if not one.why])
    _check_export(installation)
    return explained


def _check_items(tx: Tx, installation: Installation, job_id: str) -> None:
    """Every item once in a final state, with one current entry a part; every chunk and attempt ended."""
    job = installation.job(job_id)
    by_state = select(items.c.state, func.count()).where(items.c.job_id == job_id).group_by(items.c.state)
    states = {state: count for state, count in tx.execute(by_state)}
    assert set(states) <= FINAL and sum(states.values()) == job.items_total
    assert states == {name: n for name in FINAL if (n := getattr(job, f"items_{name}"))}
    mine = select(items.c.chunk_id).where(items.c.job_id == job_id)
    is_open = (chunks.c.chunk_id.in_(mine), chunks.c.state != "done")
    assert tx.execute(select(chunks.c.chunk_id, chunks.c.state).where(*is_open)).all() == []
    is_silent = (attempts.c.chunk_id.in_(mine), attempts.c.outcome.is_(None))
    assert tx.execute(select(attempts.c.chunk_id, attempts.c.token).where(*is_silent)).all() == []
    twice = tx.execute(
        select(entries.c.custom_id, entries.c.part)
        .where(entries.c.job_id == job_id, entries.c.kind == "item", is_current())
        .group_by(entries.c.custom_id, entries.c.part)
        .having(func.count() > 1)
    ).all()
    assert twice == []
    by_kind = select(segments.c.kind, func.sum(segments.c["items"])).where(segments.c.job_id == job_id)
    counted = {kind: int(count) for kind, count in tx.execute(by_kind.group_by(segments.c.kind))}
    assert counted.get("output", 0) == job.items_succeeded
    assert counted.get("error", 0) <= job.items_failed


def _check_energy(tx: Tx, installation: Installation) -> None:
    """No worker that lives has booked more than its counter can have shown: its CPU time at the stated power."""
    pids = {process.pid for process in installation.processes.values() if process.poll() is None}
    booked = {
        row.pid: int(row.uj)
        for row in tx.execute(
            select(workers.c.pid, func.sum(entries.c.energy_uj).label("uj"))
            .join(engine_batches, engine_batches.c.worker_id == workers.c.worker_id)
            .join(
                entries,
                (entries.c.engine_batch_id == engine_batches.c.engine_batch_id)
                & (entries.c.part == engine_batches.c.part),
            )
            .where(is_current(), entries.c.kind != "gap", workers.c.pid.in_(pids))
            .group_by(workers.c.worker_id, workers.c.pid)
        )
    }
    for pid, uj in booked.items():
        used = psutil.Process(pid).cpu_times()
        assert 0 < uj <= (used.user + used.system) * WATTS_PER_CORE * 1e6


def _check_export(installation: Installation) -> None:
    """The standalone checker agrees with the export, and the export's sums with the engine batches."""
    path = installation.root / "ledger.csv"
    status, said = installation.run("ledger", "export", "-o", str(path))
    assert status == 0, said
    report = verify.check(str(path))
    assert report.problems == [], report.problems[:5]
    sums: dict[tuple[str, int], int] = defaultdict(int)
    with path.open(newline="", encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            sums[line["engine_batch_id"], int(line["part"])] += int(line["energy_uj"] or 0)
    with installation.db.read() as tx:
        stored = {
            (row.engine_batch_id, row.part): row.energy_uj or 0
            for row in tx.execute(
                select(engine_batches.c.engine_batch_id, engine_batches.c.part, engine_batches.c.energy_uj)
            )
        }
    # Idle windows go on being booked while this reads; a gap that was taken back keeps its batch without its energy.
    wrong = {key: (total, stored.get(key)) for key, total in sums.items() if total != stored.get(key)}
    assert {key for key in wrong if not key[0].startswith("eb_gap")} == set(), wrong


def as_json(rows: list[Wasted]) -> str:
    return json.dumps([{**one.__dict__, "why": one.why} for one in rows], indent=1)

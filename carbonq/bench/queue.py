"""How late due chunks get their tickets, and what a long queue costs its processes in memory.

On a real stack whose workers are halted. *Lag*: ``chunks`` chunks become due in the same second in a region with as
many slots; what counts is the time from their window's begin to the ticket (both by the database's clock), beside the
schedule's own second. *Memory*: the resident memory of each process before and after ``waiting`` items were
submitted over HTTP and cut into chunks. Seconds are machine seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from carbonq import config, ids
from carbonq.bench.halted import halted
from carbonq.bench.level_grid import level_settings
from carbonq.bench.run import MODEL, lines
from carbonq.client import Client
from carbonq.embedded.stack import Stack
from carbonq.model import Endpoint, NewChunk, Region, Signal, Treatment
from carbonq.store import chunks as chunk_rows
from carbonq.store import dispatch, jobs, placements, regions
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.placements import Placed

#: A region that is only a row: tickets for it wait in its queue.
_FLEET = "fleet"

_ITEMS_A_JOB = 50_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def bench(folder: Path, *, chunks: int, waiting: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure a stack in ``folder``; return JSON values."""
    # A ticket that goes out again would hide when the first one did.
    settings = config.load(**level_settings(folder), redispatch_after_s=3600.0)
    with (
        Stack(settings, report=report, flower=False) as stack,
        halted(stack, lambda name: name.startswith("worker")),
    ):
        database = Database(stack.settings.resolved_database_url)
        found: dict[str, Any] = {"bench": "queue"}
        try:
            found["lag"] = _lag(database, chunks, report)
            found["memory"] = _memory(stack, database, folder / "words.jsonl", waiting, report)
        finally:
            database.dispose()
    return found


def _lag(database: Database, count: int, report: Callable[[str], None]) -> dict[str, Any]:
    worker_id = ids.new("wrk")
    with database.write() as tx:
        fleet = Region(_FLEET, "LEVEL", count, Decimal(1), "stated", "cpu")
        regions.sync(tx, [*regions.load_all(tx, worker_alive_s=3600.0), fleet])
        regions.register_worker(
            tx,
            worker_id=worker_id,
            region=_FLEET,
            host="bench",
            pid=os.getpid(),
            slots=count,
            software_version="bench",
            hardware="cpu",
        )
        now = machine_now(tx)
    due_at = now + timedelta(seconds=5)
    chunk_ids = _place(database, count, now, due_at)
    ends = time.monotonic() + 120
    sent = 0
    while sent < count:
        if time.monotonic() > ends:
            raise RuntimeError(f"{sent} of {count} due chunks got a ticket within two minutes")
        time.sleep(0.2)
        with database.write() as tx:
            regions.worker_seen(tx, worker_id)
            sent = dispatch.occupied(tx)[_FLEET]
    with database.read() as tx:
        found = [chunk_rows.get(tx, chunk_id).dispatched_at for chunk_id in chunk_ids]
    lags = sorted((at - due_at).total_seconds() for at in found if at is not None)
    p50, p99 = (lags[min(count - 1, int(share * count))] for share in (0.5, 0.99))
    report(f"{count:,} due chunks: tickets out after {p50:.2f} s (median), {p99:.2f} s (p99)")
    return {"chunks": count, "p50_s": p50, "p99_s": p99, "max_s": lags[-1], "tick_s": 1.0}


def _place(database: Database, count: int, now: datetime, due_at: datetime) -> list[str]:
    new = [
        NewChunk(
            chunk_id=ids.new("chk"),
            tenant=None,
            model=MODEL,
            endpoint=Endpoint.EMBEDDINGS,
            regions=(_FLEET,),
            release_at=now,
            deadline_at=now + timedelta(days=1),
            item_ids=(),
            est_tokens=1_000,
            est_duration_s=1.0,
            est_energy_uj=1_000,
            baseline_region=_FLEET,
            baseline_window_at=due_at,
            latest_start_at=now + timedelta(hours=20),
            treatment=Treatment.HELD_OUT,  # the planner leaves it where it is
        )
        for _ in range(count)
    ]
    names = [one.chunk_id for one in new]
    placed = Placed(
        chunk_id=names,
        region=[_FLEET] * count,
        window_at=[due_at] * count,
        g_per_kwh=[None] * count,
        issued_at=[None] * count,
        reason=["bench"] * count,
    )
    with database.write() as tx:
        chunk_rows.insert_many(tx, new, created_at=now)
        placements.place(tx, "bench", placed, created_at=now, signal=Signal.MOER)
    return names


def _memory(
    stack: Stack, database: Database, source: Path, count: int, report: Callable[[str], None]
) -> dict[str, Any]:
    before = _resident_mb(stack)
    began = time.perf_counter()
    with stack.client() as client:
        for size in _sizes(count):
            _submit(client, source, size)
    accepted_s = time.perf_counter() - began
    ends = time.monotonic() + 600 + count / 500
    peak = _resident_mb(stack)
    while _is_uncut(database):
        if time.monotonic() > ends:
            raise RuntimeError("not all items were cut into chunks in time")
        time.sleep(0.5)
        peak = {name: max(mb, peak.get(name, 0.0)) for name, mb in _resident_mb(stack).items()}
    shown = ", ".join(f"{name} {before.get(name, 0):.0f} -> {mb:.0f} MB" for name, mb in sorted(peak.items()))
    report(f"{count:,} waiting items: {shown}")
    return {"waiting": count, "accepted_s": accepted_s, "before_mb": before, "peak_mb": peak}


def _sizes(count: int) -> Sequence[int]:
    whole, rest = divmod(count, _ITEMS_A_JOB)
    return [*[_ITEMS_A_JOB] * whole, *([rest] if rest else [])]


def _submit(client: Client, source: Path, size: int) -> None:
    with source.open("wb") as stream:
        stream.writelines(lines(size, words=5))
    with source.open("rb") as stream:
        client.submit(stream, endpoint="/v1/embeddings", model=MODEL, deadline="7d")


def _is_uncut(database: Database) -> bool:
    with database.read() as tx:
        return bool(jobs.unchunked(tx))


def _resident_mb(stack: Stack) -> dict[str, float]:
    """Return the resident megabytes of the stack's processes by name."""
    found: dict[str, float] = {}
    for name, pid in stack.pids.items():
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        found[name] = pages * _PAGE_BYTES / 1e6
    return found

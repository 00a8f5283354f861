"""The ledger's figures: entries committed with their chunk, export, settlement, seals, bytes on disk, meters.

A scratch database is filled once on each backend and the chosen parts work on it one after the other, each in a process
of its own, so that its memory is its own. Yardsticks are measured in the same run: what the driver alone inserts, and
COPY (PostgreSQL) or a plain select with the csv module (SQLite) of the same lines. Seconds are machine seconds;
``cpu_s`` are processor seconds of the process itself: all there are on SQLite, without PostgreSQL's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from carbonq.bench import meters, store
from carbonq.bench.backend import Backend
from carbonq.bench.ledger_fill import fill
from carbonq.bench.ledger_work import Figures, in_child

#: Parts by name, in the order in which they run, with the steps that each takes on the filled database.
PARTS: dict[str, tuple[str, ...]] = {
    "meters": (),
    "commit": (),
    "export": ("export", "plain"),
    "check": ("check",),
    "seal": ("seal",),
    "verify": ("check_seals",),
    "size": ("size",),
    "settle": ("settle",),
}


def bench(
    folder: Path,
    backends: Sequence[Backend],
    *,
    parts: Sequence[str],
    entries: int,
    batch_items: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Measure the chosen parts on each backend; return JSON values."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "bench": "ledger",
        "entries": entries,
        "batch_items": batch_items,
        "processors": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
    }
    if "meters" in parts:
        found["meters"] = meters.bench()
        cost, error = found["meters"]["overhead"], found["meters"]["attribution"]
        report(f"meters: {cost}; attribution: {error}")
    if "commit" in parts:
        chunks = max(2, min(24, entries // 2_000))
        found["commit"] = store.bench(
            folder / "commit", backends, claimers=[1], chunks=chunks, items=2_000, rounds=1, report=report
        )["median"]
    steps = [step for part in PARTS if part in parts for step in PARTS[part]]
    for step, needed in (("check", "export"), ("check_seals", "seal")):
        if step in steps and needed not in steps:
            steps.insert(steps.index(step), needed)
    if steps:
        found["databases"] = {
            backend.database_name: _on(
                backend, folder / backend.database_name, steps, entries=entries, batch_items=batch_items, report=report
            )
            for backend in backends
        }
    found["load_at_end"] = os.getloadavg()[0]
    return found


def _on(
    backend: Backend,
    folder: Path,
    steps: Sequence[str],
    *,
    entries: int,
    batch_items: int,
    report: Callable[[str], None],
) -> dict[str, Figures]:
    name = backend.database_name
    folder.mkdir(exist_ok=True)
    with backend.database(folder) as url:
        began = process_time()
        seconds = fill(url, entries, batch_items=batch_items)
        spent = process_time() - began
        found: dict[str, Figures] = {
            "fill": {"seconds": seconds, "entries_per_s": entries / seconds, "cpu_s": spent},
        }
        report(f"{name}: {entries:,} entries booked and inserted in {seconds:.1f} s")
        for step in steps:
            found[step] = in_child(step, url, folder)
            report(f"{name}, {step}: {_sentence(found[step])}")
    return found


def _sentence(figures: Figures) -> str:
    return ", ".join(
        f"{name} {value:,.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )

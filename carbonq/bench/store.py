"""Claims and checkpoints per second on a database, by one and by several workers at once.

Each claimer is a process, as region workers are. It claims its chunks one transaction each; then it books and commits a
checkpoint for each: item states, a segment's row, ledger entries, an event, the chunk's end. The yardstick beside it is
what SQLite's driver alone does with as many rows, as wide, in transactions as large. Seconds are machine seconds.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from carbonq.bench.backend import Backend
from carbonq.bench.store_work import COLUMNS, prepare

_CLAIMER = "import sys; from carbonq.bench.store_work import claimer; claimer(sys.argv[1], sys.argv[2:])"


def bench(
    folder: Path,
    backends: Sequence[Backend],
    *,
    claimers: Sequence[int],
    chunks: int,
    items: int,
    rounds: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Let ``claimers`` processes share ``chunks`` chunks of ``items`` items, ``rounds`` times; return JSON values.

    The backends take turns within each round, so that they meet the same weather.
    """
    found: list[dict[str, Any]] = []
    for number in range(rounds):
        plain = plain_rows_per_s(folder / f"plain-{number}.db", rows=chunks * items, at_once=items)
        for count in claimers:
            for backend in backends:
                with backend.database(folder / f"{number}-{count}-{backend.database_name}") as url:
                    claims_per_s, entries_per_s = _measure(url, count, chunks, items)
                found.append(
                    {
                        "database": backend.database_name,
                        "claimers": count,
                        "claims_per_s": claims_per_s,
                        "entries_per_s": entries_per_s,
                        "plain_rows_per_s": plain,
                        "ratio": entries_per_s / plain,
                    }
                )
                report(
                    f"{backend.database_name}, claimers: {count}; {claims_per_s:,.0f} claims/s, "
                    f"{entries_per_s:,.0f} entries/s committed"
                )
    return {"bench": "store", "chunks": chunks, "items": items, "rounds": found, "median": _medians(found)}


def _medians(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["database"], one["claimers"]), []).append(one)
    return [sorted(some, key=lambda one: one["entries_per_s"])[len(some) // 2] for some in groups.values()]


def _measure(url: str, count: int, chunks: int, items: int) -> tuple[float, float]:
    """All phases begin together in all claimers: a line to each says go, a line from each says done."""
    ids = prepare(url, chunks, items, now=datetime.now(UTC))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _CLAIMER, url, *ids[number::count]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        _wait(processes)
        claim_s = _phase(processes)
        _phase(processes)  # reading what was claimed
        commit_s = _phase(processes)
    finally:
        for process in processes:
            process.communicate()
    return chunks / claim_s, chunks * items / commit_s


def _phase(processes: Sequence[subprocess.Popen[str]]) -> float:
    began = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    _wait(processes)
    return time.perf_counter() - began


def _wait(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdout is not None
        if not json.loads(process.stdout.readline() or "false"):
            raise RuntimeError("a claimer ended before its work was done")


def plain_rows_per_s(path: Path, *, rows: int, at_once: int) -> float:
    """Insert rows as wide as entries with nothing but the driver, durably, and return how many a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    names = ", ".join(f"c{number}" for number in range(COLUMNS))
    connection.execute(f"CREATE TABLE plain ({names})")
    row = tuple(f"value {number}" for number in range(COLUMNS))
    marks = ", ".join("?" * COLUMNS)
    began = time.perf_counter()
    for _ in range(rows // at_once):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(f"INSERT INTO plain VALUES ({marks})", [row] * at_once)
        connection.execute("COMMIT")
    elapsed = time.perf_counter() - began
    connection.close()
    return rows / elapsed

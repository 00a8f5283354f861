"""The parts of ``bench ledger``, each run in a process of its own: seconds, and the most memory that process had."""

from __future__ import annotations

import csv
import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from carbonq import export
from carbonq.bench.ledger_fill import DAY, WINDOWS, observe
from carbonq.services import seal as sealing
from carbonq.services import seal_check
from carbonq.services import settle as settling
from carbonq.store import exports
from carbonq.store.database import Database
from carbonq.units import WINDOW

Figures = dict[str, Any]

_CHILD = "import sys; from carbonq.bench.ledger_work import child; child(*sys.argv[1:])"

#: What an export's line says, as one statement: what COPY and a plain select are given to write.
_JOINED = """
    SELECT e.*, b.parts, b."items", b.worker_id, b.device_ids, b.model, b.engine, b.engine_version, b.precision,
           b.software_version, b.clock, b.started_at, b.ended_at, b.duration_s, b.gpu_uj, b.cpu_uj, b.dram_uj,
           b.energy_uj, b.gpu_meter, b.cpu_meter, b.dram_meter, b.quality, b.uncertainty_pct,
           f.region, f.ownership, f.hardware, f.pue, f.pue_source, f.embodied_kg, f.life_h,
           m.*, a.*, g.pue AS baseline_pue, r.g_per_kwh AS baseline_g_per_kwh
    FROM entries e
    JOIN engine_batches b ON b.engine_batch_id = e.engine_batch_id AND b.part = e.part
    JOIN facts f ON f.fact_id = b.fact_id
    LEFT JOIN rates m ON m.rate_id = e.moer_rate_id
    LEFT JOIN rates a ON a.rate_id = e.aer_rate_id
    LEFT JOIN facts g ON g.fact_id = e.baseline_fact_id
    LEFT JOIN rates r ON r.rate_id = e.baseline_rate_id
"""


def in_child(part: str, url: str, folder: Path) -> Figures:
    """Run one part in a fresh process, so that its memory is its own. Raises CalledProcessError."""
    command = [sys.executable, "-c", _CHILD, part, url, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def child(part: str, url: str, folder: str) -> None:
    """Run one part and print its figures as JSON."""
    db = Database(url)
    with db.read():
        pass
    before, began = peak_mb(), os.times()
    found = PARTS[part](db, Path(folder))
    db.dispose()
    spent = sum(os.times()[:4]) - sum(began[:4])  # with that of processes it started
    sys.stdout.write(json.dumps(found | {"cpu_s": spent, "peak_mb": peak_mb(), "start_mb": before}))


def peak_mb() -> float:
    """Return the most memory this process had, in MB (10^6 bytes)."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count what the parent had when it started this process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def write_export(db: Database, folder: Path) -> Figures:
    """Write the whole ledger as CSV to a file."""
    path = folder / "export.csv"
    began = perf_counter()
    with path.open("wb") as file:
        for data in export.write_csv(exports.csv_pages(db, exports.Selection())):
            file.write(data)
    return {"seconds": perf_counter() - began, "bytes": path.stat().st_size}


def write_plainly(db: Database, folder: Path) -> Figures:
    """Write the same lines with nothing but the database's own means: COPY, or a select and the csv module."""
    path = folder / "plain.csv"
    began = perf_counter()
    if db.is_sqlite:
        connection = sqlite3.connect(db.engine.url.database or "")
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\r\n").writerows(connection.execute(_JOINED))
        connection.close()
    else:
        connection: Any = db.engine.raw_connection()
        statement = f"COPY ({_JOINED}) TO STDOUT WITH (FORMAT csv)"
        with path.open("wb") as file, connection.cursor() as cursor, cursor.copy(statement) as copy:
            file.writelines(copy)
        connection.close()
    seconds = perf_counter() - began
    size = path.stat().st_size
    path.unlink()
    return {"seconds": seconds, "bytes": size}


def check_export(_db: Database, folder: Path) -> Figures:
    """Check the exported file with the standalone checker, as an auditor runs it."""
    from carbonq import verify

    command = [sys.executable, "-I", "-S", verify.__file__, "--json", str(folder / "export.csv")]
    began = perf_counter()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    seconds = perf_counter() - began
    report = json.loads(done.stdout)
    if done.returncode:
        raise RuntimeError(f"the export is wrong: {report['problems'][:3]}")
    return {"seconds": seconds, "lines": report["lines"], "whole_batches": report["whole_batches"]}


def settle(db: Database, _folder: Path) -> Figures:
    """Settle all entries: their window's rate and their baseline's have come."""
    observe(db.engine.url.render_as_string(hide_password=False))
    began = perf_counter()
    count = 0
    while some := settling.settle(db, DAY + 2 * WINDOWS * WINDOW, settle_after_s=0):
        count += some
    return {"seconds": perf_counter() - began, "revisions": count}


def seal(db: Database, _folder: Path) -> Figures:
    """Seal all entries that wait."""
    began = perf_counter()
    made = sealing.seal(db)
    return {"seconds": perf_counter() - began, "seals": len(made), "entries": sum(one.entries for one in made)}


def check_seals(db: Database, _folder: Path) -> Figures:
    """Check every line and link against the seals; `ledger verify --db` recomputes the lines besides."""
    seen = seal_check.Seen()
    began = perf_counter()
    found = next(seal_check.check(db, seen), None)
    seconds = perf_counter() - began
    if found is not None:
        raise RuntimeError(f"the ledger is not what was sealed: {found.sentence()}")
    return {"seconds": seconds, "sealed": seen.sealed, "seals": seen.seals, "unsealed": seen.unsealed}


def size(db: Database, _folder: Path) -> Figures:
    """Measure what the ledger takes on disk, indexes included."""
    with db.write() as tx:
        count = tx.exec_driver_sql("SELECT count(*) FROM entries").scalar_one()
    if db.is_sqlite:
        with db.read() as tx:
            tx.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        total = os.stat(db.engine.url.database or "").st_size
        return {"entries": count, "bytes": total, "bytes_per_entry": total / count}
    tables = ("entries", "engine_batches", "rates", "facts", "unsettled", "seals", "seal_parts", "unsealed")
    with db.read() as tx:
        sizes = {name: tx.exec_driver_sql(f"SELECT pg_total_relation_size('{name}')").scalar_one() for name in tables}
    return {"entries": count, "bytes": sizes, "bytes_per_entry": sum(sizes.values()) / count}


PARTS: Mapping[str, Callable[[Database, Path], Figures]] = {
    "export": write_export,
    "plain": write_plainly,
    "check": check_export,
    "settle": settle,
    "seal": seal,
    "check_seals": check_seals,
    "size": size,
}

"""The month's report on a ledger of many entries, beside the plainest ways to the same sums.

A scratch database is filled with entries spread over a month, settled if asked, and each step then runs in a process of
its own, so that its memory is its own. Yardsticks of the same run: one bare statement that adds up a month's current
entries, and what an auditor does, the export read back and added up by a loop. Seconds are machine seconds.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from time import perf_counter
from typing import Any

from carbonq import export
from carbonq.bench.backend import Backend
from carbonq.bench.ledger_fill import DAY, fill, observe
from carbonq.bench.ledger_work import Figures, peak_mb
from carbonq.services import report as reports
from carbonq.services import settle as settling
from carbonq.store import exports
from carbonq.store.database import Database
from carbonq.units import LEDGER_CONTEXT

#: Windows that the entries lie in: the thirty days from ``DAY`` to the end of its month.
WINDOWS = 30 * 288

MONTH = f"{DAY:%Y-%m}"

#: Grid time of the report: all is over, and may be settled.
NOW = DAY + timedelta(days=40)

_CHILD = "import sys; from carbonq.bench.report import child; child(*sys.argv[1:])"

#: The least that a database does for sums of a month's current entries.
_PLAIN = """
    SELECT count(*), sum(e.energy_uj)
    FROM engine_batches b JOIN entries e ON e.engine_batch_id = b.engine_batch_id AND e.part = b.part
    WHERE NOT EXISTS (SELECT 1 FROM entries n WHERE n.entry_id = e.entry_id AND n.revision = e.revision + 1)
"""


def bench(
    folder: Path,
    backend: Backend,
    *,
    entries: int,
    batch_items: int,
    is_settled: bool,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Measure the report and its yardsticks on one filled ledger; return JSON values.

    Raises RuntimeError when they do not come to the same sums.
    """
    found: dict[str, Any] = {
        "bench": "report",
        "database": backend.database_name,
        "entries": entries,
        "batch_items": batch_items,
        "is_settled": is_settled,
        "processors": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
    }
    with backend.database(folder) as url:
        found["fill_s"] = fill(url, entries, batch_items=batch_items, windows=WINDOWS)
        report(f"{entries:,} entries booked in {found['fill_s']:.1f} s")
        if is_settled:
            found["settle_s"] = _settle(url)
            report(f"settled in {found['settle_s']:.1f} s")
        for name in STEPS:
            found[name] = _in_child(name, url, folder)
            report(f"{name}: {found[name]['seconds']:.1f} s, {found[name]['peak_mb']:.0f} MB at most")
    sums = {(found[name]["entries"], found[name]["energy_uj"]) for name in STEPS}
    if sums != {(entries, found["report"]["energy_uj"])}:
        raise RuntimeError(f"the steps disagree, or this machine's clock lies before {MONTH}: {sorted(sums)}")
    if found["report"]["emission_g"] != found["loop"]["emission_g"]:
        raise RuntimeError(f"the report has {found['report']['emission_g']} g, the loop {found['loop']['emission_g']}")
    found["report_by_plain"] = found["report"]["seconds"] / found["plain"]["seconds"]
    found["report_by_loop"] = found["report"]["seconds"] / found["loop"]["seconds"]
    found["load_at_end"] = os.getloadavg()[0]
    return found


def child(step: str, url: str, folder: str) -> None:
    """Run one step and print its figures as JSON."""
    db = Database(url)
    with db.read():
        pass
    before, began, cpu = peak_mb(), perf_counter(), sum(os.times()[:2])
    figures = STEPS[step](db, Path(folder))
    figures |= {"seconds": perf_counter() - began, "cpu_s": sum(os.times()[:2]) - cpu}
    db.dispose()
    sys.stdout.write(json.dumps(figures | {"peak_mb": peak_mb(), "start_mb": before}))


def _in_child(step: str, url: str, folder: Path) -> Figures:
    command = [sys.executable, "-c", _CHILD, step, url, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def _settle(url: str) -> float:
    observe(url, windows=WINDOWS)
    db = Database(url)
    began = perf_counter()
    while settling.settle(db, NOW, settle_after_s=0):
        pass
    seconds = perf_counter() - began
    db.dispose()
    return seconds


def _report(db: Database, _folder: Path) -> Figures:
    """Make the report, of everybody."""
    made = reports.make(db, MONTH, now=NOW)
    grams = made.totals.impact.known_g
    return {
        "entries": made.totals.entries,
        "energy_uj": made.totals.item_energy_uj,
        "emission_g": None if grams is None else str(grams),
        "inventory_rows": len(made.inventory),
    }


def _plainly(db: Database, _folder: Path) -> Figures:
    """Count the current entries and add up their energy by one statement."""
    with db.read() as tx:
        count, energy = tx.exec_driver_sql(_PLAIN).one()
    return {"entries": int(count), "energy_uj": int(energy)}


def _loop(db: Database, folder: Path) -> Figures:
    """Export the month and add the file's columns up, line by line."""
    path = folder / "export.csv"
    with path.open("wb") as file:
        for data in export.write_csv(exports.csv_pages(db, exports.Selection())):
            file.write(data)
    count, energy, emission = 0, 0, Decimal(0)
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            count += 1
            energy += int(line["energy_uj"])
            emission = LEDGER_CONTEXT.add(emission, Decimal(line["emission_g"]))
    path.unlink()
    return {"entries": count, "energy_uj": energy, "emission_g": str(emission)}


#: Steps by name, in the order in which they run.
STEPS: Mapping[str, Callable[[Database, Path], Figures]] = {"report": _report, "plain": _plainly, "loop": _loop}

"""Book what a worker that fell silent may have used and nobody can know: an estimate, nobody's, said to be one.

The estimate is the worker's mean power over its last hour, times the time from the end of what it last reported to the
end of its heartbeat, or to the start of the worker that took its devices over. If it comes back (it was frozen, or cut
off) its own meters cover that time, because they are counters: the gap is then taken back by a revision with reason
``corrected``, outcome ``returned`` and energy 0.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

from carbonq import ledger, shares
from carbonq.booking import Booking, EngineBatch, Fact
from carbonq.clock import GridClock
from carbonq.meters.protocol import WEIGHTS_LEARNED, MeteredPart, MeterInfo, MeterKind
from carbonq.model import EntryKind, EntryReason, Quality, WorkClass
from carbonq.ratebook import RateBook, Row
from carbonq.services.settle import LOCK
from carbonq.store import gaps, regions
from carbonq.store import ledger as ledger_rows
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now, serialise
from carbonq.store.gaps import Silence
from carbonq.units import WINDOW, iso, window_of

logger = logging.getLogger(__name__)

#: Silences older than this are left alone: those of before an upgrade.
BACK = timedelta(days=1)

#: Machine time over which the mean power is taken.
POWER_OVER = timedelta(hours=1)

#: What is stated of an estimate: the host may have died at once, or have gone on.
UNCERTAINTY_PCT = 100.0

SILENT, RETURNED = "silent", "returned"

_UJ = ("gpu_uj", "cpu_uj", "dram_uj")


def book_gaps(
    db: Database,
    clock: GridClock,
    *,
    rates: Callable[[], RateBook],
    silent_s: float,
    alive_s: float,
    recorded_by: str,
) -> int:
    """Book each silence once and return how many; take back those whose worker is there again.

    A worker is taken for silent after ``silent_s`` machine seconds; its heartbeat counts for ``alive_s``. Raises
    StoreUnavailable.
    """
    with db.write() as tx:
        serialise(tx, "gaps")
        take_back(tx, recorded_by)
        found = gaps.silent(tx, silent_s=silent_s, back=BACK)
        for silence in found:
            batch_id = gap_id(silence)
            booking = _booking(tx, clock, silence, batch_id, rates(), alive_s, recorded_by)
            gaps.note(tx, silence, batch_id)
            if booking is not None:
                ledger_rows.insert_booking(tx, booking)
                logger.warning("worker %s fell silent; its energy since is booked as a gap", silence.worker_id)
    return len(found)


def gap_id(silence: Silence) -> str:
    """Return the engine batch's id of a silence: the same one for whoever books it."""
    return f"eb_gap{hashlib.sha256(f'{silence.worker_id} {iso(silence.since)}'.encode()).hexdigest()[:24]}"


def _booking(  # noqa: PLR0917 - one call
    tx: Tx, clock: GridClock, silence: Silence, batch_id: str, rates: RateBook, alive_s: float, recorded_by: str
) -> Booking | None:
    region = regions.find(tx, silence.region)
    heard = clock.at(silence.since)
    rows = gaps.last_rows(tx, silence.worker_id, since=window_of(clock.at(silence.since - POWER_OVER)))
    start_at = max((row["ended_at"] for row in rows), default=heard)
    ended = silence.since + timedelta(seconds=alive_s)
    successor_at = gaps.successor_at(tx, silence)
    # From then on the successor's meters count what the devices use.
    end_at = clock.at(ended if successor_at is None else min(ended, successor_at))
    if region is None or start_at >= end_at:
        return None
    batch = EngineBatch(
        engine_batch_id=batch_id,
        worker_id=silence.worker_id,
        work_class=WorkClass.FLEXIBLE,
        fact=Fact.of(region),
        info=_info(rows),
        parts=_parts(rows, start_at, end_at, clock.factor),
        items=(),
        model=None,
        engine=None,
        engine_version=None,
        software_version=silence.software_version,
        clock=clock.kind,
    )
    return ledger.book_overhead(
        batch, rates, EntryKind.GAP, outcome=SILENT, recorded_at=machine_now(tx), recorded_by=recorded_by
    )


def _info(rows: Sequence[Row]) -> MeterInfo:
    """Say what the power was metered with; nothing where nothing was ever booked."""
    last = rows[-1] if rows else None
    gpu, cpu, dram = (
        next(
            (MeterKind(row[name.replace("_uj", "_meter")]) for row in reversed(rows) if row[name] is not None),
            MeterKind.NONE,
        )
        for name in _UJ
    )
    shown = [] if last is None else last["device_ids"]
    devices = tuple(one for one in shown if not one.startswith(WEIGHTS_LEARNED))
    return MeterInfo(gpu, cpu, dram, Quality.ESTIMATED, UNCERTAINTY_PCT, devices)


def _parts(rows: Sequence[Row], start_at: datetime, end_at: datetime, factor: float) -> list[MeteredPart]:
    """Cut ``[start_at, end_at)`` at window edges and divide the estimate among the pieces by their time."""
    edges = [start_at]
    while (edge := window_of(edges[-1]) + WINDOW) < end_at:
        edges.append(edge)
    edges.append(end_at)
    lengths = [_us(after - before) for before, after in pairwise(edges)]
    split = [
        [None] * len(lengths) if total is None else shares.apportion(total, lengths)
        for total in (_estimate(rows, name, sum(lengths)) for name in _UJ)
    ]
    return [
        MeteredPart(
            window_of(edges[number]),
            edges[number],
            edges[number + 1],
            length / factor / 1e6,
            *(uj[number] for uj in split),
        )
        for number, length in enumerate(lengths)
    ]


def _estimate(rows: Sequence[Row], name: str, length_us: int) -> int | None:
    """Return mean power x time in whole uJ; None where the component was never metered. Grid time on both sides."""
    known = [row[name] for row in rows if row[name] is not None]
    if not known:
        return None
    covered_us = _us(rows[-1]["ended_at"] - min(row["started_at"] for row in rows))
    return sum(known) * length_us // covered_us if covered_us else None


def _us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def take_back(tx: Tx, recorded_by: str) -> int:
    """Append a revision without energy to each gap whose worker is there again; return how many entries."""
    batch_ids = gaps.returned(tx)
    if not batch_ids:
        return 0
    serialise(tx, LOCK)
    now = machine_now(tx)
    revisions = [_taken_back(row, now, recorded_by) for row in gaps.current_entries(tx, batch_ids)]
    ledger_rows.append_revisions(tx, [], revisions)
    return len(revisions)


def _taken_back(row: Row, now: datetime, recorded_by: str) -> Row:
    zeros = {name: None if row[name] is None else 0 for name in (*_UJ, "energy_uj")}
    grams = {
        name: None if row[name] is None else Decimal("0.000000000000000")
        for name in ("emission_g", "inventory_g", "embodied_g")
    }
    return (
        row
        | zeros
        | grams
        | {
            "revision": row["revision"] + 1,
            "supersedes": f"{row['entry_id']}#{row['revision']}",
            "reason": EntryReason.CORRECTED.value,
            "outcome": RETURNED,
            "restatement_id": None,
            "recorded_at": max(now, row["recorded_at"]),
            "recorded_by": recorded_by,
        }
    )

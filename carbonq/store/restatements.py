"""Restatements as recorded, and what they look for: stale rates, the parts that use them, what sources corrected."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, func, insert, or_, select, tuple_

from carbonq.model import Rate, Signal
from carbonq.ratebook import digest
from carbonq.store import ledger
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_new, is_any_of
from carbonq.store.tables import corrections, engine_batches, entries, rates, restatements
from carbonq.store.unsettled import Part
from carbonq.units import MAX_STEP_S

#: (signal, zone, source, window) of an observation.
Observed = tuple[Signal, str, str, datetime]


@dataclass(frozen=True, slots=True)
class Restatement:
    """Who restated, when (machine time), why, and rates of which windows ``[start_at, end_at)``; None means all."""

    restatement_id: str
    recorded_at: datetime
    recorded_by: str
    reason: str
    is_automatic: bool
    signal: Signal | None
    zone: str | None
    start_at: datetime
    end_at: datetime


def make(
    *,
    recorded_at: datetime,
    recorded_by: str,
    reason: str,
    is_automatic: bool,
    signal: Signal | None,
    zone: str | None,
    start_at: datetime,
    end_at: datetime,
) -> Restatement:
    """Return a restatement whose id is the digest of all else: the sealed revisions that name it vouch for it."""
    values = (recorded_at, recorded_by, reason, is_automatic, signal and signal.value, zone, start_at, end_at)
    own = digest("rst", (one.astimezone(UTC) if isinstance(one, datetime) else one for one in values))
    return Restatement(own, recorded_at, recorded_by, reason, is_automatic, signal, zone, start_at, end_at)


def record(tx: Tx, made: Restatement) -> None:
    """Record a restatement with the first revisions that are its; one that is recorded already stays."""
    row: dict[str, Any] = {name: getattr(made, name) for name in Restatement.__dataclass_fields__}
    row["signal"] = None if made.signal is None else made.signal.value
    known = select(restatements.c.restatement_id).where(restatements.c.restatement_id == made.restatement_id)
    if tx.execute(known).first() is None:
        tx.execute(insert(restatements).values(row))


def find(tx: Tx, wanted: Collection[str]) -> dict[str, Restatement]:
    """Return recorded restatements by id."""
    rows = tx.execute(select(restatements).where(is_any_of(tx, restatements.c.restatement_id, sorted(set(wanted)))))
    return {row["restatement_id"]: _restatement(row) for row in rows.mappings()}


def newest(tx: Tx, *, limit: int) -> list[tuple[Restatement, int]]:
    """Return the newest restatements, each with how many revisions it made."""
    statement = select(restatements).order_by(restatements.c.recorded_at.desc(), restatements.c.restatement_id)
    found = [_restatement(row) for row in tx.execute(statement.limit(limit)).mappings()]
    ids = [one.restatement_id for one in found]
    count = select(entries.c.restatement_id, func.count()).where(entries.c.restatement_id.in_(ids))
    made = {row[0]: row[1] for row in tx.execute(count.group_by(entries.c.restatement_id))}
    return [(one, made.get(one.restatement_id, 0)) for one in found]


def _restatement(row: Any) -> Restatement:
    values: dict[str, Any] = dict(row)
    values["signal"] = None if row["signal"] is None else Signal(row["signal"])
    return Restatement(**values)


def used_rates(tx: Tx, *, signal: Signal | None, zone: str | None, start_at: datetime, end_at: datetime) -> list[Rate]:
    """Return the rates that entries refer to or did, whose step reaches into a span."""
    terms = [rates.c.window_at > start_at - timedelta(seconds=MAX_STEP_S), rates.c.window_at < end_at]
    if signal is not None:
        terms.append(rates.c.signal == signal.value)
    if zone is not None:
        terms.append(rates.c.zone == zone)
    ids = tx.execute(select(rates.c.rate_id).where(*terms)).scalars().all()
    found = ledger.rates_of(tx, ids).values()
    return [rate for rate in found if rate.window_at + timedelta(seconds=rate.step_s) > start_at]


def parts_between(
    tx: Tx, start_at: datetime, end_at: datetime, *, after: tuple[datetime, str, int] | None, limit: int
) -> list[tuple[datetime, str, int, int]]:
    """Return parts of windows of a span as (window, engine batch, part, entries), in order, after one of them."""
    at, batch, part = (engine_batches.c[name] for name in ("window_at", "engine_batch_id", "part"))
    terms = [at >= start_at, at < end_at]
    if after is not None:
        beyond = or_(
            at > after[0], and_(at == after[0], or_(batch > after[1], and_(batch == after[1], part > after[2])))
        )
        terms += [at >= after[0], beyond]
    statement = select(at, batch, part, engine_batches.c["items"]).where(*terms).order_by(at, batch, part)
    return [(row[0], row[1], row[2], row[3]) for row in tx.execute(statement.limit(limit))]


def parts_with_baselines(tx: Tx, rate_ids: Sequence[str], *, after: Part | None, limit: int) -> list[Part]:
    """Return parts any of whose entries had one of these rates as its baseline's, in order, after one of them."""
    batch, part = entries.c.engine_batch_id, entries.c.part
    terms = [is_any_of(tx, entries.c.baseline_rate_id, rate_ids)]
    if after is not None:
        terms.append(or_(batch > after[0], and_(batch == after[0], part > after[1])))
    statement = select(batch, part).where(*terms).distinct().order_by(batch, part).limit(limit)
    return [(row[0], row[1]) for row in tx.execute(statement)]


def note_corrections(tx: Tx, corrected: Collection[Observed]) -> None:
    """Put observations that were said anew on the work list."""
    rows = [
        {"signal": signal.value, "zone": zone, "source": source, "window_at": at}
        for signal, zone, source, at in sorted(set(corrected))
    ]
    insert_new(tx, corrections, rows)


def corrected(tx: Tx, *, before: datetime, limit: int) -> list[Observed]:
    """Return what is on the work list of windows before a time, the oldest first."""
    statement = select(corrections).where(corrections.c.window_at < before).order_by(corrections.c.window_at)
    return [(Signal(row.signal), row.zone, row.source, row.window_at) for row in tx.execute(statement.limit(limit))]


def forget_corrections(tx: Tx, done: Collection[Observed]) -> None:
    """Take observations off the work list."""
    key = (corrections.c.signal, corrections.c.zone, corrections.c.source, corrections.c.window_at)
    wanted = [(signal.value, zone, source, at) for signal, zone, source, at in done]
    for start in range(0, len(wanted), 1_000):
        tx.execute(delete(corrections).where(tuple_(*key).in_(wanted[start : start + 1_000])))

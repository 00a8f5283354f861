"""The work list of settlement: which rates the entries of each part still wait for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Integer, Text, and_, delete, or_, select, tuple_

from carbonq.model import Signal
from carbonq.store import compute
from carbonq.store.database import Tx
from carbonq.store.dialect import UtcDateTime, is_any_of
from carbonq.store.tables import engine_batches, unsettled

#: (signal, zone, window) of a rate.
Key = tuple[Signal, str, datetime]

#: (engine batch, part).
Part = tuple[str, int]

#: Parts of engine batches taken at once; realtime ones hold one entry each.
MAX_PARTS = 5_000


@dataclass(frozen=True, slots=True)
class Awaited:
    """One rate that a part waits for."""

    part: Part
    key: Key


def pairs(tx: Tx) -> list[tuple[Signal, str]]:
    """Return the (signal, zone) pairs that entries wait for, by hopping through the index."""
    found: list[tuple[Signal, str]] = []
    key = (unsettled.c.signal, unsettled.c.zone)
    after: tuple[str, str] = ("", "")
    while True:
        # Written out: SQLite does not use the index for a comparison of rows.
        beyond = or_(key[0] > after[0], and_(key[0] == after[0], key[1] > after[1]))
        row = tx.execute(select(*key).where(beyond).order_by(*key).limit(1)).one_or_none()
        if row is None:
            return found
        after = (row.signal, row.zone)
        found.append((Signal(row.signal), row.zone))


def windows(
    tx: Tx, signal: Signal, zone: str, *, after: datetime | None, before: datetime, limit: int
) -> list[datetime]:
    """Return windows between two times for which entries wait for a rate, oldest first."""
    at = unsettled.c.window_at
    terms = [unsettled.c.signal == signal.value, unsettled.c.zone == zone, at < before]
    if after is not None:
        terms.append(at > after)
    return list(tx.execute(select(at).where(*terms).distinct().order_by(at).limit(limit)).scalars())


def parts(tx: Tx, signal: Signal, zone: str, wanted: Sequence[datetime], *, max_entries: int) -> list[Part]:
    """Return parts that wait for any of these windows: one, or more up to ``max_entries`` entries."""
    terms = (unsettled.c.signal == signal.value, unsettled.c.zone == zone, unsettled.c.window_at.in_(wanted))
    is_same = and_(
        engine_batches.c.engine_batch_id == unsettled.c.engine_batch_id, engine_batches.c.part == unsettled.c.part
    )
    rows = tx.execute(
        select(engine_batches.c.engine_batch_id, engine_batches.c.part, engine_batches.c["items"].label("count_"))
        .select_from(unsettled.join(engine_batches, is_same))
        .where(*terms)
        .limit(min(MAX_PARTS, max_entries))
    )
    found: dict[Part, int] = {}
    count = 0
    for engine_batch_id, part, entries in rows:
        if (engine_batch_id, part) in found:
            continue
        if found and count + entries > max_entries:
            break
        found[engine_batch_id, part] = entries
        count += entries
    return list(found)


def of_parts(tx: Tx, wanted: Collection[Part]) -> list[Awaited]:
    """Return all that some parts wait for."""
    chosen = set(wanted)
    ids = sorted({engine_batch_id for engine_batch_id, _ in chosen})
    columns = (unsettled.c.signal, unsettled.c.zone, unsettled.c.window_at, unsettled.c.engine_batch_id)
    statement = select(*columns, unsettled.c.part).where(is_any_of(tx, unsettled.c.engine_batch_id, ids))
    signals = {signal.value: signal for signal in Signal}
    return [
        Awaited((engine_batch_id, part), (signals[signal], zone, at))
        for signal, zone, at, engine_batch_id, part in tx.execute(statement)
        if (engine_batch_id, part) in chosen
    ]


def forget(tx: Tx, done: Sequence[Awaited]) -> None:
    """Take rates off the work list."""
    if not done:
        return
    rows = compute.given(
        tx,
        "done",
        {
            "signal": (Text(), [one.key[0].value for one in done]),
            "zone": (Text(), [one.key[1] for one in done]),
            "window_at": (UtcDateTime(), [one.key[2] for one in done]),
            "engine_batch_id": (Text(), [one.part[0] for one in done]),
            "part": (Integer(), [one.part[1] for one in done]),
        },
    )
    key = [unsettled.c[name] for name in ("signal", "zone", "window_at", "engine_batch_id", "part")]
    same = select(*(rows.c[column.name] for column in key))
    tx.execute(delete(unsettled).where(tuple_(*key).in_(same)))

"""The work list of settlement: which rates the entries of each part still wait for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, FromClause, Integer, Text, and_, delete, or_, select, tuple_

from carbonq.model import Signal
from carbonq.store import compute
from carbonq.store.database import Tx
from carbonq.store.dialect import UtcDateTime
from carbonq.store.tables import engine_batches, unsettled

#: (signal, zone, window) of a rate.
Key = tuple[Signal, str, datetime]

#: (engine batch, part).
Part = tuple[str, int]

#: Parts of engine batches taken at once; realtime ones hold one entry each.
MAX_PARTS = 5_000


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


def parts(
    tx: Tx,
    signal: Signal,
    zone: str,
    wanted: Sequence[datetime],
    *,
    max_entries: int,
    without: Collection[Part] = (),
) -> list[Part]:
    """Return parts that wait for any of these windows, but some: one, or more up to ``max_entries`` entries."""
    terms = (unsettled.c.signal == signal.value, unsettled.c.zone == zone, unsettled.c.window_at.in_(wanted))
    is_same = and_(
        engine_batches.c.engine_batch_id == unsettled.c.engine_batch_id, engine_batches.c.part == unsettled.c.part
    )
    rows = tx.execute(
        select(engine_batches.c.engine_batch_id, engine_batches.c.part, engine_batches.c["items"].label("count_"))
        .select_from(unsettled.join(engine_batches, is_same))
        .where(*terms)
        .limit(min(MAX_PARTS, max_entries) + len(without))
    )
    found: dict[Part, int] = {}
    count = 0
    for engine_batch_id, part, entries in rows:
        if (engine_batch_id, part) in found or (engine_batch_id, part) in without:
            continue
        if found and count + entries > max_entries:
            break
        found[engine_batch_id, part] = entries
        count += entries
    return list(found)


def keys(tx: Tx, of: Collection[Part]) -> set[Key]:
    """Return all that some parts wait for, taken together."""
    rows = _given_parts(tx, of)
    columns = (unsettled.c.signal, unsettled.c.zone, unsettled.c.window_at)
    statement = select(*columns).distinct().select_from(rows.join(unsettled, _is_of(rows)))
    return {(Signal(row.signal), row.zone, row.window_at) for row in tx.execute(statement)}


def by_part(tx: Tx, of: Collection[Part]) -> dict[Part, set[Key]]:
    """Return what each of some parts waits for."""
    rows = _given_parts(tx, of)
    found: dict[Part, set[Key]] = {part: set() for part in of}
    for row in tx.execute(select(unsettled).select_from(rows.join(unsettled, _is_of(rows)))):
        found[row.engine_batch_id, row.part].add((Signal(row.signal), row.zone, row.window_at))
    return found


def forget(tx: Tx, of: Collection[Part], done: Collection[Key]) -> int:
    """Take rates off the work list of some parts; return how many rows that were."""
    if not of or not done:
        return 0
    rates = compute.given(
        tx,
        "done",
        {
            "signal": (Text(), [signal.value for signal, _, _ in done]),
            "zone": (Text(), [zone for _, zone, _ in done]),
            "window_at": (UtcDateTime(), [at for _, _, at in done]),
        },
    )
    parts_ = _given_parts(tx, of)
    key = (unsettled.c.signal, unsettled.c.zone, unsettled.c.window_at)
    part = (unsettled.c.engine_batch_id, unsettled.c.part)
    statement = delete(unsettled).where(
        tuple_(*part).in_(select(parts_.c.engine_batch_id, parts_.c.part)),
        tuple_(*key).in_(select(rates.c.signal, rates.c.zone, rates.c.window_at)),
    )
    return compute.changed(tx, statement)


def _given_parts(tx: Tx, of: Collection[Part]) -> FromClause:
    columns = {
        "engine_batch_id": (Text(), [engine_batch_id for engine_batch_id, _ in of]),
        "part": (Integer(), [part for _, part in of]),
    }
    return compute.given(tx, "chosen", columns)


def _is_of(rows: FromClause) -> ColumnElement[bool]:
    return and_(unsettled.c.engine_batch_id == rows.c.engine_batch_id, unsettled.c.part == rows.c.part)

"""Rows of ``seals``, ``seal_parts`` and ``unsealed``: the chain, its leaves, and what waits for a seal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, delete, insert, or_, select

from carbonq.merkle import Seal
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_columns, is_any_of, machine_now, stored_text
from carbonq.store.leaves import Line, PartKey, Span, within
from carbonq.store.tables import engine_batches, entries, seal_parts, seals, unsealed


class Sealed(NamedTuple):
    """One row of ``seal_parts``: ``hashes`` begins with the engine batch's own, then one for each line."""

    seal: int
    number: int
    engine_batch_id: str
    part: int
    lines: str
    hashes: bytes


class Waiting(NamedTuple):
    """One row of the work list."""

    unsealed_id: int
    engine_batch_id: str
    part: int
    revision: int


def newest(tx: Tx) -> tuple[Seal, list[bytes]] | None:
    """Return the newest seal and the peaks of the tree over all seals; None before the first."""
    row = tx.execute(select(seals).order_by(seals.c.seal.desc()).limit(1)).mappings().one_or_none()
    return None if row is None else (_seal(row), [bytes.fromhex(one) for one in row["peaks"]])


def get(tx: Tx, *, seal: int | None = None, hashed: str | None = None) -> Seal | None:
    """Return one seal by its number or hash."""
    term = seals.c.hash == hashed if seal is None else seals.c.seal == seal
    row = tx.execute(select(seals).where(term)).mappings().one_or_none()
    return None if row is None else _seal(row)


def hashes(tx: Tx, *, below: int) -> list[bytes]:
    """Return the hashes of all seals with a number below ``below``, oldest first."""
    found = select(seals.c.hash).where(seals.c.seal < below).order_by(seals.c.seal)
    return [bytes.fromhex(one) for one in tx.execute(found).scalars()]


def _seal(row: Any) -> Seal:
    return Seal(**{name: row[name] for name in Seal.__dataclass_fields__})


def waiting(tx: Tx, *, limit: int) -> list[Waiting]:
    """Return the oldest rows of the work list."""
    found = select(*(unsealed.c[name] for name in Waiting._fields)).order_by(unsealed.c.unsealed_id).limit(limit)
    return [Waiting(*row) for row in tx.execute(found)]


def sizes(tx: Tx, ids: Sequence[str]) -> dict[PartKey, int]:
    """Return how many items each part of some engine batches has."""
    columns = (engine_batches.c.engine_batch_id, engine_batches.c.part, engine_batches.c["items"])
    found = select(*columns).where(is_any_of(tx, engine_batches.c.engine_batch_id, ids))
    return {(batch, part): items for batch, part, items in tx.execute(found)}


class Ages(NamedTuple):
    """Machine seconds since the newest seal (None: there is none) and the oldest waiting line's record (0: none)."""

    newest_s: float | None
    waiting_s: float


def ages(tx: Tx) -> Ages:
    """Return how old the newest seal is and how long the oldest line has waited for one."""
    sealed_at = tx.execute(select(seals.c.sealed_at).order_by(seals.c.seal.desc()).limit(1)).scalar_one_or_none()
    is_same = and_(*(entries.c[name] == unsealed.c[name] for name in ("engine_batch_id", "part", "revision")))
    oldest = select(entries.c.recorded_at).select_from(unsealed.join(entries, is_same)).order_by(unsealed.c.unsealed_id)
    recorded_at = tx.execute(oldest.limit(1)).scalar_one_or_none()
    now = machine_now(tx)
    newest_s, waiting_s = (at and max(0.0, (now - at).total_seconds()) for at in (sealed_at, recorded_at))
    return Ages(newest_s, waiting_s or 0.0)


def forget_waiting(tx: Tx, rows: Iterable[Waiting]) -> int:
    """Take rows off the work list and return how many were there still."""
    gone = [row.unsealed_id for row in rows]
    return tx.execute(delete(unsealed).where(is_any_of(tx, unsealed.c.unsealed_id, gone))).rowcount


def add(tx: Tx, seal: Seal, peaks: Sequence[bytes], parts: Sequence[Sealed]) -> None:
    """Store a seal with its leaves. Raises IntegrityError when another one has its number."""
    values = {name: getattr(seal, name) for name in Seal.__dataclass_fields__}
    extra = {"hash": seal.hashed().hex(), "peaks": [one.hex() for one in peaks]}
    tx.execute(insert(seals).values(values | extra))
    insert_columns(
        tx,
        seal_parts,
        {name: list(column) for name, column in zip(Sealed._fields, zip(*parts, strict=True), strict=True)},
    )


def lines_text(lines: Iterable[Line]) -> str:
    """Write which lines a seal holds, e.g. ``1:0-63`` or ``2:0-4,7``; lines must be in order."""
    runs: list[list[int]] = []
    for revision, position in lines:
        if runs and runs[-1][0] == revision and runs[-1][2] == position - 1:
            runs[-1][2] = position
        else:
            runs.append([revision, position, position])
    return ",".join(f"{revision}:{first}-{last}" for revision, first, last in runs)


def read_lines(text: str) -> list[Line]:
    """Read what ``lines_text`` wrote. Raises ValueError when it is not that."""
    found: list[Line] = []
    for run in text.split(","):
        revision, _, span = run.partition(":")
        first, _, last = span.partition("-")
        found += [(int(revision), position) for position in range(int(first), int(last) + 1)]
    if lines_text(found) != text or found != sorted(set(found)):
        raise ValueError(f"{text!r} names no lines")
    return found


def sealed(tx: Tx, where: Span | Sequence[str]) -> dict[PartKey, list[Sealed]]:
    """Return what seals hold of some engine batches, oldest first."""
    names = [seal_parts.c[name] for name in Sealed._fields]
    found: dict[PartKey, list[Sealed]] = {}
    for row in tx.execute(select(*names).where(within(tx, seal_parts, where)).order_by(*names[:2])):
        one = _read(row)
        found.setdefault((one.engine_batch_id, one.part), []).append(one)
    return found


def next_span(tx: Tx, after: str, *, entries_at_once: int) -> Span:
    """Return a range of engine batches that begins after one and holds about so many entries, or all that are left."""
    column = entries.c.engine_batch_id
    found = select(column).where(column > after).order_by(column).offset(entries_at_once).limit(1)
    return Span(after, tx.execute(found).scalar_one_or_none())


def waiting_in(tx: Tx, where: Span) -> set[tuple[str, int, int]]:
    """Return the (engine batch, part, revision) in a range that wait for a seal."""
    names = (unsealed.c.engine_batch_id, unsealed.c.part, unsealed.c.revision)
    return {
        (batch, part, revision)
        for batch, part, revision in tx.execute(select(*names).where(within(tx, unsealed, where)))
    }


def rows(tx: Tx, *, after: int, limit: int) -> list[dict[str, Any]]:
    """Return rows of ``seals`` after a number, in order, as they are stored: times and lists are text."""
    names = {name: stored_text(tx, column) for name, column in seals.c.items()}
    found = select(*names.values()).where(seals.c.seal > after).order_by(seals.c.seal).limit(limit)
    return [dict(zip(names, row, strict=True)) for row in tx.execute(found)]


def parts_after(tx: Tx, after: tuple[int, int], *, limit: int) -> list[Sealed]:
    """Return rows of ``seal_parts`` after (seal, number), in the order of the leaves."""
    key = (seal_parts.c.seal, seal_parts.c.number)
    # Written out: SQLite does not use the index for a comparison of rows.
    beyond = or_(key[0] > after[0], and_(key[0] == after[0], key[1] > after[1]))
    found = select(*(seal_parts.c[name] for name in Sealed._fields)).where(beyond).order_by(*key).limit(limit)
    return [_read(row) for row in tx.execute(found)]


def _read(row: Sequence[Any]) -> Sealed:
    hashes: Any = row[-1]
    one = Sealed(*row)
    return one if isinstance(hashes, bytes) else one._replace(hashes=repr(hashes).encode())

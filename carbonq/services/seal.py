"""Seal the ledger: give what is not sealed yet a Merkle root, chained to the seal before.

Idempotent and restartable: a seal, its leaves and the end of their waiting are one transaction. What is to be sealed is
known by a work list that the database itself keeps (``unsealed``) and never by time, so that an entry whose transaction
commits late is sealed as soon as it is there, however old its ``recorded_at``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from carbonq import __version__, merkle
from carbonq.merkle import Range, Seal
from carbonq.store import leaves, seals
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import hold_still, machine_now, serialise, unreadable_shown
from carbonq.store.leaves import Line, PartKey
from carbonq.store.seals import Sealed, Waiting

logger = logging.getLogger(__name__)

#: Entry revisions under one seal, about: its leaves are written in one transaction.
ENTRIES = 50_000

#: Entries read in one query, about.
_PAGE = 2_000


@dataclass(frozen=True, slots=True)
class _Draft:
    """What would be sealed next, on top of ``before``."""

    before: Seal | None
    peaks: Sequence[bytes]
    rows: Sequence[Waiting]
    parts: Sequence[Sealed]


def seal(db: Database, *, entries_at_once: int = ENTRIES) -> list[Seal]:
    """Seal all that waits and return the seals made, oldest first; none where nothing waits.

    Safe in several processes at once: of two that read the same, one finds it sealed and goes on with what is left.
    Raises StoreUnavailable.
    """
    made: list[Seal] = []
    while True:
        with db.read() as tx:
            hold_still(tx)
            draft = _draft(tx, entries_at_once)
        if not draft.rows:
            return made
        with db.write() as tx:
            serialise(tx, "seal")
            one = _store(tx, draft)
        if one is not None:
            made.append(one)


def _draft(tx: Tx, entries_at_once: int) -> _Draft:
    found = seals.newest(tx)
    before, peaks = (None, []) if found is None else found
    number = 1 if before is None else before.seal + 1
    rows = seals.waiting(tx, limit=entries_at_once)
    sizes = seals.sizes(tx, sorted({row.engine_batch_id for row in rows}))
    rows = _cut(rows, sizes, entries_at_once)
    parts: list[Sealed] = []
    with unreadable_shown(tx):
        for wanted in _pages(rows, sizes):
            ids = sorted({batch for batch, _ in wanted})
            stored = leaves.stored(tx, ids, revisions=sorted(set[int]().union(*wanted.values())))
            done = seals.sealed(tx, ids)
            for key, revisions in sorted(wanted.items()):
                part = stored.get(key, leaves.StoredPart())
                one = _part(key, part, revisions, done.get(key, ()), (number, len(parts)))
                parts += [one] if one is not None else []
    return _Draft(before, peaks, rows, parts)


def _cut(rows: Sequence[Waiting], sizes: Mapping[PartKey, int], entries_at_once: int) -> list[Waiting]:
    """Return as many of the oldest rows as name about so many entries, but at least one."""
    total = 0
    for count, row in enumerate(rows):
        total += sizes.get((row.engine_batch_id, row.part), 1)
        if count and total > entries_at_once:
            return list(rows[:count])
    return list(rows)


def _pages(rows: Sequence[Waiting], sizes: Mapping[PartKey, int]) -> Iterator[dict[PartKey, set[int]]]:
    """Give the parts that are named, with the revisions, some thousand entries at once."""
    wanted: dict[PartKey, set[int]] = {}
    total = 0
    for row in sorted(rows, key=lambda row: (row.engine_batch_id, row.part)):
        key = (row.engine_batch_id, row.part)
        if key not in wanted and total > _PAGE:
            yield wanted
            wanted, total = {}, 0
        wanted.setdefault(key, set()).add(row.revision)
        total += sizes.get(key, 1)
    if wanted:
        yield wanted


def _part(
    key: PartKey, part: leaves.StoredPart, revisions: set[int], before: Sequence[Sealed], place: tuple[int, int]
) -> Sealed | None:
    """Return the leaves of one part that are in no seal yet; None where there are none."""
    done = {line for one in before for line in seals.read_lines(one.lines)}
    new: dict[Line, bytes] = {}
    for entry in part.entries:
        if entry.line is None or part.hashed is None:
            # Nothing of ours writes such a row; `ledger verify --db` names it.
            logger.error("%s is not sealed: its engine batch is not stored, or not the one its id names", entry.key)
        elif entry.line[0] in revisions and entry.line not in done:
            new[entry.line] = entry.hashed
    if not new or part.hashed is None:
        return None
    lines = sorted(new)
    hashes = part.hashed + b"".join(new[line] for line in lines)
    return Sealed(*place, *key, seals.lines_text(lines), hashes)


def _store(tx: Tx, draft: _Draft) -> Seal | None:
    """Store a draft unless another process sealed in between; None too where all of it was sealed before."""
    now = seals.newest(tx)
    if (None if now is None else now[0]) != draft.before:
        return None
    made = None
    if draft.parts:
        made, peaks = _make(draft, machine_now(tx))
        seals.add(tx, made, peaks, draft.parts)
    seals.forget_waiting(tx, draft.rows)
    return made


def _make(draft: _Draft, at: datetime) -> tuple[Seal, list[bytes]]:
    tree = Range()
    for part in draft.parts:
        tree.extend(part.hashes)
    before = draft.before
    history = Range(draft.peaks, 0 if before is None else before.seal)
    made = Seal(
        seal=history.count + 1,
        sealed_at=at,
        software_version=__version__,
        leaves=tree.count,
        entries=tree.count - len(draft.parts),
        root=tree.root().hex(),
        previous=(merkle.EMPTY if before is None else before.hashed()).hex(),
        history=history.root().hex(),
    )
    history.add(made.hashed())
    return made, history.peaks

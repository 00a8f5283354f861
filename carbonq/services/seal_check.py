"""Check the ledger against its seals: name every line that is not what was sealed, and every broken link of the chain.

Two passes, each in constant memory: the chain with the leaves' hashes as the seals hold them, and then every engine
batch with its entries, whose hashes are made anew and held against those. Changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from carbonq import merkle
from carbonq.errors import InvalidRequest
from carbonq.merkle import Range
from carbonq.store import leaves, seals
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import hold_still, unreadable_shown
from carbonq.store.leaves import Line, PartKey, StoredPart
from carbonq.store.seals import Sealed

#: Entries, seals and rows of leaves read in one query, about.
_ENTRIES, _SEALS, _PARTS = 2_000, 500, 200

#: Ids of rates and facts remembered as right, so that each is read once and not for every entry.
_REMEMBERED = 50_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was sealed: which row of which table, and what is wrong with it.

    ``key`` is ``ENTRY_ID#REVISION`` for entries, ``ENGINE_BATCH_ID.PART`` for engine batches, else the row's own id.
    """

    table: str
    key: str
    what: str

    def sentence(self) -> str:
        """Return it as a line of text."""
        return f"{self.table} {self.key}: {self.what}"


@dataclass(slots=True)
class Seen:
    """What a check went through; ``head`` is the newest seal's hash, ``filed`` the number of the seal asked for."""

    seals: int = 0
    sealed: int = 0
    unsealed: int = 0
    head: str | None = None
    filed: int | None = None
    findings: int = field(default=0)


def check(db: Database, seen: Seen, *, head: str | None = None) -> Iterator[Finding]:
    """Give what is wrong as it is found, counting into ``seen``; nothing where all is as it was sealed.

    ``head`` is a seal's hash that was filed elsewhere: it must be in the chain. Raises StoreUnavailable.
    """
    for finding in _chain(db, seen, head):
        seen.findings += 1
        yield finding
    for finding in _lines(db, seen):
        seen.findings += 1
        yield finding


# --- the chain --------------------------------------------------------------------------------------------------------


def _chain(db: Database, seen: Seen, head: str | None) -> Iterator[Finding]:
    history = Range()
    previous = merkle.EMPTY.hex()
    expected = 1
    parts = _Leaves(db)
    for row in _seal_rows(db):
        number = row["seal"]
        if number != expected:
            yield Finding("seals", str(expected), f"is not there; seal {number} follows seal {expected - 1}")
        yield from parts.orphans(below=number)
        for what in (*_link(row, history, previous), *parts.compare(row)):
            yield Finding("seals", str(number), what)
        previous = str(row["hash"])
        history.add(_bytes(previous))
        if _list(row["peaks"]) != [one.hex() for one in history.peaks]:
            yield Finding("seals", str(number), "its peaks are not those of the tree over the seals so far")
        expected = number + 1
        seen.seals += 1
        seen.head = previous
        if previous == head:
            seen.filed = number
    yield from parts.orphans(below=None)
    if head is not None and seen.filed is None:
        yield Finding("seals", head, "no seal has this hash: the ledger is not the one whose head was filed")


def _link(row: Mapping[str, Any], history: Range, previous: str) -> list[str]:
    """Return what is wrong with a seal by itself and with its link to the seals before."""
    found: list[str] = []
    if row["previous"] != previous:
        found.append("its previous is not the hash of the seal before")
    if row["history"] != history.root().hex():
        found.append("its history is not the root over the seals before")
    names = ("entries", "history", "leaves", "previous", "root", "seal", "sealed_at", "software_version")
    header = merkle.content("seal", {name: row[name] for name in names})
    if merkle.seal_hash(header).hex() != row["hash"]:
        found.append("its columns do not give its hash")
    return found


def _seal_rows(db: Database) -> Iterator[dict[str, Any]]:
    after = 0
    while True:
        with db.read() as tx, unreadable_shown(tx):
            rows = seals.rows(tx, after=after, limit=_SEALS)
        yield from rows
        if len(rows) < _SEALS:
            return
        after = rows[-1]["seal"]


class _Leaves:
    """The leaves that seals hold, walked through once beside the seals."""

    def __init__(self, db: Database) -> None:
        self._groups = groupby(_part_rows(db), key=lambda part: part.seal)
        self._next: tuple[int, Iterator[Sealed]] | None = next(self._groups, None)

    def orphans(self, *, below: int | None) -> Iterator[Finding]:
        """Give the leaves of seals that are not there, up to a seal."""
        while self._next is not None and (below is None or self._next[0] < below):
            yield Finding(
                "seal_parts", str(self._next[0]), f"there are leaves of seal {self._next[0]} and no such seal"
            )
            self._next = next(self._groups, None)

    def compare(self, row: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the leaves of a seal."""
        tree, entries, found = Range(), 0, list[str]()
        if self._next is not None and self._next[0] == row["seal"]:
            for expected, part in enumerate(self._next[1]):
                if part.number != expected:
                    found.append(f"its leaves {expected} are of number {part.number}")
                tree.extend(part.hashes)
                entries += len(part.hashes) // merkle.SIZE - 1
            self._next = next(self._groups, None)
        if (tree.count, entries) != (row["leaves"], row["entries"]):
            found.append(f"it has {tree.count} leaves of {row['leaves']}, {entries} entries of {row['entries']}")
        if tree.root().hex() != row["root"]:
            found.append("its leaves do not give its root")
        return found


def _part_rows(db: Database) -> Iterator[Sealed]:
    after = (0, -1)
    while True:
        with db.read() as tx, unreadable_shown(tx):
            rows = seals.parts_after(tx, after, limit=_PARTS)
        yield from rows
        if len(rows) < _PARTS:
            return
        after = (rows[-1].seal, rows[-1].number)


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return text.encode("utf-8", "surrogateescape")


def _list(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


# --- the lines --------------------------------------------------------------------------------------------------------


def _lines(db: Database, seen: Seen) -> Iterator[Finding]:
    right: set[str] = set()
    after: str | None = ""
    while after is not None:
        with db.read() as tx, unreadable_shown(tx):
            hold_still(tx)
            span = seals.next_span(tx, after, entries_at_once=_ENTRIES)
            stored = leaves.stored(tx, span)
            sealed = seals.sealed(tx, span)
            waiting = seals.waiting_in(tx, span)
            references = list(_references(tx, stored, right))
        for key in sorted({*stored, *sealed}, key=repr):
            yield from _Part(key, stored.get(key), sealed.get(key, ()), waiting).check(seen)
        yield from references
        if len(right) > _REMEMBERED:
            right.clear()
        after = span.last


class _Part:
    """One part of an engine batch: what is stored of it beside what seals hold of it."""

    def __init__(
        self, key: PartKey, part: StoredPart | None, sealed: Sequence[Sealed], waiting: set[tuple[str, int, int]]
    ) -> None:
        self._key = key
        self._part = part or StoredPart()
        self._sealed = sealed
        self._waiting = waiting

    def check(self, seen: Seen) -> Iterator[Finding]:
        entries = self._part.entries
        batch = f"{self._key[0]}.{self._key[1]}"
        if self._part.hashed is None:
            yield Finding("engine_batches", batch, "is not stored" + (", but was sealed" if self._sealed else ""))
        elif not entries and not self._sealed:
            yield Finding("engine_batches", batch, "has no entries and is in no seal")
        stored: dict[Line, tuple[str, bytes]] = {}
        for entry in entries:
            if entry.line is None:
                yield Finding("entries", entry.key, f"does not name its engine batch and part, {batch}")
            else:
                stored[entry.line] = (entry.key, entry.hashed)
        done: dict[Line, int] = {}
        for one in self._sealed:
            yield from self._compare(one, stored, done)
        seen.sealed += len(done)
        yield from self._not_sealed(stored, done, seen)

    def _compare(self, one: Sealed, stored: dict[Line, tuple[str, bytes]], done: dict[Line, int]) -> Iterator[Finding]:
        batch = f"{self._key[0]}.{self._key[1]}"
        where = f"{one.seal}.{one.number}"
        try:
            lines = seals.read_lines(one.lines)
        except (AttributeError, ValueError):
            yield Finding("seal_parts", where, f"its lines {one.lines!r} of {batch} cannot be read")
            return
        hashes = [one.hashes[at : at + merkle.SIZE] for at in range(0, len(one.hashes), merkle.SIZE)]
        if len(hashes) != len(lines) + 1:
            yield Finding("seal_parts", where, f"it has {len(hashes)} hashes for {len(lines)} lines of {batch}")
            return
        if self._part.hashed is not None and hashes[0] != self._part.hashed:
            yield Finding("engine_batches", batch, f"is not what seal {one.seal} holds of it")
        for line, hashed in zip(lines, hashes[1:], strict=True):
            key = f"{batch}.{line[1]}#{line[0]}"
            if line in done:
                yield Finding("entries", key, f"is in seal {done[line]} and again in seal {one.seal}")
            elif line not in stored:
                yield Finding("entries", key, f"is in seal {one.seal} and no longer stored")
            elif stored[line][1] != hashed:
                yield Finding("entries", key, f"is not what seal {one.seal} holds of it")
            elif line[0] == 1 and one is not self._sealed[0]:
                yield Finding(
                    "entries", key, f"came in seal {one.seal}, after its engine batch ({self._sealed[0].seal})"
                )
            done[line] = one.seal

    def _not_sealed(
        self, stored: dict[Line, tuple[str, bytes]], done: dict[Line, int], seen: Seen
    ) -> Iterator[Finding]:
        for line, (key, _) in sorted(stored.items()):
            if line in done:
                continue
            if (*self._key, line[0]) not in self._waiting:
                yield Finding("entries", key, "is in no seal and waits for none")
            elif line[0] == 1 and self._sealed:
                yield Finding("entries", key, f"came after its engine batch was sealed (seal {self._sealed[0].seal})")
            else:
                seen.unsealed += 1


def _references(tx: Tx, stored: Mapping[PartKey, StoredPart], right: set[str]) -> Iterator[Finding]:
    """Give what is referred to and is not there, or whose id is not its digest, each with one who needs it."""
    needed: dict[str, dict[str, str]] = {"rates": {}, "facts": {}, "restatements": {}}

    def need(table: str, own: str | None, who: str) -> None:
        if own is not None and own not in right:
            needed[table].setdefault(own, who)

    for key, part in stored.items():
        need("facts", part.fact_id, f"engine batch {key[0]}.{key[1]}")
        for entry in part.entries:
            who = f"entry {entry.key}"
            for rate_id in entry.rate_ids:
                need("rates", rate_id, who)
            need("facts", entry.fact_id, who)
            need("restatements", entry.restatement_id, who)
    digests = leaves.digests(
        tx, rate_ids=needed["rates"], fact_ids=needed["facts"], restatement_ids=needed["restatements"]
    )
    for table, ids in needed.items():
        for own, who in ids.items():
            right.add(own)
            if own not in digests:
                yield Finding(table, own, f"is not stored; {who} refers to it")
            elif digests[own] != own:
                yield Finding(table, own, f"its columns do not give its id; {who} refers to it")


def check_head(head: str | None) -> None:
    """Raise InvalidRequest for what cannot be the hash of a seal."""
    if head is not None and (len(head) != 64 or set(head) - set("0123456789abcdef")):
        raise InvalidRequest(
            "a head is 64 hexadecimal digits, as `carbonq ledger seal --head` prints them", param="head"
        )

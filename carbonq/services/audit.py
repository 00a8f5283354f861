"""The audit file of a tenant's month: every entry with its revisions, their sums, and the proof that all are sealed.

``python -m carbonq.verify --audit FILE`` checks it with the standard library alone. It is one JSON object, streamed;
the order of its members is fixed, what is in ``pages`` may stand in any order (``docs/audit.md`` describes each one).
Memory is a page of engine batches, the leaves of a seal, and 16 bytes for each run of the tenant's leaves in a seal.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson

from carbonq import __version__, merkle
from carbonq.errors import Conflict, NotFound
from carbonq.merkle import Seal
from carbonq.methods import METHODS
from carbonq.services.audit_sums import Sums
from carbonq.services.history import month_span
from carbonq.services.seal_check import check_head
from carbonq.store import audits, leaves, seals
from carbonq.store.audits import Scope
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import hold_still, machine_now
from carbonq.store.leaves import Line, PartKey, StoredEntry, StoredPart
from carbonq.store.seals import Sealed
from carbonq.units import iso

#: Version of the file's layout.
VERSION = 1

Json = dict[str, Any]

#: What readers must know that the figures do not say; part of the file.
BOUNDARY = (
    "The file holds the tenant's own entries of the month (by window, UTC grid time), all revisions; the newest one of "
    "each counts in the sums. Energy of idle hardware belongs to no tenant and is not in it.",
    "Engine batches that were shared with others are shown in part: the batch's own totals, and the tenant's entries. "
    "Whether a part that is not shown is another's or was withheld cannot be told from the file; hold the items that "
    "you submitted, or entry ids that you kept, against it (--expect).",
    "The impact book (emission_g, marginal rates) and the inventory book (inventory_g, average rates, location-based) "
    "stand side by side and are never added. Market-based instruments are in neither.",
    "Entries in no seal up to the head are recomputed but not proved. A newer revision that came after the head, or is "
    "withheld, cannot be told from the file.",
    "Nothing vouches for made_at, software_version, methods and boundary, nor for the head: compare its hash with one "
    "that was filed elsewhere.",
)

#: Columns of an entry that each row of a group shares, because other things are looked up by them.
_GROUPED = (
    *("revision", "moer_rate_id", "aer_rate_id", "baseline_rate_id", "baseline_fact_id", "restatement_id", "placement"),
    *("baseline_region", "baseline_window_at"),
)

#: What a row does not repeat, because its place in the file says it.
_IMPLIED = ("entry_id", "engine_batch_id", "part", "supersedes")

#: Engine batches are read in the order of these spans of the month, and of their ids within.
_SPAN = timedelta(hours=1)

#: Seals whose layout is remembered.
_SEALS = 32


def stream(
    db: Database, tenant: str, month: str, *, api_key_id: str | None = None, head: str | None = None
) -> Iterator[bytes]:
    """Return the pieces of the audit file of a month (``2026-11``), of one API key where named.

    What is sealed is proved up to the newest seal, or to the one whose hash is ``head``. Checks before the first piece:
    raises InvalidRequest for no month or hash, NotFound where there is no entry or no such seal; StoreUnavailable. A
    page is a transaction of its own: a slow reader holds nothing. Costs a walk through the month's engine batches, and
    through all leaves of each seal that holds some of the tenant's.
    """
    start_at, end_at = month_span(month)
    check_head(head)
    scope = Scope(tenant, start_at, end_at, api_key_id)
    with db.read() as tx:
        if not audits.is_any(tx, scope):
            of_key = "" if api_key_id is None else f" with key {api_key_id!r}"
            raise NotFound(f"tenant {tenant!r} has no ledger entries{of_key} in {month}")
        vouching = _head(tx, head)
        made_at = machine_now(tx)
    first: Json = {
        "carbonq_audit": VERSION,
        "tenant": tenant,
        "month": month,
        "api_key_id": api_key_id,
        "made_at": iso(made_at),
        "software_version": __version__,
        "boundary": BOUNDARY,
        "methods": {name: method.formulas for name, method in METHODS.items()},
        "head": None if vouching is None else vouching.header(),
        "head_hash": None if vouching is None else vouching.hashed().hex(),
    }
    return _Writer(db, scope, vouching).pieces(first)


def _head(tx: Tx, head: str | None) -> Seal | None:
    if head is None:
        found = seals.newest(tx)
        return None if found is None else found[0]
    named = seals.get(tx, hashed=head)
    if named is None:
        raise NotFound(f"there is no seal with the hash {head}")
    return named


class _Writer:
    """Writes the file piece by piece and remembers what of each seal was shown."""

    def __init__(self, db: Database, scope: Scope, head: Seal | None) -> None:
        self._db = db
        self._scope = scope
        self._head = head
        self._last = 0 if head is None else head.seal
        self._sums = Sums()
        self._shown: dict[int, array[int]] = {}  # seal -> where ranges of leaves begin and end, by turns
        self._first_leaves: OrderedDict[int, list[int]] = OrderedDict()

    def pieces(self, first: Json) -> Iterator[bytes]:
        yield orjson.dumps(first)[:-1] + b',\n"pages":['
        yield from _joined(self._pages())
        yield b'],\n"seals":['
        yield from _joined(self._seals())
        with self._db.read() as tx:
            history = self._history(tx)
        yield b'],\n"history":' + orjson.dumps(history)
        yield b',\n"sums":' + orjson.dumps(self._sums.document(self._scope.api_key_id)) + b"}\n"

    def _pages(self) -> Iterator[Json]:
        start_at, after = self._scope.start_at, ""
        while start_at < self._scope.end_at:
            end_at = start_at + _SPAN
            with self._db.read() as tx:
                hold_still(tx)
                ids = audits.next_batches(tx, self._scope, start_at, end_at, after)
                page = self._page(tx, ids) if ids else None
            start_at, after = (start_at, ids[-1]) if ids else (end_at, "")
            if page is not None:
                yield page

    def _page(self, tx: Tx, ids: Sequence[str]) -> Json | None:
        found = audits.parts(tx, self._scope, ids)
        if not found:
            return None
        sealed = seals.sealed(tx, sorted({batch for batch, _ in found}))
        page = _referred(tx, found)
        shown = [self._part(tx, key, part, sealed.get(key, ())) for key, part in sorted(found.items())]
        batches = [part["engine_batch"] for part in shown]
        groups = [group["shared"] for part in shown for group in part["entries"]]
        return page | {"shared": {"engine_batch": _hoist(batches), "entries": _hoist(groups)}, "parts": shown}

    def _part(self, tx: Tx, key: PartKey, part: StoredPart, places: Sequence[Sealed]) -> Json:
        batch = _read(part.content)
        rows = [_row(key, entry) for entry in part.entries]
        waiting = {entry.line for entry in part.entries}
        shown: list[Json] = []
        for place in places:
            first = self._first_leaf(tx, place)
            runs = _runs(seals.read_lines(place.lines), waiting, first + 1) if place.seal <= self._last else []
            if not runs:
                continue
            self._show(
                place.seal, [(first, first + 1), *((leaf, leaf + end - start + 1) for _, start, end, leaf in runs)]
            )
            waiting -= {(revision, at) for revision, start, end, _ in runs for at in range(start, end + 1)}
            shown.append({"seal": place.seal, "leaf": first, "lines": runs})
        self._sums.add(batch, rows, unsealed=len(waiting))
        return {"engine_batch": batch, "sealed": shown, "entries": list(_groups(rows))}

    def _first_leaf(self, tx: Tx, place: Sealed) -> int:
        found = self._first_leaves.get(place.seal)
        if found is None:
            found = self._first_leaves[place.seal] = audits.first_leaves(tx, place.seal)
            if len(self._first_leaves) > _SEALS:
                self._first_leaves.popitem(last=False)
        return found[place.number]

    def _show(self, seal: int, more: Iterable[tuple[int, int]]) -> None:
        ranges = self._shown.setdefault(seal, array("Q"))
        for start, stop in more:
            if ranges and ranges[-1] == start:
                ranges[-1] = stop
            else:
                ranges.extend((start, stop))

    def _seals(self) -> Iterator[Json]:
        for number, ranges in sorted(self._shown.items()):
            with self._db.read() as tx:
                seal = seals.get(tx, seal=number)
                hashes = audits.hashes(tx, number)
            if seal is None or len(hashes) != seal.leaves * merkle.SIZE:
                raise Conflict(f"seal {number} is not whole; `carbonq ledger verify --db` says what is wrong")
            every = [hashes[at : at + merkle.SIZE] for at in range(0, len(hashes), merkle.SIZE)]
            shown = sorted(zip(ranges[0::2], ranges[1::2], strict=True))
            yield {"header": seal.header(), "hidden": b"".join(merkle.hidden(every, shown)).hex()}

    def _history(self, tx: Tx) -> str:
        """Return the hashes that lead from the shown seals to the head, in the tree over all seals before it."""
        earlier = [(number - 1, number) for number in sorted(self._shown) if number < self._last]
        return b"".join(merkle.hidden(seals.hashes(tx, below=self._last), earlier)).hex() if earlier else ""


def _runs(lines: Sequence[Line], wanted: Container[Line | None], leaf: int) -> list[list[int]]:
    """Return the wanted lines of a sealed part as [revision, first position, last one, leaf of the first].

    ``leaf`` is that of the first line.
    """
    runs: list[list[int]] = []
    for at, (revision, position) in enumerate(lines):
        if (revision, position) not in wanted:
            continue
        if runs and runs[-1][0] == revision and runs[-1][2] == position - 1:
            runs[-1][2] = position
        else:
            runs.append([revision, position, position, leaf + at])
    return runs


def _joined(members: Iterable[Json]) -> Iterator[bytes]:
    separator = b"\n"
    for one in members:
        yield separator + orjson.dumps(one)
        separator = b",\n"


def _referred(tx: Tx, found: Mapping[PartKey, StoredPart]) -> Json:
    """Return what a page refers to by digest: rates, facts, restatements, and the texts of placements."""
    every = [entry for part in found.values() for entry in part.entries]
    fact_ids = {part.fact_id for part in found.values()} | {entry.fact_id for entry in every}
    plans = leaves.placement_texts(tx, {one.placement_id for one in every if one.placement_id is not None})
    return {
        "rates": leaves.values(tx, "rate", {one for entry in every for one in entry.rate_ids}),
        "facts": leaves.values(tx, "fact", {one for one in fact_ids if one is not None}),
        "restatements": leaves.values(tx, "rst", {one.restatement_id for one in every if one.restatement_id}),
        "placements": {merkle.leaf(text).hex(): text for text in plans.values()},
    }


def _read(content: str | None) -> Json:
    """Return the values of a row that is hashed."""
    if content is None:
        raise Conflict("an engine batch of the ledger is not stored; `carbonq ledger verify --db` says which")
    return orjson.loads(content.split(" ", 2)[2])


def _row(key: PartKey, entry: StoredEntry) -> Json:
    """Return an entry without what its place says, its position in front."""
    values = _read(entry.content)
    expected = None if entry.line is None or entry.line[0] == 1 else f"{values['entry_id']}#{entry.line[0] - 1}"
    if entry.line is None or values.get("supersedes") != expected:
        raise Conflict(f"entry {entry.key} of {key[0]}.{key[1]} is not as it was; see `carbonq ledger verify --db`")
    return {"position": entry.line[1]} | {name: value for name, value in values.items() if name not in _IMPLIED}


def _hoist(members: Sequence[Json]) -> Json:
    """Take what all have in common out of each, and return it."""
    first, *others = members
    alike = {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}
    for one in members:
        for name in alike:
            del one[name]
    return alike


def _groups(rows: Sequence[Json]) -> Iterator[Json]:
    """Give entries in groups: what all of a group have in common once, the rest as rows under their names."""
    found: dict[tuple[Any, ...], list[Json]] = {}
    for row in sorted(rows, key=lambda row: (row["revision"], row["position"])):
        found.setdefault(tuple(row.get(name) for name in _GROUPED), []).append(row)
    for members in found.values():
        names = sorted({name for row in members for name in row} - {"position"})
        columns = {name: [row.get(name) for row in members] for name in ("position", *names)}
        alike = {name for name in names if columns[name].count(columns[name][0]) == len(members)}
        own = [name for name in columns if name not in alike]
        yield {
            "shared": {name: members[0][name] for name in names if name in alike},
            "columns": own,
            "rows": list(zip(*(columns[name] for name in own), strict=True)),
        }

"""The inclusion proof of one entry: what was hashed, and the way from there to a seal that vouches for it.

``python -m carbonq.verify --proof FILE`` checks it with the standard library alone. The document:

``carbonq_proof``  version of this layout, 1
``entry``          ``{content, index, path}``: the text that was hashed, its leaf under the seal, the neighbours' hashes
``engine_batch``   the same for the part of the engine batch that the entry belongs to
``rates, facts``   by id, the values whose digest the id is, in the order of the digest
``placement``      the text whose hash the entry carries; null where it ran under none
``seal``           the header of the seal that holds both leaves, as the text that was hashed
``history``        ``{index, path}`` of that seal among those before ``head``; null where it is the head itself
``head``           the header of the seal that vouches for it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from carbonq import merkle
from carbonq.errors import NotFound
from carbonq.merkle import Seal
from carbonq.store import leaves, seals
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import hold_still
from carbonq.store.leaves import StoredEntry, StoredPart
from carbonq.store.seals import Sealed

VERSION = 1


def prove(
    db: Database, entry_id: str, *, revision: int | None = None, tenant: str | None = None, head: str | None = None
) -> dict[str, Any]:
    """Return the proof of an entry, by default of its newest revision and up to the newest seal; JSON values.

    Raises NotFound for an entry that is not there (or another tenant's), is not sealed yet, or came after ``head``.
    """
    with db.read() as tx:
        hold_still(tx)
        found = leaves.find(tx, entry_id, revision=revision, tenant=tenant)
        which = f"ledger entry {entry_id!r}" + ("" if revision is None else f" with revision {revision}")
        if found is None:
            raise NotFound(f"there is no {which}")
        key, part, entry = found
        place = next((one for one in seals.sealed(tx, [key[0]]).get(key, ()) if _holds(one, entry)), None)
        if place is None:
            raise NotFound(f"{which} is not sealed yet; the next seal comes within minutes")
        return _document(tx, part, entry, place, _heads(tx, place.seal, head))


def _holds(one: Sealed, entry: StoredEntry) -> bool:
    return entry.line is not None and entry.line in seals.read_lines(one.lines)


def _heads(tx: Tx, number: int, head: str | None) -> tuple[Seal, Seal]:
    """Return the seal that holds the entry and the one that vouches for it."""
    own = seals.get(tx, seal=number)
    if head is None:
        newest = seals.newest(tx)
        vouching = None if newest is None else newest[0]
    else:
        vouching = seals.get(tx, hashed=head)
        if vouching is None:
            raise NotFound(f"there is no seal with the hash {head}")
    if own is None or vouching is None or vouching.seal < number:
        raise NotFound(f"the entry was sealed later (seal {number}) than the head asked for")
    return own, vouching


def _document(tx: Tx, part: StoredPart, entry: StoredEntry, place: Sealed, heads: tuple[Seal, Seal]) -> dict[str, Any]:
    own, head = heads
    hashes, first = _leaves(tx, own, place.number)
    line = first + 1 + seals.read_lines(place.lines).index(entry.line or (0, 0))
    history = None
    if head.seal != own.seal:
        path = merkle.path(seals.hashes(tx, below=head.seal), own.seal - 1)
        history = {"index": own.seal - 1, "path": _hex(path)}
    batch_fact = [] if part.fact_id is None else [part.fact_id]
    plans = [] if entry.placement_id is None else [entry.placement_id]
    own_fact = [] if entry.fact_id is None else [entry.fact_id]
    return {
        "carbonq_proof": VERSION,
        "entry": {"content": entry.content, "index": line, "path": _hex(merkle.path(hashes, line))},
        "engine_batch": {"content": part.content, "index": first, "path": _hex(merkle.path(hashes, first))},
        "rates": leaves.values(tx, "rate", entry.rate_ids),
        "facts": leaves.values(tx, "fact", [*batch_fact, *own_fact]),
        "restatements": leaves.values(tx, "rst", [] if entry.restatement_id is None else [entry.restatement_id]),
        "placement": leaves.placement_texts(tx, plans).get(entry.placement_id or ""),
        "seal": own.header(),
        "history": history,
        "head": head.header(),
        "head_hash": head.hashed().hex(),
    }


def _leaves(tx: Tx, seal: Seal, number: int) -> tuple[list[bytes], int]:
    """Return the hashes of all leaves of a seal, and where those of one of its parts begin."""
    hashes: list[bytes] = []
    first = 0
    after = (seal.seal, -1)
    while len(hashes) < seal.leaves:
        rows = [row for row in seals.parts_after(tx, after, limit=_PARTS) if row.seal == seal.seal]
        if not rows:
            break
        for row in rows:
            if row.number == number:
                first = len(hashes)
            hashes += [row.hashes[at : at + merkle.SIZE] for at in range(0, len(row.hashes), merkle.SIZE)]
        after = (seal.seal, rows[-1].number)
    return hashes, first


_PARTS = 500


def _hex(path: Sequence[bytes]) -> list[str]:
    return [one.hex() for one in path]

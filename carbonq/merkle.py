"""Merkle trees over the ledger: leaves, roots, inclusion proofs, the chain of seals. Pure.

The tree is that of RFC 6962 section 2.1 with SHA-256: a leaf is ``H(0x00 || content)``, a node ``H(0x01 || left ||
right)``, so that neither passes for the other; a tree of n leaves splits at the largest power of two below n. A seal is
``H(0x02 || header)``. Hashes are 32 bytes, in headers and proofs 64 hexadecimal digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from carbonq.units import iso

#: Root of a tree without leaves, and what the first seal has for the hash of the seal before it.
EMPTY = hashlib.sha256(b"").digest()

#: Bytes of a hash.
SIZE = 32

#: How content is written before it is hashed; another way is another version.
FORMAT = 1

_sha256 = hashlib.sha256


def leaf(content: str) -> bytes:
    """Return the hash of a leaf's content."""
    return _sha256(b"\x00" + content.encode("utf-8", "surrogateescape")).digest()


def node(left: bytes, right: bytes) -> bytes:
    """Return the hash of two neighbouring subtrees."""
    return _sha256(b"\x01" + left + right).digest()


def content(table: str, known: Mapping[str, Any]) -> str:
    """Write a stored row as the text that is hashed: its table, the format, and its known values sorted by column.

    Values are text, whole numbers or lists of them; times, decimals and floats come as text. What is unknown must be
    left out, so that a column that is added later changes no hash of what was there before.
    """
    try:
        text = orjson.dumps(known, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # what nothing of ours wrote, e.g. text that is no UTF-8; its hash is another one whatever it is
        text = json.dumps(known, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=repr)
    return f"{table} {FORMAT} {text}"


def seal_hash(header: str) -> bytes:
    """Return the hash of a seal, given its header."""
    return _sha256(b"\x02" + header.encode("utf-8", "surrogateescape")).digest()


class Range:
    """A tree that grows by leaves at its end: at most one hash for each power of two is kept."""

    __slots__ = ("_peaks", "count")

    def __init__(self, peaks: Sequence[bytes] = (), count: int = 0) -> None:
        """Begin empty, or go on from ``peaks`` (largest subtree first) of ``count`` leaves.

        Raises ValueError when the peaks cannot be those of so many leaves.
        """
        if len(peaks) != count.bit_count():
            raise ValueError(f"{len(peaks)} peaks are not those of {count} leaves")
        self._peaks = list(peaks)
        self.count = count

    @property
    def peaks(self) -> list[bytes]:
        """The roots of the whole subtrees, largest first."""
        return list(self._peaks)

    def add(self, hashed: bytes) -> None:
        """Append a leaf's hash."""
        peaks, count = self._peaks, self.count
        while count & 1:
            hashed = _sha256(b"\x01" + peaks.pop() + hashed).digest()
            count >>= 1
        peaks.append(hashed)
        self.count += 1

    def extend(self, hashes: bytes) -> None:
        """Append many leaves' hashes, given one after the other."""
        for start in range(0, len(hashes), SIZE):
            self.add(hashes[start : start + SIZE])

    def root(self) -> bytes:
        """Return the root over all leaves so far."""
        if not self._peaks:
            return EMPTY
        *rest, root = self._peaks
        for left in reversed(rest):
            root = node(left, root)
        return root


def root_of(leaves: Iterable[bytes]) -> bytes:
    """Return the root of a tree, given its leaves' hashes."""
    tree = Range()
    for one in leaves:
        tree.add(one)
    return tree.root()


def path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return the inclusion proof of leaf ``index``: the neighbours' hashes, lowest first (RFC 6962 section 2.1.1).

    Raises IndexError where there is no such leaf.
    """
    if not 0 <= index < len(leaves):
        raise IndexError(f"there is no leaf {index} among {len(leaves)}")
    # All subtrees of one height at a time; the last one of a row that is alone moves up as it is.
    row, found = list(leaves), list[bytes]()
    while len(row) > 1:
        neighbour = index ^ 1
        if neighbour < len(row):
            found.append(row[neighbour])
        paired = [node(row[at], row[at + 1]) for at in range(0, len(row) - 1, 2)]
        row = [*paired, row[-1]] if len(row) % 2 else paired
        index >>= 1
    return found


def blocks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut leaves ``start`` up to ``stop`` into the largest subtrees that are whole in any tree: first leaf and size."""
    while start < stop:
        size = 1 << ((stop - start).bit_length() - 1)
        if start:
            size = min(size, start & -start)
        yield start, size
        start += size


def hidden(leaves: Sequence[bytes], shown: Iterable[tuple[int, int]]) -> list[bytes]:
    """Return the proof that all of some leaves are in a tree at once: the hashes of the subtrees that hold the others.

    ``shown`` are ranges of leaves, in order and apart. The hashes are those of ``blocks`` of each gap, left to right:
    whoever has the shown leaves, and the number of all of them, knows where each belongs. Linear in the leaves.
    """
    found: list[bytes] = []
    done = 0
    for start, stop in (*shown, (len(leaves), len(leaves))):
        found += [root_of(leaves[at : at + size]) for at, size in blocks(done, start)]
        done = stop
    return found


def root_from(hashed: bytes, index: int, count: int, proof: Sequence[bytes]) -> bytes | None:
    """Return the root that a leaf's proof leads to; None where it is no proof for leaf ``index`` of ``count``."""
    if not 0 <= index < count:
        return None
    last, rest = count - 1, iter(proof)
    while last:
        if index % 2 or index < last:
            neighbour = next(rest, None)
            if neighbour is None:
                return None
            hashed = node(neighbour, hashed) if index % 2 else node(hashed, neighbour)
        index, last = index >> 1, last >> 1
    return hashed if next(rest, None) is None else None


@dataclass(frozen=True, slots=True)
class Seal:
    """A link of the chain: what was sealed at one moment, and all seals before it.

    ``leaves`` is the number of leaves under ``root``, ``entries`` that of the entry revisions among them. ``history``
    is the root of the tree over the hashes of all earlier seals: the newest seal's hash vouches for every one of them.
    """

    seal: int  # 1, 2, ...
    sealed_at: datetime  # machine time
    software_version: str
    leaves: int
    entries: int
    root: str
    previous: str
    history: str

    def header(self) -> str:
        """Return the text that is hashed."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return content("seal", values | {"sealed_at": iso(self.sealed_at)})

    def hashed(self) -> bytes:
        """Return the seal's hash."""
        return seal_hash(self.header())

"""What a store of blobs must be, whether it is a folder or a bucket on the other side of a network.

A key is a relative path of plain names (``jobs/job_1/input.jsonl``); it names whole bytes or nothing. Sizes are bytes.
All methods may be called from several threads and processes at once. Errors: NotFound for an unknown key,
StoreUnavailable when the disk or the bucket refuses or does not answer, ValueError for an unsafe key.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import BufferedReader
from typing import Protocol, Self


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What is known of a blob without reading it; ``tag`` changes whenever the bytes under the key do."""

    size: int
    tag: str
    modified_at: datetime


class Staged(Protocol):
    """A blob being written; it has no key until it is published, and ``discard`` removes every trace of it.

    Its methods discard it before they raise StoreUnavailable, so that a full disk is not left fuller.
    """

    size: int

    def write(self, data: bytes) -> None:
        """Append bytes. Raises StoreUnavailable."""
        ...

    def sync(self) -> None:
        """Bring what was written to where ``open`` can read it. Raises StoreUnavailable."""
        ...

    def open(self) -> BufferedReader:
        """Read from its beginning what was written before the last ``sync``. Raises StoreUnavailable."""
        ...

    def prepare(self, key: str) -> None:
        """Do all of ``publish`` that takes time, so that ``publish`` itself is quick enough to be done under a lock.

        Only for a key that nobody else knows yet: in some stores the bytes can be read under it from now on, and
        ``discard`` takes them away again. Nothing may be written afterwards. Raises StoreUnavailable.
        """
        ...

    def publish(self, key: str) -> None:
        """Give the bytes their key, durably and at once; replaces an older blob. Raises StoreUnavailable."""
        ...

    def discard(self) -> None:
        """Remove what was staged; does nothing when it is published or discarded already."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


class Ranges(Protocol):
    """Some ranges of a blob, at hand to be read in any order."""

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of one of the ranges asked for. Raises StoreUnavailable, ValueError for another range."""
        ...

    def close(self) -> None:
        """Let the bytes go; may be called twice."""
        ...


class BlobStore(Protocol):
    """Where blobs are kept."""

    @property
    def name(self) -> str:
        """The folder or URL, fit to be shown: it holds no secret."""
        ...

    def stage(self) -> Staged:
        """Begin a blob whose key is not known yet. Raises StoreUnavailable."""
        ...

    def put(self, key: str, data: bytes | Iterable[bytes]) -> int:
        """Store bytes, or a stream of them, durably under a key; return their size. Raises StoreUnavailable."""
        ...

    def concatenate(self, keys: Sequence[str], to_key: str) -> int:
        """Join blobs in order into one, in constant memory; return its size. Raises NotFound, StoreUnavailable."""
        ...

    def info(self, key: str) -> BlobInfo:
        """Return a blob's size and age. Raises NotFound, StoreUnavailable."""
        ...

    def open(self, key: str) -> BufferedReader:
        """Open a blob to be read from its beginning. Raises NotFound, StoreUnavailable, also while reading."""
        ...

    def pieces(self, key: str, start: int = 0, stop: int | None = None) -> Generator[bytes]:
        """Stream the bytes from ``start`` up to ``stop`` (its end) in constant memory.

        Raises NotFound and StoreUnavailable, both while it is read.
        """
        ...

    def ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> Ranges:
        """Make many (offset, length) ranges ready to be read, with far fewer requests than ranges.

        Takes constant memory. Raises NotFound, StoreUnavailable.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove a blob; does nothing when there is none. Raises StoreUnavailable."""
        ...

    def delete_folder(self, folder: str) -> None:
        """Remove all blobs whose keys begin with ``folder`` and a slash. Raises StoreUnavailable."""
        ...

    def sweep(self, older_than_s: float) -> int:
        """Remove what killed processes staged and nobody has written to for so many machine seconds; return how many.

        Raises StoreUnavailable.
        """
        ...

    def free_bytes(self) -> int | None:
        """Return how many bytes still fit; None where nobody can say. Raises StoreUnavailable."""
        ...

    def check(self, folder: str) -> None:
        """Write, read and remove a small blob under ``folder``: what a role must be able to do there.

        Raises StoreUnavailable, which says what is missing.
        """
        ...

"""Blobs in a bucket: S3 and what speaks its protocol, Google Cloud Storage, Azure, through the library obstore.

A bucket shows an object only when all of it is there, so a put is whole or absent by itself. What is staged waits in a
temporary file without a name: a killed process leaves nothing behind. Retries and timeouts are the library's.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import BinaryIO, cast

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from carbonq.blobs import disk
from carbonq.blobs.extents import cut, merge
from carbonq.blobs.faults import translated, unavailable
from carbonq.blobs.keys import safe
from carbonq.blobs.protocol import BlobInfo
from carbonq.errors import CarbonqError, StoreUnavailable

logger = logging.getLogger(__name__)

#: Bytes of one part of an upload and how many are under way at once: 20 MiB of memory, at most 50 GB an object.
PART_BYTES = 5 << 20
PARTS_AT_ONCE = 4

#: Bytes of one read request: each is asked for, timed and retried by itself, so that a slow reader outlives timeouts.
PIECE_BYTES = 4 << 20

#: Pieces fetched together while ranges are made ready: 16 MiB of memory. Those that touch become one request.
PIECES_AT_ONCE = 4

#: Bytes between two ranges that are read and dropped rather than paid for with a request of some 10 ms.
GAP_BYTES = 256 << 10


class ObjectStaged:
    """A blob in a temporary file, on its way to the bucket."""

    def __init__(self, store: ObjectStore) -> None:
        """Open an empty temporary file. Raises StoreUnavailable."""
        self._store = store
        self._file = store.temporary_file()
        self._prepared: str | None = None
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append bytes. Raises StoreUnavailable after discarding itself."""
        try:
            with disk.translated(self._store.spool):
                self._file.write(data)
        except StoreUnavailable:
            self.discard()
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Bring what was written to the file; it need not outlive a power cut, the object will."""
        if self._file.closed:
            return
        try:
            with disk.translated(self._store.spool):
                self._file.flush()
        except StoreUnavailable:
            self.discard()
            raise

    def open(self) -> BufferedReader:
        """Read what was synced."""
        return disk.reader(self._file)

    def prepare(self, key: str) -> None:
        """Upload the bytes to their key: nothing is left to do for ``publish``.

        Raises StoreUnavailable after discarding itself, ValueError for an unsafe key.
        """
        self.sync()
        self._upload(safe(key))
        self._prepared = key

    def publish(self, key: str) -> None:
        """Give the bytes their key; uploads them unless ``prepare`` did.

        Raises StoreUnavailable after discarding itself, ValueError for an unsafe key.
        """
        if self._prepared != key:
            self.sync()
            self._upload(safe(key))
        self._prepared = None
        self._close()

    def discard(self) -> None:
        """Drop the file, and the object where it was prepared and not published."""
        self._close()
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            try:
                self._store.delete(prepared)
            except StoreUnavailable as error:
                logger.warning("%s stays without a job: %s", prepared, error)

    def _upload(self, key: str) -> None:
        try:
            self._file.seek(0)
            with translated(self._store.name):
                obstore.put(self._store.bucket, key, self._file, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        except StoreUnavailable:
            self.discard()
            raise

    def _close(self) -> None:
        with suppress(OSError):  # closing flushes, and the disk may be full: the file goes away anyway
            self._file.close()

    def __enter__(self) -> ObjectStaged:
        return self

    def __exit__(self, *_error: object) -> None:
        self.discard()


class ObjectStore:
    """Blobs in a bucket, below the prefix that the store was made with."""

    def __init__(self, bucket: S3Store | GCSStore | AzureStore, *, name: str, spool: Path) -> None:
        """Use a bucket; ``name`` is its URL as it may be shown, ``spool`` the folder of temporary files."""
        self.bucket = bucket
        self.spool = spool
        self._name = name

    @property
    def name(self) -> str:
        """The URL, without endpoint or secrets."""
        return self._name

    def temporary_file(self) -> BinaryIO:
        """Open a file in the spool that has no name and ends with the process. Raises StoreUnavailable."""
        with disk.translated(self.spool):
            self.spool.mkdir(parents=True, exist_ok=True)
            return cast("BinaryIO", tempfile.TemporaryFile(dir=self.spool))

    def stage(self) -> ObjectStaged:
        """Begin a blob whose key is not known yet. Raises StoreUnavailable."""
        return ObjectStaged(self)

    def put(self, key: str, data: bytes | Iterable[bytes]) -> int:
        """Store bytes, or a stream of them, durably under a key; return their size. Raises StoreUnavailable."""
        if isinstance(data, bytes):
            with translated(self._name):
                obstore.put(self.bucket, safe(key), data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            return len(data)
        safe(key)
        with self.stage() as staged:
            for piece in data:
                staged.write(piece)
            staged.publish(key)
        return staged.size

    def concatenate(self, keys: Sequence[str], to_key: str) -> int:
        """Join blobs in order into one, in constant memory; return its size. Raises NotFound, StoreUnavailable."""
        return self.put(to_key, (piece for key in keys for piece in self.pieces(key)))

    def info(self, key: str) -> BlobInfo:
        """Return a blob's size and age. Raises NotFound, StoreUnavailable."""
        try:
            with translated(self._name, safe(key)):
                meta = obstore.head(self.bucket, key)
        except CarbonqError:
            self._require_bucket()  # the answer to this question has no body that tells a missing bucket
            raise
        return BlobInfo(meta["size"], (meta["e_tag"] or str(meta["size"])).strip('"'), meta["last_modified"])

    def open(self, key: str) -> BufferedReader:
        """Open a blob for reading; bytes come as they are read. Raises NotFound, StoreUnavailable."""
        info = self.info(key)
        return BufferedReader(_Stream(self._pieces(key, info, 0, info.size)), 1 << 18)

    def pieces(self, key: str, start: int = 0, stop: int | None = None) -> Generator[bytes]:
        """Stream a blob, or the bytes from ``start`` up to ``stop`` of it, in pieces of up to 4 MiB.

        Raises NotFound, StoreUnavailable (also when the blob is replaced in between).
        """
        info = self.info(key)
        yield from self._pieces(key, info, start, info.size if stop is None else min(stop, info.size))

    def _pieces(self, key: str, info: BlobInfo, start: int, stop: int) -> Generator[bytes]:
        for begin, end in cut([(start, stop)], most=PIECE_BYTES):
            with translated(self._name, key):
                found = obstore.get(self.bucket, key, options={"range": (begin, end), "if_match": f'"{info.tag}"'})
                piece = bytes(found.bytes())
            if len(piece) != end - begin:
                raise unavailable(self._name, f"{key} ended at {begin + len(piece)} of {info.size} bytes")
            yield piece

    def ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> disk.FileRanges:
        """Fetch ranges into a temporary file, neighbours together. Raises NotFound, StoreUnavailable."""
        extents = merge(spans, gap=GAP_BYTES)
        file = self.temporary_file()
        try:
            for group in _groups(cut(extents, most=PIECE_BYTES), PIECES_AT_ONCE):
                starts, ends = [start for start, _ in group], [end for _, end in group]
                with translated(self._name, safe(key)):
                    parts = obstore.get_ranges(self.bucket, key, starts=starts, ends=ends, coalesce=0)
                for (start, end), part in zip(group, parts, strict=True):
                    if len(part) != end - start:
                        raise unavailable(self._name, f"{key} has {len(part)} bytes of {end - start} at {start}")
                    with disk.translated(self.spool):
                        file.write(part)
            with disk.translated(self.spool):
                file.flush()
        except BaseException:
            with suppress(OSError):
                file.close()
            raise
        return disk.FileRanges(file, extents, self.spool)

    def delete(self, key: str) -> None:
        """Remove an object; does nothing when there is none. Raises StoreUnavailable."""
        with translated(self._name), suppress(FileNotFoundError):
            obstore.delete(self.bucket, safe(key))

    def delete_folder(self, folder: str) -> None:
        """Remove all objects whose keys begin with ``folder`` and a slash. Raises StoreUnavailable."""
        with translated(self._name), suppress(FileNotFoundError):
            for page in obstore.list(self.bucket, safe(folder), chunk_size=1000):
                obstore.delete(self.bucket, [meta["path"] for meta in page])

    def sweep(self, older_than_s: float) -> int:
        """Return 0: temporary files have no name and end with their process."""
        del older_than_s
        return 0

    def free_bytes(self) -> None:
        """Return None: a bucket has no end."""
        return

    def check(self, folder: str) -> None:
        """Write, read and remove a small object under ``folder``. Raises StoreUnavailable."""
        key, probe = f"{folder}/check_{uuid.uuid4().hex}", b"carbonq\n"
        self.put(key, probe)
        try:
            if b"".join(self.pieces(key)) != probe:
                raise unavailable(self._name, "it gives back other bytes than were written")
        finally:
            self.delete(key)

    def _require_bucket(self) -> None:
        try:
            with translated(self._name):
                next(iter(obstore.list(self.bucket, chunk_size=1)), None)
        except StoreUnavailable as error:
            if "NoSuchBucket" in error.message:
                raise


class _Stream(RawIOBase):
    """The pieces of a blob as a stream."""

    def __init__(self, pieces: Generator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast("bytearray", buffer))
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        taken = self._rest[: len(view)]
        view[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)

    def close(self) -> None:
        self._pieces.close()
        super().close()


def _groups(extents: Iterator[tuple[int, int]], most: int) -> Iterator[list[tuple[int, int]]]:
    group: list[tuple[int, int]] = []
    for extent in extents:
        group.append(extent)
        if len(group) == most:
            yield group
            group = []
    if group:
        yield group

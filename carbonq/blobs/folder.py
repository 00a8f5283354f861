"""Blobs in a folder of a disk, which may be shared by hosts (NFS).

A blob is written beside its place, synced to disk, and renamed: a crash or a full disk leaves no half file under a key.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from carbonq.blobs.disk import FileRanges, translated
from carbonq.blobs.keys import safe
from carbonq.blobs.protocol import BlobInfo
from carbonq.errors import NotFound, StoreUnavailable

#: Folder of files that are still being written; no key can begin with a dot.
_STAGING = ".staging"

#: Bytes copied at a time.
_COPY_BYTES = 1 << 20


class FolderStaged:
    """A blob being written; it has no key until ``publish``, and ``discard`` removes every trace of it."""

    def __init__(self, root: Path) -> None:
        """Open an empty staged file under ``root``. Raises StoreUnavailable."""
        self._root = root
        self.path = root / _STAGING / uuid.uuid4().hex
        self.size = 0
        self._made: list[Path] = []
        with translated(root):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("xb")

    def write(self, data: bytes) -> None:
        """Append bytes. Raises StoreUnavailable after discarding itself, so that a full disk is not left fuller."""
        try:
            with translated(self._root):
                self._file.write(data)
        except StoreUnavailable:
            self.discard()
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Bring what was written to disk, so that ``path`` can be read and ``publish`` has only to rename.

        Raises StoreUnavailable after discarding itself.
        """
        if self._file.closed:
            return
        try:
            with translated(self._root):
                self._file.flush()
                os.fsync(self._file.fileno())
        except StoreUnavailable:
            self.discard()
            raise

    def open(self) -> BufferedReader:
        """Read what was synced. Raises StoreUnavailable."""
        with translated(self._root):
            return self.path.open("rb")

    def prepare(self, key: str) -> None:
        """Sync the bytes and make the key's folder: a rename is left to do.

        Raises StoreUnavailable after discarding itself, ValueError for an unsafe key.
        """
        target = _place(self._root, key)
        # Nobody else knows the key, so its own folder goes again when this is discarded.
        self._made = self._close(target)[:1]

    def publish(self, key: str) -> None:
        """Give the bytes their key, durably and at once; replaces an older blob of that key.

        Raises StoreUnavailable after discarding itself, ValueError for an unsafe key.
        """
        target = _place(self._root, key)
        self._close(target)
        try:
            with translated(self._root):
                self.path.replace(target)
                _sync_folder(target.parent)
        except StoreUnavailable:
            self.discard()
            raise

    def _close(self, target: Path) -> list[Path]:
        self.sync()
        try:
            with translated(self._root):
                self._file.close()
                return _make_folder(target.parent, self._root)
        except StoreUnavailable:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the staged file; does nothing when it is published or discarded already."""
        with suppress(OSError):  # closing flushes, and the disk may be full: the file goes away anyway
            self._file.close()
        self.path.unlink(missing_ok=True)
        for folder in self._made:
            with suppress(OSError):  # something lies in it by now
                folder.rmdir()

    def __enter__(self) -> FolderStaged:
        return self

    def __exit__(self, *_error: object) -> None:
        self.discard()


class FolderStore:
    """Blobs under one folder. Safe for several processes, because only whole files get a key."""

    def __init__(self, root: Path) -> None:
        """Use ``root``, which is made at the first write."""
        self.root = root

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.root)

    def stage(self) -> FolderStaged:
        """Begin a blob whose key is not known yet. Raises StoreUnavailable."""
        return FolderStaged(self.root)

    def put(self, key: str, data: bytes | Iterable[bytes]) -> int:
        """Store bytes, or a stream of them, durably under a key; return their size. Raises StoreUnavailable."""
        with self.stage() as staged:
            for piece in (data,) if isinstance(data, bytes) else data:
                staged.write(piece)
            staged.publish(key)
        return staged.size

    def open(self, key: str) -> BufferedReader:
        """Open a blob for reading. Raises NotFound, StoreUnavailable."""
        path = self.path(key)
        with translated(self.root):
            try:
                return path.open("rb")
            except (FileNotFoundError, IsADirectoryError):
                raise _unknown(key) from None

    def path(self, key: str) -> Path:
        """Return where a key's bytes lie (or would lie) on this machine. Raises ValueError for an unsafe key."""
        return _place(self.root, key)

    def info(self, key: str) -> BlobInfo:
        """Return a blob's size and age. Raises NotFound, StoreUnavailable."""
        with translated(self.root):
            try:
                stat = self.path(key).stat()
            except FileNotFoundError:
                raise _unknown(key) from None
        if not S_ISREG(stat.st_mode):
            raise _unknown(key)
        modified_at = datetime.fromtimestamp(stat.st_mtime, UTC)
        return BlobInfo(stat.st_size, f"{stat.st_mtime_ns:x}-{stat.st_size:x}", modified_at)

    def delete(self, key: str) -> None:
        """Remove a blob; does nothing when there is none. Raises StoreUnavailable."""
        with translated(self.root):
            self.path(key).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Remove all blobs whose keys begin with ``folder`` and a slash. Raises StoreUnavailable."""
        with translated(self.root), suppress(FileNotFoundError):
            shutil.rmtree(self.path(folder))

    def concatenate(self, keys: Sequence[str], to_key: str) -> int:
        """Join blobs in order into one, in constant memory; return its size. Raises NotFound, StoreUnavailable."""
        return self.put(to_key, (piece for key in keys for piece in self.pieces(key)))

    def pieces(self, key: str, start: int = 0, stop: int | None = None) -> Generator[bytes]:
        """Stream a blob, or the bytes from ``start`` up to ``stop`` of it, in pieces of up to 1 MiB.

        Raises NotFound, StoreUnavailable.
        """
        with self.open(key) as source:
            source.seek(start)
            while stop is None or start < stop:
                with translated(self.root):
                    piece = source.read(_COPY_BYTES if stop is None else min(_COPY_BYTES, stop - start))
                if not piece:
                    return
                start += len(piece)
                yield piece

    def ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> FileRanges:
        """Return the file, to be read at any place. Raises NotFound, StoreUnavailable."""
        return FileRanges(
            self.open(key), [(0, max((offset + length for offset, length in spans), default=0))], self.root
        )

    def sweep(self, older_than_s: float) -> int:
        """Remove staged files that nobody has written to for ``older_than_s`` machine seconds; return how many.

        They are what a killed process left behind. Raises StoreUnavailable.
        """
        removed = 0
        oldest = time.time() - older_than_s
        with translated(self.root):
            for path in (self.root / _STAGING).glob("*"):
                try:
                    if path.stat().st_mtime < oldest:
                        path.unlink()
                        removed += 1
                except FileNotFoundError:
                    pass  # published or swept by someone else in between
        return removed

    def free_bytes(self) -> int:
        """Return the free bytes of the disk that holds the blobs. Raises StoreUnavailable."""
        with translated(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            return shutil.disk_usage(self.root).free

    def check(self, folder: str) -> None:
        """Write, read and remove a small blob under ``folder``. Raises StoreUnavailable."""
        key = f"{folder}/check_{uuid.uuid4().hex}"
        self.put(key, b"carbonq\n")
        try:
            if b"".join(self.pieces(key)) != b"carbonq\n":
                raise StoreUnavailable(f"{self.root} gives back other bytes than were written")
        finally:
            self.delete(key)


def _unknown(key: str) -> NotFound:
    return NotFound(f"there is no stored file {key!r}")


def _place(root: Path, key: str) -> Path:
    return root / safe(key)


def _make_folder(folder: Path, root: Path) -> list[Path]:
    """Make a folder and sync every parent that gained one, or a power cut could lose the folder with the file.

    Returns the folders below ``root`` that were missing, the innermost first.
    """
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists() and parent.is_relative_to(root)]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync_folder(made.parent)
    return [made for made in missing if made != root]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

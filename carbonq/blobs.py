"""Keep inputs, result segments and output files in a folder, so that a key either names whole bytes or nothing.

A blob is written beside its place, synced to disk, and renamed: a crash or a full disk leaves no half file under a key.
Sizes are bytes. Errors: StoreUnavailable when the disk refuses, NotFound for an unknown key.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from carbonq.errors import NotFound, StoreUnavailable

#: Keys are relative paths of plain names: no empty part, no part that begins with a dot.
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")

#: Folder of files that are still being written; no key can begin with a dot.
_STAGING = ".staging"

#: Bytes copied at a time.
_COPY_BYTES = 1 << 20


class Staged:
    """A blob being written; it has no key until ``publish``, and ``discard`` removes every trace of it."""

    def __init__(self, root: Path) -> None:
        """Open an empty staged file under ``root``. Raises StoreUnavailable."""
        self._root = root
        self.path = root / _STAGING / uuid.uuid4().hex
        self.size = 0
        with _translated(root):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("xb")

    def write(self, data: bytes) -> None:
        """Append bytes. Raises StoreUnavailable after discarding itself, so that a full disk is not left fuller."""
        try:
            with _translated(self._root):
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
            with _translated(self._root):
                self._file.flush()
                os.fsync(self._file.fileno())
        except StoreUnavailable:
            self.discard()
            raise

    def publish(self, key: str) -> None:
        """Give the bytes their key, durably and at once; replaces an older blob of that key.

        Raises StoreUnavailable after discarding itself, ValueError for an unsafe key.
        """
        target = _place(self._root, key)
        self.sync()
        try:
            with _translated(self._root):
                self._file.close()
                _make_folder(target.parent, self._root)
                self.path.replace(target)
                _sync_folder(target.parent)
        except StoreUnavailable:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the staged file; does nothing when it is published or discarded already."""
        with suppress(OSError):  # closing flushes, and the disk may be full: the file goes away anyway
            self._file.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *_error: object) -> None:
        self.discard()


class BlobStore:
    """Blobs under one folder. Safe for several processes, because only whole files get a key."""

    def __init__(self, root: Path) -> None:
        """Use ``root``, which is made at the first write."""
        self.root = root

    def stage(self) -> Staged:
        """Begin a blob whose key is not known yet. Raises StoreUnavailable."""
        return Staged(self.root)

    def put(self, key: str, data: bytes | Iterable[bytes]) -> int:
        """Store bytes, or a stream of them, durably under a key; return their size. Raises StoreUnavailable."""
        with self.stage() as staged:
            for piece in (data,) if isinstance(data, bytes) else data:
                staged.write(piece)
            staged.publish(key)
        return staged.size

    def open(self, key: str) -> BinaryIO:
        """Open a blob for reading. Raises NotFound, StoreUnavailable."""
        path = self.path(key)
        with _translated(self.root):
            try:
                return path.open("rb")
            except (FileNotFoundError, IsADirectoryError):
                raise NotFound(f"there is no stored file {key!r}") from None

    def path(self, key: str) -> Path:
        """Return where a key's bytes lie (or would lie) on this machine. Raises ValueError for an unsafe key."""
        return _place(self.root, key)

    def exists(self, key: str) -> bool:
        """Say whether a key names a blob."""
        return self.path(key).is_file()

    def size(self, key: str) -> int:
        """Return a blob's size in bytes. Raises NotFound."""
        try:
            return self.path(key).stat().st_size
        except FileNotFoundError:
            raise NotFound(f"there is no stored file {key!r}") from None

    def delete(self, key: str) -> None:
        """Remove a blob; does nothing when there is none. Raises StoreUnavailable."""
        with _translated(self.root):
            self.path(key).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Remove all blobs whose keys begin with ``folder`` and a slash. Raises StoreUnavailable."""
        with _translated(self.root), suppress(FileNotFoundError):
            shutil.rmtree(self.path(folder))

    def concatenate(self, keys: Sequence[str], to_key: str) -> int:
        """Join blobs in order into one, in constant memory; return its size. Raises NotFound, StoreUnavailable."""
        return self.put(to_key, (piece for key in keys for piece in self.pieces(key)))

    def pieces(self, key: str) -> Generator[bytes]:
        """Stream a blob in pieces of up to 1 MiB. Raises NotFound, StoreUnavailable."""
        with self.open(key) as source:
            while True:
                with _translated(self.root):
                    piece = source.read(_COPY_BYTES)
                if not piece:
                    return
                yield piece

    def sweep(self, older_than_s: float) -> int:
        """Remove staged files that nobody has written to for ``older_than_s`` machine seconds; return how many.

        They are what a killed process left behind. Raises StoreUnavailable.
        """
        removed = 0
        oldest = time.time() - older_than_s
        with _translated(self.root):
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
        with _translated(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            return shutil.disk_usage(self.root).free


def _place(root: Path, key: str) -> Path:
    if len(key) > 512 or _KEY.fullmatch(key) is None:
        raise ValueError(f"{key!r} is no blob key: plain names of letters, digits, '.', '_', '-' joined by '/'")
    return root / key


def _make_folder(folder: Path, root: Path) -> None:
    """Make a folder and sync every parent that gained one, or a power cut could lose the folder with the file."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists() and parent.is_relative_to(root)]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync_folder(made.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(root: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreUnavailable(
                f"the disk that holds {root} is full; free space there or set CARBONQ_DATA_DIR to a larger disk, "
                "then send it again: nothing of this was kept",
                code="disk_full",
            ) from error
        raise StoreUnavailable(f"cannot use {root}: {error.strerror or error}; check the folder's rights") from error

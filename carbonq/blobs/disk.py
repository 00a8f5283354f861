"""What folder and spool share: sentences for a disk that refuses, and reading a file that others read too."""

from __future__ import annotations

import bisect
import errno
import io
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from carbonq.errors import StoreUnavailable


@contextmanager
def translated(folder: Path) -> Generator[None]:
    """Turn an OSError into StoreUnavailable with the folder and the way out."""
    try:
        yield
    except OSError as error:
        raise refusal(folder, error) from error


def refusal(folder: Path, error: OSError) -> StoreUnavailable:
    """Return the sentence for a disk that refuses."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreUnavailable(
            f"the disk that holds {folder} is full; free space there or set CARBONQ_DATA_DIR to a larger disk, "
            "then send it again: nothing of this was kept",
            code="disk_full",
        )
    return StoreUnavailable(f"cannot use {folder}: {error.strerror or error}; check the folder's rights")


class _At(io.RawIOBase):
    """Reads an open file from its beginning with a position of its own; the file is not closed with it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._position = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast("bytearray", buffer))
        data = os.pread(self._file.fileno(), len(view), self._position)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def reader(file: IO[bytes]) -> io.BufferedReader:
    """Return a stream over an open file that leaves the file's own position alone."""
    return io.BufferedReader(_At(file), 1 << 18)


class FileRanges:
    """Ranges that lie in a file, one extent after the other; keeps the file open until closed."""

    def __init__(self, file: IO[bytes], extents: Sequence[tuple[int, int]], folder: Path) -> None:
        """Take over ``file``, which holds the bytes of the sorted (start, stop) ``extents`` of a blob in a row."""
        self._file, self._folder = file, folder
        self._starts = [start for start, _ in extents]
        self._stops = [stop for _, stop in extents]
        self._places = [0]
        for start, stop in extents:
            self._places.append(self._places[-1] + stop - start)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range. Raises StoreUnavailable, ValueError for one that is not there."""
        found = bisect.bisect_right(self._starts, offset) - 1
        if found < 0 or offset + length > self._stops[found]:
            raise ValueError(f"the range of {length} bytes at {offset} was not asked for")
        try:  # no context manager: it would take longer than the reading
            data = os.pread(self._file.fileno(), length, self._places[found] + offset - self._starts[found])
        except OSError as error:
            raise refusal(self._folder, error) from error
        if len(data) != length:
            raise StoreUnavailable(f"{self._folder} has lost bytes: {len(data)} of {length} are left at {offset}")
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()

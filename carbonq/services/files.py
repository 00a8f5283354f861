"""Take files in, checked line by line while they stream, and let them go when they are deleted or have expired."""

from __future__ import annotations

from datetime import datetime

from carbonq import jsonl
from carbonq.blobs import BlobStore, Staged
from carbonq.errors import InvalidRequest, StoreUnavailable
from carbonq.store import files
from carbonq.store.database import Database
from carbonq.store.files import File

_BOM = b"\xef\xbb\xbf"

#: Files removed in one tick.
TICK_FILES = 200


class Intake:
    """Writes a batch input as it comes, in memory bounded by its longest line, and checks that it is JSON Lines."""

    def __init__(self, staged: Staged, *, max_bytes: int, max_lines: int, max_line_bytes: int) -> None:
        """Begin with nothing; ``staged`` stays the caller's to publish or discard."""
        self.lines = 0
        self._staged, self._rest, self._number = staged, b"", 0
        self._max_bytes, self._max_lines, self._max_line_bytes = max_bytes, max_lines, max_line_bytes

    def write(self, data: bytes) -> None:
        """Take the next bytes. Raises InvalidRequest naming the line or the limit, StoreUnavailable."""
        if self._staged.size + len(data) > self._max_bytes:
            raise too_large(self._max_bytes)
        first, *others = data.split(b"\n")
        if others:
            self._check(self._rest + first)
            for line in others[:-1]:
                self._check(line)
            self._rest = others[-1]
        else:
            self._rest += first
        if len(self._rest) > self._max_line_bytes + len(_BOM) + 1:
            raise jsonl.line_too_long(self._number + 1, self._max_line_bytes)
        self._staged.write(data)

    def finish(self) -> None:
        """Check the last line. Raises InvalidRequest, also where there was none at all."""
        if self._rest:
            self._check(self._rest)
        if not self.lines:
            raise jsonl.empty_input("the file")

    def _check(self, raw: bytes) -> None:
        self._number += 1
        data = raw.removeprefix(_BOM).strip() if self._number == 1 else raw.strip()
        if not data:
            return
        if self.lines == self._max_lines:
            raise InvalidRequest(
                f"line {self._number}: the file has more than {self._max_lines:,} requests; split it over several "
                "batches or raise CARBONQ_MAX_ITEMS",
                line=self._number,
                param="file",
                code="too_many_tasks",
            )
        if len(data) > self._max_line_bytes:
            raise jsonl.line_too_long(self._number, self._max_line_bytes)
        jsonl.decode_object(data, self._number)
        self.lines += 1


def too_large(limit: int) -> InvalidRequest:
    """Return the error for a file of more than ``limit`` bytes."""
    return InvalidRequest(
        f"the file has more than {limit:,} bytes; split it over several batches or raise CARBONQ_MAX_INPUT_BYTES",
        param="file",
        code="request_too_large",
    )


def store(db: Database, blobs: BlobStore, staged: Staged, file: File) -> None:
    """Publish an upload and store its row, both or neither. Takes over ``staged``. Raises StoreUnavailable."""
    try:
        staged.prepare(file.blob)  # an upload must not hold a lock; the key is fresh, so nobody reads it yet
        with db.write() as tx:
            files.insert_many(tx, [file])
            staged.publish(file.blob)  # prepared above: at most a rename is left to do under the lock
    except StoreUnavailable:
        if not _is_stored(db, blobs, file):
            raise
    except BaseException:
        _is_stored(db, blobs, file)
        raise
    finally:
        staged.discard()


def _is_stored(db: Database, blobs: BlobStore, file: File) -> bool:
    """Say whether a file outlived an error of its commit (the answer may have been lost, not the row); else tidy up."""
    try:
        with db.read() as tx:
            is_stored = files.is_stored(tx, file.file_id)
    except StoreUnavailable:
        return False  # a blob without a row is only untidy; a row without its blob would be broken
    if not is_stored:
        blobs.delete(file.blob)
    return is_stored


def retire(db: Database, blobs: BlobStore, now: datetime) -> int:
    """Remove deleted and expired files that no open batch reads, a tick's worth; return how many.

    Idempotent: the bytes go first, so that whatever is cut off here is found again. Raises StoreUnavailable.
    """
    with db.read() as tx:
        is_due = files.has_expired(tx, now)
    if is_due:  # the usual case takes no write lock
        with db.write() as tx:
            files.mark_expired(tx, now, limit=TICK_FILES)
    with db.read() as tx:
        gone = files.removable(tx, limit=TICK_FILES)
    for _, blob in gone:
        blobs.delete(blob)
    if gone:
        with db.write() as tx:
            files.remove(tx, [file_id for file_id, _ in gone])
    return len(gone)

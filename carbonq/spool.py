"""Keep what could not be committed in fsynced JSON files until the database is back.

A file is written whole or not at all, and stays until its replay succeeded or was refused for good. What the disk
refuses stays in memory, as long as its process lives.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from carbonq.errors import StoreUnavailable

logger = logging.getLogger(__name__)

#: What a full disk may leave in memory, in bytes; beyond it a record is lost.
MAX_IN_MEMORY_BYTES = 64 * 1024 * 1024


class Spool:
    """A folder of records, oldest first by name; the workers of one region on one host share it."""

    def __init__(self, root: Path) -> None:
        """Use ``root``, which is made at the first record."""
        self.root = root
        self._numbers = itertools.count()
        self._in_memory: dict[Path, bytes] = {}
        self._lock = threading.Lock()

    def put(self, record: dict[str, Any]) -> Path:
        """Store a record durably; in memory while the disk refuses. Raises StoreUnavailable when that is full, too."""
        path = self.root / f"{time.time_ns():020d}-{next(self._numbers):06d}-{os.getpid()}.json"
        data = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            self._write(path, data)
        except OSError as error:
            with suppress(OSError):
                path.with_suffix(".part").unlink(missing_ok=True)
            with self._lock:
                held = sum(map(len, self._in_memory.values()))
                if held + len(data) > MAX_IN_MEMORY_BYTES:
                    raise StoreUnavailable(f"cannot spool to {self.root}: {error.strerror}") from error
                self._in_memory[path] = data
            logger.error(
                "cannot spool to %s (%s): %d bytes are in memory, and lost if this process ends before they are stored",
                self.root,
                error.strerror,
                held + len(data),
            )
        return path

    def _write(self, path: Path, data: bytes) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def records(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Give each record with its file, oldest first; a file that is no record is set aside and logged.

        No files while another worker of this host replays the same folder: it does the work of both, once. What is in
        memory comes last.
        """
        yield from self._files()
        for path, data in list(self._in_memory.items()):
            yield path, json.loads(data)

    def _files(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        paths = sorted(self.root.glob("*.json"))
        if not paths:
            return
        with self._alone() as is_alone:
            for path in paths if is_alone else ():
                try:
                    record = json.loads(path.read_bytes())
                except FileNotFoundError:
                    continue  # replayed by the other one just before
                except ValueError as error:
                    logger.error("spooled file %s cannot be read: %s", path, error)
                    self.set_aside(path)
                    continue
                yield path, record

    @contextmanager
    def _alone(self) -> Generator[bool]:
        descriptor = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(descriptor)

    def done(self, path: Path) -> None:
        """Forget a record."""
        with self._lock:
            if self._in_memory.pop(path, None) is not None:
                return
        path.unlink(missing_ok=True)

    def set_aside(self, path: Path) -> None:
        """Keep a record that cannot be used as ``.bad``, out of the way of the others; one in memory is dropped."""
        with self._lock:
            if self._in_memory.pop(path, None) is not None:
                return
        path.replace(path.with_suffix(".bad"))

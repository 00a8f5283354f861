"""Keep what could not be committed in fsynced JSON files until the database is back.

A file is written whole or not at all, and stays until its replay succeeded or was refused for good.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from carbonq.errors import StoreUnavailable

logger = logging.getLogger(__name__)


class Spool:
    """A folder of records, oldest first by name; the workers of one region on one host share it."""

    def __init__(self, root: Path) -> None:
        """Use ``root``, which is made at the first record."""
        self.root = root
        self._numbers = itertools.count()

    def put(self, record: dict[str, Any]) -> Path:
        """Store a record durably. Raises StoreUnavailable when the disk refuses: the record is lost then."""
        path = self.root / f"{time.time_ns():020d}-{next(self._numbers):06d}-{os.getpid()}.json"
        part = path.with_suffix(".part")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with part.open("xb") as stream:
                stream.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode())
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(path)
            descriptor = os.open(self.root, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreUnavailable(f"cannot spool to {self.root}: {error.strerror}") from error
        return path

    def records(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Give each record with its file, oldest first; a file that is no record is set aside and logged.

        None while another worker of this host replays the same folder: it does the work of both, once.
        """
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
        path.unlink(missing_ok=True)

    def set_aside(self, path: Path) -> None:
        """Keep a record that cannot be used as ``.bad``, out of the way of the others."""
        path.replace(path.with_suffix(".bad"))

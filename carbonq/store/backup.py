"""Copy a SQLite database while processes write to it. PostgreSQL has ``pg_dump`` for that."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from carbonq.errors import ConfigError, StoreUnavailable
from carbonq.store.database import Database

#: Pages copied between two chances for writers, at 4 KiB each.
_PAGES = 4_096


def backup(database: Database, target: Path) -> int:
    """Copy a SQLite database as of one moment into the new file ``target`` and return its size in bytes.

    The file appears whole, synced to disk, or not at all. Raises ConfigError for PostgreSQL, for a target that exists
    and for a database that does not; StoreUnavailable when the disk refuses.
    """
    if not database.is_sqlite:
        raise ConfigError("PostgreSQL is backed up by its own tools: pg_dump --format=custom (docs/operations.md)")
    source = Path(database.engine.url.database or "")
    if not source.is_file():
        raise ConfigError(f"there is no database {source} to back up")
    if target.exists():
        raise ConfigError(f"{target} exists already; a backup never replaces a file")
    part = target.with_name(target.name + ".part")
    try:
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(part)) as new:
            old.backup(new, pages=_PAGES)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
        return target.stat().st_size
    except sqlite3.Error as error:
        raise StoreUnavailable(f"cannot back up {source}: {error}") from error
    except OSError as error:
        raise StoreUnavailable(f"cannot write {target}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)

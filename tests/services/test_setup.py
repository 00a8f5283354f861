"""Setting up twice is setting up once."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from carbonq.clock import ClockKind, GridClock
from carbonq.errors import ConfigError
from carbonq.services import setup
from carbonq.store import keys
from carbonq.store.database import Database
from tests.services.running import OTHER, REGION


def prepare(database: Database, folder: Path, clock: GridClock | None = None) -> setup.Prepared:
    return setup.prepare(database, configured=[REGION, OTHER], data_dir=folder, tenant="acme", clock=clock)


def test_a_second_start_finds_clock_and_key(database_url: str, tmp_path: Path) -> None:
    database = Database(database_url)
    fast = GridClock.accelerated(datetime(2021, 7, 1, tzinfo=UTC), 75.0)
    first = prepare(database, tmp_path / "data", fast)
    again = prepare(database, tmp_path / "data", GridClock.real())
    assert again.api_key == first.api_key
    assert again.clock.kind is ClockKind.ACCELERATED
    path = tmp_path / "data" / setup.KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with database.read() as tx:
        key = keys.find_by_hash(tx, keys.hash_key(first.api_key))
    assert key is not None
    assert (key.tenant, key.is_local, key.scopes) == ("acme", True, keys.ALL_SCOPES)
    database.dispose()


def test_a_key_file_that_the_database_does_not_know_is_replaced(sqlite_database: Database, tmp_path: Path) -> None:
    (tmp_path / setup.KEY_FILE).write_text("cq-from-elsewhere\n")
    made = prepare(sqlite_database, tmp_path)
    assert made.api_key != "cq-from-elsewhere"
    assert prepare(sqlite_database, tmp_path).api_key == made.api_key


def test_a_folder_that_cannot_be_made_is_named(sqlite_database: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="data_dir"):
        prepare(sqlite_database, tmp_path / "file" / "data")

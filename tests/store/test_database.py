"""Transactions: what waits for what, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, update

from carbonq.errors import StoreUnavailable
from carbonq.store import dialect, schema
from carbonq.store.database import Database
from carbonq.store.tables import jobs
from tests.store.rows import store_job


def test_a_frozen_process_holds_its_locks_for_a_while_only(
    postgres_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "POSTGRES_IDLE_TIMEOUT_MS", 300)
    frozen, living = Database(postgres_database_url), Database(postgres_database_url)
    schema.upgrade(living)
    job_id = store_job(living).job_id
    change = update(jobs).where(jobs.c.job_id == job_id)
    with pytest.raises(StoreUnavailable), frozen.write() as tx:
        tx.execute(change.values(error="frozen"))
        # Nothing comes from it now; the other one waits for the lock, and gets it.
        with living.write() as other:
            other.execute(change.values(error="living"))
        tx.execute(change.values(error="thawed"))
    with living.read() as tx:
        assert tx.execute(select(jobs.c.error)).scalar_one() == "living"
    frozen.dispose()
    living.dispose()


def test_a_wait_for_a_lock_ends(postgres_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "POSTGRES_LOCK_TIMEOUT_MS", 100)
    one, other = Database(postgres_database_url), Database(postgres_database_url)
    schema.upgrade(one)
    store_job(one)
    with one.write() as tx:
        tx.execute(update(jobs).values(error="held"))
        with pytest.raises(StoreUnavailable, match="lock timeout"), other.write() as second:
            second.execute(update(jobs).values(error="waited"))
    one.dispose()
    other.dispose()


def test_connections_that_are_all_in_use_are_said(postgres_database_url: str) -> None:
    database = Database(postgres_database_url, pool_size=1)
    engine = database.engine
    engine.pool._max_overflow = 0  # type: ignore[attr-defined]
    engine.pool._timeout = 0.01  # type: ignore[attr-defined]
    with database.read(), pytest.raises(StoreUnavailable, match="connections are in use"), database.read():
        pass
    database.dispose()


def test_what_is_no_database_is_said_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"not a database at all" * 100)
    broken = Database(f"sqlite:///{path}")
    for look in (schema.current, schema.upgrade):
        with pytest.raises(StoreUnavailable, match="cannot be read: file is not a database; put a backup"):
            look(broken)
    broken.dispose()


def test_an_upgrade_that_cannot_write_is_said_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database = Database(f"sqlite:///{path}")
    schema.current(database)  # makes the file

    @event.listens_for(database.engine, "connect")
    def fill(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.execute("PRAGMA max_page_count = 2")

    database.dispose()
    with pytest.raises(StoreUnavailable, match="database or disk is full"):
        schema.upgrade(database)
    database.dispose()

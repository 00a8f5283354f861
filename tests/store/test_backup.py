"""A SQLite database is copied as of one moment, while it is written to, into a file that appears whole."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from carbonq.errors import ConfigError
from carbonq.store import backup
from carbonq.store.database import Database
from carbonq.store.tables import items, jobs
from tests.store.rows import store_job


def test_a_copy_taken_while_others_write_is_of_one_moment(sqlite_database: Database, tmp_path: Path) -> None:
    job_id = store_job(sqlite_database, items_total=20_000).job_id
    is_over, has_written = threading.Event(), threading.Event()

    def write() -> None:
        tokens = 0
        while not is_over.is_set():
            tokens += 1
            with sqlite_database.write() as tx:  # job and items always say the same
                tx.execute(update(jobs).where(jobs.c.job_id == job_id).values(est_tokens=tokens))
                tx.execute(
                    update(items).where(items.c.job_id == job_id, items.c.idx % 500 == 0).values(est_tokens=tokens)
                )
            has_written.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert has_written.wait(20)
        size = backup.backup(sqlite_database, tmp_path / "copy.db")
    finally:
        is_over.set()
        thread.join()
    assert size == (tmp_path / "copy.db").stat().st_size
    copy = Database(f"sqlite:///{tmp_path / 'copy.db'}")
    with copy.read() as tx:
        assert tx.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        said = tx.execute(select(jobs.c.est_tokens)).scalar_one()
        some = select(func.min(items.c.est_tokens), func.max(items.c.est_tokens)).where(items.c.idx % 500 == 0)
        assert tx.execute(some).one() == (said, said)
        assert tx.execute(select(func.count()).select_from(items)).scalar_one() == 20_000
    copy.dispose()


def test_a_backup_replaces_nothing_and_leaves_no_half(sqlite_database: Database, tmp_path: Path) -> None:
    target = tmp_path / "there.db"
    target.write_bytes(b"precious")
    with pytest.raises(ConfigError, match="exists already"):
        backup.backup(sqlite_database, target)
    assert target.read_bytes() == b"precious"
    with pytest.raises(Exception, match="cannot") as refused:
        backup.backup(sqlite_database, tmp_path / "no folder" / "b.db")
    assert "no folder" in str(refused.value) or "unable to open" in str(refused.value)
    assert not list(tmp_path.glob("*.part"))


def test_postgresql_is_sent_to_its_own_tools(postgresql: Database, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pg_dump"):
        backup.backup(postgresql, tmp_path / "b.db")

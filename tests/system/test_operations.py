"""What operators do to an installation at work: back it up and restore it, and upgrade it while it runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from carbonq.store import backup, schema
from carbonq.store.database import Database
from tests.conftest import postgres_database, require
from tests.system.backends import Backend, backend
from tests.system.processes import Installation, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

ITEMS = 3_000

Open = Callable[[Path, Backend], Installation]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open installations that are closed at the end."""
    with ExitStack() as stack:

        def make(root: Path, chosen: Backend) -> Installation:
            root.mkdir(exist_ok=True)
            made = Installation(
                root, chosen, lease_s=4, renew_s=1, checkpoint_items=200, redispatch_after_s=2, worker_alive_s=5
            )
            stack.callback(lambda: print(made.logs()))  # shown by pytest when the test failed
            stack.callback(made.close)
            return made

        yield make


def copy_blobs(source: Installation, target: Path) -> None:
    """As rsync without --delete does: what is new is added, nothing is taken away."""
    blobs = source.settings.data_dir / "blobs"
    for path in blobs.rglob("*"):
        to = target / "data" / "blobs" / path.relative_to(blobs)
        if path.is_file() and not to.exists() and ".staging" not in path.parts:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)


def libpq(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def dump(installation: Installation, folder: Path) -> Path:
    if installation.db.is_sqlite:
        backup.backup(installation.db, folder / "carbonq.db")
        return folder / "carbonq.db"
    if shutil.which("pg_dump") is None or shutil.which("pg_restore") is None:
        require("no pg_dump and pg_restore on PATH")
    url = installation.backend.database_url
    assert url is not None
    target = folder / "carbonq.dump"
    subprocess.run(["pg_dump", "--format=custom", f"--file={target}", libpq(url)], check=True)
    return target


def restore(
    dumped: Path, to: Path, database: Callable[[], AbstractContextManager[str]], stack: ExitStack
) -> str | None:
    """Bring a dump into a database of its own; return its URL, or None for the SQLite file of the folder."""
    if dumped.suffix == ".db":
        (to / "data").mkdir(parents=True, exist_ok=True)
        shutil.copy(dumped, to / "data" / "carbonq.db")
        return None
    url = stack.enter_context(database())
    subprocess.run(["pg_restore", "--no-owner", "--exit-on-error", f"--dbname={libpq(url)}", str(dumped)], check=True)
    return url


@pytest.mark.parametrize("name", ["sqlite-redis", pytest.param("postgresql-redis", marks=pytest.mark.chaos)])
def test_a_backup_taken_at_work_is_restored_and_work_resumes(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, opened: Open
) -> None:
    def database() -> AbstractContextManager[str]:
        return postgres_database(request.getfixturevalue("postgres_url"))

    with ExitStack() as stack:
        chosen = stack.enter_context(backend(name, request))
        before = opened(tmp_path / "before", chosen)
        before.start_all()
        done = before.submit(300)
        before.tickets.nudge("plan")
        until(lambda: before.job(done).is_final, 90, "finished job")
        job_id = before.submit(ITEMS)
        before.tickets.nudge("plan")
        until(lambda: 0 < before.job(job_id).items_ended < ITEMS, 60, "job in the middle")

        after = tmp_path / "after"
        copy_blobs(before, after)
        dumped = dump(before, tmp_path)
        copy_blobs(before, after)
        at_dump = before.job(job_id).items_ended
        until(lambda: before.job(job_id).is_final, 120, "finished job that the backup knows nothing of")
        for process in list(before.processes):
            before.kill(process)
        shutil.rmtree(before.settings.data_dir / "blobs")

        url = restore(dumped, after, database, stack)
        restored = opened(after, replace(chosen, database_url=url))
        assert 0 < restored.job(job_id).items_ended <= at_dump
        assert restored.job(done).is_final
        restored.start_all()
        until(lambda: restored.job(job_id).is_final, 120, "finished job after the restore")
        assert restored.job(job_id).items_succeeded == ITEMS
        restored.check(job_id)
        restored.check(done)
        # Connections go before the database does.
        restored.close()
        restored.processes.clear()


def make_newer(database: Database) -> None:
    """What the migration of a later version does that only adds."""
    with database.write() as tx:
        tx.execute(text("ALTER TABLE jobs ADD COLUMN of_a_later_version TEXT"))
        tx.execute(text("ALTER TABLE entries ADD COLUMN of_a_later_version TEXT"))
        tx.execute(text("CREATE TABLE of_a_later_version (one INTEGER)"))
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))


@pytest.mark.parametrize("name", ["postgresql-rabbitmq"])
def test_an_upgrade_rolls_through_an_installation_at_work(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, opened: Open
) -> None:
    with backend(name, request) as chosen:
        installation = opened(tmp_path / "rolling", chosen)
        started = installation.start_all()
        job_id = installation.submit(ITEMS)
        installation.tickets.nudge("plan")
        until(lambda: 0 < installation.job(job_id).items_ended < ITEMS, 60, "job in the middle")
        make_newer(installation.db)
        assert schema.is_newer(installation.db)
        for process, arguments in started.items():  # one after the other: the rest works on
            old = installation.processes[process]
            old.terminate()
            assert old.wait(40) == 0
            installation.start(process, *arguments)
        until(lambda: installation.job(job_id).is_final, 120, "finished job")
        installation.check(job_id)
        with installation.start_api() as client:  # and a new process takes new work
            assert client.health()["status"] == "ready"
        assert installation.unexpected_log_lines() == []
        installation.close()
        installation.processes.clear()

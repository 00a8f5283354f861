"""PostgreSQL for tests: databases made, emptied and removed, each process of a test run with its own."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import Connection

from carbonq.store import schema
from carbonq.store.database import Database

#: What a migration writes and no test may leave changed; a database in which it differs is made anew.
KEPT = ("alembic_version", "schema_floor")

_SHAPE = f"""
    SELECT (SELECT string_agg(table_name || '.' || column_name, ',' ORDER BY table_name, column_name)
            FROM information_schema.columns WHERE table_schema = 'public'),
           {", ".join(f"(SELECT string_agg(t::text, ',') FROM {name} t)" for name in KEPT)}
"""

# Rows go by DELETE with triggers and foreign keys off: 5 ms for 30 nearly empty tables, against 150 ms for TRUNCATE.
_EMPTY = f"""
    DO $$ DECLARE name text; BEGIN
      SET LOCAL session_replication_role = replica;
      FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT IN {KEPT} LOOP
        EXECUTE format('DELETE FROM %I', name);
      END LOOP;
      PERFORM setval(format('%I', sequencename), 1, false) FROM pg_sequences WHERE schemaname = 'public';
    END $$
"""

_BLANK = "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO public"

_DISCONNECT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


#: The first database of each kind, whose statements the later ones use.
_FIRST: dict[str, Database] = {}


def opened(url: str) -> Database:
    """Open a database with all the statements that were compiled before: that takes longer than running most."""
    made = Database(url)
    first = _FIRST.setdefault(made.engine.dialect.name, made)
    if first is made:
        with made.read():  # the dialect learns its server
            return made
    for engine, known in ((made.engine, first.engine), (made._writer, first._writer)):  # pyright: ignore[reportPrivateUsage]
        engine.dialect = known.dialect
        engine._compiled_cache = known._compiled_cache  # pyright: ignore[reportPrivateUsage]
    return made


@contextmanager
def connected(url: str) -> Generator[Connection]:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def postgres_database(postgres_url: str) -> Generator[str]:
    """A PostgreSQL database of its own; gives its URL."""
    name = f"carbonq_test_{uuid.uuid4().hex[:12]}"
    with connected(postgres_url) as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
        # Nothing here has to survive a power cut, and waiting for the disk took half of the time.
        connection.execute(text(f'ALTER DATABASE "{name}" SET synchronous_commit = off'))
    yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    with connected(postgres_url) as connection:
        connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))


class Reused:
    """One database that tests use one after the other: making and dropping one for each took minutes of every run."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._shape: tuple[object, ...] | None = None

    def blank(self) -> str:
        """The URL of the database, with nothing in it."""
        with connected(self._url) as connection:
            connection.execute(text(_DISCONNECT))
            connection.execute(text(_BLANK))
        return self._url

    def migrated(self) -> str:
        """The URL of the database, with the schema and no rows; migrated anew where a test changed the schema."""
        with connected(self._url) as connection:
            connection.execute(text(_DISCONNECT))
            if self._shape is not None and _shape(connection) == self._shape:
                connection.execute(text(_EMPTY))
                return self._url
        opened = Database(self.blank())
        schema.upgrade(opened)
        opened.dispose()
        with connected(self._url) as connection:
            self._shape = _shape(connection)
        return self._url


def _shape(connection: Connection) -> tuple[object, ...] | None:
    if any(connection.execute(text(f"SELECT to_regclass('{name}')")).scalar() is None for name in KEPT):
        return None
    return tuple(connection.execute(text(_SHAPE)).one())

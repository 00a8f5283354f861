"""Open the database and hand out transactions: ``read()`` for looking, ``write()`` for changing."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from carbonq.errors import ConfigError, StoreUnavailable
from carbonq.store import compute, dialect

#: How long the way to a PostgreSQL server may take, in seconds; a host that swallows packets would keep it for minutes.
CONNECT_TIMEOUT_S = 5

#: PostgreSQL's code for a right that is lacking.
_NO_RIGHT = "42501"

#: A transaction; every store function takes one first.
Tx = Connection


class Database:
    """One database, opened lazily; no connection crosses a fork."""

    def __init__(self, url: str, *, pool_size: int = 5, echo: bool = False) -> None:
        """Prepare to open ``url`` (``sqlite:///path`` or ``postgresql://...``); nothing is opened yet.

        Raises ConfigError when PostgreSQL's driver is not installed.
        """
        self.url = dialect.driver_url(url)
        self.is_sqlite = self.url.startswith("sqlite")
        options = {} if self.is_sqlite else {"pool_size": pool_size, "max_overflow": 10, "pool_pre_ping": True}
        connect_args: dict[str, object] = {"check_same_thread": False, "timeout": 30} if self.is_sqlite else {}
        if not self.is_sqlite and "connect_timeout" not in self.url:
            connect_args["connect_timeout"] = CONNECT_TIMEOUT_S
        try:
            self._engine = create_engine(self.url, echo=echo, connect_args=connect_args, **options)
        except ImportError as error:  # psycopg without its binary part raises this one
            raise ConfigError(
                f"the database URL asks for PostgreSQL, whose driver is missing ({error}): "
                "`pip install 'carbonq[postgres]'`"
            ) from error
        dialect.configure(self._engine)
        compute.configure(self._engine)
        self._writer = self._engine.execution_options(carbonq_write=True)
        mine = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget_connections(mine()))

    @contextmanager
    def read(self) -> Generator[Tx]:
        """Open a transaction that only looks. Raises StoreUnavailable."""
        with translated(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Generator[Tx]:
        """Open a transaction that changes; commits at the end, rolls back on any exception. Raises StoreUnavailable.

        On SQLite it takes the write lock at once (BEGIN IMMEDIATE).
        """
        with translated(), self._writer.connect() as connection, connection.begin():
            yield connection

    def is_absent(self) -> bool:
        """Say whether it is a SQLite file that nobody has made yet: opening it would make it."""
        return self.is_sqlite and not Path(self._engine.url.database or "").is_file()

    def dispose(self, *, close: bool = True) -> None:
        """Drop the pool; ``close=False`` after a fork, so that the parent's connections stay open."""
        self._engine.dispose(close=close)

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine, for migrations."""
        return self._engine


def _forget_connections(database: Database | None) -> None:
    """Leave a parent's connections alone in a child that was forked in the middle of its life."""
    if database is not None:
        database.dispose(close=False)


@contextmanager
def translated() -> Generator[None]:
    """Turn what a database raises when it cannot serve into StoreUnavailable; defects of ours stay what they are."""
    try:
        yield
    except (OperationalError, InterfaceError, InternalError) as error:  # internal: a transaction that was idle too long
        raise StoreUnavailable(f"the database does not answer: {_reason(error)}") from error
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _NO_RIGHT:
            raise  # a defect of ours
        raise StoreUnavailable(
            f"the database refuses this login: {_reason(error)}; `carbonq db roles` grants what each role needs, "
            "CARBONQ_DATABASE_URL says which one this is"
        ) from error
    except DatabaseError as error:
        if type(error) is not DatabaseError:  # its subclasses are defects of ours
            raise
        raise StoreUnavailable(
            f"the database cannot be read: {_reason(error)}; put a backup in its place or move it away"
        ) from error
    except PoolTimeout as error:
        raise StoreUnavailable("all of this process's database connections are in use") from error


def _reason(error: DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0] if error.orig is not None else str(error)


__all__ = ["Database", "Tx", "translated"]

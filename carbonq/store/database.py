"""Open the database and hand out transactions: ``read()`` for looking, ``write()`` for changing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from carbonq.errors import StoreUnavailable
from carbonq.store import dialect

#: A transaction; every store function takes one first.
Tx = Connection


class Database:
    """One database, opened lazily so that no connection crosses a fork."""

    def __init__(self, url: str, *, pool_size: int = 5, echo: bool = False) -> None:
        """Prepare to open ``url`` (``sqlite:///path`` or ``postgresql://...``); nothing is opened yet."""
        self.url = dialect.driver_url(url)
        self.is_sqlite = self.url.startswith("sqlite")
        options = {} if self.is_sqlite else {"pool_size": pool_size, "max_overflow": 10, "pool_pre_ping": True}
        connect_args: dict[str, object] = {"check_same_thread": False, "timeout": 30} if self.is_sqlite else {}
        self._engine = create_engine(self.url, echo=echo, connect_args=connect_args, **options)
        dialect.configure(self._engine)
        self._writer = self._engine.execution_options(carbonq_write=True)

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

    def dispose(self, *, close: bool = True) -> None:
        """Drop the pool; ``close=False`` after a fork, so that the parent's connections stay open."""
        self._engine.dispose(close=close)

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine, for migrations."""
        return self._engine


@contextmanager
def translated() -> Generator[None]:
    """Turn what a database raises when it cannot serve into StoreUnavailable; defects of ours stay what they are."""
    try:
        yield
    except (OperationalError, InterfaceError, InternalError) as error:  # internal: a transaction that was idle too long
        raise StoreUnavailable(f"the database does not answer: {_reason(error)}") from error
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

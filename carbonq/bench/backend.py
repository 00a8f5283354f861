"""Where a benchmark's installation keeps its truth and its tickets: scratch databases and queues, removed after."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from carbonq import config, wiring
from carbonq.bench.level_grid import level_settings
from carbonq.config import Settings
from carbonq.errors import BrokerUnavailable
from carbonq.store.database import Database


@dataclass(frozen=True, slots=True)
class Backend:
    """A PostgreSQL server (any database on it; none: SQLite) and a broker (none: the embedded one)."""

    database_url: str | None = None
    broker_url: str | None = None

    @property
    def name(self) -> str:
        """How reports call it."""
        broker = "embedded broker" if self.broker_url is None else urlsplit(self.broker_url).scheme
        return f"{self.database_name}, {broker}"

    @property
    def database_name(self) -> str:
        """How reports call the database alone."""
        return "sqlite" if self.database_url is None else "postgresql"

    @contextmanager
    def settings(self, folder: Path) -> Generator[Settings]:
        """Settings of an installation in ``folder`` on a level grid; what it leaves on the servers is removed after."""
        with self.database(folder) as database_url:
            prefix = "" if self.broker_url is None else f"bench-{secrets.token_hex(4)}."
            made = config.load(
                **level_settings(folder),
                **_given(database_url, self.broker_url),
                queue_prefix=prefix,
                max_items=1_000_000,
                max_input_bytes=2**31,
            )
            try:
                yield made
            finally:
                if self.broker_url is not None:
                    tickets = wiring.make_tickets(made)
                    with contextlib.suppress(BrokerUnavailable):
                        tickets.remove_queues(list(made.regions))
                    tickets.close()

    @contextmanager
    def database(self, folder: Path) -> Generator[str]:
        """The URL of a scratch database, made beside the given one on the same server."""
        if self.database_url is None:
            folder.mkdir(parents=True, exist_ok=True)
            yield f"sqlite:///{folder.resolve() / 'carbonq.db'}"
            return
        name = f"carbonq_bench_{secrets.token_hex(4)}"
        _execute(self.database_url, f'CREATE DATABASE "{name}"')
        try:
            yield urlunsplit(urlsplit(self.database_url)._replace(path=f"/{name}"))
        finally:
            _execute(self.database_url, f'DROP DATABASE "{name}" WITH (FORCE)')


def _execute(url: str, statement: str) -> None:
    database = Database(url)
    try:
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(statement)
    finally:
        database.dispose()


def _given(database_url: str, broker_url: str | None) -> dict[str, Any]:
    given = {"database_url": database_url}
    return given if broker_url is None else {**given, "broker_url": broker_url}


def each(folder: Path, rounds: int, measure: Callable[[Path], dict[str, float]], key: str) -> dict[str, Any]:
    """Measure in folders of their own and return all rounds and the median one by ``key``."""
    found = [measure(folder / str(number)) for number in range(rounds)]
    return {"rounds": found, "median": sorted(found, key=lambda one: one[key])[len(found) // 2]}

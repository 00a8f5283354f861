"""Find the API that commands talk to, with its key, and the database of those that work on it directly."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from carbonq.errors import ConfigError

if TYPE_CHECKING:
    from carbonq.client import Client
    from carbonq.clock import Clock
    from carbonq.config import Settings
    from carbonq.store.database import Database


def open_client() -> Client:
    """Return a client of the API in force: ``api_url``, else the stack running on the data folder, else host and port.

    Raises ConfigError for bad settings; nothing is sent yet.
    """
    from carbonq import config
    from carbonq.client import Client

    settings = config.given().basics()
    return Client(find_url(settings), find_key(settings))


@contextmanager
def open_database() -> Generator[tuple[Settings, Database]]:
    """Open the database of the settings; its schema must be the code's. Raises ConfigError, StoreUnavailable."""
    from carbonq import config, wiring
    from carbonq.store import schema
    from carbonq.store.database import Database

    sources = config.given()
    settings = sources.basics()
    if settings.database_url is None and not (settings.data_dir / "carbonq.db").exists():
        raise ConfigError(
            f"there is no database in {settings.data_dir}: run `carbonq up` or `carbonq db upgrade` first, "
            "or point CARBONQ_DATA_DIR or CARBONQ_DATABASE_URL at one"
        )
    database = Database(settings.resolved_database_url)
    try:
        schema.check_usable(database)
        yield wiring.settle(sources), database
    finally:
        database.dispose()


def clock_of(database: Database) -> Clock:
    """Return the installation's clock. Raises ConfigError before the first start, StoreUnavailable."""
    from carbonq.store import clocks

    with database.read() as tx:
        clock = clocks.get(tx)
    if clock is None:
        raise ConfigError("the database has no clock yet; run `carbonq db upgrade` first")
    return clock


def find_url(settings: Settings) -> str:
    """Return the URL of the API."""
    from carbonq.embedded import address

    if settings.api_url is not None:
        return settings.api_url
    found = address.running(settings.data_dir)
    return found.api_url if found is not None else address.api_url(settings)


def find_key(settings: Settings) -> str | None:
    """Return the configured key, else the local one of the data folder; None if there is neither."""
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    try:
        return (settings.data_dir / "api-key").read_text(encoding="utf-8").strip()
    except OSError:
        return None

"""Find the API that commands talk to, with its key, and the database of those that work on it directly."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from carbonq.cli.output import say
from carbonq.errors import ConfigError

if TYPE_CHECKING:
    from carbonq.client import Client
    from carbonq.clock import Clock
    from carbonq.config import Settings
    from carbonq.store.database import Database

Command = TypeVar("Command", bound=Callable[..., Any])

#: What --url said.
_url: ContextVar[str | None] = ContextVar("url", default=None)

_REMOTE = "is_of_the_api"


def remote(command: Command) -> Command:
    """Mark a command that talks to the API and to nothing else, so that it has --url."""
    setattr(command, _REMOTE, True)
    return command


def is_remote(command: Callable[..., Any]) -> bool:
    """Say whether a command is marked so."""
    return hasattr(command, _REMOTE)


@contextmanager
def talking_to(url: str | None) -> Generator[None]:
    """Talk to this API while the context lasts; to the one before where None."""
    token = _url.set(url or _url.get())
    try:
        yield
    finally:
        _url.reset(token)


def open_client(*, timeout_s: float = 60.0, retries: int | None = None) -> Client:
    """Return a client of the API in force: --url, ``api_url``, else this machine's stack, else host and port.

    A server that does not listen is told at once; connections that break later are made again. Raises ConfigError for
    bad settings; nothing is sent yet.
    """
    from carbonq import config
    from carbonq.client import Client
    from carbonq.client.patience import RETRIES

    settings = config.given().basics()
    url = _url.get() or find_url(settings)
    # An empty key sends none.
    key = find_key(settings, url) or ""
    return Client(
        url,
        key,
        timeout_s=timeout_s,
        retries=RETRIES if retries is None else retries,
        awaits_start=False,
        on_retry=say,
    )


def is_elsewhere() -> bool:
    """Say whether the installation is reached by its API alone: --url names one, or the settings do and no database."""
    from carbonq import config

    if _url.get() is not None:
        return True
    settings = config.given().basics()
    has_database = settings.database_url is not None or (settings.data_dir / "carbonq.db").exists()
    return settings.api_url is not None and not has_database


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


def find_key(settings: Settings, url: str) -> str | None:
    """Return the configured key, else the local one where the API is this machine's own; None for neither.

    The local key goes to no other machine, whatever --url says.
    """
    from carbonq.client.shared import is_loopback, local_key

    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    is_own = is_loopback(url) or (settings.api_url is None and url == find_url(settings))
    return local_key(settings.data_dir) if is_own else None

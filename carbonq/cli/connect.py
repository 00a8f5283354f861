"""Find the API that commands talk to, and the key for it."""

from __future__ import annotations

from carbonq import config
from carbonq.client import Client
from carbonq.config import Settings
from carbonq.embedded import address


def open_client() -> Client:
    """Return a client of the API in force: ``api_url``, else the stack running on the data folder, else host and port.

    Raises ConfigError for bad settings; nothing is sent yet.
    """
    settings = config.load()
    return Client(find_url(settings), find_key(settings))


def find_url(settings: Settings) -> str:
    """Return the URL of the API."""
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

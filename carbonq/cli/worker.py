"""``carbonq worker`` and ``carbonq process``: run one process of the installation in the foreground."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from carbonq import rooms
from carbonq.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from carbonq.config import Settings


class Process(StrEnum):
    """The processes beside the region workers."""

    API = "api"
    CONTROL = "control"
    CONTROL_SLOW = "control-slow"
    BEAT = "beat"
    FLOWER = "flower"


def worker(region: Annotated[str, typer.Option("--region", help="Region whose queues it serves.")]) -> None:
    """Run the worker of one region until it is stopped (SIGTERM: finish the engine batch and give the rest back).

    Example: carbonq worker --region norcal
    """
    _end_in_order()
    settings = _settings()
    if region not in settings.regions:
        raise InvalidRequest(f"unknown region {region!r}; known regions: {', '.join(sorted(settings.regions))}")
    rooms.load("workers", "region").main(settings, region)


def process(name: Annotated[Process, typer.Argument(help="Which process to run.")]) -> None:
    """Run one of the other processes; `carbonq up` starts them all, a service manager may start them one by one.

    Example: carbonq process api
    """
    _end_in_order()
    settings = _settings()
    match name:
        case Process.API:
            from carbonq.api import process as api

            api.main(settings)
        case Process.CONTROL:
            rooms.load("workers", "control").main(settings, slow=False)
        case Process.CONTROL_SLOW:
            rooms.load("workers", "control").main(settings, slow=True)
        case Process.BEAT:
            rooms.load("beat", "process").main(settings)
        case Process.FLOWER:
            rooms.load("workers", "flower").main(settings)


def _end_in_order() -> None:
    """Make SIGTERM end the process with status 0 from its first moment on.

    The servers put handlers of their own in place later. Without this, SIGTERM does nothing to a container's first
    process while it starts, and uvicorn ends by the signal that it has handled.
    """
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))


def _settings() -> Settings:
    """Return the settings, with the broker of the stack that runs on the data folder where none is configured."""
    from pydantic import SecretStr

    from carbonq import config
    from carbonq.embedded import address

    settings = config.load()
    if settings.broker_url is not None:
        return settings
    found = address.running(settings.data_dir)
    if found is None:
        raise ConfigError(
            "CARBONQ_BROKER_URL is not set and no `carbonq up` runs on this data folder; do one of the two"
        )
    return settings.model_copy(update={"broker_url": SecretStr(found.broker_url)})

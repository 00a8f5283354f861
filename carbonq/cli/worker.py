"""``carbonq worker`` and ``carbonq process``: run one process of the installation in the foreground."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from enum import StrEnum
from types import FrameType
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


def worker(
    region: Annotated[str, typer.Option("--region", help="Region whose queues it serves.")],
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", help="GPUs of this host that it uses, e.g. 0,1; instead of regions.REGION.gpus."),
    ] = None,
) -> None:
    """Run the worker of one region until it is stopped (SIGTERM: finish the engine batch and give the rest back).

    On a host of its own it needs the addresses of broker, database and blobs only: the rest is in the database.

    Example: carbonq worker --region norcal
    """
    _end_in_order()
    settings = _settings()
    if region not in settings.regions:
        raise InvalidRequest(f"unknown region {region!r}; known regions: {', '.join(sorted(settings.regions))}")
    if gpus is not None:
        settings = _with_gpus(settings, region, gpus)
    rooms.load("workers", "region").main(settings, region)


def process(name: Annotated[Process, typer.Argument(help="Which process to run.")]) -> None:
    """Run one of the other processes; `carbonq up` starts them all, a service manager may start them one by one.

    Example: carbonq process api
    """
    _end_in_order()
    settings = _settings(has_database=name is not Process.FLOWER)
    match name:
        case Process.API:
            from carbonq import web
            from carbonq.api import process as api

            api.main(settings, extend=web.install)
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
    process while it starts, and uvicorn ends by the signal that it has handled. Nothing is raised: where the signal
    falls into C code, that swallows SystemExit or turns it into another error. So early there is nothing to put away.
    """
    signal.signal(signal.SIGTERM, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    with contextlib.suppress(Exception):  # a stream that is being written to just now
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _with_gpus(settings: Settings, region: str, text: str) -> Settings:
    """Return the settings with the GPUs of this host. Raises InvalidRequest for what cannot name one."""
    names = tuple(part.strip() for part in text.split(","))
    wrong = [name for name in names if re.fullmatch(r"\d+|(GPU|MIG)-[A-Za-z0-9/-]+", name) is None]
    if wrong:
        raise InvalidRequest(f"{wrong[0]!r} names no GPU; --gpus takes indices or UUIDs with commas, e.g. 0,1")
    regions = {**settings.regions, region: settings.regions[region].model_copy(update={"gpus": names})}
    return settings.model_copy(update={"regions": regions})


def _settings(*, has_database: bool = True) -> Settings:
    """Return the settings of a process that joins the installation, with what the database keeps of them.

    Where no broker is configured, it is that of the stack which runs on the data folder.
    """
    from pydantic import SecretStr

    from carbonq import config, wiring
    from carbonq.embedded import address

    sources = config.given()
    basics = sources.basics()
    update: dict[str, SecretStr] = {}
    if basics.broker_url is None:
        found = address.running(basics.data_dir)
        if found is None:
            raise ConfigError(
                "CARBONQ_BROKER_URL is not set and no `carbonq up` runs on this data folder; do one of the two"
            )
        update["broker_url"] = SecretStr(found.broker_url)
    settings = wiring.join(sources) if has_database else basics
    return settings.model_copy(update=update)

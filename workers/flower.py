"""Flower with a password, on loopback unless told otherwise: workers per region, queues and ticks, read-only."""

from __future__ import annotations

import logging
from typing import Any

from tornado.ioloop import PeriodicCallback
from tornado.options import options

from carbonq import telemetry, wiring
from carbonq.config import Settings
from carbonq.errors import ConfigError
from carbonq.tickets import make_celery

#: The user name that goes with the password.
USER = "carbonq"

#: How often the workers are asked for their queues, in milliseconds: Flower itself asks once, before they have started.
_ASK_MS = 15_000


def main(settings: Settings) -> None:
    """Serve Flower until a stop signal. Raises ConfigError when no password is set (it would be open to anybody)."""
    if settings.flower_password is None:
        raise ConfigError("Flower needs a password; set CARBONQ_FLOWER_PASSWORD or use `carbonq up`, which makes one")
    telemetry.set_up_logging(settings.log_level)
    # It asks every worker at its start, and says of each question that workers which are starting do not answer.
    logging.getLogger("flower.inspector").setLevel(logging.ERROR)
    from flower import options as _defined  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from flower.app import Flower
    from flower.urls import settings as tornado_settings

    # Set here and not by flags or environment: neither argv nor a child's environment is a place for a password.
    values: dict[str, Any] = {
        "address": settings.flower_host,
        "basic_auth": [f"{USER}:{settings.flower_password.get_secret_value()}"],
        "inspect_timeout": 2000.0,
        "max_tasks": 5_000,
        "port": settings.flower_port,
        "read_only": True,
    }
    for name, value in values.items():
        setattr(options, name, value)
    server: Any = Flower(
        capp=make_celery(wiring.broker_url(settings), queue_prefix=settings.queue_prefix),
        options=options,
        **tornado_settings,
    )
    server.start_http_server()
    PeriodicCallback(server.update_workers, _ASK_MS).start()
    try:
        server.start()
    except KeyboardInterrupt:  # SIGTERM ends the process at once: it keeps nothing
        server.stop()

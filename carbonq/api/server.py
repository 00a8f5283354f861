"""uvicorn as every API of ours runs in it: its settings, and a stop that ends open streams first."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from carbonq.api.connection import Connection

#: How long requests may go on after the stop signal, in machine seconds.
GRACE_S = 10


def server_config(app: ASGIApp) -> uvicorn.Config:
    """Return uvicorn's settings for an app; the socket is opened by ``process.listen``."""
    return uvicorn.Config(
        app,
        access_log=False,
        http=Connection,
        lifespan="on",
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=75,
    )


class Server(uvicorn.Server):
    """A server that tells its app of the stop before it waits for open connections: a stream would never end."""

    def __init__(self, config: uvicorn.Config, before_stop: Callable[[], None]) -> None:
        """Call ``before_stop`` on the event loop when the stop begins."""
        super().__init__(config)
        self._before_stop = before_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what would go on for ever, then all else."""
        self._before_stop()
        await super().shutdown(sockets)

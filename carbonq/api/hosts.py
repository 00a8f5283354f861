"""Refuse requests to a loopback address under a name that is none of its own: a page elsewhere may point one here.

That is DNS rebinding: a browser on this machine resolves the page's own name to 127.0.0.1 and talks to this API as if
it were the page's server. Plain ASGI, so that streams pass.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from carbonq.api import problems
from carbonq.api.auth import is_loopback


class HostCheck:
    """The middleware; ``allowed`` are names beside those of loopback, without ports."""

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()) -> None:
        """Wrap an application."""
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 421."""
        if scope["type"] == "http":
            given = Headers(scope=scope).get("host", "")
            name = host_of(given)
            if not (is_loopback(name) or name in self._allowed):
                answer = problems.problem(
                    421,
                    f"this API listens on this machine alone and is not called {given[:255]!r}; use 127.0.0.1 or "
                    "localhost, or name the host in CARBONQ_ALLOWED_HOSTS",
                    code="host_not_allowed",
                    instance=scope["path"],
                )
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def host_of(header: str) -> str:
    """Return the name of a Host header, without its port: ``[::1]:8750`` is ``[::1]``."""
    name, separator, port = header.strip().rpartition(":")
    is_port = bool(separator) and port.isdigit() and (not name.count(":") or name.endswith("]"))
    return (name if is_port else header.strip()).lower().rstrip(".")

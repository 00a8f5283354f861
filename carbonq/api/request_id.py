"""Give every request an id (scope, log, ``x-request-id``) and count its answer. Plain ASGI, so that streams pass.

Whatever stands in the scope's ``carbonq.headers`` by then is put on the answer, also on one that is an error.
"""

from __future__ import annotations

import logging

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carbonq import ids, telemetry

logger = logging.getLogger(__name__)

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class RequestId:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with an id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = ids.new("req")
        scope["carbonq.request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                headers.update(scope.get("carbonq.headers", {}))
                _count(scope, message["status"])
                if logger.isEnabledFor(logging.DEBUG):
                    logger.debug("%s %s, request %s: %d", scope["method"], scope["path"], request_id, message["status"])
            await send(message)

        await self._app(scope, receive, send_with_id)


def _count(scope: Scope, status: int) -> None:
    # The route's template, not the path: paths hold ids and whatever scanners ask for.
    route: str = getattr(scope.get("route"), "path", "unknown")
    method: str = scope["method"] if scope["method"] in _METHODS else "other"
    telemetry.API_REQUESTS.labels(method, route, str(status)).inc()

"""How a page is made: templates, the headers that keep it safe, and errors as pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined

from carbonq.api import problems
from carbonq.errors import CarbonqError
from carbonq.model import Scope
from carbonq.web import assets, formats
from carbonq.web.session import LoginNeeded, Viewer, login_path

#: Nothing but our own files: no inline script or style, no other host, no frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_TEMPLATES = Environment(
    loader=PackageLoader("carbonq.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_KNOWN: dict[str, Any] = {"asset": assets.path_of, "share_pct": formats.share_pct, "Scope": Scope}
_TEMPLATES.globals.update(_KNOWN)
_TEMPLATES.filters.update(
    clock=formats.clock,
    count=formats.count,
    energy=formats.energy,
    rate=formats.rate,
    scaled=formats.scaled,
    short_id=formats.short_id,
    span=formats.span,
)


def page(name: str, viewer: Viewer | None = None, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page made from a template."""
    text = _TEMPLATES.get_template(name).render(viewer=viewer, **values)
    return HTMLResponse(text, status, headers=HEADERS)


def go_to(path: str) -> RedirectResponse:
    """Send a browser on, with GET."""
    return RedirectResponse(path, 303, headers=HEADERS)


class PageRoute(APIRoute):
    """A route that answers errors with pages, and those who are not logged in with the login page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the route's handler."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except LoginNeeded as needed:
                if request.url.path == "/events":
                    return Response(status_code=401, headers=HEADERS)
                return go_to(login_path(needed.target))
            except CarbonqError as error:
                plain = problems.answer(error, request.url.path)
                made = page("error.html", status=plain.status_code, message=error.message, title="That did not work")
                for name in ("retry-after",):
                    if name in plain.headers:
                        made.headers[name] = plain.headers[name]
                return made

        return handled

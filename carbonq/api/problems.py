"""Errors as HTTP answers, the only place that does it: OpenAI's error object and RFC 9457's members in one body.

Every answer with an error has this shape, whatever went wrong and on whichever route: the official SDKs show the
sentence (they read ``error.message``), problem-aware clients find ``type``, ``title``, ``status`` and ``detail``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from carbonq.api.codes import CODES, error_type
from carbonq.errors import (
    CarbonBudgetExceeded,
    CarbonqError,
    Conflict,
    Forbidden,
    Infeasible,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from carbonq.units import iso, plain

logger = logging.getLogger(__name__)

_STATUS_OF_CLASS: Mapping[type[CarbonqError], int] = {
    InvalidRequest: 400,
    NotAuthenticated: 401,
    CarbonBudgetExceeded: 403,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    QuotaExceeded: 429,
    Unavailable: 503,
}

#: Longest sentence of an error, in characters.
_LONGEST = 2_000

#: What a caller is told to wait where nothing says how long, in seconds.
_RETRY_AFTER_S = "5"


def problem(
    status: int,
    message: str,
    *,
    code: str,
    param: str | None = None,
    instance: str | None = None,
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    """Return an error answer; ``extra`` members appear beside the standard ones in both halves of the body.

    A 503 says when to try again, also where nobody knows better than in a few seconds.
    """
    message, param = _shortened(message), None if param is None else _shortened(param)
    more = dict(extra or {})
    body = {
        "error": {
            "message": message,
            "type": error_type(status),
            "param": param,
            "code": code,
            **more,
        },
        "type": f"urn:carbonq:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "instance": instance,
        **more,
    }
    sent = dict(headers or {})
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        sent.setdefault("Retry-After", _RETRY_AFTER_S)
    return Response(orjson.dumps(body), status, media_type="application/problem+json", headers=sent)


def _shortened(message: str) -> str:
    """Leave the middle of an endless sentence out: what came in is quoted in it, and may have had a million letters."""
    if len(message) <= _LONGEST:
        return message
    left_out = len(message) - _LONGEST
    return f"{message[: _LONGEST // 2]} ... ({left_out:,} characters left out) ... {message[-_LONGEST // 2 :]}"


def status_of(error: CarbonqError) -> int:
    """Return the HTTP status of an error: its class's, unless its code has another one; 500 where it is our fault."""
    status = next((status for kind, status in _STATUS_OF_CLASS.items() if isinstance(error, kind)), 500)
    known = CODES.get(error.code)
    return status if known is None or status in known.statuses else known.statuses[0]


def answer(error: CarbonqError, instance: str | None = None) -> Response:
    """Return the HTTP answer for an error carbonq raised on purpose."""
    status, headers, extra = status_of(error), dict[str, str](), dict[str, Any]()
    param = error.param if isinstance(error, InvalidRequest) else None
    if isinstance(error, InvalidRequest) and error.line is not None:
        extra["line"] = error.line
    if isinstance(error, Infeasible):
        extra["best"] = error.best
    if isinstance(error, CarbonBudgetExceeded):
        extra |= _of_budget(error)
    if isinstance(error, NotAuthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Forbidden):
        extra["scopes"] = list(error.scopes)
        headers["WWW-Authenticate"] = f'Bearer error="insufficient_scope", scope="{" ".join(error.scopes)}"'
    if isinstance(error, QuotaExceeded) and error.retry_after_s is None:
        headers["X-Should-Retry"] = "false"  # it will never fit
    if isinstance(error, Conflict):
        headers["X-Should-Retry"] = "false"  # the SDK repeats every 409 otherwise
    if isinstance(error, QuotaExceeded | Unavailable) and error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return problem(status, error.message, code=error.code, param=param, instance=instance, headers=headers, extra=extra)


def _of_budget(error: CarbonBudgetExceeded) -> dict[str, Any]:
    """Return which budget has no room and by how much: grams exact as text, null what cannot be told."""
    said = {
        "budget_id": error.budget_id,
        "cap_g": plain(error.cap_g),
        "spent_g": plain(error.spent_g),
        "reserved_g": plain(error.reserved_g),
        "adds_g": None if error.adds_g is None else plain(error.adds_g),
        "ends_at": None if error.ends_at is None else iso(error.ends_at),
    }
    return said if error.line is None else said | {"line": error.line}


async def _carbonq(request: Request, error: Exception) -> Response:
    assert isinstance(error, CarbonqError)
    response = answer(error, request.url.path)
    if response.status_code >= 500:
        request_id = request.scope.get("carbonq.request_id", "unknown")
        logger.warning("%s %s, request %s: %s", request.method, request.url.path, request_id, error.message)
    return response


async def _http(request: Request, error: Exception) -> Response:
    """Answer for the router: no such route, or no such method on it."""
    assert isinstance(error, HTTPException)
    path, method, status = request.url.path, request.method, error.status_code
    if status == 404:
        message = f"there is no {path} here; /openapi.json lists what there is"
        if _has_route(request, f"/v1{path}"):  # an OpenAI client whose base_url lacks it
            message = f"there is no {path} here; did you mean /v1{path}? A client's base_url ends in /v1"
        return problem(status, message, code="unknown_route", instance=path)
    if status == 405:
        allowed = ", ".join(sorted(_methods(request)))
        if method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": allowed})
        message = f"{path} does not take {method}; it takes {allowed}"
        return problem(status, message, code="method_not_allowed", instance=path, headers={"Allow": allowed})
    code = "invalid_request" if status < 500 else "internal_error"
    return problem(status, str(error.detail), code=code, instance=path, headers=error.headers)


def _has_route(request: Request, path: str) -> bool:
    scope = {**request.scope, "path": path}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)


def _methods(request: Request) -> set[str]:
    """Return what a path takes: each method is a route of its own, and the router names the first one's alone."""

    def is_taken(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    taken = {method for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if is_taken(method)}
    return taken | {"OPTIONS"} | ({"HEAD"} if "GET" in taken else set())


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer for a query parameter of the wrong form; 400 as OpenAI has it, not FastAPI's 422."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # Where in a repeated parameter it is, the value says.
    param = ".".join(str(part) for part in first["loc"][1:] if not isinstance(part, int)) or None
    given = first.get("input")
    if first["type"] == "extra_forbidden":
        message = f"{param} is not a parameter here; /openapi.json lists those of {request.url.path}"
        return problem(400, message, code="invalid_request", param=param, instance=request.url.path)
    message = f"{param or 'the request'}: {first['msg']}" + (f" (got {given!r})" if given is not None else "")
    return problem(400, message, code="invalid_request", param=param, instance=request.url.path)


async def _broken(request: Request, error: Exception) -> Response:
    """Answer for a defect of ours; the server's log has the traceback under the same request id."""
    request_id = str(request.scope.get("carbonq.request_id", "unknown"))
    logger.error("%s %s failed, request %s", request.method, request.url.path, request_id, exc_info=error)
    message = f"carbonq failed on this request; its log has the reason under request id {request_id}"
    # The middleware that adds the id lies inside the handler of last resort, so it is added here.
    headers = {"X-Request-Id": request_id}
    return problem(500, message, code="internal_error", instance=request.url.path, headers=headers)


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it: the client closed the connection


def install(app: FastAPI) -> None:
    """Make every error of an app come out in this shape."""
    app.add_exception_handler(CarbonqError, _carbonq)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _broken)

"""Answers of the API as values, and its problems as the classes of ``carbonq.errors``. Pure: nothing is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import httpx
import orjson
from httpx_retries import Retry

from carbonq.client.records import Json
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
from carbonq.units import parse_iso


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, headers and, unless it is streamed, the whole content."""

    url: str
    status: int
    headers: Mapping[str, str]
    content: bytes = b""

    @property
    def is_error(self) -> bool:
        """Whether it is a problem instead of what was asked for."""
        return self.status >= 400


def parsed(answer: Answer) -> Any:
    """Return the JSON of an answer. Raises what it is a problem of, Unavailable for something that is no JSON."""
    if answer.is_error:
        raise problem(answer)
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError as error:
        raise Unavailable(
            f"{answer.url} answered {answer.status} with something that is not JSON; is it carbonq?"
        ) from error


def problem(answer: Answer) -> CarbonqError:
    """Return the error that an answer stands for, with the server's sentence, its code and the request's id."""
    made = _problem(answer)
    made.request_id = answer.headers.get("x-request-id")
    return made


def _problem(answer: Answer) -> CarbonqError:
    status = answer.status
    try:
        detail: Json = orjson.loads(answer.content)["error"]
        message, code = str(detail["message"]), str(detail.get("code") or "carbonq_error")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Unavailable(f"{answer.url} answered {status} without saying why; is it carbonq?")
    param, line, wait_s = detail.get("param"), detail.get("line"), retry_after_s(answer)
    known: dict[int, type[CarbonqError]] = {401: NotAuthenticated, 404: NotFound, 409: Conflict, 410: NotFound}
    if status in known:
        return known[status](message, code=code)
    if status == 403:
        return _forbidden(message, code, detail)
    if status == 429:
        return QuotaExceeded(message, retry_after_s=wait_s, code=code)
    if status >= 500:
        return Unavailable(message, code=code, retry_after_s=5.0 if wait_s is None else wait_s)
    wrong = InvalidRequest(message, param=param, line=line, code=code)
    return Infeasible(message, best=str(detail["best"]), param=param) if "best" in detail else wrong


def _forbidden(message: str, code: str, detail: Json) -> CarbonqError:
    """Return what a 403 stands for: a budget without room, or a key that may not."""
    if code != CarbonBudgetExceeded.code or "cap_g" not in detail:
        return Forbidden(message, scopes=detail.get("scopes") or ())
    return CarbonBudgetExceeded(
        message,
        budget_id=str(detail["budget_id"]),
        cap_g=Decimal(detail["cap_g"]),
        spent_g=Decimal(detail["spent_g"]),
        reserved_g=Decimal(detail["reserved_g"]),
        adds_g=None if detail["adds_g"] is None else Decimal(detail["adds_g"]),
        ends_at=None if detail["ends_at"] is None else parse_iso(detail["ends_at"]),
        line=detail.get("line"),
    )


def retry_after_s(answer: Answer) -> float | None:
    """Return the seconds of Retry-After, written as a number or a date; None where there is none to understand."""
    given = answer.headers.get("retry-after")
    if given is None:
        return None
    with contextlib.suppress(ValueError):
        return Retry().parse_retry_after(given)
    return None


def unreachable(url: str, error: httpx.HTTPError) -> Unavailable:
    """Return the error for a server that could not be asked, or not be heard to the end."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return Unavailable(
            f"no carbonq answers at {url}; start it with `carbonq up`, or check CARBONQ_API_URL", code="unreachable"
        )
    if isinstance(error, httpx.TimeoutException):
        return Unavailable(f"{url} was silent for too long; it may be overloaded", code="unreachable")
    reason = str(error) or type(error).__name__
    return Unavailable(f"the connection to {url} broke: {reason}", code="unreachable")

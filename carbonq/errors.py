"""Every error carbonq raises on purpose, ordered by what the caller can do about it.

    CarbonqError
    ├── InvalidRequest      fix the request (names the field or the line)
    │   └── Infeasible      no placement can meet the deadline; carries the best that can be done
    ├── NotAuthenticated    send a key
    ├── Forbidden           send a key that may do this
    ├── NotFound            ask for something else
    ├── Conflict            the thing is not in a state that allows this
    ├── QuotaExceeded       come back later or ask for less
    ├── CarbonBudgetExceeded  wait for the next period, ask for less, or have the owner raise the cap
    ├── ConfigError         fix the settings or the machine (names the setting and the way out)
    ├── Unavailable         try again later
    │   ├── StoreUnavailable
    │   ├── BrokerUnavailable
    │   └── SignalUnavailable
    ├── LeaseLost           drop everything: another worker owns the chunk
    └── EngineError         the engine failed; ``is_retryable`` says whether another try can help
        └── EngineAway      no item is at fault: the engine's server is down, overloaded or refuses us

``api/problems.py`` turns these into HTTP answers and ``cli/main.py`` into exit codes; nothing else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal


class CarbonqError(Exception):
    """Base of all carbonq errors; the message is one sentence with the figures, ``code`` is stable."""

    code = "carbonq_error"

    #: Of an error that an API answered with: what its log calls the request.
    request_id: str | None = None

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class InvalidRequest(CarbonqError):
    """The request is wrong; ``param`` names the field and ``line`` the 1-based input line, where there is one."""

    code = "invalid_request"

    def __init__(
        self, message: str, *, param: str | None = None, line: int | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.param = param
        self.line = line


class Infeasible(InvalidRequest):
    """No placement can meet the request; ``best`` says in one sentence what is possible."""

    code = "infeasible"

    def __init__(self, message: str, *, best: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.best = best


class NotAuthenticated(CarbonqError):
    """The API key is missing, wrong, expired or revoked."""

    code = "invalid_api_key"


class Forbidden(CarbonqError):
    """The API key is good and may not do this; ``scopes`` are those of which one would do."""

    code = "insufficient_scope"

    def __init__(self, message: str, *, scopes: Sequence[str]) -> None:
        super().__init__(message)
        self.scopes = tuple(scopes)


class NotFound(CarbonqError):
    """There is nothing of that name here, or it belongs to another tenant."""

    code = "not_found"


class Conflict(CarbonqError):
    """The thing exists but is not in a state that allows this."""

    code = "conflict"


class QuotaExceeded(CarbonqError):
    """A limit was reached; ``retry_after_s`` says when trying again can help (None: it will not)."""

    code = "quota_exceeded"

    def __init__(self, message: str, *, retry_after_s: float | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class CarbonBudgetExceeded(CarbonqError):
    """A carbon budget has no room for the request; grams are gCO2e, ``ends_at`` is the grid time its period ends.

    ``ends_at`` is None where no later period helps: a single item needs more than the cap of a budget of items, or than
    the whole cap of another. ``line`` (1-based) is that item's then, and ``adds_g`` what it needs. ``adds_g`` is None
    where no rate is known and the budget is used up.
    """

    code = "carbon_budget_exceeded"

    def __init__(
        self,
        message: str,
        *,
        budget_id: str,
        cap_g: Decimal,
        spent_g: Decimal,
        reserved_g: Decimal,
        adds_g: Decimal | None,
        ends_at: datetime | None,
        line: int | None = None,
    ) -> None:
        super().__init__(message)
        self.budget_id, self.cap_g, self.spent_g, self.reserved_g = budget_id, cap_g, spent_g, reserved_g
        self.adds_g, self.ends_at, self.line = adds_g, ends_at, line


class ConfigError(CarbonqError):
    """A setting or the machine is wrong; the message names it and the way out."""

    code = "config_error"


class Unavailable(CarbonqError):
    """Something carbonq depends on is away for now."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 5.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class StoreUnavailable(Unavailable):
    """The database does not answer."""

    code = "store_unavailable"


class BrokerUnavailable(Unavailable):
    """The broker does not answer."""

    code = "broker_unavailable"


class SignalUnavailable(Unavailable):
    """A carbon signal cannot be had, or only older than allowed."""

    code = "signal_unavailable"


class LeaseLost(CarbonqError):
    """The fencing token no longer matches: another worker owns the chunk, or it was cancelled."""

    code = "lease_lost"


class EngineError(CarbonqError):
    """The engine failed on a whole engine batch."""

    code = "engine_error"

    def __init__(self, message: str, *, is_retryable: bool, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.is_retryable = is_retryable


class EngineAway(EngineError):
    """The engine cannot be used at all for now, whatever it is asked; no item is at fault."""

    code = "engine_away"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message, is_retryable=True, code=code)

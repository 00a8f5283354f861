"""When a request is sent again, and after how long. Pure: chance is an argument. Seconds are machine seconds."""

from __future__ import annotations

import httpx

from carbonq.client.answers import Answer, retry_after_s
from carbonq.retry import backoff_s

#: Tries after the first one, unless the client says otherwise.
RETRIES = 4

#: About how long is waited before the first and before any later repetition.
BASE_S = 0.5
CAP_S = 8.0

#: A server that asks for a longer pause than this is not waited for: its answer is told at once.
LONGEST_RETRY_AFTER_S = 60.0

#: Statuses that can be another one soon, 502 and 504 being those of a proxy in front of the API.
_PASSING = frozenset({429, 502, 503, 504})

#: Of these the API says itself that it has done nothing.
_UNDONE = frozenset({429, 503})

#: Connections that broke, or never were. A silence is none of them: whoever is silent has the request.
_BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)

_NEVER_MADE = (httpx.ConnectError, httpx.ConnectTimeout)


def pause_after_answer(answer: Answer, *, repeated: int, is_repeatable: bool, jitter: float) -> float | None:
    """Return how long to wait before an answered request is sent again; None: the answer stands.

    ``repeated``: how often it was sent again already. ``is_repeatable``: doing it twice is harmless. A 429 that names
    no time would be the same the next time.
    """
    if answer.status not in (_PASSING if is_repeatable else _UNDONE):
        return None
    asked_s = retry_after_s(answer)
    if answer.headers.get("x-should-retry") == "false" or (answer.status == 429 and asked_s is None):
        return None
    if asked_s is not None and asked_s > LONGEST_RETRY_AFTER_S:
        return None
    return max(asked_s or 0.0, _backoff_s(repeated, jitter))


def pause_after_break(error: Exception, *, repeated: int, is_repeatable: bool, jitter: float) -> float | None:
    """Return how long to wait after a broken connection; None: trying again is no use, or could do it twice."""
    return _backoff_s(repeated, jitter) if isinstance(error, _BROKEN if is_repeatable else _NEVER_MADE) else None


def _backoff_s(repeated: int, jitter: float) -> float:
    return backoff_s(repeated + 1, base=BASE_S, cap=CAP_S, jitter=jitter)

"""When a webhook is sent again, and when its endpoint is given up. Pure: chance is an argument; machine seconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

#: Seconds before each attempt: the first at once, then later and later, over three days in all (Standard Webhooks).
DELAYS_S = (0, 5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)

#: An endpoint that has taken nothing for so long when a delivery is given up is disabled, in seconds.
PATIENCE_S = 3 * 86_400

#: Answers that mean: come back later, with everything.
BUSY = frozenset({429, 502, 503, 504})

#: The receiver wants nothing more, ever.
GONE = 410

#: Seconds that a busy endpoint is left alone where it does not say how long, and one that does not answer.
BUSY_S = 30.0
SILENT_S = 5.0

#: Longest pause a receiver can ask for, in seconds.
MAX_PAUSE_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt: the ``status`` of the answer, or why there was none (``error``)."""

    status: int | None
    error: str | None = None
    retry_after_s: float | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the receiver has it: any 2xx."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def why(self) -> str:
        """Half a sentence on what went wrong."""
        hint = ""
        if self.status is not None and 300 <= self.status < 400:
            hint = ", and redirects are not followed: give the address it leads to"
        return self.error or f"it answered {self.status}{hint}"


@dataclass(frozen=True, slots=True)
class Step:
    """What follows a failed attempt.

    The next one comes ``again_s`` later (None: no more), and nothing to this endpoint before ``pause_s`` has passed.
    """

    again_s: float | None
    pause_s: float


def step(attempts: int, outcome: Outcome, *, jitter: float) -> Step:
    """Return what follows attempt number ``attempts`` (1, 2, ...), which failed.

    ``jitter`` in [0, 1) moves the next attempt by up to a tenth either way, so that what failed together does not come
    back together.
    """
    pause_s = 0.0
    if outcome.status is None:
        pause_s = SILENT_S
    elif outcome.status in BUSY:
        asked_s = BUSY_S if outcome.retry_after_s is None else outcome.retry_after_s
        pause_s = min(MAX_PAUSE_S, max(1.0, asked_s))
    if attempts >= len(DELAYS_S):
        return Step(None, pause_s)
    again_s = DELAYS_S[attempts] * (0.9 + 0.2 * jitter)
    return Step(max(again_s, pause_s), pause_s)


def is_hopeless(failing_since: datetime | None, now: datetime) -> bool:
    """Say whether an endpoint that has failed since a time is to be given up."""
    return failing_since is not None and (now - failing_since).total_seconds() >= PATIENCE_S

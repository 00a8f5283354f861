"""What a provider said a moment ago, kept so that it is not asked for the same every minute. Times are grid times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The last answer to one question; an error is not kept, so that what failed is asked again at once."""

    def __init__(self, every: timedelta) -> None:
        """Keep an answer for ``every``."""
        self._every = every
        self._kept: tuple[datetime, datetime, T] | None = None

    def get(self, now: datetime, ask: Callable[[], T], *, since: datetime | None = None) -> tuple[datetime, T]:
        """Return when the provider was asked, and its answer: the kept one if that is fresh and goes back to ``since``.

        Raises whatever ``ask`` raises.
        """
        begin = since or now
        kept = self._kept
        if kept is not None:
            asked_at, reaches_back_to, answer = kept
            if asked_at <= now < asked_at + self._every and (since is None or reaches_back_to <= begin):
                return asked_at, answer
        answer = ask()
        self._kept = (now, begin, answer)
        return now, answer

    def is_older(self, now: datetime) -> bool:
        """Say whether ``now`` lies before the kept answer: a provider that keeps no earlier issue cannot tell of it."""
        return self._kept is not None and now < self._kept[0]

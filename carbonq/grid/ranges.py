"""Cutting a span of time into the pieces that one call of a provider may cover. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

_SECOND = timedelta(seconds=1)


def pieces(start: datetime, end: datetime, longest: timedelta) -> Iterator[tuple[datetime, datetime]]:
    """Yield (first, last) of the pieces of ``[start, end)``, both inclusive to the second, so that none overlap."""
    while start < end:
        after = min(start + longest, end)
        yield start, max(start, after - _SECOND)
        start = after


def stamp(at: datetime) -> str:
    """Write a time as providers read it: UTC, whole seconds, Z."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

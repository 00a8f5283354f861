"""Divide what a counter counted between two readings: over the windows it fell in, then among the engine batches.

Pure: integers (uJ) in, integers out, every division exact (largest remainder, as in ``shares.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from carbonq.shares import apportion
from carbonq.units import WINDOW, window_of

_MICROSECOND = timedelta(microseconds=1)

#: An interval over more windows than this (a week) is a clock that was set, not time that passed.
MAX_WINDOWS = 2016


@dataclass(frozen=True, slots=True)
class Span:
    """The part of an interval that lies in one window (grid times)."""

    window_at: datetime
    start_at: datetime
    end_at: datetime

    @property
    def microseconds(self) -> int:
        """Its length."""
        return (self.end_at - self.start_at) // _MICROSECOND


def spans(start: datetime, end: datetime) -> list[Span]:
    """Cut ``[start, end)`` at the window edges; an empty interval gives one empty span.

    An interval of more than ``MAX_WINDOWS`` windows collapses to what lies in its last window.
    """
    window_at = window_of(start)
    if end - window_at > MAX_WINDOWS * WINDOW:
        window_at = window_of(end)
        return [Span(window_at, window_at, end)]
    found: list[Span] = []
    while window_at + WINDOW < end:
        found.append(Span(window_at, max(start, window_at), window_at + WINDOW))
        window_at += WINDOW
    return [*found, Span(window_at, max(start, window_at), end)]


def over_time(delta_uj: int, parts: Sequence[Span]) -> list[int]:
    """Divide an interval's energy over its spans in proportion to time: all that is known of a late reading."""
    return [delta_uj] if len(parts) == 1 else apportion(delta_uj, [part.microseconds for part in parts])


def among(delta_uj: int, token_rates: Sequence[float | None]) -> list[int]:
    """Divide energy among the engine batches active in an interval by their mean token rates (tokens/s).

    A batch whose rate is unknown (None, or no finite number of at least 0) counts as the mean of the known ones; if
    none is known all count alike.
    """
    if len(token_rates) == 1:
        return [delta_uj]
    return apportion(delta_uj, _weights(token_rates))


def _weights(token_rates: Sequence[float | None]) -> list[int]:
    known = [rate if rate is not None and math.isfinite(rate) and rate >= 0 else None for rate in token_rates]
    values = [Fraction(rate) for rate in known if rate is not None]
    mean = sum(values, Fraction(0)) / len(values) if values else Fraction(1)
    exact = [mean if rate is None else Fraction(rate) for rate in known]
    # A float is a fraction of a power of two, so this scales all weights to whole numbers without rounding any.
    scale = math.lcm(*(weight.denominator for weight in exact))
    return [int(weight * scale) for weight in exact]

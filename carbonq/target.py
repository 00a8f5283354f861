"""Contract targets: a promise of gCO2e per thousand tokens over a month, where it stands, and where it is going. Pure.

Grams are those of one book (impact by default), tokens are prompt and completion tokens as SCI counts them; both are
counted on the same item entries, those that have a rate. Months are of UTC grid time.

The forecast of a month adds up three amounts and divides their grams by their tokens: what has run; the accepted work
that has not ended, at what its placements expect, else at the recent value; and, for what the recent days' tokens an
hour would bring beyond that until the month ends, the recent value. Recent are today and the ``RECENT_DAYS`` before it.
The range takes the cleanest and the dirtiest of these days in place of the recent value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from carbonq import sci
from carbonq.budget import Book

#: What grams are promised for, in tokens.
THOUSAND = 1_000

#: Whole days before today that the recent value and rate are taken from.
RECENT_DAYS = 7

#: Work of less than this time is not taken for a rate: one job on the month's first morning would be a hundred.
_SHORTEST = timedelta(days=1)

#: How a forecast is made, in one sentence.
METHOD = (
    "what has run, plus accepted work at what its placements expect (else at the recent value), plus what the recent "
    f"tokens an hour bring beyond it until the month ends at the recent value; recent: today and {RECENT_DAYS} days "
    "before; range: the cleanest and the dirtiest of these days"
)


class TargetState(StrEnum):
    """How a promise stands in a month.

    ``broken``: even if all the work that can be foreseen for the rest of the month emitted nothing, or the month is
    over and its value above the promise. ``unknown``: nothing with a rate has run, and nothing can be foreseen.
    """

    ON_TRACK = "on_track"
    AT_RISK = "at_risk"
    BROKEN = "broken"
    KEPT = "kept"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Target:
    """A promise to a tenant: at most ``g_per_1k_tokens`` over a month, of the work of one model or of all (None)."""

    target_id: str
    tenant: str
    model: str | None
    book: Book
    g_per_1k_tokens: Decimal
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month of grid time, half-open."""

    start_at: datetime
    end_at: datetime

    @property
    def name(self) -> str:
        """How it is written: ``2026-11``."""
        return f"{self.start_at:%Y-%m}"


def month_of(at: datetime) -> Month:
    """Return the month that holds a grid time (aware UTC)."""
    start = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Month(start, (start + timedelta(days=32)).replace(day=1))


@dataclass(frozen=True, slots=True)
class Ran:
    """Sums of current item entries in one book: ``tokens`` and ``grams`` of those that have a rate.

    ``provisional_g`` is the part of the grams that is not final. Entries without a rate are in neither sum.
    """

    tokens: int = 0
    grams: Decimal = Decimal(0)
    provisional_g: Decimal = Decimal(0)
    unknown_entries: int = 0
    unknown_tokens: int = 0

    @property
    def value(self) -> Decimal | None:
        """Return grams per thousand tokens; None where no token has a rate."""
        return per_1k(Fraction(self.grams), self.tokens)


@dataclass(frozen=True, slots=True)
class Day:
    """What ran on one UTC day."""

    start_at: datetime
    ran: Ran


@dataclass(frozen=True, slots=True)
class Ahead:
    """Accepted work that has not ended and may still run this month, estimated.

    ``grams`` are what its placements expect of the ``priced_tokens`` among its ``tokens``; the others have no place
    yet, or one without a rate.
    """

    tokens: int = 0
    priced_tokens: int = 0
    grams: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The month's value at its end, in grams per thousand tokens, and the tokens it is made of.

    ``low`` and ``high`` are None where the recent days are fewer than two, and so have no spread.
    """

    g_per_1k_tokens: Decimal
    low: Decimal | None
    high: Decimal | None
    ran_tokens: int
    accepted_tokens: int
    further_tokens: int
    method: str = METHOD


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """A target as it stands in a month; ``value`` and ``forecast`` are None where they cannot be told."""

    target: Target
    month: Month
    ran: Ran
    value: Decimal | None
    forecast: Forecast | None
    state: TargetState

    @property
    def provisional_share(self) -> float | None:
        """Return the share of the running grams that is not final; None where there are none."""
        return float(self.ran.provisional_g / self.ran.grams) if self.ran.grams > 0 else None


def judge(
    target: Target, month: Month, ran: Ran, *, now: datetime, ahead: Ahead = Ahead(), days: Sequence[Day] = ()
) -> TargetStatus:
    """Say how a target stands at grid time ``now``; ``days`` are the recent ones, of which some may have no work."""
    forecast = None if now >= month.end_at else foresee(month, ran, now=now, ahead=ahead, days=days)
    return TargetStatus(target, month, ran, ran.value, forecast, _state(target, month, ran, now, forecast))


def foresee(month: Month, ran: Ran, *, now: datetime, ahead: Ahead, days: Sequence[Day]) -> Forecast | None:
    """Return what a running month's value will be at its end; None where it cannot be told."""
    worked = [day for day in days if day.ran.tokens > 0]
    recent = _together([day.ran for day in worked])
    rate = _of(recent) if recent.tokens else _of(ran) if ran.tokens else None
    unpriced = ahead.tokens - ahead.priced_tokens
    if rate is None and (unpriced > 0 or not ahead.priced_tokens):
        return None  # nothing says how clean the work will be
    further = max(0, _expected_tokens(worked, recent, month, now) - ahead.tokens)

    def end(at_rate: Fraction) -> Decimal | None:
        grams = Fraction(ran.grams) + Fraction(ahead.grams) + at_rate * (unpriced + further)
        return per_1k(grams, ran.tokens + ahead.tokens + further)

    value = end(rate or Fraction(0))
    if value is None:
        return None
    daily = [_of(day.ran) for day in worked]
    has_spread = len(daily) > 1
    return Forecast(
        g_per_1k_tokens=value,
        low=end(min(daily)) if has_spread else None,
        high=end(max(daily)) if has_spread else None,
        ran_tokens=ran.tokens,
        accepted_tokens=ahead.tokens,
        further_tokens=further,
    )


def recent_since(now: datetime) -> datetime:
    """Return when the recent days begin: a UTC midnight."""
    return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=RECENT_DAYS)


def per_1k(grams: Fraction, tokens: int) -> Decimal | None:
    """Return grams per thousand tokens, rounded once, half-even, to 15 decimals; None where there is no token."""
    return sci.per(grams, tokens, THOUSAND)


def _expected_tokens(worked: Sequence[Day], recent: Ran, month: Month, now: datetime) -> int:
    """Return the tokens until the month ends at the recent rate, whose time begins with the first day that had any."""
    if not worked:
        return 0
    spent = max(now - min(day.start_at for day in worked), _SHORTEST)
    return int(recent.tokens * ((month.end_at - now) / spent))


def _state(target: Target, month: Month, ran: Ran, now: datetime, forecast: Forecast | None) -> TargetState:
    promise = target.g_per_1k_tokens
    if now >= month.end_at:
        if ran.value is None:
            return TargetState.UNKNOWN
        return TargetState.BROKEN if ran.value > promise else TargetState.KEPT
    if forecast is None:
        return TargetState.UNKNOWN
    tokens = forecast.ran_tokens + forecast.accepted_tokens + forecast.further_tokens
    if Fraction(ran.grams) * THOUSAND > Fraction(promise) * tokens:
        return TargetState.BROKEN
    return TargetState.AT_RISK if forecast.g_per_1k_tokens > promise else TargetState.ON_TRACK


def _together(parts: Sequence[Ran]) -> Ran:
    # By way of fractions: the default context of decimals would round to 28 digits.
    grams = sum((Fraction(part.grams) for part in parts), Fraction(0))
    return Ran(sum(part.tokens for part in parts), _decimal(grams))


def _decimal(grams: Fraction) -> Decimal:
    exact = sci.per(grams, 1)
    assert exact is not None
    return exact


def _of(ran: Ran) -> Fraction:
    return Fraction(ran.grams) / ran.tokens

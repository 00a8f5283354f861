"""Find emissions rates: observations and forecasts of zones, as the values that entries refer to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from sqlalchemy import Row, or_, select

from carbonq.model import Rate, RateKind, Signal
from carbonq.ratebook import make_rate
from carbonq.store import packing
from carbonq.store.database import Tx
from carbonq.store.forecasts import series
from carbonq.store.tables import forecasts, observations
from carbonq.units import MAX_STEP_S

#: Most steps are at most this long, so that a look-up need not read a day of windows for the few that are longer.
_USUAL_STEP = timedelta(hours=1)

_LONGEST_STEP = timedelta(seconds=MAX_STEP_S)

#: Issues this much older than a span are still read beside the newest: each may know steps that later ones left out.
_RECENT = timedelta(hours=3)

#: Digits of a raw figure that is computed back from its converted value: two less than that was rounded to.
_RAW = Context(prec=26)


@dataclass(frozen=True, slots=True)
class Span:
    """Windows from ``start`` up to, not including, ``end``."""

    start: datetime
    end: datetime


def observed(tx: Tx, zones: Collection[str], span: Span, signal: Signal | None = None) -> list[Rate]:
    """Return the newest revision of each observation of some zones that covers a window of the span."""
    terms = [
        observations.c.zone.in_(zones),
        observations.c.window_at > span.start - _LONGEST_STEP,
        observations.c.window_at < span.end,
        or_(
            observations.c.window_at > span.start - _USUAL_STEP,
            observations.c.step_s > int(_USUAL_STEP.total_seconds()),
        ),
    ]
    if signal is not None:
        terms.append(observations.c.signal == signal.value)
    newest: dict[tuple[str, str, str, datetime], Row[Any]] = {}
    for row in tx.execute(select(observations).where(*terms).order_by(observations.c.revision)):
        newest[row.zone, row.signal, row.source, row.window_at] = row
    return [_observed_rate(row) for row in newest.values() if row.window_at + _step(row) > span.start]


def is_observed(tx: Tx, signal: Signal, zone: str) -> bool:
    """Say whether any rate of a zone and signal was ever observed."""
    mine = (observations.c.zone == zone, observations.c.signal == signal.value)
    return tx.execute(select(observations.c.zone).where(*mine).limit(1)).first() is not None


def _step(row: Row[Any]) -> timedelta:
    return timedelta(seconds=row.step_s)


def _observed_rate(row: Row[Any]) -> Rate:
    return make_rate(
        signal=Signal(row.signal),
        zone=row.zone,
        source=row.source,
        model=row.model,
        gas=row.gas,
        method=row.method,
        window_at=row.window_at,
        step_s=row.step_s,
        issued_at=None,
        retrieved_at=row.retrieved_at,
        g_per_kwh=row.g_per_kwh,
        raw=row.raw,
        raw_unit=row.raw_unit,
        is_estimated=row.is_estimated,
        kind=RateKind.OBSERVED,
        may_settle=row.may_settle,
    )


def foretold(tx: Tx, zones: Collection[str], span: Span, *, now: datetime) -> list[Rate]:
    """Return what forecasts issued at or before ``now`` say of each step of the span; a source's newest issue wins.

    For steps that are over that is the last forecast made while they were not.
    """
    found: list[Rate] = []
    known: dict[tuple[str, str, str], _Known] = {}
    for row in _issues(tx, zones, span, now):
        have = known.setdefault((row.zone, row.signal, row.source), _Known(span.end))
        step = _step(row)
        # Newer issues say all there is to say of most steps: look only at what they left open.
        first = max(0, (span.start - row.start_at) // step)
        fresh = range(first, max(first, min(-((row.start_at - have.since) // step), _count(row, span, step))))
        again = [
            (at - row.start_at) // step for at in have.gaps if at >= row.start_at and not (at - row.start_at) % step
        ]
        wanted = [*fresh, *again]
        if not wanted:
            continue
        low = min(wanted)
        values = packing.unpack(row.packed, low, max(wanted) + 1)
        for index in wanted:
            window_at = row.start_at + index * step
            value = values[index - low] if index - low < len(values) else None
            if value is None:
                have.gaps.add(window_at)
            else:
                have.gaps.discard(window_at)
                found.append(_foretold_rate(row, window_at, value))
        have.since = min(have.since, row.start_at + first * step)
    return found


@dataclass(slots=True)
class _Known:
    """What newer issues of a source said: all from ``since`` on, but for the gaps."""

    since: datetime
    gaps: set[datetime] = field(default_factory=set[datetime])


def _count(row: Row[Any], span: Span, step: timedelta) -> int:
    """Return how many steps of an issue begin before the span ends."""
    return -((row.start_at - span.end) // step)


def _issues(tx: Tx, zones: Collection[str], span: Span, now: datetime) -> list[Row[Any]]:
    """Return the newest issue of each source, however old, and all issues since the span began; newest first."""
    rows: list[Row[Any]] = []
    for zone, signal, source in [one for name in sorted(zones) for one in series(tx, zone=name)]:
        mine = select(forecasts).where(
            forecasts.c.zone == zone,
            forecasts.c.signal == signal,
            forecasts.c.source == source,
            forecasts.c.issued_at <= now,
        )
        since = mine.where(forecasts.c.issued_at >= span.start - _RECENT).order_by(forecasts.c.issued_at.desc())
        found = tx.execute(since).all() or tx.execute(mine.order_by(forecasts.c.issued_at.desc()).limit(1)).all()
        rows += found
    return sorted(rows, key=lambda row: row.issued_at, reverse=True)


def _foretold_rate(row: Row[Any], window_at: datetime, value: Decimal) -> Rate:
    return make_rate(
        signal=Signal(row.signal),
        zone=row.zone,
        source=row.source,
        model=row.model,
        gas=row.gas,
        method=row.method,
        window_at=window_at,
        step_s=row.step_s,
        issued_at=row.issued_at,
        retrieved_at=row.retrieved_at,
        g_per_kwh=value,
        raw=_raw(value, row.raw_per_g_per_kwh),
        raw_unit=row.raw_unit,
        is_estimated=row.is_estimated,
        kind=RateKind.FORECAST,
        may_settle=row.may_settle,
    )


def _raw(value: Decimal, raw_per_g_per_kwh: Decimal) -> Decimal:
    """Return the figure as the source wrote it: 258.53, where the product is 258.5299999999999999999999999."""
    raw = _RAW.multiply(value, raw_per_g_per_kwh).normalize(_RAW)
    exponent = raw.as_tuple().exponent
    return raw.quantize(Decimal(1), context=_RAW) if isinstance(exponent, int) and exponent > 0 else raw

"""Which rate a window has, and how final it is: the snapshot that entries are booked and settled with. Pure.

Rates are gCO2e/kWh. Marginal and average rates never meet: every look-up names its signal (invariant 6), and what is
missing stays missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from carbonq.model import Rate, RateKind, RateStatus, Signal
from carbonq.units import WINDOW_S, plain, window_index

Row = dict[str, Any]

#: Statuses that may still be replaced by a settled rate.
OPEN_STATUSES = frozenset({RateStatus.PROVISIONAL, RateStatus.MISSING})


def digest(prefix: str, values: Iterable[object]) -> str:
    """Return an id that depends on the values alone, so that the same statement is stored once."""
    text = json.dumps([_text(value) for value in values], ensure_ascii=False, separators=(",", ":"))
    return f"{prefix}_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.isoformat()
    return plain(value) if isinstance(value, Decimal) else str(value)


def make_rate(**values: Any) -> Rate:
    """Build a rate whose id is the digest of all its other fields."""
    names = [name for name in Rate.__dataclass_fields__ if name != "rate_id"]
    return Rate(rate_id=digest("rate", (values[name] for name in names)), **values)


def rate_row(rate: Rate) -> Row:
    """Return a rate's stored row."""
    return {name: getattr(rate, name) for name in rate.__dataclass_fields__}


def status_of(rate: Rate, now: datetime, settle_after_s: float) -> RateStatus:
    """Say how final a rate is at grid time ``now``.

    Settled: observed, neither imputed nor barred from settling, and its window over for ``settle_after_s``.
    """
    if not rate.may_settle:
        return RateStatus.UNSETTLEABLE
    is_final = rate.window_at + timedelta(seconds=rate.step_s + settle_after_s) <= now
    if rate.kind is RateKind.OBSERVED and not rate.is_estimated and is_final:
        return RateStatus.SETTLED
    return RateStatus.PROVISIONAL


_RANK = {RateStatus.SETTLED: 2, RateStatus.PROVISIONAL: 1}

RateKey = tuple[Signal, str, int]


class RateBook:
    """The rates known at one moment by (signal, zone, window); never changes once built."""

    def __init__(self, zones: Mapping[str, str], rates: Mapping[RateKey, tuple[Rate, RateStatus]]) -> None:
        """Take ``zones`` (region -> zone) and the rate of each window index.

        Raises ValueError for a rate of another signal or zone than its key's (the two books never mix).
        """
        for (signal, zone, _), (rate, _) in rates.items():
            if rate.signal is not signal or rate.zone != zone:
                raise ValueError(f"rate {rate.rate_id} is {rate.signal} of {rate.zone}, not {signal} of {zone}")
        self._zones = dict(zones)
        self._rates = dict(rates)

    @classmethod
    def of(cls, zones: Mapping[str, str], rates: Iterable[Rate], *, now: datetime, settle_after_s: float) -> RateBook:
        """Choose the best rate of each window that ``rates`` cover.

        Settled before provisional before unsettleable; then observed before forecast; then the newest issue.
        """
        best: dict[RateKey, tuple[tuple[object, ...], Rate, RateStatus]] = {}
        for rate in rates:
            status = status_of(rate, now, settle_after_s)
            is_observed = rate.kind is RateKind.OBSERVED
            rank = (_RANK.get(status, 0), is_observed, rate.issued_at or rate.retrieved_at, rate.retrieved_at)
            first = window_index(rate.window_at)
            for index in range(first, first + max(1, rate.step_s // WINDOW_S)):
                key = (rate.signal, rate.zone, index)
                if key not in best or rank > best[key][0]:
                    best[key] = (rank, rate, status)
        return cls(zones, {key: (rate, status) for key, (_, rate, status) in best.items()})

    def lookup(self, signal: Signal, zone: str, window_at: datetime) -> tuple[Rate | None, RateStatus]:
        """Return a window's rate and how final it is; (None, missing) where there is none."""
        return self._rates.get((signal, zone, window_index(window_at)), (None, RateStatus.MISSING))

    def zone_of(self, region: str) -> str:
        """Return a region's grid zone; empty for a region that is not known any more, which has no rates."""
        return self._zones.get(region, "")


#: Least final first.
_FINALITY = (
    RateStatus.MISSING,
    RateStatus.PROVISIONAL,
    RateStatus.UNSETTLEABLE,
    RateStatus.SETTLED,
    RateStatus.RESTATED,
)


def worst(statuses: Iterable[RateStatus]) -> RateStatus:
    """Return the least final of some statuses; missing where there are none."""
    return min(statuses, key=_FINALITY.index, default=RateStatus.MISSING)

"""Which rate a window has, and how final it is: the snapshot that entries are booked and settled with. Pure.

Rates are gCO2e/kWh. Marginal and average rates never meet: every look-up names its signal (invariant 6), and what is
missing stays missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    text = json.dumps([digested(value) for value in values], ensure_ascii=False, separators=(",", ":"))
    return f"{prefix}_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def digested(value: object) -> str | None:
    """Return a value as it goes into a digest."""
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


#: Grid seconds for which only the preferred source may settle a window: a fallback was asked because that one was
#: away, and most providers bring what they missed once they are back.
FALLBACK_PATIENCE_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How a source stands among those of its zone and signal; ``position`` 0 is the preferred one."""

    position: int
    is_fresh: bool
    may_settle: bool


#: By (signal, zone, source); a source that is not in it comes after all that are.
Standings = Mapping[tuple[Signal, str, str], Standing]

_UNRANKED = Standing(position=1_000_000, is_fresh=False, may_settle=False)
_ALONE = Standing(position=0, is_fresh=True, may_settle=False)


def status_of(
    rate: Rate, now: datetime, settle_after_s: float, *, position: int = 0, is_settled_by_another: bool = False
) -> RateStatus:
    """Say how final a rate is at grid time ``now``.

    Settled: observed, neither imputed nor barred from settling, and its window over for ``settle_after_s``; for a
    fallback (``position`` above 0) over for ``FALLBACK_PATIENCE_S`` more. What never settles is provisional where
    another source of the same zone and signal may settle (``is_settled_by_another``), else unsettleable.
    """
    if not rate.may_settle:
        return RateStatus.PROVISIONAL if is_settled_by_another else RateStatus.UNSETTLEABLE
    wait_s = settle_after_s + (FALLBACK_PATIENCE_S if position else 0.0)
    is_final = rate.window_at + timedelta(seconds=rate.step_s + wait_s) <= now
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
    def of(
        cls,
        zones: Mapping[str, str],
        rates: Iterable[Rate],
        *,
        now: datetime,
        settle_after_s: float,
        standings: Standings | None = None,
    ) -> RateBook:
        """Choose the best rate of each window that ``rates`` cover.

        Settled before provisional before unsettleable; then a source that is fresh before a stale one, the preferred
        before the fallback; then observed before forecast; then the newest issue. Where ``standings`` has no source of
        a zone and signal, all stand alike.
        """
        ranked = standings or {}
        places = {(signal, zone) for signal, zone, _ in ranked}
        settling = {key[:2] for key, standing in ranked.items() if standing.may_settle}
        best: dict[RateKey, tuple[tuple[object, ...], Rate, RateStatus]] = {}
        for rate in rates:
            place = (rate.signal, rate.zone)
            standing = ranked.get((*place, rate.source), _UNRANKED) if place in places else _ALONE
            status = status_of(
                rate,
                now,
                settle_after_s,
                position=standing.position,
                is_settled_by_another=place in settling and not standing.may_settle,
            )
            is_observed = rate.kind is RateKind.OBSERVED
            rank = (
                _RANK.get(status, 0),
                standing.is_fresh,
                -standing.position,
                # What may settle says more than what never does.
                rate.may_settle,
                is_observed,
                rate.issued_at or rate.retrieved_at,
                rate.retrieved_at,
            )
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

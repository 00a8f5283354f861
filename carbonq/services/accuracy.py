"""How far provisional rates were from settled ones: by signal, zone and how far ahead they were foretold. Pure rules.

Every pair weighs by the energy that was booked by it, since the question is how far the ledger's figures were off.
Differences are provisional minus settled: a positive mean says that the first figures were too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from carbonq.store import accuracy
from carbonq.store.accuracy import Pair
from carbonq.store.database import Database

#: Upper ends of the leads that are told apart, from a forecast's issue to the start of its window.
LEADS: tuple[tuple[str, timedelta], ...] = (
    ("under 1 h", timedelta(hours=1)),
    ("1 to 6 h", timedelta(hours=6)),
    ("6 to 24 h", timedelta(hours=24)),
)
LONGEST = "24 h and more"
OBSERVED = "observed"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Figures of alike pairs. Differences in g/kWh, relative ones as a share of the settled rate.

    Relative figures leave out pairs whose settled rate is 0 (``unrelated`` counts their entries): None where all are.
    """

    book: str
    signal: str
    zone: str
    lead: str
    entries: int
    energy_uj: int
    mean_g_per_kwh: float
    mae_g_per_kwh: float
    p50_relative: float | None
    p95_relative: float | None
    unrelated: int


def report(db: Database, *, start_at: datetime | None = None, end_at: datetime | None = None) -> list[dict[str, Any]]:
    """Return the accuracy of all that settled, of windows in a span. Raises StoreUnavailable."""
    with db.read() as tx:
        found = accuracy.pairs(tx, start_at=start_at, end_at=end_at)
    return [asdict(one) for one in measure(found)]


def measure(pairs: Sequence[Pair]) -> list[Accuracy]:
    """Group pairs by book, signal, zone and lead, and measure each group."""
    groups: dict[tuple[str, str, str, str], list[Pair]] = {}
    for pair in pairs:
        key = (pair.book, pair.settled.signal.value, pair.settled.zone, _lead(pair))
        groups.setdefault(key, []).append(pair)
    order = [OBSERVED, *(name for name, _ in LEADS), LONGEST]
    ranked = sorted(groups.items(), key=lambda one: (*one[0][:3], order.index(one[0][3])))
    return [_measured(*key, some) for key, some in ranked]


def _lead(pair: Pair) -> str:
    rate = pair.provisional
    if rate.issued_at is None:
        return OBSERVED
    ahead = rate.window_at - rate.issued_at
    return next((name for name, end in LEADS if ahead < end), LONGEST)


def _measured(book: str, signal: str, zone: str, lead: str, pairs: Sequence[Pair]) -> Accuracy:
    energy = sum(pair.energy_uj for pair in pairs)
    # Entries whose energy nobody metered weigh alike.
    weights = [pair.energy_uj if energy else pair.entries for pair in pairs]
    differences = [float(pair.provisional.g_per_kwh - pair.settled.g_per_kwh) for pair in pairs]
    total = sum(weights)
    related = [
        (abs(difference) / abs(float(pair.settled.g_per_kwh)), weight)
        for pair, difference, weight in zip(pairs, differences, weights, strict=True)
        if pair.settled.g_per_kwh
    ]
    return Accuracy(
        book=book,
        signal=signal,
        zone=zone,
        lead=lead,
        entries=sum(pair.entries for pair in pairs),
        energy_uj=energy,
        mean_g_per_kwh=sum(d * w for d, w in zip(differences, weights, strict=True)) / total,
        mae_g_per_kwh=sum(abs(d) * w for d, w in zip(differences, weights, strict=True)) / total,
        p50_relative=_quantile(related, 0.50),
        p95_relative=_quantile(related, 0.95),
        unrelated=sum(pair.entries for pair in pairs if not pair.settled.g_per_kwh),
    )


def _quantile(weighted: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return the least value at or below which at least ``share`` of the weight lies; None where nothing weighs."""
    total = sum(weight for _, weight in weighted)
    if not total:
        return None
    below = 0
    for value, weight in sorted(weighted):
        below += weight
        if below >= share * total:
            return value
    return None

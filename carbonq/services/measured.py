"""Say what carbonq would have saved on work that it only observes, and what it measurably saves against a holdout.

Provisional and settled figures are never added up, nor are clocks; the energy compared is the same on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.model import Rate, RateStatus, Region, Signal, Treatment
from carbonq.plan.comparison import Arm, compare
from carbonq.plan.taken import span
from carbonq.ratebook import RateBook, worst
from carbonq.services.rates import runs
from carbonq.store import measured, rates, sources
from carbonq.store import regions as region_rows
from carbonq.store.database import Database, Tx
from carbonq.store.measured import JobSum, ObservedSum
from carbonq.units import LEDGER_CONTEXT, UJ_PER_KWH, WINDOW, grams, plain

Json = dict[str, Any]

#: Statuses of entries that count as final.
_FINAL = frozenset({RateStatus.SETTLED, RateStatus.RESTATED})


def observed(
    db: Database,
    now: datetime,
    *,
    settle_after_s: float,
    max_stale_s: float,
    tenant: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    clock: str | None = None,
) -> Json:
    """Return what observed work caused and what it would have caused where carbonq would have run it.

    ``planned_g`` is by the forecast the shadow was decided by, ``realised_g`` by what its window turned out to be; both
    on the energy that was metered. Chunks count where the rate of the run and that of the shadow are alike in status.
    Raises InvalidRequest when the entries ran on more than one clock and ``clock`` does not choose, StoreUnavailable.
    """
    with db.read() as tx:
        sums = _of_one_clock(measured.observed(tx, tenant=tenant, start=start, end=end), clock)
        waiting = measured.waiting_shadows(tx, now)
        regions = {name: region_rows.find(tx, name) for name in {one.region for one in sums}}
        book = _rates(tx, sums, regions, now, settle_after_s=settle_after_s, max_stale_s=max_stale_s)
    groups: dict[str, list[tuple[ObservedSum, Decimal | None, Decimal]]] = {}
    left_out: list[ObservedSum] = []
    for one in sums:
        region = regions[one.region]
        if region is None or one.unrated or one.emission_g is None or Signal(one.signal) is not Signal.MOER:
            left_out.append(one)
            continue
        rate, status = _mean_rate(book, region, one)
        name = _alike(RateStatus(one.moer_status), status)
        if rate is None or name is None:
            left_out.append(one)
            continue
        planned = None if one.g_per_kwh is None else grams(one.energy_uj, region.pue, one.g_per_kwh)
        groups.setdefault(name, []).append((one, planned, grams(one.energy_uj, region.pue, rate)))
    return {
        "clock": sums[0].clock if sums else None,
        "chunks": len({one.chunk_id for one in sums}),
        "shadows_to_come": waiting,
        "saving": [_observed_group(name, members) for name, members in sorted(groups.items())],
        "not_compared": {
            "chunks": len({one.chunk_id for one in left_out}),
            "energy_uj": sum(one.energy_uj for one in left_out),
        },
    }


def _observed_group(status: str, members: Sequence[tuple[ObservedSum, Decimal | None, Decimal]]) -> Json:
    emission = _sum([one.emission_g for one, _, _ in members])
    realised = _sum([realised for _, _, realised in members])
    planned = [planned for _, planned, _ in members]
    baselines = [None if one.without_baseline else one.baseline_g for one, _, _ in members]
    saved = LEDGER_CONTEXT.subtract(emission, realised)
    return {
        "status": status,
        "chunks": len({one.chunk_id for one, _, _ in members}),
        "energy_uj": sum(one.energy_uj for one, _, _ in members),
        "emission_g": plain(emission),
        # A sum over a part of the chunks would stand beside sums over all of them.
        "baseline_g": None if None in baselines else plain(_sum(baselines)),
        "planned_g": None if None in planned else plain(_sum(planned)),
        "realised_g": plain(realised),
        "saved_g": plain(saved),
        "saved_pct": None if not emission else round(float(100 * saved / emission), 3),
    }


def _sum(values: Sequence[Decimal | None]) -> Decimal:
    total = Decimal(0)
    for value in values:
        assert value is not None
        total = LEDGER_CONTEXT.add(total, value)
    return total


def _alike(ran: RateStatus, shadow: RateStatus) -> str | None:
    """Return the status both figures have; None where they are not alike or one is missing."""
    if ran in _FINAL and shadow in _FINAL:
        return RateStatus.SETTLED.value
    return ran.value if ran is shadow and ran is not RateStatus.MISSING else None


def _mean_rate(book: RateBook, region: Region, one: ObservedSum) -> tuple[Decimal | None, RateStatus]:
    """Return the mean rate of the windows that a shadow would have run in, and the least final of their statuses."""
    windows = [one.window_at + number * WINDOW for number in range(span(one.duration_s))]
    found = [book.lookup(Signal.MOER, region.zone, at) for at in windows]
    values = [rate.g_per_kwh for rate, _ in found if rate is not None]
    if len(values) < len(windows):
        return None, RateStatus.MISSING
    total = _sum(list(values))
    return LEDGER_CONTEXT.divide(total, Decimal(len(values))), worst(status for _, status in found)


def _rates(
    tx: Tx,
    sums: Sequence[ObservedSum],
    regions: dict[str, Region | None],
    now: datetime,
    *,
    settle_after_s: float,
    max_stale_s: float,
) -> RateBook:
    outside: dict[datetime, set[str]] = {}
    zones = {name: region.zone for name, region in regions.items() if region is not None}
    for one in sums:
        for number in range(span(one.duration_s) if one.region in zones else 0):
            outside.setdefault(one.window_at + number * WINDOW, set()).add(zones[one.region])
    known: list[Rate] = []
    for part, wanted in runs(outside):
        known += rates.observed(tx, wanted, part, Signal.MOER)
        known += [rate for rate in rates.foretold(tx, wanted, part, now=now) if rate.signal is Signal.MOER]
    standings = sources.standings(tx, set(zones.values()), now=now, max_stale_s=max_stale_s)
    return RateBook.of(zones, known, now=now, settle_after_s=settle_after_s, standings=standings)


def holdout(
    db: Database,
    *,
    tenant: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    clock: str | None = None,
) -> Json:
    """Return how planned jobs did against held-out ones, in grams for each kWh of IT energy and for 1,000 tokens.

    Jobs whose entries are all settled are compared with such jobs, the others with the others. The intervals are of 95
    %. Raises InvalidRequest as ``observed``, StoreUnavailable.
    """
    with db.read() as tx:
        sums = _of_one_clock(measured.by_job(tx, tenant=tenant, start=start, end=end), clock)
    by_job: dict[str, list[JobSum]] = {}
    for one in sums:
        by_job.setdefault(one.job_id, []).append(one)
    groups: dict[str, dict[str, list[list[JobSum]]]] = {}
    left_out = 0
    for parts in by_job.values():
        if any(one.unrated or one.unmetered or one.emission_g is None for one in parts):
            left_out += 1
            continue
        is_final = all(RateStatus(one.moer_status) in _FINAL for one in parts)
        status = RateStatus.SETTLED.value if is_final else RateStatus.PROVISIONAL.value
        groups.setdefault(status, {}).setdefault(parts[0].treatment, []).append(parts)
    return {
        "clock": sums[0].clock if sums else None,
        "jobs_not_compared": left_out,
        "comparisons": [_comparison(status, arms) for status, arms in sorted(groups.items())],
    }


def _comparison(status: str, arms: dict[str, list[list[JobSum]]]) -> Json:
    planned, held_out = (arms.get(one.value, []) for one in (Treatment.PLANNED, Treatment.HELD_OUT))
    document: Json = {"status": status, "planned_jobs": len(planned), "held_out_jobs": len(held_out)}
    for name, unit in (("per_kwh", UJ_PER_KWH), ("per_1000_tokens", 1000)):
        ours, theirs = (_arm(jobs, unit, by_energy=name == "per_kwh") for jobs in (planned, held_out))
        made = compare(ours, theirs)
        document[name] = {
            "planned_g": ours.rate,
            "held_out_g": theirs.rate,
            "saved_pct": _pct(made.saving),
            "low_pct": _pct(made.low),
            "high_pct": _pct(made.high),
        }
    return document


def _arm(jobs: Sequence[Sequence[JobSum]], unit: int, *, by_energy: bool) -> Arm:
    grams_of = [float(sum(one.emission_g or 0 for one in parts)) for parts in jobs]
    units = [sum(one.energy_uj if by_energy else one.tokens for one in parts) / unit for parts in jobs]
    return Arm(np.array(grams_of, dtype=np.float64), np.array(units, dtype=np.float64))


def _pct(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


_Sum = TypeVar("_Sum", ObservedSum, JobSum)


def _of_one_clock(sums: list[_Sum], clock: str | None) -> list[_Sum]:
    chosen = [one for one in sums if clock is None or one.clock == clock]
    clocks = sorted({one.clock for one in chosen})
    if len(clocks) > 1:
        raise InvalidRequest(
            f"these entries ran on different clocks and are not added up: {', '.join(clocks)}; choose one",
            param="clock",
        )
    return chosen

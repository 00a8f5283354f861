"""A ledger of many entries for benches: a day or more of engine batches, provisional, with what settles them later."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from time import perf_counter

from carbonq import ids, ledger
from carbonq.bench.store_work import MODEL, REGION
from carbonq.booking import Booking, EngineBatch, Fact, WorkItem
from carbonq.clock import ClockKind
from carbonq.meters.protocol import MeteredPart, MeterInfo, MeterKind
from carbonq.model import Quality, Rate, RateKind, Signal, WorkClass
from carbonq.ratebook import RateBook, make_rate
from carbonq.signals import Observation
from carbonq.store import forecasts, regions, schema
from carbonq.store.database import Database
from carbonq.store.ledger import insert_bookings
from carbonq.units import WINDOW

#: Grid time of the first entry.
DAY = datetime(2026, 3, 2, tzinfo=UTC)

#: Windows that the entries lie in, unless a bench asks for more.
WINDOWS = 288

#: Entries inserted in one transaction.
_AT_ONCE = 20_000

#: Tenants that the entries are dealt to, and jobs of each.
_TENANTS, _JOBS = 8, 16

_INFO = MeterInfo(MeterKind.NVML_COUNTER, MeterKind.RAPL, MeterKind.RAPL, Quality.MEASURED, 2.0, ("GPU-1",))


def fill(url: str, entries: int, *, batch_items: int, windows: int = WINDOWS) -> float:
    """Make a database with ``entries`` entries in engine batches of ``batch_items``; return machine seconds it took.

    They lie evenly in ``windows`` windows from ``DAY`` on.

    The seconds are those of booking and inserting, the making of the tables left out.
    """
    db = Database(url)
    schema.upgrade(db)
    with db.write() as tx:
        regions.sync(tx, [REGION])
    bookings = _bookings(entries, batch_items, windows)
    began = perf_counter()
    while some := list(islice(bookings, max(1, _AT_ONCE // batch_items))):
        with db.write() as tx:
            insert_bookings(tx, some)
    elapsed = perf_counter() - began
    db.dispose()
    return elapsed


def observe(url: str, *, windows: int = WINDOWS) -> None:
    """Store the observations that settle all entries."""
    db = Database(url)
    found = [_observation(DAY + number * WINDOW) for number in range(-12, windows)]
    with db.write() as tx:
        forecasts.add_observations(tx, found)
    db.dispose()


def _bookings(entries: int, batch_items: int, windows: int) -> Iterator[Booking]:
    fact = Fact.of(REGION)
    known = [DAY + number * WINDOW for number in range(-12, windows)]
    rates = RateBook.of(
        {REGION.name: REGION.zone},
        [*(_rate(at, Signal.MOER) for at in known), *(_rate(at, Signal.AER) for at in known)],
        now=DAY,
        settle_after_s=0,
    )
    for first in range(0, entries, batch_items):
        at = DAY + (first * windows // entries) * WINDOW
        count = min(batch_items, entries - first)
        base = first * 1_000 + 10**6
        yield ledger.book(
            EngineBatch(
                engine_batch_id=ids.new("eb"),
                worker_id="worker_1",
                work_class=WorkClass.FLEXIBLE,
                fact=fact,
                info=_INFO,
                parts=[
                    MeteredPart(
                        at, at + timedelta(seconds=1), at + timedelta(seconds=9), 8.0, base, base // 7, base // 31
                    )
                ],
                items=[_work(first + number, at) for number in range(count)],
                model=MODEL,
                engine=MODEL.engine,
                engine_version="1",
                software_version="bench",
                clock=ClockKind.REAL,
            ),
            rates,
            recorded_at=at + timedelta(seconds=10),
            recorded_by="worker_1",
            baseline_facts={REGION.name: fact},
        )


def _work(number: int, at: datetime) -> WorkItem:
    tenant = number // 10_000 % _TENANTS
    return WorkItem(
        tenant=f"tenant-{tenant}",
        api_key_id="key_01jd0000000000000000000000",
        product_line="search",
        workload="backfill",
        job_id=f"job_{tenant:02}{number // 10_000 % _JOBS:02}",
        custom_id=f"document-{number}",
        item=number,
        chunk_id=f"chunk_{number // 2_000:026}",
        attempt=1,
        work_class=WorkClass.FLEXIBLE,
        requested_model=MODEL.name,
        outcome="succeeded",
        prompt_tokens=40 + number % 61,
        cached_tokens=0,
        completion_tokens=0,
        placement_id=None,
        baseline_region=REGION.name,
        baseline_window_at=at - 3 * WINDOW,
    )


def _value(at: datetime, signal: Signal) -> Decimal:
    minute = int((at - DAY).total_seconds()) // 60
    return Decimal(200 + minute % 307) + (Decimal("0.125") if signal is Signal.MOER else Decimal("0.0625"))


def _rate(at: datetime, signal: Signal) -> Rate:
    value = _value(at, signal)
    is_moer = signal is Signal.MOER
    return make_rate(
        signal=signal,
        zone=REGION.zone,
        source="bench",
        model="2026-01",
        gas="co2",
        method=None if is_moer else "lifecycle",
        window_at=at,
        step_s=int(WINDOW.total_seconds()),
        issued_at=at - timedelta(hours=1) if is_moer else None,
        retrieved_at=at,
        g_per_kwh=value,
        raw=value,
        raw_unit="g/kWh",
        is_estimated=False,
        kind=RateKind.FORECAST if is_moer else RateKind.OBSERVED,
        may_settle=True,
    )


def _observation(at: datetime) -> Observation:
    value = _value(at, Signal.MOER) + 7
    return Observation(
        zone=REGION.zone,
        signal=Signal.MOER,
        source="bench",
        model="2026-01",
        gas="co2",
        method=None,
        window_at=at,
        step_s=int(WINDOW.total_seconds()),
        retrieved_at=at + timedelta(minutes=6),
        g_per_kwh=value,
        raw=value,
        raw_unit="g/kWh",
        is_estimated=False,
        may_settle=True,
    )

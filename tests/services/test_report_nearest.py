"""Avoidable carbon: what items would have caused at once in the nearest region."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from carbonq.booking import Booking
from carbonq.model import RateKind, Region, Signal
from carbonq.report import Report
from carbonq.services import report
from carbonq.store import jobs
from carbonq.store.database import Database
from carbonq.units import UJ_PER_KWH, WINDOW
from tests.services.booked import configure, observe, store
from tests.store.rows import job
from tests.unit.bookings import AWAY, HOME, W0, batch, book, item, part, rate, rate_book

NOW = datetime(2026, 4, 3, tzinfo=UTC)


def make(database: Database) -> Report:
    return report.make(database, "2026-03", now=NOW)


NEAR = Region("near", "Z-NEAR", 2, Decimal("1.4"), "stated", "gpu", latency_ms=1.0, models=("embedder",))
FAR = Region("far", "Z-FAR", 2, Decimal("1.1"), "stated", "gpu", latency_ms=9.0)


def came(database: Database, job_id: str, created_at: datetime, **changes: Any) -> None:
    made = job(job_id=job_id, tenant="acme", model="embedder", created_at=created_at, **changes)
    with database.write() as tx:
        jobs.insert_job(tx, made, source="jobs", machine_created_at=created_at)


def settled_book(job_id: str, number: int = 0) -> Booking:
    known = [
        rate("Z-AWAY", W0, "250", kind=RateKind.OBSERVED, signal=Signal.MOER),
        rate("Z-HOME", W0 - WINDOW, "300", kind=RateKind.OBSERVED),
    ]
    rates = rate_book(known, now=W0 + timedelta(hours=5))
    return book(batch([item(n, job_id=job_id) for n in range(3)], [part(number, cpu=3_600_000)]), rates)


def test_avoidable_carbon_is_against_the_nearest_region_when_the_job_came(database: Database) -> None:
    configure(database, [HOME, AWAY, NEAR, FAR])
    came(database, "job_1", W0 - 2 * WINDOW + timedelta(minutes=3), regions=("near", "far"))
    came(database, "job_2", W0 - 2 * WINDOW, regions=("far",))
    observe(database, "Z-NEAR", W0 - 2 * WINDOW, "500")
    observe(database, "Z-FAR", W0 - 2 * WINDOW, "100")
    store(database, settled_book("job_1"), settled_book("job_2"), settled_book("gone"))
    made = make(database)
    (row,) = made.saving.avoidable
    energy = 3_600_000
    assert row.status == "settled"
    assert (row.energy_uj, row.entries) == (2 * energy, 6)
    assert row.coverage == pytest.approx(2 / 3)
    per_kwh = Fraction(energy, UJ_PER_KWH)
    # job_1 would have run in near (the lowest latency), job_2 in far, the only one that it allows.
    assert Fraction(row.nearest_g) == per_kwh * (Fraction("1.4") * 500 + Fraction("1.1") * 100)
    assert Fraction(row.emission_g) == 2 * per_kwh * Fraction("1.2") * 250
    assert row.avoided_g == row.nearest_g - row.emission_g
    assert row.avoided_g > 0


def test_nothing_is_avoidable_where_the_nearest_regions_rate_is_not_known(database: Database) -> None:
    configure(database, [HOME, AWAY, NEAR])
    came(database, "job_1", W0 - 2 * WINDOW, regions=("near",))
    store(database, settled_book("job_1"))
    assert make(database).saving.avoidable == ()

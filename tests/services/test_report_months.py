"""The months of which there can be a report."""

from __future__ import annotations

from datetime import UTC, datetime

from carbonq.services import report_months
from carbonq.store.database import Database
from tests.services.booked import configure, store
from tests.unit.bookings import W0, book, overhead


def test_months_go_back_to_the_tenants_first_entry(database: Database) -> None:
    configure(database)
    now = datetime(2026, 5, 31, 23, 59, tzinfo=UTC)
    assert report_months.since_first_entry(database, "acme", now) == ["2026-05"]
    store(database, overhead())  # of no tenant
    assert report_months.since_first_entry(database, "acme", now) == ["2026-05"]
    store(database, book())
    assert report_months.since_first_entry(database, "acme", now) == ["2026-05", "2026-04", f"{W0:%Y-%m}"]
    assert report_months.since_first_entry(database, "rival", now) == ["2026-05"]
    assert report_months.since_first_entry(database, "acme", W0) == [f"{W0:%Y-%m}"]
    # A clock that was set back must not go on for ever.
    assert report_months.since_first_entry(database, "acme", datetime(2026, 1, 1, tzinfo=UTC)) == ["2026-01"]
    late = report_months.since_first_entry(database, "acme", datetime(2099, 1, 31, tzinfo=UTC))
    assert len(late) == report_months.MOST and late[:2] == ["2099-01", "2098-12"]

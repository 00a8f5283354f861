"""What a month's report says of Scope 2: where its average rates are not what an inventory counts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from carbonq.model import Signal
from carbonq.services import report
from carbonq.store.database import Database
from tests.services.booked import store
from tests.unit.bookings import W0, batch, book, item, part, rate, rate_book

NOW = datetime(2026, 4, 3, tzinfo=UTC)


def said(database: Database, tenant: str | None = None) -> str:
    made = report.make(database, "2026-03", now=NOW, tenant=tenant)
    return " ".join(line for text in made.method for line in text.paragraphs)


@pytest.mark.parametrize(
    ("gas", "method", "is_lifecycle", "is_co2_alone"),
    [("co2e", "lifecycle", True, False), ("co2e", "direct", False, False), ("co2", None, False, True)],
)
def test_rates_that_scope_2_would_not_take_are_named(
    sqlite_database: Database, gas: str, method: str | None, is_lifecycle: bool, is_co2_alone: bool
) -> None:
    known = rate("Z-AWAY", W0, "100", signal=Signal.AER, gas=gas, method=method)
    store(sqlite_database, book(batch([item(1)], [part(cpu=9)]), rate_book([known])))
    words = said(sqlite_database)
    assert ("upstream emissions" in words) is is_lifecycle
    assert ("leave out methane" in words) is is_co2_alone
    assert "no market-based total is in this report" in words
    assert "Losses of transmission" in words


def test_a_month_without_an_average_rate_says_nothing_of_it(sqlite_database: Database) -> None:
    store(sqlite_database, book(rates=rate_book([])))
    assert "Losses of transmission" not in said(sqlite_database)


def test_a_tenants_report_says_whose_overhead_is_in_it(sqlite_database: Database) -> None:
    store(sqlite_database, book())
    assert "realtime calls wasted is its overhead" in said(sqlite_database, "acme")


def test_what_nobody_metered_is_not_told_as_no_energy(sqlite_database: Database) -> None:
    store(sqlite_database, book(batch(parts=[part(cpu=None)])))
    words = said(sqlite_database)
    assert "5 entries without energy, by no meter." in words
    assert "0 µJ" not in words

"""The location-based inventory of a month's report: a row for each hour, region and provenance of the rate."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

from carbonq.model import Signal
from carbonq.report import Report
from carbonq.services import report
from carbonq.store.database import Database
from tests.services.booked import store
from tests.unit.bookings import FACTS, W0, batch, book, item, part, rate, rate_book

NOW = datetime(2026, 4, 3, tzinfo=UTC)


def make(database: Database) -> Report:
    return report.make(database, "2026-03", now=NOW)


def test_inventory_is_scope_3_where_the_region_is_rented(database: Database) -> None:
    rented = replace(FACTS["away"], ownership="rented")
    store(database, book(), book(batch(fact=rented)), book(batch(fact=FACTS["home"])))
    rows = {(row.region, row.scope): row for row in make(database).inventory}
    assert set(rows) == {("away", "scope 2"), ("away", "scope 3"), ("home", "scope 2")}
    # The home zone has no average rate: its energy stands there, its grams are unknown.
    assert rows["home", "scope 2"].inventory_g is None
    assert rows["home", "scope 2"].unknown_entries == 5
    assert (rows["home", "scope 2"].kwh or 0) > 0
    assert rows["away", "scope 3"].aer_g_per_kwh == Decimal("90.125")


def test_hours_in_which_nothing_was_metered_have_no_energy_and_not_none_of_it(database: Database) -> None:
    store(database, book(batch(parts=[part(cpu=None)])), book(batch(parts=[part(12, cpu=9)])))
    store(database, book(batch([item(7)], parts=[part(12, cpu=None)])))
    unmetered, both = make(database).inventory
    assert (unmetered.energy_uj, unmetered.kwh, unmetered.unmetered_entries) == (None, None, 5)
    assert (both.energy_uj, both.unmetered_entries) == (9, 1)


def test_the_hours_of_the_inventory_tell_rates_of_other_gases_and_vintages_apart(database: Database) -> None:
    for gas, vintage in (("co2", "2025"), ("co2e", "2025"), ("co2e", "2026")):
        known = rate("Z-AWAY", W0, "100", signal=Signal.AER, gas=gas, model=vintage)
        store(database, book(batch([item(1)], [part(cpu=9)]), rate_book([known])))
    rows = make(database).inventory
    assert [(row.gas, row.model) for row in rows] == [("co2", "2025"), ("co2e", "2025"), ("co2e", "2026")]

"""Sums keep apart what must not be added."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import orjson
import pytest

from carbonq.clock import ClockKind
from carbonq.errors import InvalidRequest
from carbonq.services import summary
from carbonq.store.database import Database
from carbonq.store.figures import Scope
from tests.services.booked import configure, observe, store
from tests.unit.bookings import W0, batch, book, item, overhead, part, rate, rate_book


def test_items_overhead_books_and_savings_each_stand_by_themselves(database: Database) -> None:
    booked, idle = book(), overhead(parts=[part(cpu=77)])
    store(database, booked, idle)
    found = summary.summarize(database)
    assert found["clock"] == "real"
    assert found["entries"] == 6
    assert found["energy_uj"] == 1_000_003  # the items' own; idle stands below
    assert Decimal(found["emission_g"]) == sum(Fraction(row["emission_g"]) for row in booked.entries)
    assert [(row["kind"], row["quality"], row["energy_uj"]) for row in found["energy"]] == [
        ("idle", "estimated", 77),
        ("item", "estimated", 1_000_003),
    ]
    assert {row["status"] for row in found["impact"]} == {"provisional"}
    (saving,) = found["saving"]
    assert saving["compared_energy_uj"] == 1_000_003
    difference = Decimal(saving["baseline_g"]) - Decimal(saving["compared_emission_g"])
    assert Decimal(saving["saved_g"]) == difference
    assert saving["transfer_g"] is None
    assert orjson.loads(orjson.dumps(found)) == found


def test_a_saving_is_stated_on_the_energy_it_was_compared_on_alone(database: Database) -> None:
    store(database, book(), book(batch([item(5, baseline_region=None, baseline_window_at=None)], [part(cpu=9)])))
    found = summary.summarize(database)
    assert found["energy_uj"] == 1_000_012
    assert found["compared_energy_uj"] == 1_000_003
    assert Decimal(found["compared_emission_g"]) < Decimal(found["emission_g"])


def test_what_has_no_rate_or_meter_is_counted_and_never_zero(database: Database) -> None:
    store(database, book(rates=rate_book([])), book(batch(parts=[part(cpu=None)])))
    found = summary.summarize(database)
    assert (found["unrated_entries"], found["unmetered_entries"]) == (10, 5)
    assert found["emission_g"] is None
    assert found["saved_g"] is None


def test_clocks_are_never_mixed(database: Database) -> None:
    store(database, book(), book(batch(clock=ClockKind.ACCELERATED)))
    with pytest.raises(InvalidRequest, match=r"accelerated \(5\), real \(5\); choose one") as caught:
        summary.summarize(database)
    assert caught.value.param == "clock"
    assert summary.summarize(database, Scope(clock="real"))["entries"] == 5


def test_provisional_and_settled_stand_apart(database: Database) -> None:
    from carbonq.services.settle import settle

    configure(database)
    store(database, book(), book(batch(parts=[part(1)])))
    observe(database, "Z-AWAY", W0, "100")
    assert settle(database, W0.replace(hour=9), settle_after_s=0) == 5
    found = summary.summarize(database)
    assert [(row["status"], row["entries"]) for row in found["impact"]] == [("provisional", 5), ("settled", 5)]


def test_a_job_is_none_before_it_ran_and_its_items_only_after(database: Database) -> None:
    store(database, book(batch([item(0), item(1, job_id="job_2")])), overhead())
    with database.read() as tx:
        assert summary.of_job(tx, "job_3") is None
        found = summary.of_job(tx, "job_2")
    assert found is not None
    assert found["entries"] == 1
    assert found["energy_quality"] == ["estimated"]


def test_books_of_different_rates_are_listed_by_their_own_status(database: Database) -> None:
    store(database, book(rates=rate_book([rate()])))
    found = summary.summarize(database)
    assert [(row["status"], row["inventory_g"]) for row in found["inventory"]] == [("missing", None)]
    assert [row["status"] for row in found["impact"]] == ["provisional"]

"""What budgets have spent is what the ledger says, whatever happens between an entry and its count."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import func, select

from carbonq.budget import Book, BudgetStatus, Level
from carbonq.clock import ClockKind
from carbonq.services import budget, budget_spent
from carbonq.services.settle import settle
from carbonq.store import budgets, ledger
from carbonq.store.database import Database
from carbonq.store.figures import Scope
from carbonq.store.tables import budget_cells, spent_marks
from carbonq.units import WINDOW
from tests.services.booked import configure, observe
from tests.services.budgeted import DAY, MONTH, ledger_g, put, set_clock
from tests.unit.bookings import W0, batch, book, item, overhead, part

NOW = W0 + timedelta(hours=1)


def store(db: Database, *made: Any) -> None:
    with db.write() as tx:
        ledger.record_bookings(tx, made)


def status(db: Database, now: Any = NOW) -> BudgetStatus:
    (found,) = budget.statuses(db, now)
    return found


def count(db: Database, table: Any) -> int:
    with db.read() as tx:
        return tx.execute(select(func.count()).select_from(table)).scalar_one()


SEARCH = Scope(tenant="acme", product_line="search", start_at=MONTH, clock="real")


def test_a_month_is_the_sum_of_its_items_before_and_after_they_were_counted(database: Database) -> None:
    set_clock(database)
    put(database)
    store(database, book(), overhead(), book(batch([item(n, product_line="mail") for n in range(3)])))
    before = status(database)
    assert before.spent_g == ledger_g(database, SEARCH) > 0
    assert before.provisional_g == before.spent_g
    assert count(database, spent_marks) == 2
    assert budget_spent.fold(database, NOW)
    assert count(database, spent_marks) == 0
    assert status(database) == before
    store(database, book())
    assert budget_spent.fold(database, NOW)
    assert status(database).spent_g == ledger_g(database, SEARCH) > before.spent_g


def test_a_budget_that_is_set_later_counts_what_ran_before(database: Database) -> None:
    set_clock(database)
    store(database, book(), book(batch(parts=[part(0), part(1), part(2)])))
    assert count(database, spent_marks) == 0  # nobody has a budget: nothing is written
    put(database)
    assert status(database).spent_g == ledger_g(database, SEARCH) > 0
    assert budget_spent.fold(database, NOW)
    assert status(database).spent_g == ledger_g(database, SEARCH)
    with database.read() as tx:
        assert budgets.uncounted(tx) == {}


def test_settled_entries_true_the_sum_up(database: Database) -> None:
    set_clock(database)
    configure(database)
    put(database)
    store(database, book())
    budget_spent.fold(database, NOW)
    first = status(database)
    observe(database, "Z-AWAY", W0, "111.5")
    assert settle(database, NOW, settle_after_s=0) == 5
    assert status(database).spent_g == ledger_g(database, SEARCH) != first.spent_g
    assert status(database).provisional_g == 0
    budget_spent.fold(database, NOW)
    assert status(database).spent_g == ledger_g(database, SEARCH)
    assert (first.provisional_g, status(database).provisional_g) == (first.spent_g, 0)


def test_an_entry_without_a_rate_is_unknown_and_never_nothing(database: Database) -> None:
    set_clock(database)
    put(database, book=Book.INVENTORY)
    store(database, book(batch(fact=replace(batch().fact, region="home"))))  # home has no average rates
    budget_spent.fold(database, NOW)
    found = status(database)
    assert (found.spent_g, found.unknown_entries) == (0, 5)


def test_books_and_levels_are_apart(database: Database) -> None:
    set_clock(database)
    put(database, book=Book.INVENTORY)
    put(database, budget_id="bgt_2", level=Level.WORKLOAD, name="backfill")
    put(database, budget_id="bgt_3", level=Level.WORKLOAD, name="other")
    put(database, budget_id="bgt_4", tenant="other")
    store(database, book())
    budget_spent.fold(database, NOW)
    found = {one.budget.budget_id: one for one in budget.statuses(database, NOW)}
    assert found["bgt_1"].spent_g == ledger_g(database, SEARCH, "inventory_g")
    assert found["bgt_2"].spent_g == ledger_g(database, SEARCH)
    assert found["bgt_2"].started_at == DAY
    assert found["bgt_3"].spent_g == found["bgt_4"].spent_g == 0
    assert [one.budget.budget_id for one in budget.statuses(database, NOW, "other")] == ["bgt_4"]


def test_another_book_counts_anew(database: Database) -> None:
    set_clock(database)
    put(database)
    store(database, book())
    budget_spent.fold(database, NOW)
    put(database, budget_id="ignored", book=Book.INVENTORY)
    assert status(database).spent_g == ledger_g(database, SEARCH, "inventory_g")
    budget_spent.fold(database, NOW)
    assert status(database).spent_g == ledger_g(database, SEARCH, "inventory_g") > 0
    assert status(database).budget.budget_id == "bgt_1"


def test_a_new_period_begins_at_nothing(database: Database) -> None:
    set_clock(database)
    put(database, level=Level.WORKLOAD, name="backfill")
    store(database, book())
    budget_spent.fold(database, NOW)
    tomorrow = DAY + timedelta(days=1, minutes=1)
    assert status(database, tomorrow).spent_g == 0
    assert status(database).spent_g > 0
    store(database, book())  # late, of yesterday: no part of today
    budget_spent.fold(database, tomorrow)
    assert status(database, tomorrow).spent_g == 0
    assert count(database, spent_marks) == 0


def test_energy_of_another_clock_is_nobodys(database: Database) -> None:
    set_clock(database, ClockKind.ACCELERATED)
    put(database)
    store(database, book())
    budget_spent.fold(database, NOW)
    assert status(database).spent_g == 0


@pytest.mark.parametrize("times", [1, 2])
def test_a_replayed_booking_is_counted_once(database: Database, times: int) -> None:
    set_clock(database)
    put(database)
    made = book()
    for _ in range(times):
        store(database, made)
    assert status(database).spent_g == ledger_g(database, SEARCH)
    budget_spent.fold(database, NOW)
    assert status(database).spent_g == ledger_g(database, SEARCH)


def test_many_windows_are_counted_in_pages(database: Database) -> None:
    set_clock(database)
    store(database, *(book(batch(parts=[part(n)])) for n in range(30)))
    put(database)
    assert not budget_spent.fold(database, W0 + timedelta(hours=5), tick_s=0)
    assert count(database, spent_marks) == 30 - budget_spent.MAX_WINDOWS
    with database.read() as tx:
        assert budgets.uncounted(tx) == {"bgt_1": "acme"}
    later = W0 + timedelta(hours=5)
    assert status(database, later).spent_g == ledger_g(database, SEARCH)
    assert budget_spent.fold(database, later)
    assert status(database, later).spent_g == ledger_g(database, SEARCH)
    assert count(database, budget_cells) <= 30


def test_a_removed_budget_leaves_nothing(database: Database) -> None:
    set_clock(database)
    put(database)
    store(database, book())
    budget_spent.fold(database, NOW)
    with database.write() as tx:
        budgets.delete(tx, "bgt_1")
    assert count(database, budget_cells) == 0
    store(database, book())
    assert count(database, spent_marks) == 0


def test_burn_rate_and_when_it_is_used_up(database: Database) -> None:
    set_clock(database)
    store(database, book())
    spent_g = ledger_g(database, SEARCH)
    put(database, level=Level.WORKLOAD, name="backfill", cap_g=spent_g * 2)
    found = status(database, DAY + timedelta(hours=8, minutes=10))
    assert found.elapsed_share == pytest.approx(490 / 1440)
    assert found.burn_rate == pytest.approx(0.5 * 1440 / 490)
    assert found.exhausted_at == DAY + timedelta(minutes=980)
    assert status(database, DAY + timedelta(hours=13)).exhausted_at is None  # lasts for the whole day
    assert status(database, DAY).burn_rate is None
    put(database, level=Level.WORKLOAD, name="backfill", cap_g=Decimal(5), budget_id="x")
    assert status(database).budget.cap_g == 5
    assert found.ends_at - found.started_at > WINDOW  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]

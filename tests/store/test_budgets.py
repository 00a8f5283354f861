"""Rows of budgets: one for each tenant, level and name; and no entry falls between having none and being counted."""

from __future__ import annotations

import threading
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import event, func, select, text

from carbonq import booking
from carbonq.budget import Action, Book, Level
from carbonq.errors import NotFound
from carbonq.services import budget as service
from carbonq.services import budget_spent
from carbonq.store import budgets, ledger, marks
from carbonq.store.database import Database
from carbonq.store.figures import Scope
from carbonq.store.tables import spent_marks
from tests.services.budgeted import MONTH, budget, ledger_g, put, set_clock
from tests.unit.bookings import W0, batch, book, item

NOW = W0 + timedelta(hours=1)
SEARCH = Scope(tenant="acme", product_line="search", start_at=MONTH, clock="real")


def test_a_budget_is_found_by_what_it_is_for_and_by_its_id(database: Database) -> None:
    made = put(database)
    with database.read() as tx:
        assert budgets.find(tx, "acme", Level.PRODUCT_LINE, "search") == made == budgets.get(tx, "bgt_1", "acme")
        assert budgets.find(tx, "acme", Level.WORKLOAD, "search") is None
        assert budgets.find(tx, "rival", Level.PRODUCT_LINE, "search") is None
        with pytest.raises(NotFound):
            budgets.get(tx, "bgt_1", "rival")
        with pytest.raises(NotFound):
            budgets.get(tx, "bgt_2")


def test_setting_it_again_keeps_its_id_and_age(database: Database) -> None:
    put(database)
    later = W0 + timedelta(days=1)
    changed = {"cap_g": Decimal("2.000000000000001"), "action": Action.QUEUE, "book": Book.INVENTORY}
    made = put(database, budget_id="bgt_9", created_at=later, updated_at=later, **changed)
    with database.read() as tx:
        (found,) = budgets.list_(tx)
    assert found == made == budget(updated_at=later, **changed)


def test_they_are_listed_by_tenant_level_and_name(database: Database) -> None:
    for number, (tenant, level, name) in enumerate(
        [("b", Level.ITEM, "*"), ("a", Level.WORKLOAD, "x"), ("a", Level.PRODUCT_LINE, "z"), ("a", Level.WORKLOAD, "b")]
    ):
        put(database, budget_id=f"bgt_{number}", tenant=tenant, level=level, name=name)
    with database.read() as tx:
        assert [one.name for one in budgets.list_(tx)] == ["z", "b", "x", "*"]
        assert [one.name for one in budgets.list_(tx, "b")] == ["*"]
        assert (budgets.count(tx), budgets.count(tx, "a"), budgets.count(tx, "c")) == (4, 3, 0)


def test_entries_of_others_leave_no_mark(database: Database) -> None:
    put(database, tenant="rival")
    with database.write() as tx:
        ledger.record_bookings(tx, [book()])
        assert tx.execute(select(func.count()).select_from(spent_marks)).scalar_one() == 0
        assert marks.tenants_among(tx, {"acme", "rival"}) == {"rival"}


def test_a_mark_is_one_row_for_each_line_and_window_of_a_transaction(database: Database) -> None:
    put(database)
    mixed = [item(n, workload="backfill" if n % 2 else "evals") for n in range(6)]
    with database.write() as tx:
        ledger.record_bookings(tx, [book(batch(mixed)), book(batch(mixed)), book()])
    with database.read() as tx:
        found = marks.marks(tx, {"acme"})
    assert sorted(str(one.line.workload) for one in found) == ["backfill", "evals"]
    assert sum(one.emission_g or 0 for one in found) == ledger_g(database, SEARCH)


def test_bookings_from_a_spool_leave_the_same_marks(database: Database) -> None:
    put(database)
    made = book()
    with database.write() as tx:
        ledger.record_bookings(tx, [booking.loads(booking.dumps(made))])
    with database.read() as tx:
        (found,) = marks.marks(tx, {"acme"})
    assert found.emission_g == ledger_g(database, SEARCH) > 0


def test_a_first_budget_waits_for_those_who_write_entries_and_saw_none(postgresql: Database) -> None:
    """On PostgreSQL: such an entry would be neither marked nor there to be counted."""
    set_clock(postgresql)
    has_written, may_commit = threading.Event(), threading.Event()

    def commit() -> None:
        with postgresql.write() as tx:
            ledger.record_bookings(tx, [book()])
            has_written.set()
            assert may_commit.wait(30)

    writer = threading.Thread(target=commit)
    writer.start()
    assert has_written.wait(30)
    setter = threading.Thread(target=put, args=(postgresql,))
    setter.start()
    _until_somebody_waits(postgresql)
    may_commit.set()
    writer.join(30)
    setter.join(30)
    (found,) = service.statuses(postgresql, NOW)
    assert found.spent_g == ledger_g(postgresql, SEARCH) > 0
    assert budget_spent.fold(postgresql, NOW)
    assert service.statuses(postgresql, NOW)[0].spent_g == found.spent_g


def _until_somebody_waits(db: Database) -> None:
    for _ in range(3_000):
        with db.read() as tx:
            if tx.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one():
                return
        threading.Event().wait(0.01)
    raise AssertionError("nobody waits")


class Killed(Exception):
    """Stands for the end of the process: what was not committed is gone."""


def test_a_count_that_is_killed_at_any_statement_is_made_by_the_next_one(database: Database) -> None:
    set_clock(database)
    put(database)
    put(database, budget_id="bgt_2", level=Level.WORKLOAD, name="backfill")
    with database.write() as tx:
        ledger.record_bookings(tx, [book(), book()])
    for number in range(1, 100):
        seen = [0]

        def die(*_: Any, at: int = number, seen: list[int] = seen) -> None:
            seen[0] += 1
            if seen[0] == at:
                raise Killed

        event.listen(database.engine, "after_cursor_execute", die)
        try:
            budget_spent.fold(database, NOW)
        except Killed:
            continue
        finally:
            event.remove(database.engine, "after_cursor_execute", die)
            expected = ledger_g(database, SEARCH)
            assert {one.spent_g for one in service.statuses(database, NOW)} == {expected}
        assert number > 8
        return
    raise AssertionError("it never came through")

"""How SQLite reads a month's report: a tenant's entries once, not once for each of the month's days."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import event

from carbonq.services import report
from carbonq.store.database import Database
from tests.services.booked import configure, store
from tests.unit.bookings import batch, book, item, part

NOW = datetime(2026, 4, 3, tzinfo=UTC)


def test_a_tenants_days_are_read_by_their_windows_and_not_by_its_index(sqlite_database: Database) -> None:
    """Each day's query went through all that the tenant ever booked: minutes, for what takes a second."""
    configure(sqlite_database)
    store(sqlite_database, book(batch([item(1)], [part(0)])))
    asked: Counter[str] = Counter()
    given: dict[str, Any] = {}

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
        asked[statement] += 1
        given[statement] = parameters

    event.listen(sqlite_database.engine, "before_cursor_execute", note)
    report.make(sqlite_database, "2026-03", now=NOW, tenant="acme")
    event.remove(sqlite_database.engine, "before_cursor_execute", note)

    repeated = [statement for statement, count in asked.items() if count > 20]
    assert len(repeated) >= 3  # hours, the earlier month's days, the days of what settled
    with sqlite_database.read() as tx:
        for statement in repeated:
            plan = [row[3] for row in tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given[statement])]
            assert not [line for line in plan if "tenant" in line], plan

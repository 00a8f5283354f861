"""The clock is written once and read the same by everybody."""

from __future__ import annotations

from datetime import UTC, datetime

from carbonq.clock import GridClock
from carbonq.store import clocks
from carbonq.store.database import Database


def test_the_first_clock_stays(database: Database) -> None:
    first = GridClock.accelerated(datetime(2021, 7, 1, 12, tzinfo=UTC), 75.0)
    with database.write() as tx:
        assert clocks.get(tx) is None
        assert clocks.ensure(tx, first) == first
    with database.write() as tx:
        kept = clocks.ensure(tx, GridClock.real())
    assert kept == clocks_get(database)
    assert kept.factor == 75.0
    assert abs(kept.now() - first.now()).total_seconds() < 75


def clocks_get(database: Database) -> GridClock | None:
    with database.read() as tx:
        return clocks.get(tx)

"""A sealed ledger to tamper with, as an administrator with full rights could: no trigger, no foreign key."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal

from sqlalchemy import text

from carbonq.booking import Booking
from carbonq.model import EntryKind, RateKind, Signal
from carbonq.services.seal import seal
from carbonq.services.seal_check import Finding, Seen, check
from carbonq.services.settle import settle
from carbonq.store.database import Database, Tx
from carbonq.store.tables import placements
from carbonq.units import WINDOW
from tests.services.booked import configure, observe, store
from tests.unit.bookings import W0, batch, book, item, overhead, part, rate, rate_book

TABLES = ("entries", "engine_batches", "rates", "facts", "placements", "seals", "seal_parts", "unsealed")


def bookings() -> list[Booking]:
    """Two parts of three items under a placement, an engine batch of one, and an idle window; both books have rates."""
    marginal = [rate(zone, W0 + n * WINDOW, f"{300 + n}.25") for zone in ("Z-AWAY", "Z-HOME") for n in (-1, 0, 1)]
    average = rate("Z-AWAY", W0, "90.125", signal=Signal.AER, method="lifecycle", kind=RateKind.OBSERVED)
    rates = rate_book([*marginal, average])
    items = [item(n, tokens=(10 * n + 3, n, n + 1), placement_id="plc_1") for n in range(3)]
    parts = [part(n, gpu=1_000_001 + n, cpu=500_009, dram=70_001) for n in range(2)]
    return [book(batch(items, parts), rates), book(batch([item(9)]), rates), overhead(EntryKind.IDLE)]


def place(database: Database) -> None:
    """Store the placement that some items ran under."""
    row = {
        "placement_id": "plc_1",
        "chunk_id": "chunk_1",
        "plan_id": "plan_1",
        "region": "away",
        "window_at": W0,
        "g_per_kwh": Decimal("250.50"),
        "issued_at": W0,
        "signal": "moer",
        "reason": "carbon",
        "created_at": W0,
    }
    with database.write() as tx:
        tx.execute(placements.insert(), row)


def fill(database: Database) -> None:
    """Store the bookings, settle them, and seal in three goes: what was booked, what was settled, and one more."""
    configure(database)
    place(database)
    store(database, *bookings())
    seal(database)
    observe(database, "Z-AWAY", W0, "251.5")
    assert settle(database, W0 + timedelta(hours=1), settle_after_s=0) > 0
    seal(database)
    store(database, book())
    seal(database)


def findings(database: Database, head: str | None = None) -> list[Finding]:
    return list(check(database, Seen(), head=head))


def keep(database: Database) -> None:
    """Remember the rows as they are, and take the triggers away for good."""
    with as_administrator(database) as tx:
        for table in TABLES:
            tx.execute(text(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}"))
        if database.is_sqlite:
            names = tx.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
            for name in names:
                tx.execute(text(f"DROP TRIGGER {name}"))


def restore(database: Database) -> None:
    """Put the rows back."""
    with as_administrator(database) as tx:
        for table in TABLES:
            tx.execute(text(f"DELETE FROM {table}"))
            tx.execute(text(f"INSERT INTO {table} SELECT * FROM kept_{table}"))


def forget(database: Database) -> None:
    """Take away what ``keep`` remembered, so that the schema is what it was."""
    with database.write() as tx:
        for table in TABLES:
            tx.execute(text(f"DROP TABLE kept_{table}"))


@contextmanager
def as_administrator(database: Database) -> Generator[Tx]:
    """A transaction in which nothing stands in the way."""
    with database.engine.execution_options(carbonq_write=True).connect() as connection:
        if database.is_sqlite:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.execute("PRAGMA foreign_keys = OFF")
        try:
            with connection.begin():
                if not database.is_sqlite:
                    connection.execute(text("SET LOCAL session_replication_role = replica"))
                yield connection
        finally:
            if database.is_sqlite:
                driver.execute("PRAGMA foreign_keys = ON")

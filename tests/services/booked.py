"""Grid data and bookings in a database, for tests of rates, settlement and sums."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import insert

from carbonq import verify
from carbonq.booking import Booking
from carbonq.model import Region, Signal
from carbonq.store import exports, ledger, regions
from carbonq.store.database import Database
from carbonq.store.exports import Selection
from carbonq.store.packing import pack
from carbonq.store.tables import forecasts, observations
from tests.unit.bookings import AWAY, HOME


def observe(
    database: Database, zone: str, window_at: datetime, value: str, *, signal: Signal = Signal.MOER, **changes: Any
) -> None:
    row: dict[str, Any] = {
        "zone": zone,
        "signal": signal.value,
        "source": "test",
        "window_at": window_at,
        "revision": 1,
        "model": "2026-01",
        "gas": "co2",
        "method": None,
        "step_s": 300,
        "retrieved_at": window_at + timedelta(minutes=6),
        "g_per_kwh": Decimal(value),
        "raw": Decimal(value),
        "raw_unit": "g/kWh",
        "is_estimated": False,
        "may_settle": True,
    }
    with database.write() as tx:
        tx.execute(insert(observations).values(row | changes))


def foretell(database: Database, zone: str, issued_at: datetime, values: Sequence[str | None], **changes: Any) -> None:
    row: dict[str, Any] = {
        "zone": zone,
        "signal": "moer",
        "source": "test",
        "model": None,
        "gas": "co2",
        "method": None,
        "issued_at": issued_at,
        "retrieved_at": issued_at,
        "start_at": issued_at,
        "step_s": 300,
        "packed": pack([None if value is None else Decimal(value) for value in values]),
        "raw_unit": "lb/MWh",
        "raw_per_g_per_kwh": Decimal("2.20462262184878"),
        "is_estimated": False,
        "may_settle": True,
    }
    with database.write() as tx:
        tx.execute(insert(forecasts).values(row | changes))


def configure(database: Database, configured: Sequence[Region] = (HOME, AWAY)) -> None:
    with database.write() as tx:
        regions.sync(tx, configured)


def store(database: Database, *bookings: Booking) -> None:
    with database.write() as tx:
        ledger.insert_bookings(tx, bookings)


def lines(database: Database, *, all_revisions: bool = False) -> list[dict[str, str]]:
    """The export's lines, checked by the standalone checker on the way."""
    selection = Selection(all_revisions=all_revisions)
    found = [line for page in exports.pages(database, selection) for line in page]
    assert [what for line in found for what in verify.line_problems(line)] == []
    return found

"""A sealed ledger of two tenants who share engine batches, to be audited."""

from __future__ import annotations

from datetime import timedelta

from carbonq import ledger
from carbonq.booking import Booking
from carbonq.model import EntryKind
from carbonq.services.seal import seal
from carbonq.services.settle import settle
from carbonq.store.database import Database
from tests.services.booked import configure, observe, store
from tests.services.sealed import place
from tests.unit.bookings import RECORDED, W0, batch, book, item, overhead, part, rate_book

MONTH = "2026-03"


def wasted(tenant: str) -> Booking:
    made = batch([], model=None, engine=None, engine_version=None)
    return ledger.book_overhead(
        made,
        rate_book(),
        EntryKind.WASTED,
        outcome="lost",
        recorded_at=RECORDED,
        recorded_by="worker_1",
        tenant=tenant,
    )


def fill(database: Database) -> None:
    """Two tenants in the same engine batches, two keys, two parts, a revision, seals apart, and one not sealed yet."""
    configure(database)
    place(database)
    mixed = [
        item(n, tenant=tenant, custom_id=f"{tenant}-{n}", api_key_id=f"key_{tenant}_{n % 2}", placement_id="plc_1")
        for n, tenant in enumerate(["acme", "globex", "acme", "acme", "globex", "acme"])
    ]
    store(database, book(batch(mixed, [part(0), part(1)])), overhead(EntryKind.IDLE))
    seal(database)
    store(database, book(batch([item(n, tenant="globex", custom_id=f"globex-{n}") for n in range(20, 24)])))
    seal(database)
    observe(database, "Z-AWAY", W0, "251.5")
    assert settle(database, W0 + timedelta(hours=1), settle_after_s=0) > 0
    store(database, book(batch([item(n, api_key_id="key_acme_0") for n in range(30, 33)])))
    seal(database)
    store(database, wasted("acme"), book(batch([item(40, tenant="globex")])))
    seal(database)
    store(database, book(batch([item(n, api_key_id=None) for n in range(50, 52)])))

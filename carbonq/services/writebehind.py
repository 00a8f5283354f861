"""Store ledger bookings behind the work that made them: realtime calls and idle windows do not wait for the database.

Bookings are stored in batches by one thread; while the database is away they go to the spool, from where ``replay``
brings them later (storing one twice is harmless).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from carbonq import booking, telemetry
from carbonq.booking import Booking
from carbonq.errors import StoreUnavailable
from carbonq.spool import Spool
from carbonq.store import ledger as ledger_rows
from carbonq.store.database import Database

logger = logging.getLogger(__name__)

#: Bookings stored in one transaction.
BATCH = 500

#: Machine seconds a booking may wait for company.
GATHER_S = 0.25


class WriteBehind:
    """A queue of bookings and the thread that stores them."""

    def __init__(self, db: Database, spool: Spool) -> None:
        """Prepare; ``start`` begins."""
        self._db = db
        self._spool = spool
        self._queue: queue.SimpleQueue[Booking | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="write-behind", daemon=True)

    def start(self) -> None:
        """Begin to store."""
        self._thread.start()

    def put(self, booked: Booking) -> None:
        """Take a booking; returns at once."""
        self._queue.put(booked)

    def close(self) -> None:
        """Store what is left and end."""
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        is_open = True
        while is_open:
            first = self._queue.get()
            if first is None:
                return
            batch = [first]
            pause = threading.Event()
            pause.wait(GATHER_S)
            while len(batch) < BATCH:
                try:
                    following = self._queue.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    is_open = False
                    break
                batch.append(following)
            self._store(batch)

    def _store(self, batch: Sequence[Booking]) -> None:
        try:
            with self._db.write() as tx:
                ledger_rows.record_bookings(tx, batch)
        except StoreUnavailable as error:
            logger.warning("%d bookings spooled: %s", len(batch), error)
            self._keep(batch)
        except Exception:  # a process loop: bookings that cannot be stored must not stop those that follow
            logger.exception("%d bookings spooled", len(batch))
            self._keep(batch)
        else:
            telemetry.count_booked(batch)

    def _keep(self, batch: Sequence[Booking]) -> None:
        rows = [booking.dumps(one).decode() for one in batch]
        try:
            self._spool.put({"kind": "bookings", "bookings": rows})
        except StoreUnavailable as full:
            logger.error("%d bookings are lost: %s", len(batch), full)


def replay(db: Database, record: Mapping[str, Any]) -> None:
    """Store spooled bookings. Raises StoreUnavailable, and ValueError when they are none."""
    bookings = [booking.loads(one.encode()) for one in record["bookings"]]
    with db.write() as tx:
        ledger_rows.record_bookings(tx, bookings)

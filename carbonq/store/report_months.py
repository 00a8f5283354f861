"""Since when there is something to report."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select

from carbonq.store.database import Tx
from carbonq.store.tables import entries


def first_window(tx: Tx, tenant: str) -> datetime | None:
    """Return the window of a tenant's entry that was recorded first; None without one. One look at an index."""
    first = select(entries.c.window_at).where(entries.c.tenant == tenant).order_by(entries.c.recorded_at).limit(1)
    return tx.execute(first).scalar_one_or_none()

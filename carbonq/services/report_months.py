"""The months of which a tenant can have a report."""

from __future__ import annotations

from datetime import datetime, timedelta

from carbonq.store import report_months
from carbonq.store.database import Database

#: Months that are listed at most; earlier ones can be asked for by name.
MOST = 60


def since_first_entry(db: Database, tenant: str, now: datetime) -> list[str]:
    """Return months like ``2026-11``, the running one first, back to that of the tenant's first entry.

    ``now`` is grid time. Raises StoreUnavailable.
    """
    with db.read() as tx:
        first = report_months.first_window(tx, tenant)
    found = [f"{now:%Y-%m}"]
    at = now.replace(day=1)
    while first is not None and len(found) < MOST and (at.year, at.month) > (first.year, first.month):
        at = (at - timedelta(days=1)).replace(day=1)
        found.append(f"{at:%Y-%m}")
    return found

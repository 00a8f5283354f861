"""What a role may do in the database, and what it needs to: for `carbonq doctor`. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import text

from carbonq.store.database import Database

#: What a region worker does with each table.
REGION: Mapping[str, Sequence[str]] = {
    "alembic_version": ("SELECT",),
    "attempts": ("SELECT", "INSERT", "UPDATE"),
    "budgets": ("SELECT",),
    "chunks": ("SELECT", "UPDATE"),
    "clocks": ("SELECT",),
    "engine_batches": ("SELECT", "INSERT"),
    "entries": ("SELECT", "INSERT"),
    "events": ("INSERT",),
    "facts": ("SELECT", "INSERT"),
    "forecasts": ("SELECT",),
    "holds": ("SELECT",),
    "installation": ("SELECT",),
    "items": ("SELECT", "UPDATE"),
    "jobs": ("SELECT", "UPDATE"),
    "observations": ("SELECT",),
    "placements": ("SELECT",),
    "rates": ("SELECT", "INSERT"),
    "regions": ("SELECT",),
    "schema_floor": ("SELECT",),
    "segments": ("INSERT",),
    "source_states": ("SELECT",),
    "spent_marks": ("INSERT",),
    "throughputs": ("SELECT", "INSERT", "UPDATE"),
    "unsettled": ("INSERT",),
    "workers": ("SELECT", "INSERT", "UPDATE"),
}


def missing(db: Database, needed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the rights that this login lacks, e.g. ``UPDATE on chunks``. Raises StoreUnavailable.

    On SQLite they are those on the file and its folder, in which its journal is made.
    """
    if db.is_sqlite:
        path = Path(db.engine.url.database or "")
        return [f"write on {one}" for one in (path, path.parent) if not os.access(one, os.W_OK)]
    # A right on some of the columns counts: roles are granted no more of a table than they write.
    question = text("SELECT has_any_column_privilege(current_user, CAST(:name AS text), CAST(:right AS text))")
    with db.read() as tx:
        return [
            f"{right} on {table}"
            for table, rights in needed.items()
            for right in rights
            if not tx.execute(question, {"name": table, "right": right}).scalar_one()
        ]

"""What became of figures: all revisions of an entry, and later changes to a month, as lines of their own."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from carbonq.errors import InvalidRequest, NotFound
from carbonq.store import changes, exports, restatements
from carbonq.store.database import Database
from carbonq.store.restatements import Restatement
from carbonq.units import iso, plain

#: Cells of a revision that say what it is and not what it states.
_IDENTITY = frozenset({"entry_id", "revision", "supersedes", "reason", "restatement_id", "recorded_at", "recorded_by"})


def of_entry(db: Database, entry_id: str, *, tenant: str | None = None) -> dict[str, Any]:
    """Return all revisions of an entry, oldest first: who, when, why, and each cell that changed, before and after.

    Cells are those of the CSV, empty ones None. With ``tenant``, another tenant's entry is not found. Raises NotFound,
    StoreUnavailable.
    """
    with db.read() as tx:
        found: list[dict[str, str]] = []
        while (cells := exports.entry(tx, entry_id, tenant=tenant, revision=len(found) + 1)) is not None:
            found.append(dict(cells))
        if not found:
            raise NotFound(f"there is no ledger entry {entry_id!r}")
        known = restatements.find(tx, [cells["restatement_id"] for cells in found if cells["restatement_id"]])
    revisions: list[dict[str, Any]] = []
    for number, cells in enumerate(found):
        before = found[number - 1] if number else None
        changed = (
            {}
            if before is None
            else {
                name: [before[name] or None, cells[name] or None]
                for name in cells
                if name not in _IDENTITY and cells[name] != before[name]
            }
        )
        restatement = known.get(cells["restatement_id"])
        revisions.append(
            {name: cells[name] or None for name in ("reason", "recorded_at", "recorded_by", "restatement_id")}
            | {"revision": number + 1, "changed": changed}
            | {"restatement": None if restatement is None else view(restatement)}
        )
    return {"id": entry_id, "object": "ledger.history", "revisions": revisions, "current": found[-1]}


def view(one: Restatement) -> dict[str, Any]:
    """Return a restatement as JSON values."""
    return {
        "id": one.restatement_id,
        "recorded_at": iso(one.recorded_at),
        "recorded_by": one.recorded_by,
        "reason": one.reason,
        "is_automatic": one.is_automatic,
        "signal": None if one.signal is None else one.signal.value,
        "zone": one.zone,
        "start_at": iso(one.start_at),
        "end_at": iso(one.end_at),
    }


def month_span(month: str) -> tuple[datetime, datetime]:
    """Return the first moment of a month ``YYYY-MM`` (UTC) and that of the next. Raises InvalidRequest."""
    try:
        start = datetime.fromisoformat(f"{month}-01T00:00:00+00:00")
    except ValueError as error:
        raise InvalidRequest(f"month is {month!r}; write it like 2026-10", param="month") from error
    if start.year == datetime.max.year:
        raise InvalidRequest(f"month is {month!r}, which has no end", param="month")
    return start, start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)


def later_changes(
    db: Database,
    *,
    since: datetime,
    month: str | None = None,
    tenant: str | None = None,
) -> list[dict[str, Any]]:
    """Return what was recorded after ``since`` (machine time) of windows before it, by month of the window.

    One line for each month, clock, kind, quality, reason and restatement: how many revisions, and by how much each sum
    changed: entries that were booked late count whole, later revisions by the difference to the one they supersede. A
    figure that was unknown and is known now counts whole, too. Added to a report as of ``since`` they give the report
    as of now. Raises InvalidRequest for a month that is none, StoreUnavailable.
    """
    start_at, end_at = (None, since) if month is None else month_span(month)
    with db.read() as tx:
        found = changes.since(tx, since, start_at=start_at, end_at=end_at, tenant=tenant)
    return [
        {
            **{name: getattr(one, name) for name in ("month", "clock", "kind", "quality", "reason", "restatement_id")},
            "revisions": one.revisions,
            "energy_uj": one.energy_uj,
            **{name: _text(value) for name, value in one.grams.items()},
        }
        for one in found
    ]


def _text(value: Decimal | None) -> str | None:
    return None if value is None else plain(value)

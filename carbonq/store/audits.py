"""Read a tenant's month as seals hash it: whole engine batches, of their entries the tenant's alone, all revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, func, select

from carbonq import merkle
from carbonq.store import leaves
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.leaves import PartKey, StoredPart
from carbonq.store.tables import engine_batches, entries, seal_parts

#: Entries and engine batches read in one go; realtime ones hold one item each.
_ENTRIES, _BATCHES = 2_000, 500


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose entries, of which windows (grid time, ``end_at`` not included); ``api_key_id`` None: whatever the key."""

    tenant: str
    start_at: datetime
    end_at: datetime
    api_key_id: str | None = None

    def terms(self) -> list[ColumnElement[bool]]:
        """Return the conditions on ``entries`` of engine batches that were found before."""
        # Not by the index on tenants: SQLite would go through all of the tenant's entries for each page.
        found = [
            func.coalesce(entries.c.tenant, "") == self.tenant,
            entries.c.window_at >= self.start_at,
            entries.c.window_at < self.end_at,
        ]
        return found if self.api_key_id is None else [*found, entries.c.api_key_id == self.api_key_id]

    def by_tenant(self) -> list[ColumnElement[bool]]:
        """Return the same conditions, for a look-up by tenant."""
        return [entries.c.tenant == self.tenant, *self.terms()[1:]]


def is_any(tx: Tx, scope: Scope) -> bool:
    """Say whether there is any entry in scope."""
    return tx.execute(select(entries.c.entry_id).where(*scope.by_tenant()).limit(1)).first() is not None


def next_batches(tx: Tx, scope: Scope, start_at: datetime, end_at: datetime, after: str) -> list[str]:
    """Return the next engine batches, of any tenant, whose first part in scope ran in a span; up to a page of entries.

    By spans, because each page costs a walk through its span: over a month at once that would be its square.
    """
    key, window_at = engine_batches.c.engine_batch_id, engine_batches.c.window_at
    other = engine_batches.alias()
    is_earlier = (other.c.engine_batch_id == key) & (other.c.part < engine_batches.c.part)
    terms = [
        key > after,
        window_at >= start_at,
        window_at < end_at,
        ~select(other.c.part).where(is_earlier, other.c.window_at >= scope.start_at).exists(),
    ]
    size = engine_batches.c["items"] * engine_batches.c.parts
    ids: list[str] = []
    total = 0
    for engine_batch_id, items in tx.execute(select(key, size).where(*terms).order_by(key).limit(_BATCHES)):
        if ids and total + items > _ENTRIES:
            break
        ids.append(engine_batch_id)
        total += items
    return ids


def parts(tx: Tx, scope: Scope, ids: Sequence[str]) -> dict[PartKey, StoredPart]:
    """Return the parts of some engine batches that have entries in scope, with these entries and what is hashed."""
    mine = select(entries.c.engine_batch_id).where(is_any_of(tx, entries.c.engine_batch_id, ids), *scope.terms())
    wanted = sorted(tx.execute(mine.distinct()).scalars())
    if not wanted:
        return {}
    found = leaves.stored(tx, wanted, has_content=True, only=scope.terms())
    return {key: part for key, part in found.items() if part.entries}


def first_leaves(tx: Tx, seal: int) -> list[int]:
    """Return by number where the leaves of each part of a seal begin, and last how many leaves there are."""
    sizes = select(func.length(seal_parts.c.hashes)).where(seal_parts.c.seal == seal).order_by(seal_parts.c.number)
    found = [0]
    for size in tx.execute(sizes).scalars():
        found.append(found[-1] + size // merkle.SIZE)
    return found


def hashes(tx: Tx, seal: int) -> bytes:
    """Return the hashes of all leaves of a seal, one after the other."""
    found = select(seal_parts.c.hashes).where(seal_parts.c.seal == seal).order_by(seal_parts.c.number)
    return b"".join(tx.execute(found).scalars())

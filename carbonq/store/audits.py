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
        """Return the conditions on ``entries``."""
        found = [
            entries.c.tenant == self.tenant,
            entries.c.window_at >= self.start_at,
            entries.c.window_at < self.end_at,
        ]
        return found if self.api_key_id is None else [*found, entries.c.api_key_id == self.api_key_id]


def is_any(tx: Tx, scope: Scope) -> bool:
    """Say whether there is any entry in scope."""
    return tx.execute(select(entries.c.entry_id).where(*scope.terms()).limit(1)).first() is not None


def next_batches(tx: Tx, scope: Scope, after: str) -> list[str]:
    """Return the next engine batches that ran in the scope's windows, of any tenant, up to a page of entries."""
    key = engine_batches.c.engine_batch_id
    terms = [
        key > after,
        engine_batches.c.window_at >= scope.start_at,
        engine_batches.c.window_at < scope.end_at,
    ]
    statement = select(key, func.sum(engine_batches.c["items"])).where(*terms).group_by(key).order_by(key)
    ids: list[str] = []
    total = 0
    for engine_batch_id, items in tx.execute(statement.limit(_BATCHES)):
        if ids and total + items > _ENTRIES:
            break
        ids.append(engine_batch_id)
        total += items
    return ids


def parts(tx: Tx, scope: Scope, ids: Sequence[str]) -> dict[PartKey, StoredPart]:
    """Return the parts of some engine batches that have entries in scope, with these entries and what is hashed."""
    mine = select(entries.c.engine_batch_id).where(is_any_of(tx, entries.c.engine_batch_id, ids), *scope.terms())
    wanted = sorted(set(tx.execute(mine).scalars()))
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

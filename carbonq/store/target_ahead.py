"""Accepted work toward targets that has not ended, as it was counted last: tokens and grams are foreseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import and_, delete, func, insert, or_, select

from carbonq.budget import Book
from carbonq.model import ItemState
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.tables import chunks, items, jobs, target_ahead
from carbonq.target import Ahead

#: Tenant and model.
Key = tuple[str, str]

#: What nothing is accepted of.
_NOTHING = {Book.IMPACT: Ahead(), Book.INVENTORY: Ahead()}


@dataclass(frozen=True, slots=True)
class Accepted:
    """Accepted work of a tenant and a model, by book: the tokens are the same, what is foreseen of them is not."""

    by_book: Mapping[Book, Ahead] = field(default_factory=lambda: _NOTHING)


def count(tx: Tx, tenants: Sequence[str], *, before: datetime) -> dict[Key, Accepted]:
    """Count the items of some tenants that wait or run, and have no place yet or one before a grid time.

    One pass over these tenants' open items.
    """
    is_open = and_(items.c.job_id == jobs.c.job_id, items.c.state == ItemState.WAITING.value)
    tokens = func.sum(items.c.est_tokens)
    held = (  # by chunk first: its own row is looked up once for all its items
        select(jobs.c.tenant, jobs.c.model, items.c.chunk_id, tokens.label("tokens"))
        .select_from(jobs.join(items, is_open))
        .where(is_any_of(tx, jobs.c.tenant, tenants), jobs.c.finished_at.is_(None))
        .group_by(jobs.c.tenant, jobs.c.model, items.c.chunk_id)
        .subquery("held")
    )
    model = func.coalesce(chunks.c.model, held.c.model)
    statement = (
        select(held.c.tenant, model, func.sum(held.c.tokens))
        .select_from(held.outerjoin(chunks, chunks.c.chunk_id == held.c.chunk_id))
        .where(or_(chunks.c.window_at.is_(None), chunks.c.window_at < before))
        .group_by(held.c.tenant, model)
    )
    return {
        (tenant, name): Accepted({book: Ahead(int(total)) for book in Book})
        for tenant, name, total in tx.execute(statement)
    }


def kept(tx: Tx, tenant: str | None = None) -> dict[Key, Accepted]:
    """Return what was counted last, of a tenant (None: of all)."""
    statement = select(target_ahead)
    if tenant is not None:
        statement = statement.where(target_ahead.c.tenant == tenant)
    return {(row.tenant, row.model): _accepted(row) for row in tx.execute(statement)}


def keep(tx: Tx, counted: Mapping[Key, Accepted]) -> None:
    """Store a count in place of the one before."""
    tx.execute(delete(target_ahead))
    rows = [_row(key, one) for key, one in sorted(counted.items())]
    if rows:
        tx.execute(insert(target_ahead), rows)


def _row(key: Key, one: Accepted) -> dict[str, Any]:
    impact, inventory = one.by_book[Book.IMPACT], one.by_book[Book.INVENTORY]
    return {
        "tenant": key[0],
        "model": key[1],
        "tokens": impact.tokens,
        "emission_tokens": impact.priced_tokens,
        "emission_g": impact.grams,
        "inventory_tokens": inventory.priced_tokens,
        "inventory_g": inventory.grams,
    }


def _accepted(row: Any) -> Accepted:
    impact = Ahead(row.tokens, row.emission_tokens, Decimal(row.emission_g))
    inventory = Ahead(row.tokens, row.inventory_tokens, Decimal(row.inventory_g))
    return Accepted({Book.IMPACT: impact, Book.INVENTORY: inventory})

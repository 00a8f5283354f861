"""Accepted work toward targets that has not ended, as it was counted last: tokens and grams are foreseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, and_, case, delete, func, insert, or_, select

from carbonq.budget import PG_PER_UG, Book, from_ug
from carbonq.model import ItemState
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.tables import chunks, items, jobs, target_ahead
from carbonq.target import Ahead

#: Tenant and model.
Key = tuple[str, str]

#: By book the column of jobs and chunks that says what a token is expected to emit.
_RATES = {Book.IMPACT: "impact_pg_per_token", Book.INVENTORY: "inventory_pg_per_token"}

#: What nothing is accepted of.
_NOTHING = {Book.IMPACT: Ahead(), Book.INVENTORY: Ahead()}


@dataclass(frozen=True, slots=True)
class Accepted:
    """Accepted work of a tenant and a model, by book: the tokens are the same, what is foreseen of them is not."""

    by_book: Mapping[Book, Ahead] = field(default_factory=lambda: _NOTHING)


def count(tx: Tx, tenants: Sequence[str], *, before: datetime) -> dict[Key, Accepted]:
    """Count the items of some tenants that wait or run, and have no place yet or one before a grid time.

    At what a token is expected to emit by the placement of their chunk, or before it has one at best. One pass over
    these tenants' open items.
    """
    is_open = and_(items.c.job_id == jobs.c.job_id, items.c.state == ItemState.WAITING.value)
    alike = (jobs.c.tenant, jobs.c.model, items.c.chunk_id, *(jobs.c[name] for name in _RATES.values()))
    held = (  # by chunk first: its own row is looked up once for all its items
        select(*alike, func.sum(items.c.est_tokens, type_=BigInteger()).label("tokens"))
        .select_from(jobs.join(items, is_open))
        .where(is_any_of(tx, jobs.c.tenant, tenants), jobs.c.finished_at.is_(None))
        .group_by(*alike)
        .subquery("held")
    )
    model = func.coalesce(chunks.c.model, held.c.model)
    rates = [func.coalesce(chunks.c[name], held.c[name], type_=BigInteger()) for name in _RATES.values()]
    sums = [
        one
        for rate in rates
        for one in (
            func.sum(case((rate.is_not(None), held.c.tokens), else_=0)),
            # In whole micrograms: picograms of a billion tokens are near the largest number there is.
            func.sum(func.coalesce(held.c.tokens * rate // PG_PER_UG, 0)),
        )
    ]
    statement = (
        select(held.c.tenant, model, func.sum(held.c.tokens), *sums)
        .select_from(held.outerjoin(chunks, chunks.c.chunk_id == held.c.chunk_id))
        .where(or_(chunks.c.window_at.is_(None), chunks.c.window_at < before))
        .group_by(held.c.tenant, model)
    )
    found: dict[Key, Accepted] = {}
    for tenant, name, tokens, *priced in tx.execute(statement):
        by_book = {
            book: Ahead(int(tokens), int(priced[2 * number]), from_ug(int(priced[2 * number + 1])))
            for number, book in enumerate(_RATES)
        }
        found[tenant, name] = Accepted(by_book)
    return found


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

"""Rows of ``budgets``: what owners have set. Spent: ``store/spent.py``; reserved: ``store/reserved.py``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import delete as delete_from
from sqlalchemy import func, insert, select, text, update

from carbonq.budget import Action, Book, Budget, Level
from carbonq.errors import NotFound
from carbonq.store import marks, spent
from carbonq.store.database import Tx
from carbonq.store.dialect import serialise
from carbonq.store.tables import budget_counts, budgets

_COLUMNS = tuple(budgets.c[name] for name in Budget.__dataclass_fields__)


def _budget(row: Mapping[Any, Any]) -> Budget:
    values: dict[str, Any] = dict(row)
    values["level"], values["book"] = Level(values["level"]), Book(values["book"])
    values["action"] = Action(values["action"])
    return Budget(**values)


def list_(tx: Tx, tenant: str | None = None) -> list[Budget]:
    """Return the budgets of a tenant, or of all, by tenant, level and name."""
    statement = select(*_COLUMNS).order_by(budgets.c.tenant, budgets.c.level, budgets.c.name)
    if tenant is not None:
        statement = statement.where(budgets.c.tenant == tenant)
    return [_budget(row) for row in tx.execute(statement).mappings()]


def count(tx: Tx, tenant: str | None = None) -> int:
    """Count the budgets of a tenant, or of all."""
    statement = select(func.count()).select_from(budgets)
    if tenant is not None:
        statement = statement.where(budgets.c.tenant == tenant)
    return int(tx.execute(statement).scalar_one())


def find(tx: Tx, tenant: str, level: Level, name: str) -> Budget | None:
    """Return the tenant's budget of a level and name; None where there is none."""
    mine = (budgets.c.tenant == tenant, budgets.c.level == level.value, budgets.c.name == name)
    row = tx.execute(select(*_COLUMNS).where(*mine)).mappings().one_or_none()
    return None if row is None else _budget(row)


def get(tx: Tx, budget_id: str, tenant: str | None = None) -> Budget:
    """Return a budget, of any tenant where ``tenant`` is None. Raises NotFound, also for another tenant's."""
    statement = select(*_COLUMNS).where(budgets.c.budget_id == budget_id)
    if tenant is not None:
        statement = statement.where(budgets.c.tenant == tenant)
    row = tx.execute(statement).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no budget {budget_id[:100]!r}; `carbonq budget show` shows yours")
    return _budget(row)


def put(tx: Tx, budget: Budget) -> Budget:
    """Set a budget in place of the tenant's other one of its level and name, whose id and age it keeps; return it.

    What was spent before it was set, or is to be told by another book now, is counted from the ledger: its windows are
    marked here. What waits for the budget is looked at again by the next tick.
    """
    before = find(tx, budget.tenant, budget.level, budget.name)
    values: dict[str, Any] = {
        **{name: getattr(budget, name) for name in ("tenant", "name", "cap_g", "updated_at")},
        **{name: getattr(budget, name).value for name in ("level", "book", "action")},
    }
    if before is None:
        _begin_marking(tx)
        made = budget
        age = {"budget_id": made.budget_id, "created_at": made.created_at, "is_counted": False}
        tx.execute(insert(budgets).values(**age, **values))
    else:
        made = replace(budget, budget_id=before.budget_id, created_at=before.created_at)
        if made.book is not before.book:
            values["is_counted"] = False
            spent.forget(tx, made.budget_id)
        tx.execute(update(budgets).where(budgets.c.budget_id == made.budget_id).values(**values))
        _forget_count(tx, made.budget_id)
    if before is None or made.book is not before.book:
        period = made.period_at(made.updated_at)
        if period is not None:
            marks.mark_past(tx, made.tenant, period[0])
    return made


def delete(tx: Tx, budget_id: str) -> None:
    """Remove a budget with all that is kept for it; the next tick lets what waits for it go."""
    spent.forget(tx, budget_id)
    _forget_count(tx, budget_id)
    tx.execute(delete_from(budgets).where(budgets.c.budget_id == budget_id))


def _forget_count(tx: Tx, budget_id: str) -> None:
    tx.execute(delete_from(budget_counts).where(budget_counts.c.budget_id == budget_id))


def lock(tx: Tx, budget_id: str) -> None:
    """Keep others from reserving of a budget until the transaction ends; of several in the order of their ids."""
    serialise(tx, f"budget {budget_id}")


def uncounted(tx: Tx) -> dict[str, str]:
    """Return the budgets whose past is not in their cells yet: id and tenant."""
    statement = select(budgets.c.budget_id, budgets.c.tenant).where(budgets.c.is_counted.is_(False))
    return {row.budget_id: row.tenant for row in tx.execute(statement)}


def set_counted(tx: Tx, budget_ids: Collection[str]) -> None:
    """Note that what was spent before some budgets were set is in their cells."""
    tx.execute(update(budgets).where(budgets.c.budget_id.in_(sorted(budget_ids))).values(is_counted=True))


def _begin_marking(tx: Tx) -> None:
    """Wait until all have ended that wrote entries and saw no budget; whoever writes some later sees the new one.

    Who writes entries reads ``budgets`` afterwards (``marks.tenants_among``), which this keeps out until it commits.
    """
    if tx.dialect.name == "postgresql":
        tx.execute(text("LOCK TABLE budgets IN ACCESS EXCLUSIVE MODE"))

"""Rows of ``budget_alarms``: for which period each budget's alarms were told last. All times are grid times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, insert, select, update

from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of, serialise
from carbonq.store.tables import budget_alarms, budgets


@dataclass(frozen=True, slots=True)
class Told:
    """An alarm that was told: of which budget, what, for the period that began when, and when."""

    budget_id: str
    kind: str
    started_at: datetime
    at: datetime


_COLUMNS = tuple(budget_alarms.c[name] for name in Told.__dataclass_fields__)


def lock(tx: Tx) -> None:
    """Keep others from telling alarms until the transaction ends."""
    serialise(tx, "budget alarms")


def of(tx: Tx, budget_ids: Sequence[str]) -> list[Told]:
    """Return what was told last of some budgets, a row for each kind."""
    rows = tx.execute(select(*_COLUMNS).where(is_any_of(tx, budget_alarms.c.budget_id, budget_ids)))
    return [Told(*row) for row in rows]


def still_there(tx: Tx, budget_ids: Sequence[str]) -> set[str]:
    """Return which of some budgets were not removed."""
    return set(tx.execute(select(budgets.c.budget_id).where(is_any_of(tx, budgets.c.budget_id, budget_ids))).scalars())


def note(tx: Tx, told: Sequence[Told]) -> None:
    """Note that alarms are told, in the transaction that stores their events; the caller holds ``lock``."""
    for one in told:
        mine = (budget_alarms.c.budget_id == one.budget_id, budget_alarms.c.kind == one.kind)
        values = {"started_at": one.started_at, "at": one.at}
        if not tx.execute(update(budget_alarms).where(*mine).values(**values)).rowcount:
            tx.execute(insert(budget_alarms).values(budget_id=one.budget_id, kind=one.kind, **values))


def forget(tx: Tx, budget_id: str) -> None:
    """Forget the alarms of a budget that is removed."""
    tx.execute(delete(budget_alarms).where(budget_alarms.c.budget_id == budget_id))

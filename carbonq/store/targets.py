"""Rows of ``targets`` and ``target_alarms``: what was promised to whom, and what was told of it. Grid times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, exists, func, insert, select, update

from carbonq.budget import Book
from carbonq.errors import NotFound
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of, serialise
from carbonq.store.tables import target_alarms, targets
from carbonq.target import Target

#: How all models are written in ``model``, which NULL could not be unique in.
_ALL = "*"


@dataclass(frozen=True, slots=True)
class Told:
    """An alarm that was told of a month: of which target, what, and when."""

    target_id: str
    month_at: datetime
    kind: str
    at: datetime


def lock(tx: Tx, tenant: str) -> None:
    """Keep others from changing a tenant's targets until the transaction ends."""
    serialise(tx, f"targets of {tenant}")


def every(tx: Tx, tenant: str | None = None) -> list[Target]:
    """Return the targets of a tenant (None: of all), by tenant and model; those of all models first."""
    statement = select(targets).order_by(targets.c.tenant, targets.c.model)
    if tenant is not None:
        statement = statement.where(targets.c.tenant == tenant)
    return [_target(row) for row in tx.execute(statement).mappings()]


def find(tx: Tx, tenant: str, model: str | None) -> Target | None:
    """Return the tenant's target of a model (None: of all models)."""
    mine = (targets.c.tenant == tenant, targets.c.model == _written(model))
    row = tx.execute(select(targets).where(*mine)).mappings().one_or_none()
    return None if row is None else _target(row)


def get(tx: Tx, target_id: str, tenant: str) -> Target:
    """Return a target of a tenant. Raises NotFound."""
    mine = (targets.c.target_id == target_id, targets.c.tenant == tenant)
    row = tx.execute(select(targets).where(*mine)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no target {target_id[:100]!r}; `carbonq target show` shows yours")
    return _target(row)


def count(tx: Tx, tenant: str) -> int:
    """Count a tenant's targets."""
    return tx.execute(select(func.count()).where(targets.c.tenant == tenant)).scalar_one()


def is_any(tx: Tx) -> bool:
    """Say whether there is a target at all."""
    return bool(tx.execute(select(exists(select(targets.c.target_id)))).scalar_one())


def tenants(tx: Tx) -> list[str]:
    """Return the tenants that have targets."""
    return list(tx.execute(select(targets.c.tenant).distinct().order_by(targets.c.tenant)).scalars())


def put(tx: Tx, target: Target) -> None:
    """Store a target in place of the one of its id; the caller holds ``lock``."""
    values: dict[str, Any] = {name: getattr(target, name) for name in Target.__dataclass_fields__}
    values |= {"model": _written(target.model), "book": target.book.value}
    if not tx.execute(update(targets).where(targets.c.target_id == target.target_id).values(**values)).rowcount:
        tx.execute(insert(targets).values(**values))


def remove(tx: Tx, target_id: str) -> None:
    """Remove a target, with what was told of it."""
    tx.execute(delete(targets).where(targets.c.target_id == target_id))
    tx.execute(delete(target_alarms).where(target_alarms.c.target_id == target_id))


def lock_alarms(tx: Tx) -> None:
    """Keep others from telling alarms until the transaction ends."""
    serialise(tx, "target alarms")


def told(tx: Tx, target_ids: Sequence[str]) -> list[Told]:
    """Return the alarms that were told of some targets."""
    columns = (target_alarms.c[name] for name in Told.__dataclass_fields__)
    rows = tx.execute(select(*columns).where(is_any_of(tx, target_alarms.c.target_id, target_ids)))
    return [Told(*row) for row in rows]


def note(tx: Tx, alarms: Iterable[Told]) -> None:
    """Note that alarms are told, in the transaction that stores their events; the caller holds ``lock_alarms``."""
    for one in alarms:
        names = ("target_id", "month_at", "kind")
        mine = [target_alarms.c[name] == getattr(one, name) for name in names]
        if not tx.execute(update(target_alarms).where(*mine).values(at=one.at)).rowcount:
            tx.execute(insert(target_alarms).values({name: getattr(one, name) for name in (*names, "at")}))


def forget_alarms(tx: Tx, *, before: datetime) -> None:
    """Forget what was told of months that began before ``before``."""
    tx.execute(delete(target_alarms).where(target_alarms.c.month_at < before))


def _written(model: str | None) -> str:
    return _ALL if model is None else model


def _target(row: Any) -> Target:
    values: dict[str, Any] = {name: row[name] for name in Target.__dataclass_fields__}
    values |= {"book": Book(row["book"]), "model": None if row["model"] == _ALL else row["model"]}
    return Target(**values)

"""Rows of ``admin_log``: who changed keys, limits, holds, settings and figures by hand. Append-only, no secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select

from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.tables import admin_log


@dataclass(frozen=True, slots=True)
class Action:
    """Something that somebody did. ``actor``: a key's id or ``user@host``; ``action`` is like ``key.revoked``.

    ``subject`` names what it was done to, ``tenant`` whose that is (None: the installation's); ``before`` and ``after``
    are JSON without secrets.
    """

    actor: str
    action: str
    subject: str
    tenant: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Logged:
    """A stored action. ``recorded_at`` is machine time."""

    log_id: int
    recorded_at: datetime
    actor: str
    action: str
    subject: str
    tenant: str | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


_COLUMNS = tuple(admin_log.c[name] for name in Logged.__dataclass_fields__)


def append(tx: Tx, done: Action) -> None:
    """Store an action in the transaction that does it."""
    tx.execute(
        insert(admin_log),
        {
            "recorded_at": machine_now(tx),
            "actor": done.actor,
            "action": done.action,
            "subject": done.subject,
            "tenant": done.tenant,
            "before": None if done.before is None else dict(done.before),
            "after": None if done.after is None else dict(done.after),
        },
    )


def page(
    tx: Tx,
    *,
    tenant: str | None = None,
    action: str | None = None,
    since: datetime | None = None,
    before_id: int | None = None,
    limit: int = 100,
) -> list[Logged]:
    """Return actions, newest first: of a tenant (None: all), of an action or a group of them (``key``), since a time.

    Ask for one more than is shown to know whether there are more.
    """
    statement = select(*_COLUMNS).order_by(admin_log.c.log_id.desc()).limit(limit)
    if tenant is not None:
        statement = statement.where(admin_log.c.tenant == tenant)
    if action is not None:
        is_group = "." not in action
        meant = (
            admin_log.c.action.startswith(f"{action}.", autoescape=True) if is_group else admin_log.c.action == action
        )
        statement = statement.where(meant)
    if since is not None:
        statement = statement.where(admin_log.c.recorded_at >= since)
    if before_id is not None:
        statement = statement.where(admin_log.c.log_id < before_id)
    return [Logged(*row) for row in tx.execute(statement)]


def is_there(tx: Tx, log_id: int, tenant: str | None) -> bool:
    """Say whether a tenant's action (None: anybody's) has this id."""
    statement = select(admin_log.c.log_id).where(admin_log.c.log_id == log_id)
    if tenant is not None:
        statement = statement.where(admin_log.c.tenant == tenant)
    return tx.execute(statement).one_or_none() is not None

"""What people see of the log of admin actions, and a tenant's own limits, whose change is one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from carbonq.errors import InvalidRequest
from carbonq.model import Quota
from carbonq.services import quota
from carbonq.store import admin_log, quotas
from carbonq.store.admin_log import Action, Logged
from carbonq.store.database import Database
from carbonq.units import iso

#: How the id of a logged action begins.
_PREFIX = "log_"

#: Largest limit: what a database's whole number holds, with room to add.
MAX_LIMIT = 10**15


def view(logged: Logged) -> dict[str, Any]:
    """Return a logged action as people see it."""
    return {
        "id": f"{_PREFIX}{logged.log_id}",
        "object": "admin_action",
        "recorded_at": iso(logged.recorded_at),
        "actor": logged.actor,
        "action": logged.action,
        "subject": logged.subject,
        "tenant": logged.tenant,
        "before": logged.before,
        "after": logged.after,
    }


def read_id(text: str) -> int | None:
    """Return the number in an action's id; None for what is none."""
    digits = text.removeprefix(_PREFIX)
    is_id = text.startswith(_PREFIX) and digits.isascii() and digits.isdigit() and len(digits) <= 18
    return int(digits) if is_id else None


def note(db: Database, done: Action) -> None:
    """Log an action that takes many transactions, before it begins: none goes unlogged. Raises StoreUnavailable."""
    with db.write() as tx:
        admin_log.append(tx, done)


def limit_tenant(db: Database, tenant: str, changes: Mapping[str, int | str | None], *, actor: str) -> dict[str, Any]:
    """Set limits of a tenant's own and return all it has then: a number, None for no limit, ``default`` to unset.

    Raises InvalidRequest naming the limit, StoreUnavailable.
    """
    for name, value in changes.items():
        if name not in quota.NAMES:
            raise InvalidRequest(f"{name} is no limit; there are {', '.join(quota.NAMES)}", param=name)
        if isinstance(value, str) and value != "default":
            raise InvalidRequest(f"{name} {value!r} is neither a number nor default", param=name)
        if isinstance(value, int) and not 0 <= value <= MAX_LIMIT:
            raise InvalidRequest(f"{name} {value} is not between 0 and {MAX_LIMIT:,}", param=name)
    with db.write() as tx:
        quotas.lock(tx, tenant)
        before = quotas.own_limits(tx, tenant)
        # The one text there is unsets a limit.
        after = {name: value for name, value in {**before, **changes}.items() if not isinstance(value, str)}
        if after != before:
            quotas.put_limits(tx, tenant, after)
            quotas.begin_anew(tx, tenant)
            admin_log.append(tx, Action(actor, "tenant.limited", tenant, tenant, before=before, after=after))
    return after


def tenant_view(db: Database, tenant: str, defaults: Quota, now: datetime) -> dict[str, Any]:
    """Return a tenant's limits, whose they are, and how much of each is used; ``now`` is grid time.

    A use is null where nobody counts it. Raises StoreUnavailable.
    """
    with db.read() as tx:
        own = quotas.own_limits(tx, tenant)
        held = quotas.count_open(tx, tenant)
        tokens = quotas.tokens_of(tx, tenant, quota.day_of(now))
    limits = quota.merged(defaults, own)
    used = {
        "open_jobs": held.open_jobs,
        "items_waiting": held.items,
        "bytes_waiting": held.input_bytes,
        "tokens_per_day": tokens,
    }
    rows = [
        {
            "name": name,
            "limit": getattr(limits, name),
            "origin": "own" if name in own else "settings",
            "used": used.get(name),
        }
        for name in quota.NAMES
    ]
    return {"tenant": tenant, "day": quota.day_of(now), "limits": rows}

"""A tenant's budgets: set, removed, and as people see them. Each change has its line in the log of admin actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from carbonq import ids, terms
from carbonq.budget import ALL, Action, Book, Budget, BudgetStatus, Level, Period
from carbonq.clock import Clock
from carbonq.errors import Conflict, InvalidRequest, NotFound
from carbonq.services import budget
from carbonq.store import admin_log, budget_alarms, budgets
from carbonq.store.database import Database
from carbonq.store.dialect import serialise
from carbonq.units import GRAM_QUANTUM, iso, plain

#: Budgets of one tenant at most: each is looked at whenever its work is planned.
MAX_BUDGETS = 1_000

#: Largest cap, in grams: with the ledger's 15 decimals it has 28 digits, so that no difference is rounded.
MAX_CAP_G = Decimal(10**12)

#: What a budget has that is not given: it tells, and holds nothing back. One of items has no period to tell of.
DEFAULT_BOOK = Book.IMPACT
DEFAULT_ACTION = {Level.PRODUCT_LINE: Action.WARN, Level.WORKLOAD: Action.WARN, Level.ITEM: Action.REJECT}


def set_budget(
    db: Database,
    clock: Clock,
    tenant: str,
    *,
    level: Level,
    name: str,
    cap_g: Decimal | float | str,
    book: Book | None = None,
    action: Action | None = None,
    actor: str,
) -> Budget:
    """Set the tenant's budget of a level and name, or change the one there is; what is None of it stays.

    A budget that is set again as it stands is not changed. Raises InvalidRequest naming the field, Conflict where the
    tenant has as many as it may, StoreUnavailable.
    """
    cap = _cap(cap_g)
    checked = _name(level, name)
    if level is Level.ITEM and action is Action.WARN:
        raise InvalidRequest("action warn does nothing for items: their budget has no alarms", param="action")
    now = clock.now()
    with db.write() as tx:
        serialise(tx, f"budgets of {tenant}")
        before = budgets.find(tx, tenant, level, checked)
        if before is None:
            if budgets.count(tx, tenant) >= MAX_BUDGETS:
                raise Conflict(
                    f"this tenant has {MAX_BUDGETS:,} budgets, as many as it may; remove one of them",
                    code="too_many_budgets",
                )
            made = Budget(
                ids.new("bgt"),
                tenant,
                level,
                checked,
                book or DEFAULT_BOOK,
                action or DEFAULT_ACTION[level],
                cap,
                created_at=now,
                updated_at=now,
            )
        else:
            made = replace(before, book=book or before.book, action=action or before.action, cap_g=cap)
            if made == before:
                return before
            made = replace(made, updated_at=now)
        budgets.put(tx, made)
        was = None if before is None else _logged(before)
        done = admin_log.Action(actor, "budget.set", made.budget_id, tenant, before=was, after=_logged(made))
        admin_log.append(tx, done)
        return made


def remove(db: Database, tenant: str, budget_id: str, *, actor: str) -> Budget:
    """Remove a budget and return what it was; what waited for it goes on. Raises NotFound, StoreUnavailable."""
    with db.write() as tx:
        serialise(tx, f"budgets of {tenant}")
        before = budgets.get(tx, budget_id, tenant)
        budgets.delete(tx, budget_id)
        budget_alarms.forget(tx, budget_id)
        done = admin_log.Action(actor, "budget.removed", budget_id, tenant, before=_logged(before))
        admin_log.append(tx, done)
        return before


def find(db: Database, tenant: str, level: Level, name: str) -> Budget:
    """Return the tenant's budget of a level and name. Raises NotFound, StoreUnavailable."""
    with db.read() as tx:
        found = budgets.find(tx, tenant, level, name)
    if found is None:
        raise NotFound(f"there is no budget of {level.value} {name[:100]!r}; `carbonq budget show` shows yours")
    return found


def statuses(db: Database, now: datetime, tenant: str | None, level: Level | None = None) -> Sequence[BudgetStatus]:
    """Return budgets as they stand at a grid time: of a tenant (None: all), of a level (None: all)."""
    return [one for one in budget.statuses(db, now, tenant) if level is None or one.budget.level is level]


def status(db: Database, now: datetime, tenant: str, budget_id: str) -> BudgetStatus:
    """Return one budget of a tenant as it stands at a grid time. Raises NotFound, StoreUnavailable."""
    found = next((one for one in budget.statuses(db, now, tenant) if one.budget.budget_id == budget_id), None)
    if found is None:
        raise NotFound(f"there is no budget {budget_id[:100]!r}; `carbonq budget show` shows yours")
    return found


def view(found: BudgetStatus) -> dict[str, Any]:
    """Return a budget as people see it, with how it stands: grams exact as text, null what cannot be told."""
    one = found.budget
    return {
        "id": one.budget_id,
        "object": "budget",
        "tenant": one.tenant,
        "level": one.level.value,
        "name": one.name,
        "period": one.period.value,
        "book": one.book.value,
        "action": one.action.value,
        "cap_g": plain(one.cap_g),
        "created_at": iso(one.created_at),
        "updated_at": iso(one.updated_at),
        "status": status_view(found),
    }


def status_view(found: BudgetStatus) -> dict[str, Any]:
    """Return how a budget stands; a budget of items has no period, so nothing is summed up for it."""
    has_period = found.budget.period is not Period.ITEM
    return {
        "started_at": _time(found.started_at),
        "ends_at": _time(found.ends_at),
        "spent_g": plain(found.spent_g) if has_period else None,
        "provisional_g": plain(found.provisional_g) if has_period else None,
        "reserved_g": plain(found.reserved_g) if has_period else None,
        "left_g": plain(found.left_g) if has_period else None,
        "unknown_entries": found.unknown_entries if has_period else None,
        "unknown_reserved": found.unknown_reserved if has_period else None,
        "elapsed_share": _rounded(found.elapsed_share),
        "burn_rate": _rounded(found.burn_rate),
        "exhausted_at": _time(found.exhausted_at),
        "waiting_chunks": found.waiting_chunks,
    }


def _cap(given: Decimal | float | str) -> Decimal:
    """Return a cap in grams that the ledger's decimals can be held against. Raises InvalidRequest."""
    if isinstance(given, str) and not given.isascii():
        raise InvalidRequest(f"cap_g {given[:50]!r} must be written with the digits 0 to 9", param="cap_g")
    cap = terms.grams(given, param="cap_g")
    if cap is None:
        raise InvalidRequest("cap_g is missing: how many grams of CO2e the budget has", param="cap_g")
    if cap > MAX_CAP_G:
        raise InvalidRequest(f"cap_g is above {MAX_CAP_G:,} grams, a million tonnes", param="cap_g")
    if cap.quantize(GRAM_QUANTUM) != cap:
        raise InvalidRequest("cap_g has more than 15 decimals, which is all that the ledger counts", param="cap_g")
    return cap


def _name(level: Level, name: str) -> str:
    label = terms.label(name, param="name")
    if label is None:
        raise InvalidRequest(f"name is missing: which {level.value} the budget is for", param="name")
    if label == ALL and level is not Level.ITEM:
        raise InvalidRequest(f"name {ALL!r} is for budgets of items; name one {level.value}", param="name")
    return label


def _logged(one: Budget) -> dict[str, Any]:
    return {
        "level": one.level.value,
        "name": one.name,
        "book": one.book.value,
        "action": one.action.value,
        "cap_g": plain(one.cap_g),
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else iso(at)


def _rounded(value: float | None) -> float | None:
    """Write a rate as far as it means something."""
    return None if value is None else round(value, 4)

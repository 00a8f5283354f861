"""Tell budgets' alarms as events: one burns too fast, is used up, has room again. Each once for a period.

A change of the budget arms its alarms again. Budgets of items have no period and no alarms. All times are grid times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from carbonq.budget import BudgetStatus
from carbonq.events import BUDGET_EXHAUSTED, BUDGET_RESTORED, BUDGET_WARNING
from carbonq.services import budgets_admin
from carbonq.store import budget_alarms, events
from carbonq.store.budget_alarms import Told
from carbonq.store.database import Database
from carbonq.store.events import NewEvent
from carbonq.units import plain


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When to warn: above a burn rate once a share of the period has passed, or above a share of the cap used."""

    burn_rate: float = 1.2
    elapsed_share: float = 0.05
    used_share: float = 0.8


def tell(db: Database, now: datetime, found: Sequence[BudgetStatus], thresholds: Thresholds) -> int:
    """Store the events that are due of budgets as they stand, and return how many. Raises StoreUnavailable.

    Nothing is written where nothing is due. Two at once tell nothing twice.
    """
    if not found:
        return 0
    budget_ids = [one.budget.budget_id for one in found]
    with db.read() as tx:
        told = budget_alarms.of(tx, budget_ids)
    if not _due_of(found, told, thresholds):
        return 0
    with db.write() as tx:
        budget_alarms.lock(tx)
        there = budget_alarms.still_there(tx, budget_ids)
        told = budget_alarms.of(tx, budget_ids)
        due = _due_of([one for one in found if one.budget.budget_id in there], told, thresholds)
        budget_alarms.note(
            tx, [Told(one.budget.budget_id, kind, one.started_at, now) for one, kind in due if one.started_at]
        )
        events.append_many(tx, [NewEvent(kind, now, one.budget.tenant, data=_said(one)) for one, kind in due])
    return len(due)


def _due_of(
    found: Sequence[BudgetStatus], told: Sequence[Told], thresholds: Thresholds
) -> list[tuple[BudgetStatus, str]]:
    by_budget: dict[str, dict[str, Told]] = defaultdict(dict)
    for one in told:
        by_budget[one.budget_id][one.kind] = one
    return [(one, kind) for one in found for kind in due(one, by_budget[one.budget.budget_id], thresholds)]


def due(status: BudgetStatus, told: Mapping[str, Told], thresholds: Thresholds) -> list[str]:
    """Return which alarms a budget is to tell now; ``told`` is what it told last, by kind. Pure.

    What is used up again at once, as where more waits than a new period has room for, is told by the next look. Nobody
    is warned of what was used up before in the same period.
    """
    if status.started_at is None:
        return []
    kinds: list[str] = []
    if _has_room_again(status, told):
        kinds.append(BUDGET_RESTORED)
    elif is_exhausted(status):
        kinds.append(BUDGET_EXHAUSTED)
    was_told = _is_told(status, told.get(BUDGET_EXHAUSTED))
    if not is_exhausted(status) and not was_told and is_warned_of(status, thresholds):
        kinds.append(BUDGET_WARNING)
    return [kind for kind in kinds if not _is_told(status, told.get(kind))]


def is_exhausted(status: BudgetStatus) -> bool:
    """Say whether nothing is left, or too little for work that waits for it."""
    return status.left_g <= 0 or status.waiting_chunks > 0


def is_warned_of(status: BudgetStatus, thresholds: Thresholds) -> bool:
    """Say whether a budget burns too fast, or most of it is spent or reserved."""
    elapsed, rate = status.elapsed_share, status.burn_rate
    is_fast = (
        elapsed is not None and rate is not None and elapsed >= thresholds.elapsed_share and rate > thresholds.burn_rate
    )
    used_g = status.spent_g + status.reserved_g
    return is_fast or used_g >= status.budget.cap_g * Decimal(str(thresholds.used_share))


def _has_room_again(status: BudgetStatus, told: Mapping[str, Told]) -> bool:
    """Say whether a budget's last word of its room was that there is none, and there is some.

    A new period has room, whatever waits for more of it.
    """
    exhausted, restored = told.get(BUDGET_EXHAUSTED), told.get(BUDGET_RESTORED)
    if exhausted is None or (restored is not None and restored.at >= exhausted.at):
        return False
    is_new = exhausted.started_at != status.started_at
    return status.left_g > 0 if is_new else not is_exhausted(status)


def _is_told(status: BudgetStatus, last: Told | None) -> bool:
    return last is not None and last.started_at == status.started_at and last.at >= status.budget.updated_at


def _said(status: BudgetStatus) -> dict[str, Any]:
    """Return an event's data: what the budget is, and how it stands."""
    one = status.budget
    said = {
        "id": one.budget_id,
        "level": one.level.value,
        "name": one.name,
        "period": one.period.value,
        "book": one.book.value,
        "action": one.action.value,
        "cap_g": plain(one.cap_g),
    }
    return said | budgets_admin.status_view(status)

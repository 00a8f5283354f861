"""Events as clients see them, in streams and webhooks: which types there are, and their JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

#: How a job ends.
JOB_FINAL = ("job.cancelled", "job.completed", "job.expired", "job.failed")

#: How a batch ends.
BATCH_FINAL = ("batch.cancelled", "batch.completed", "batch.expired", "batch.failed")

#: After one of these nothing more happens to a job or batch.
FINAL = frozenset({*JOB_FINAL, *BATCH_FINAL})

#: What budgets tell: one burns too fast or is nearly used up, nothing is left, there is room again.
BUDGET_WARNING, BUDGET_EXHAUSTED, BUDGET_RESTORED = "budget.warning", "budget.exhausted", "budget.restored"
BUDGET = (BUDGET_WARNING, BUDGET_EXHAUSTED, BUDGET_RESTORED)

#: What contract targets tell: the month's forecast passes the promise, it cannot be kept any more, it can again.
TARGET_AT_RISK, TARGET_BROKEN, TARGET_RESTORED = "target.at_risk", "target.broken", "target.restored"
TARGET = (TARGET_AT_RISK, TARGET_BROKEN, TARGET_RESTORED)

#: What tenants see of the events table; all else in it is the operator's.
PUBLIC = (
    *(*BATCH_FINAL, *BUDGET, *JOB_FINAL, *TARGET),
    *("job.created", "job.progress", "job.running", "webhook.disabled"),
)

#: What a webhook may be asked to send. Progress is for who watches: it would be most of all deliveries.
DELIVERABLE = tuple(one for one in PUBLIC if one != "job.progress")

#: What a webhook sends that was not told what to.
DEFAULT_DELIVERED = (*BATCH_FINAL, *JOB_FINAL)

#: What `carbonq webhooks test` sends.
TEST = "webhook.test"


def event_name(event_id: int, recorded_at: datetime) -> str:
    """Return an event's public id, the same for ever; two installations have no id in common."""
    return f"evt_{int(recorded_at.timestamp() * 1000):012x}{event_id:012x}"


def message(name: str, at: datetime, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event in OpenAI's shape; ``at`` is grid time and becomes unix seconds."""
    return {"id": name, "object": "event", "created_at": int(at.timestamp()), "type": kind, "data": dict(data)}

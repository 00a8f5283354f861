"""The schema, as SQLAlchemy Core tables. A new column needs a line here and a migration.

Times named ``machine_*``, ``lease_until``, ``dispatched_at``, ``last_*_at`` and ``recorded_at`` are machine times; all
others are grid times. Names of states are those of ``carbonq.model``.
"""

from __future__ import annotations

from carbonq.store.tables.access import admin_log, quota_counts, quotas, sessions, token_days
from carbonq.store.tables.batches import batches, files
from carbonq.store.tables.budgets import (
    budget_alarms,
    budget_cells,
    budget_counts,
    budget_totals,
    budgets,
    spent_marks,
)
from carbonq.store.tables.installation import (
    api_keys,
    clocks,
    holds,
    installation,
    regions,
    schema_floor,
    throughputs,
    workers,
)
from carbonq.store.tables.ledger import APPEND_ONLY as _LEDGER
from carbonq.store.tables.ledger import (
    corrections,
    engine_batches,
    entries,
    facts,
    gaps,
    rates,
    restatements,
    unsettled,
)
from carbonq.store.tables.metadata import metadata
from carbonq.store.tables.planning import (
    baseline_slots,
    forecasts,
    observations,
    outlook_skills,
    placements,
    plans,
    shadows,
    source_states,
)
from carbonq.store.tables.seals import seal_parts, seals, unsealed
from carbonq.store.tables.targets import (
    target_ahead,
    target_alarms,
    target_days,
    target_hours,
    target_marks,
    targets,
)
from carbonq.store.tables.webhooks import webhook_cursor, webhook_deliveries, webhooks
from carbonq.store.tables.work import attempts, chunks, events, items, jobs, segments

#: Tables that only ever grow; a trigger on each refuses UPDATE and DELETE.
APPEND_ONLY = (*_LEDGER, seals, seal_parts, admin_log)

__all__ = [
    "APPEND_ONLY",
    "admin_log",
    "api_keys",
    "attempts",
    "baseline_slots",
    "batches",
    "budget_alarms",
    "budget_cells",
    "budget_counts",
    "budget_totals",
    "budgets",
    "chunks",
    "clocks",
    "corrections",
    "engine_batches",
    "entries",
    "events",
    "facts",
    "files",
    "forecasts",
    "gaps",
    "holds",
    "installation",
    "items",
    "jobs",
    "metadata",
    "observations",
    "outlook_skills",
    "placements",
    "plans",
    "quota_counts",
    "quotas",
    "rates",
    "regions",
    "restatements",
    "schema_floor",
    "seal_parts",
    "seals",
    "segments",
    "sessions",
    "shadows",
    "source_states",
    "spent_marks",
    "target_ahead",
    "target_alarms",
    "target_days",
    "target_hours",
    "target_marks",
    "targets",
    "throughputs",
    "token_days",
    "unsealed",
    "unsettled",
    "webhook_cursor",
    "webhook_deliveries",
    "webhooks",
    "workers",
]

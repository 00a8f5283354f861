"""GET /v1/plan: the plan in force, as far as it concerns the caller's jobs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from carbonq.api import views
from carbonq.api.context import ApiDep, CallerDep
from carbonq.model import Signal
from carbonq.store import overview
from carbonq.store.overview import PlanRow
from carbonq.units import iso

router = APIRouter()


@router.get("/v1/plan")
def plan(api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """Return the newest plan and the open chunks that hold items of the caller's, nearest window first."""
    with api.db.read() as tx:
        newest = overview.latest_plan(tx)
        chunks = overview.open_chunks(tx, caller.tenant, limit=overview.PLAN_LIMIT + 1)
    return {
        "object": "plan",
        "clock": views.clock_view(api.clock),
        "plan": None if newest is None else _plan_view(newest),
        "chunks": [views.chunk_view(chunk) for chunk in chunks[: overview.PLAN_LIMIT]],
        "has_more": len(chunks) > overview.PLAN_LIMIT,
    }


def _plan_view(row: PlanRow) -> dict[str, Any]:
    """Show how good the plan is, not how much it holds: its grams are the sum over all tenants."""
    gap_pct = None
    if row.objective_g is not None and row.lower_bound_g is not None and row.objective_g > 0:
        gap_pct = round(100 * (row.objective_g - row.lower_bound_g) / row.objective_g, 3)
    return {
        "id": row.plan_id,
        "created_at": iso(row.created_at),
        "is_overlay": row.is_overlay,
        "signal": row.signal or Signal.MOER.value,
        "max_gap_to_optimum_pct": gap_pct,
        "note": row.note,
    }

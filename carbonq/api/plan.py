"""GET /v1/plan: the plan in force, as far as it concerns the caller's jobs, and the outlook it is made with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query

from carbonq.api import jobs, views
from carbonq.api.auth import needs
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.planning import Plan
from carbonq.model import Scope, Signal
from carbonq.plan.needs import Reason
from carbonq.services.outlook import load_outlook
from carbonq.store import overview, sources
from carbonq.store.overview import PlacedCell, PlacedChunk, PlanRow
from carbonq.units import WINDOW_S, iso

router = APIRouter(dependencies=[needs(Scope.READ)])


@router.get("/v1/plan", **operation("get_plan", "planning", answers={200: gives(Plan)}))
def plan(
    api: ApiDep,
    caller: CallerDep,
    hours: Annotated[float | None, Query(gt=0, le=168)] = None,
) -> dict[str, Any]:
    """Return the newest plan and the open chunks that hold items of the caller's, nearest window first.

    With ``hours``, also what the planner thinks of each region's coming windows, and how many of the caller's chunks
    are placed in each of them.
    """
    with api.db.read() as tx:
        newest = overview.latest_plan(tx)
        chunks = overview.open_chunks(tx, caller.tenant, limit=overview.PLAN_LIMIT + 1)
        placed = [] if hours is None else overview.open_by_cell(tx, caller.tenant)
        signal = sources.decision_signal(tx)
    shown = {
        "object": "plan",
        "clock": views.clock_view(api.clock),
        "plan": None if newest is None else _plan_view(newest, chunks),
        "chunks": [views.chunk_view(chunk) for chunk in chunks[: overview.PLAN_LIMIT]],
        "has_more": len(chunks) > overview.PLAN_LIMIT,
    }
    if hours is None:
        return shown
    return shown | {
        "outlook": _outlook_view(api, signal, max(1, round(hours * 3600 / WINDOW_S))),
        "placements": [_cell_view(one) for one in placed],
    }


def _outlook_view(api: Api, signal: Signal, windows: int) -> dict[str, Any]:
    regions = jobs.regions_of(api)
    made = load_outlook(api.db, regions, api.clock.now(), windows, api.max_stale_s, signal=signal)
    return {
        "signal": signal.value,
        "unit": "gCO2e/kWh",
        "is_down": made.is_down,
        "start_at": iso(made.window_at(0)),
        "step_s": WINDOW_S,
        "regions": [
            {
                "region": region.name,
                "zone": region.zone,
                "state": region.state.value,
                "is_healthy": region.is_healthy,
                "pue": views.decimal_or_none(region.pue),
                "issued_at": views.time_or_none(made.issued_at[row]),
                "values": [views.decimal_or_none(made.rate(row, window)) for window in range(windows)],
                "spread": [None if np.isnan(one) else round(float(one), 1) for one in made.spread[row]],
                "basis": [made.basis_of(row, window).value for window in range(windows)],
            }
            for row, region in enumerate(regions)
        ],
    }


def _cell_view(cell: PlacedCell) -> dict[str, Any]:
    return {"region": cell.region, "window_at": iso(cell.window_at), "chunks": cell.chunks}


def _plan_view(row: PlanRow, chunks: Sequence[PlacedChunk]) -> dict[str, Any]:
    """Show how good the plan is, not how much it holds: its grams and its note are sums over all tenants."""
    gap_pct = None
    if row.objective_g is not None and row.lower_bound_g is not None and row.objective_g > 0:
        gap_pct = round(100 * (row.objective_g - row.lower_bound_g) / row.objective_g, 3)
    return {
        "id": row.plan_id,
        "created_at": iso(row.created_at),
        "is_overlay": row.is_overlay,
        "signal": row.signal or Signal.MOER.value,
        "max_gap_to_optimum_pct": gap_pct,
        "note": _note(row, chunks),
    }


def _note(row: PlanRow, chunks: Sequence[PlacedChunk]) -> str | None:
    """Say what the caller should know of the plan, of the caller's own chunks only."""
    parts: list[str] = []
    if row.is_overlay:
        kind = "average" if row.signal == Signal.AER else "marginal"
        parts.append(f"no {kind} rate is known: earliest window, nearest region")
    elif row.signal == Signal.AER:
        parts.append("decided by average rates: no zone has a marginal source")
    late = sum(chunk.reason == Reason.LATE for chunk in chunks)
    if late:
        parts.append(f"{late} of your chunks cannot be finished by their deadline")
    return "; ".join(parts) or None

"""GET /v1/jobs/{job_id}/why: in sentences and figures, why each chunk of a job is where it is."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.context import ApiDep, CallerDep
from carbonq.api.jobs import regions_of
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.jobs import Why
from carbonq.model import Scope, Signal
from carbonq.plan.outlook import Outlook
from carbonq.plan.why import Cell, Explained, Passed
from carbonq.services import why
from carbonq.services.why import Group, World
from carbonq.store import jobs, throughputs
from carbonq.units import iso

router = APIRouter(prefix="/v1/jobs", dependencies=[needs(Scope.READ)])

#: Chunks named of a group at most; the others are alike, and ``/chunks`` lists all.
MOST_IDS = 20


@router.get("/{job_id}/why", **operation("explain_job", "jobs", answers={200: gives(Why)}, errors=("not_found",)))
def explain_job(
    job_id: str,
    api: ApiDep,
    caller: CallerDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """Explain a job's placements, chunks alike in one group, nearest window first; ``after`` pages by ``last_id``."""
    with api.db.read() as tx:
        job = jobs.get(tx, job_id, caller.tenant)
        learned = throughputs.get_all(tx)
    world = World(regions_of(api), api.models, learned, api.max_stale_s, api.replan_margin, api.price_weight_g)
    made = why.why(api.db, job, world, api.clock, after=after, limit=limit)
    page = views.page_view([_group_view(group) for group in made.groups], has_more=made.has_more)
    return page | {
        "object": "why",
        "job_id": job_id,
        "clock": views.clock_view(api.clock),
        "summary": made.summary,
        "unit": "gCO2e",
    }


def _group_view(group: Group) -> dict[str, Any]:
    first, found, outlook = group.dirtiest, group.found, group.outlook
    windows = [one.window_at for one in group.chunks if one.window_at is not None]
    return {
        "id": group.chunks[0].chunk_id,
        "object": "why.group",
        "chunks": len(group.chunks),
        "chunk_ids": [one.chunk_id for one in group.chunks[:MOST_IDS]],
        "items": sum(one.items for one in group.chunks),
        "state": first.state.value,
        "is_dispatched": first.has_ticket,
        "has_run": first.has_run,
        "region": first.region,
        "first_window_at": views.time_or_none(min(windows, default=None)),
        "last_window_at": views.time_or_none(max(windows, default=None)),
        "deadline_at": iso(first.deadline_at),
        "reason": first.reason,
        "planned_at": views.time_or_none(first.planned_at),
        "gco2e": _grams(group.grams),
        "sentences": list(group.sentences),
        "dirtiest": {
            "chunk_id": first.chunk_id,
            "window_at": views.time_or_none(first.window_at),
            "latest_start_at": views.time_or_none(first.latest_start_at),
            "forecast_g_per_kwh": views.decimal_or_none(first.g_per_kwh),
            "forecast_signal": None if first.g_per_kwh is None else first.signal or Signal.MOER.value,
            "forecast_issued_at": views.time_or_none(first.issued_at),
            "forecast_now_g_per_kwh": group.rate_now,
            "compared_with": None if found is None else "outlook of the plan" if group.is_rebuilt else "outlook now",
            "choices": None if found is None else found.choices,
            "gco2e": None if found is None or found.own is None else _grams(found.own.grams),
            "weighted_price_g": None if found is None or found.own is None else _grams(found.own.price_g),
            "passed_over": [] if found is None or outlook is None else [_passed(one, outlook) for one in found.passed],
            "runner_up": None if found is None or outlook is None else _runner_up(found, outlook),
        },
    }


def _passed(one: Passed, outlook: Outlook) -> dict[str, Any]:
    return {"why": one.why.value, "cells": one.cells, "cleanest": _cell_view(one.best, outlook)}


def _runner_up(found: Explained, outlook: Outlook) -> dict[str, Any] | None:
    if found.runner_up is None:
        return None
    return {
        **_cell_view(found.runner_up, outlook),
        "more_gco2e": _grams(found.more_g),
        "more_weighted_price_g": _grams(found.more_price_g),
        "more_pct": None if found.more_share is None else round(100 * found.more_share, 2),
    }


def _cell_view(cell: Cell, outlook: Outlook) -> dict[str, Any]:
    return {
        "region": outlook.regions[cell.region],
        "window_at": iso(outlook.window_at(cell.window)),
        "g_per_kwh": cell.g_per_kwh,
        "gco2e": _grams(cell.grams),
        "weighted_price_g": _grams(cell.price_g),
    }


def _grams(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")

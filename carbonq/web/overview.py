"""The overview: the grid, the map, queues and slots, what is due next, what ended last, workers and sources.

Nothing here reads entries: figures of jobs that ended are those of the events that ended them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from carbonq.api import events as event_stream
from carbonq.api import regions as region_views
from carbonq.api import views
from carbonq.api.context import Api, ApiDep
from carbonq.model import ChunkState, Job, JobState
from carbonq.store import events, jobs, overview, sources
from carbonq.web import budgets, grid
from carbonq.web.pages import PageRoute, page
from carbonq.web.session import ReaderDep

router = APIRouter(route_class=PageRoute, include_in_schema=False)

#: Jobs shown of those that are due next, and of those that ended last.
SHOWN = 8

#: A job whose planned end is nearer to its deadline than this is marked.
TIGHT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class DueJob:
    """A job that is not final, what it waits for, and by how much it is planned to end before its deadline."""

    view: Mapping[str, Any]
    phase: str
    left_s: float
    slack_s: float | None
    is_tight: bool


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A final job, and its carbon figures as its last event told them (None: it told none)."""

    view: Mapping[str, Any]
    carbon: Mapping[str, Any] | None


@router.get("/")
def show(api: ApiDep, viewer: ReaderDep) -> Response:
    """Show what runs where and why, at a glance."""
    tenant, now = viewer.caller.tenant, api.clock.now()
    drawn = grid.load(api, tenant)
    places = region_views.list_regions(api, viewer.caller)
    zones = sorted({one["zone"] for one in places["data"]})
    with api.db.read() as tx:
        counts = jobs.counts_by_state(tx, tenant)
        due = jobs.next_due(tx, tenant, SHOWN)
        held = {job.job_id: api.chunks.of(tx, job) for job in due}
        newest = jobs.page(tx, tenant, None, SHOWN, states=_FINAL)
        finals = events.finals_of(tx, tenant, [job.job_id for job in newest])
        open_chunks = overview.open_chunks(tx, tenant)
        source_states = sources.states(tx, zones)
    return page(
        "overview.html",
        viewer,
        title="Overview",
        clock=views.clock_view(api.clock),
        grid=drawn,
        regions=places["data"],
        budgets=budgets.glance(api, tenant),
        flower_url=api.flower_url,
        queues=_queues(open_chunks),
        counts={state.value: counts.get(state, 0) for state in JobState},
        open_jobs=sum(count for state, count in counts.items() if state not in _FINAL),
        due=[_due(api, job, held[job.job_id]) for job in due],
        ended=[_ended(job, finals.get(job.job_id)) for job in newest],
        sources=[
            {
                "state": state,
                "is_stale": state.is_stale(now, api.max_stale_s),
                "age_s": None if state.fresh_at is None else max(0.0, (now - state.fresh_at).total_seconds()),
            }
            for state in source_states
        ],
    )


@router.get("/events")
async def live(request: Request, api: ApiDep, viewer: ReaderDep) -> Response:
    """Stream the events of the session's tenant, as ``/v1/events`` does."""
    return await event_stream.all_events(request, api, viewer.caller)


_FINAL = (JobState.COMPLETED, JobState.EXPIRED, JobState.CANCELLED, JobState.FAILED)


def _due(api: Api, job: Job, chunks: Sequence[overview.PlacedChunk]) -> DueJob:
    now = api.clock.now()
    view = views.job_view(job)
    hold = api.directory.snapshot.hold_of(job.tenant, job.model)
    slack = grid.slack_s(chunks, now)
    return DueJob(
        view=view,
        phase=views.phase(job, chunks, views.held_view(hold)),
        left_s=(job.deadline_at - now).total_seconds(),
        slack_s=slack,
        is_tight=slack is not None and slack < TIGHT.total_seconds(),
    )


def _ended(job: Job, final: events.Event | None) -> EndedJob:
    return EndedJob(views.job_view(job), None if final is None else final.data.get("carbon"))


def _queues(chunks: Sequence[overview.PlacedChunk]) -> dict[str, dict[str, int]]:
    """Count the viewer's open chunks by region and by what they do; those without a place under ``""``."""
    found: dict[str, Counter[str]] = {}
    for one in chunks:
        doing = (
            "running" if one.state is ChunkState.RUNNING else "ticket" if one.dispatched_at is not None else "placed"
        )
        found.setdefault(one.region or "", Counter())[doing if one.region else "unplaced"] += 1
    return {region: dict(counts) for region, counts in found.items()}

"""The list of jobs, and the page of one: why it runs where it runs, its chunks, items, energy, carbon and entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from carbonq.api import items as item_routes
from carbonq.api import jobs as job_routes
from carbonq.api import ledger as ledger_routes
from carbonq.api import views
from carbonq.api import why as why_route
from carbonq.api.context import Api, ApiDep
from carbonq.errors import NotFound
from carbonq.model import ItemState, JobState, Scope
from carbonq.store import jobs as job_rows
from carbonq.store import overview
from carbonq.store.overview import JobChunk
from carbonq.units import WINDOW, parse_iso
from carbonq.web import charts
from carbonq.web.charts import Frame, Tick
from carbonq.web.grid import slack_s
from carbonq.web.pages import PageRoute, go_to, page
from carbonq.web.session import FormDep, ReaderDep, Viewer, ViewerDep, check_form

router = APIRouter(route_class=PageRoute, include_in_schema=False)

#: Rows on a page.
JOBS = 50
ITEMS = 25
ENTRIES = 10

#: Chunks drawn of one job at most; the table says how many there are.
DRAWN = 400


@router.get("/jobs")
def show_list(
    api: ApiDep,
    viewer: ReaderDep,
    after: str | None = None,
    state: Annotated[list[JobState] | None, Query()] = None,
) -> Response:
    """Show the session's jobs, newest first; ``state`` filters."""
    found = job_routes.list_jobs(api, viewer.caller, after=after, limit=JOBS, state=state)
    now = api.clock.now()
    for one in found["data"]:
        one["left_s"] = None if one["finished_at"] else (parse_iso(one["deadline_at"]) - now).total_seconds()
    return page(
        "jobs.html", viewer, title="Jobs", found=found, chosen=[one.value for one in state or ()], states=JobState
    )


@router.get("/jobs/{job_id}")
def show(
    job_id: str,
    api: ApiDep,
    viewer: ReaderDep,
    after_item: str | None = None,
    item_state: Annotated[list[ItemState] | None, Query()] = None,
) -> Response:
    """Show one job."""
    seen = orjson.loads(job_routes.look(api, (job_id, viewer.caller.tenant)).content)
    with api.db.read() as tx:
        job = job_rows.get(tx, job_id, viewer.caller.tenant)
        chunks = overview.job_chunks(tx, job_id)
    now = api.clock.now()
    entries = None
    if viewer.may(Scope.EXPORT):
        wanted = ledger_routes.Page.model_validate({"job_id": job_id, "limit": ENTRIES})
        entries = ledger_routes.list_entries(api, viewer.caller, wanted)
    return page(
        "job.html",
        viewer,
        title=f"Job {job_id}",
        job=seen,
        clock=views.clock_view(api.clock),
        is_final=job.is_final,
        left_s=(job.deadline_at - now).total_seconds(),
        slack_s=None if job.is_final else slack_s([one.chunk for one in chunks], now),
        why=_why(api, viewer, job_id),
        timeline=_timeline(chunks, now, seen),
        chunks=[views.job_chunk_view(one) for one in chunks[:DRAWN]],
        chunk_count=len(chunks),
        items=_items(api, viewer, job_id, after_item, item_state),
        chosen=[one.value for one in item_state or ()],
        item_states=ItemState,
        entries=entries,
    )


@router.post("/jobs/{job_id}/cancel")
def cancel(request: Request, job_id: str, api: ApiDep, viewer: ViewerDep, form: FormDep) -> Response:
    """Cancel what has not run of a job."""
    check_form(request, form, viewer.csrf)
    viewer.check(Scope.SUBMIT)
    job_routes.cancel_job(job_id, api, viewer.caller)
    return go_to(f"/jobs/{job_id}")


def _why(api: Api, viewer: Viewer, job_id: str) -> dict[str, Any]:
    return why_route.explain_job(job_id, api, viewer.caller)


def _items(
    api: Api, viewer: Viewer, job_id: str, after: str | None, state: list[ItemState] | None
) -> dict[str, Any] | str:
    """Return a page of items, or the sentence that says why there is none."""
    try:
        return item_routes.list_items(job_id, api, viewer.caller, after=after, limit=ITEMS, state=state)
    except NotFound as error:
        return error.message


@dataclass(frozen=True, slots=True)
class Mark:
    """A chunk on the timeline."""

    x: float
    y: float
    width: float
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """A job's chunks by region and time."""

    height: float
    lanes: Sequence[Tick]
    marks: Sequence[Mark]
    ticks: Sequence[Tick]
    now_x: float | None
    created_x: float
    deadline_x: float


_WIDTH, _LANE = 900, 34


def _timeline(chunks: Sequence[JobChunk], now: datetime, job: dict[str, Any]) -> Timeline | None:
    placed = [one for one in chunks if one.chunk.window_at is not None and one.chunk.region is not None][:DRAWN]
    if not placed:
        return None
    regions = sorted({one.chunk.region or "" for one in placed})
    created, deadline = parse_iso(job["created_at"]), parse_iso(job["deadline_at"])
    windows = [one.chunk.window_at for one in placed if one.chunk.window_at is not None]
    start = min([created, *windows]) - WINDOW
    end = max([deadline, *(at + WINDOW for at in windows)]) + WINDOW
    frame = Frame(92, 0, _WIDTH - 10, 1, start, end)
    marks: list[Mark] = []
    for one in placed:
        chunk = one.chunk
        assert chunk.window_at is not None
        x = frame.x(chunk.window_at)
        label = f"{one.items} items in {chunk.region} at {chunk.window_at:%a %d %b %H:%M}: {chunk.state.value}"
        marks.append(
            Mark(
                x=x,
                y=22 + regions.index(chunk.region or "") * _LANE,
                width=max(4.0, round(frame.x(chunk.window_at + WINDOW) - x, 1)),
                kind=chunk.state.value,
                label=label,
            )
        )
    hours = next((step for step in (1, 2, 3, 6, 12, 24) if (end - start) / timedelta(hours=step) <= 10), 24)
    return Timeline(
        height=22 + _LANE * len(regions) + 6,
        lanes=[Tick(22 + place * _LANE, name) for place, name in enumerate(regions)],
        marks=marks,
        ticks=charts.time_ticks(frame, hours),
        now_x=frame.x(now) if start <= now <= end else None,
        created_x=frame.x(created),
        deadline_x=frame.x(deadline),
    )

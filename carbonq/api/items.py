"""GET /v1/jobs/{job_id}/items: each request of a job and how it ended."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.context import ApiDep, CallerDep
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.jobs import ItemPage
from carbonq.errors import NotFound
from carbonq.model import ItemState, Scope
from carbonq.store import jobs, overview
from carbonq.units import iso

router = APIRouter(prefix="/v1/jobs", dependencies=[needs(Scope.READ)])


@router.get(
    "/{job_id}/items",
    **operation("list_items", "jobs", answers={200: gives(ItemPage)}, errors=("not_found", "results_removed")),
)
def list_items(
    job_id: str,
    api: ApiDep,
    caller: CallerDep,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    state: Annotated[list[ItemState] | None, Query()] = None,
) -> dict[str, Any]:
    """List a job's items in the order of its lines; ``after`` is a ``custom_id``."""
    with api.db.read() as tx:
        job = jobs.get(tx, job_id, caller.tenant)
        if job.retired_at is not None:
            raise NotFound(
                f"the items of job {job_id} were kept until {iso(job.retired_at)} and are removed; "
                "its ledger entries stay",
                code="results_removed",
            )
        found = overview.items_of(tx, job_id, states=tuple(state or ()), after=after, limit=limit + 1)
    return views.page_view([views.item_view(one) for one in found[:limit]], has_more=len(found) > limit)

"""The months that can be reported, and each month's report in its formats, with the session's key."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response

from carbonq.api import reports as routes
from carbonq.api.context import ApiDep
from carbonq.render.formats import Format
from carbonq.web.ledger import AuditorDep
from carbonq.web.pages import PageRoute, page

router = APIRouter(route_class=PageRoute, include_in_schema=False)

#: Months before the report's that its efficiency is shown beside.
MONTHS_BACK = 5


@router.get("/reports")
def months(api: ApiDep, viewer: AuditorDep) -> Response:
    """List the months since the tenant's first entry, with links to their reports."""
    found = routes.list_reports(api, viewer.caller)
    return page("reports.html", viewer, title="Reports", found=found)


@router.get("/reports/{month}")
async def report(
    month: str, request: Request, viewer: AuditorDep, fmt: Literal["json", "csv", "html", "pdf"] = "html"
) -> Response:
    """Return a month's report: a page that stands for itself, or a file."""
    wanted = routes.Wanted.model_construct(section=None, as_of=None, clock=None, months_back=MONTHS_BACK)
    return await routes.prepared(request, viewer.caller, month, wanted, Format(fmt))

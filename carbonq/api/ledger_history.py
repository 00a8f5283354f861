"""The history of ledger entries over HTTP: all revisions of one, and later changes to what was reported."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.context import ApiDep, CallerDep
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.ledger import Changes, History
from carbonq.errors import InvalidRequest
from carbonq.model import Scope
from carbonq.services import history
from carbonq.units import parse_iso

router = APIRouter(dependencies=[needs(Scope.EXPORT)])


@router.get(
    "/v1/ledger/{entry_id}/history",
    **operation("get_history", "ledger", answers={200: gives(History)}, errors=("not_found",)),
)
def entry_history(entry_id: str, api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """Return all revisions of one of the caller's entries: who, when, why, and each figure before and after."""
    return history.of_entry(api.db, entry_id, tenant=caller.tenant)


@router.get("/v1/ledger_changes", **operation("list_changes", "ledger", answers={200: gives(Changes)}))
def later_changes(
    api: ApiDep, caller: CallerDep, since: Annotated[str, Query()], month: str | None = None
) -> dict[str, Any]:
    """Return what was recorded of the caller's entries after a time, by month of the window.

    Added to a report as of then, it gives the report as of now.
    """
    try:
        at = parse_iso(since)
    except ValueError as error:
        raise InvalidRequest(f"since is {since!r}, which is no time: {error}", param="since") from error
    found = history.later_changes(api.db, since=at, month=month, tenant=caller.tenant)
    return views.page_view(found, has_more=False) | {"object": "ledger.changes", "since": since, "month": month}

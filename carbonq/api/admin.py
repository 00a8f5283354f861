"""GET /v1/admin/log: what was done to the tenant's keys, limits, webhooks and files, and by whom. For scope admin."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.context import ApiDep, CallerDep
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.admin import AdminActionPage
from carbonq.errors import InvalidRequest
from carbonq.model import Scope
from carbonq.services import admin
from carbonq.store import admin_log

router = APIRouter(prefix="/v1/admin", dependencies=[needs(Scope.ADMIN)])


@router.get("/log", **operation("list_admin_actions", "operations", answers={200: gives(AdminActionPage)}, errors=()))
def list_actions(
    api: ApiDep,
    caller: CallerDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    action: str | None = None,
) -> dict[str, Any]:
    """List admin actions that concern the caller's tenant, newest first; ``action`` like ``key`` or ``key.revoked``."""
    last = None if after is None else admin.read_id(after)
    with api.db.read() as tx:
        if after is not None and (last is None or not admin_log.is_there(tx, last, caller.tenant)):
            raise InvalidRequest(
                f"after: there is no action {after!r}; pass the last id of the page before", param="after"
            )
        found = admin_log.page(tx, tenant=caller.tenant, action=action, before_id=last, limit=limit + 1)
    return views.page_view([admin.view(one) for one in found[:limit]], has_more=len(found) > limit)

"""/v1/targets: promises of grams per thousand tokens, how they stand, how they are set.

Looking needs the scope ``read``, changing ``admin``.
"""

from __future__ import annotations

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request

from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.body import read_object
from carbonq.api.context import ApiDep, CallerDep
from carbonq.api.openapi import JSON, Content, gives, operation
from carbonq.api.shapes.targets import DeletedTarget, NewTarget, Target, TargetPage
from carbonq.budget import Book
from carbonq.errors import InvalidRequest
from carbonq.model import Scope
from carbonq.services import targets, targets_admin
from carbonq.terms import one_of

router = APIRouter()

#: Largest body of these routes, in bytes.
_MAX_BODY_BYTES = 64 * 1024

_WAY_OUT = "a target needs no more than its g_per_1k_tokens, model and book"

_FIELDS = ("g_per_1k_tokens", "model", "book")

#: Who may look, and who may change.
READ = [needs(Scope.READ)]
ADMIN = [needs(Scope.ADMIN)]

#: What is sent, with an example.
NEW = {JSON: Content(NewTarget, {"g_per_1k_tokens": "0.5", "model": "wordllama-256"})}

Json = dict[str, Any]


@router.get("/v1/targets", dependencies=READ, **operation("list_targets", "budgets", answers={200: gives(TargetPage)}))
def list_targets(
    api: ApiDep, caller: CallerDep, after: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Json:
    """List your targets with how they stand now, by model; that of all models first."""
    found = targets.statuses(api.db, api.clock.now(), caller.tenant)
    return views.part_of([targets_admin.view(one) for one in found], after=after, limit=limit)


@router.put(
    "/v1/targets",
    dependencies=ADMIN,
    **operation("set_target", "budgets", answers={200: gives(Target)}, errors=("too_many_targets",), body=NEW),
)
async def set_target(request: Request, api: ApiDep, caller: CallerDep) -> Json:
    """Set the target of a model, or of all, or change the one there is. Sending it twice does nothing more."""
    values = await read_object(request, _MAX_BODY_BYTES, way_out=_WAY_OUT)
    for name in values:
        if name not in _FIELDS:
            raise InvalidRequest(
                f"there is no field {name[:100]!r} here; there are {', '.join(_FIELDS)}", param=name[:100]
            )
    promise = values.get("g_per_1k_tokens")
    if not isinstance(promise, str | int | float) or isinstance(promise, bool):
        raise InvalidRequest(
            "g_per_1k_tokens must be a number of grams per thousand tokens, best as text: it keeps every digit",
            param="g_per_1k_tokens",
        )
    book: Book | None = one_of(values.get("book"), Book, param="book")

    def act() -> Json:
        made = targets_admin.set_target(
            api.db,
            api.clock,
            caller.tenant,
            g_per_1k_tokens=promise,
            model=values.get("model"),
            book=book,
            actor=caller.api_key_id or "settings",
        )
        return targets_admin.view(targets.status(api.db, api.clock.now(), caller.tenant, made.target_id))

    shown = await anyio.to_thread.run_sync(act)
    api.nudger.nudge("targets")  # whose hours are not summed up yet
    return shown


@router.get(
    "/v1/targets/{target_id}",
    dependencies=READ,
    **operation("get_target", "budgets", answers={200: gives(Target)}, errors=("not_found",)),
)
def get_target(target_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Return a target and how it stands now."""
    return targets_admin.view(targets.status(api.db, api.clock.now(), caller.tenant, target_id))


@router.delete(
    "/v1/targets/{target_id}",
    dependencies=ADMIN,
    **operation("delete_target", "budgets", answers={200: gives(DeletedTarget)}, errors=("not_found",)),
)
def delete_target(target_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Remove a target; what ran stays in the ledger."""
    targets_admin.remove(api.db, caller.tenant, target_id, actor=caller.api_key_id or "settings")
    return {"id": target_id, "object": "target.deleted", "deleted": True}

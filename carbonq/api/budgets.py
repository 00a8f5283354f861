"""/v1/budgets: caps of grams, how they stand, and setting them. Looking needs scope ``read``, changing ``admin``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import APIRouter, Query, Request

from carbonq import budget
from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.body import read_object
from carbonq.api.context import ApiDep, CallerDep
from carbonq.api.openapi import JSON, Content, gives, operation
from carbonq.api.shapes.budgets import Budget, BudgetPage, DeletedBudget, NewBudget
from carbonq.errors import InvalidRequest
from carbonq.model import Scope
from carbonq.services import budgets_admin

router = APIRouter()

#: Largest body of these routes, in bytes.
_MAX_BODY_BYTES = 64 * 1024

_WAY_OUT = "a budget needs no more than its level, name, cap_g, book and action"

#: Who may look, and who may change.
READ = [needs(Scope.READ)]
ADMIN = [needs(Scope.ADMIN)]

#: What is sent, with an example.
NEW = {JSON: Content(NewBudget, {"level": "product_line", "name": "search", "cap_g": "5000", "action": "queue"})}

Json = dict[str, Any]
Word = TypeVar("Word", bound=StrEnum)


@router.get("/v1/budgets", dependencies=READ, **operation("list_budgets", "budgets", answers={200: gives(BudgetPage)}))
def list_budgets(
    api: ApiDep,
    caller: CallerDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    level: budget.Level | None = None,
) -> Json:
    """List your budgets with how they stand now, by level and name; of one ``level`` where that is given."""
    found = budgets_admin.statuses(api.db, api.clock.now(), caller.tenant, level)
    return views.part_of([budgets_admin.view(one) for one in found], after=after, limit=limit)


@router.put(
    "/v1/budgets",
    dependencies=ADMIN,
    **operation("set_budget", "budgets", answers={200: gives(Budget)}, errors=("too_many_budgets",), body=NEW),
)
async def set_budget(request: Request, api: ApiDep, caller: CallerDep) -> Json:
    """Set the budget of a level and name, or change the one there is. Sending it twice does nothing more."""
    values = await read_object(request, _MAX_BODY_BYTES, way_out=_WAY_OUT)
    _only(values, "level", "name", "cap_g", "book", "action")
    level = _word(values, "level", budget.Level)
    if level is None:
        raise InvalidRequest(f"level is missing; there are {', '.join(budget.Level)}", param="level")
    name, cap_g = values.get("name"), values.get("cap_g")
    if not isinstance(name, str):
        raise InvalidRequest(f"name must be a text: which {level.value} the budget is for", param="name")
    if not isinstance(cap_g, str | int | float):
        raise InvalidRequest("cap_g must be a number of grams, best as text: it keeps every digit", param="cap_g")

    def act() -> Json:
        made = budgets_admin.set_budget(
            api.db,
            api.clock,
            caller.tenant,
            level=level,
            name=name,
            cap_g=cap_g,
            book=_word(values, "book", budget.Book),
            action=_word(values, "action", budget.Action),
            actor=caller.api_key_id or "settings",
        )
        return _look(api, caller, made.budget_id)

    shown = await anyio.to_thread.run_sync(act)
    api.nudger.nudge("plan")  # more room lets go on what waits
    return shown


@router.get(
    "/v1/budgets/{budget_id}",
    dependencies=READ,
    **operation("get_budget", "budgets", answers={200: gives(Budget)}, errors=("not_found",)),
)
def get_budget(budget_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Return a budget and how it stands now."""
    return _look(api, caller, budget_id)


@router.delete(
    "/v1/budgets/{budget_id}",
    dependencies=ADMIN,
    **operation("delete_budget", "budgets", answers={200: gives(DeletedBudget)}, errors=("not_found",)),
)
def delete_budget(budget_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Remove a budget; what waited for it is planned again. What was spent stays in the ledger."""
    budgets_admin.remove(api.db, caller.tenant, budget_id, actor=caller.api_key_id or "settings")
    api.nudger.nudge("plan")
    return {"id": budget_id, "object": "budget.deleted", "deleted": True}


def _look(api: ApiDep, caller: CallerDep, budget_id: str) -> Json:
    return budgets_admin.view(budgets_admin.status(api.db, api.clock.now(), caller.tenant, budget_id))


def _only(values: Mapping[str, Any], *known: str) -> None:
    for name in values:
        if name not in known:
            raise InvalidRequest(
                f"there is no field {name[:100]!r} here; there are {', '.join(known)}", param=name[:100]
            )


def _word(values: Mapping[str, Any], name: str, words: type[Word]) -> Word | None:
    value = values.get(name)
    if value is None:
        return None
    try:
        return words(value)
    except ValueError:
        raise InvalidRequest(f"{name} is {str(value)[:50]!r}; there are {', '.join(words)}", param=name) from None

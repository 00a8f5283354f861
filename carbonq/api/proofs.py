"""The inclusion proof of a ledger entry over HTTP: what `python -m carbonq.verify --proof FILE` checks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from carbonq.api.auth import needs
from carbonq.api.context import ApiDep, CallerDep
from carbonq.api.ledger import MAX_REVISION
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.ledger import Proof
from carbonq.model import Scope
from carbonq.services.proof import prove

router = APIRouter(dependencies=[needs(Scope.EXPORT)])


@router.get(
    "/v1/ledger/{entry_id}/proof",
    **operation("get_proof", "ledger", answers={200: gives(Proof)}, errors=("not_found",)),
)
def get_proof(
    entry_id: str,
    api: ApiDep,
    caller: CallerDep,
    revision: Annotated[int | None, Query(ge=1, le=MAX_REVISION)] = None,
    head: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$")] = None,
) -> dict[str, Any]:
    """Return the proof that one of the caller's entries is under a seal, by default up to the newest one."""
    return prove(api.db, entry_id, revision=revision, tenant=caller.tenant, head=head)

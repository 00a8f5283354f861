"""Proofs over HTTP: of one ledger entry, and of a whole month; `python -m carbonq.verify` checks both."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from carbonq.api.auth import needs
from carbonq.api.context import ApiDep, CallerDep
from carbonq.api.download import Streamed
from carbonq.api.ledger import MAX_REVISION
from carbonq.api.openapi import Answer, Content, gives, operation
from carbonq.api.shapes.ledger import AuditFile, Proof
from carbonq.model import Scope
from carbonq.services import audit
from carbonq.services.proof import prove

router = APIRouter(dependencies=[needs(Scope.EXPORT)])


class _Proved(BaseModel):
    """Up to which seal; what is no parameter is refused, so that a misspelt head never passes for the newest."""

    model_config = ConfigDict(extra="forbid")

    head: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")


class ProofOf(_Proved):
    """Which proof of an entry is wanted."""

    revision: int | None = Field(default=None, ge=1, le=MAX_REVISION)


class AuditOf(_Proved):
    """What of a month is wanted."""

    api_key_id: str | None = None


@router.get(
    "/v1/ledger/{entry_id}/proof",
    **operation("get_proof", "ledger", answers={200: gives(Proof)}, errors=("not_found",)),
)
def get_proof(
    entry_id: str,
    api: ApiDep,
    caller: CallerDep,
    wanted: Annotated[ProofOf, Query()],
) -> dict[str, Any]:
    """Return the proof that one of the caller's entries is under a seal, by default up to the newest one."""
    return prove(api.db, entry_id, revision=wanted.revision, tenant=caller.tenant, head=wanted.head)


#: The audit file, streamed.
_FILE = Answer(
    "Your month, streamed: one JSON object.",
    {"application/json": Content(AuditFile)},
    headers=("Content-Disposition",),
)


@router.get(
    "/v1/audit/{month}",
    **operation("get_audit_file", "ledger", answers={200: _FILE}, errors=("not_found",)),
)
def get_audit_file(
    month: str,
    api: ApiDep,
    caller: CallerDep,
    wanted: Annotated[AuditOf, Query()],
) -> Streamed:
    """Stream the caller's month: entries with all revisions, sums by API key, seals and proofs.

    ``python -m carbonq.verify --audit FILE`` checks it by itself. With ``api_key_id`` only what ran under that key;
    with ``head`` proved up to the seal with that hash, else up to the newest.
    """
    pieces = audit.stream(api.db, caller.tenant, month, api_key_id=wanted.api_key_id, head=wanted.head)
    headers = {"Content-Disposition": f'attachment; filename="audit-{month}.json"'}
    return Streamed(pieces, media_type="application/json", headers=headers)

"""The shapes of the ledger: entries, their history, later changes, proofs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from carbonq.api.shapes.words import Count, EntryId, Grams, OpenShape, Page, Shape, Text, Time, eg
from carbonq.export import COLUMNS

#: What a column looks like in the example; the others are null there.
_SHOWN = {
    "entry_id": "eb_0190c2a17b0e7c3e9f005f6d.0",
    "revision": "1",
    "kind": "item",
    "outcome": "succeeded",
    "job_id": "job_0190c2a17b0e7c3e9f005f6d",
    "custom_id": "a-1",
    "region": "fr",
    "energy_uj": "720000",
    "quality": "estimated",
    "pue": "1.2",
    "moer_g_per_kwh": "412.5",
    "moer_status": "provisional",
    "emission_g": "0.000099",
}


def _columns() -> dict[str, Any]:
    # ``schema`` is the name of a method of every pydantic model, so that field goes by its alias.
    return {
        f"{name}_" if name == "schema" else name: (str | None, eg(_SHOWN.get(name), alias=name)) for name in COLUMNS
    }


class _Entry(Shape):
    """A ledger entry with the fields of its CSV line (docs/methodology.md); empty ones are null."""

    id: EntryId
    object: Literal["ledger.entry"]


Entry = create_model("Entry", __base__=_Entry, __doc__=_Entry.__doc__, **_columns())
Cells = create_model("Cells", __base__=Shape, __doc__="The fields of a CSV line, empty ones null.", **_columns())
CheckedEntry = create_model(
    "CheckedEntry",
    __base__=Entry,
    __doc__="A ledger entry, with its emission recomputed from its own fields.",
    recomputed_emission_g=(Grams | None, ...),
    consistent=(bool, eg(True)),
)


class EntryPage(Page):
    """Current entries."""

    data: list[Entry]  # type: ignore[valid-type]


class Restatement(Shape):
    """Why a provider's figures were corrected."""

    id: Text
    recorded_at: Time
    recorded_by: Text
    reason: Text
    is_automatic: bool
    signal: Annotated[str | None, eg("moer")]
    zone: Annotated[str | None, eg("FR")]
    start_at: Time
    end_at: Time


class Revision(Shape):
    """One revision: who, when, why, and each figure before and after."""

    revision: Annotated[int, eg(1)]
    reason: Annotated[str | None, eg("settlement")]
    recorded_at: Text | None
    recorded_by: Text | None
    restatement_id: Annotated[str | None, eg(None)]
    changed: Annotated[dict[str, list[str | None]], eg({"moer_g_per_kwh": ["412.5", "409.1"]})]
    restatement: Annotated[Restatement | None, eg(None)]


class History(Shape):
    """All revisions of an entry, oldest first, and the fields of the last one."""

    id: EntryId
    object: Literal["ledger.history"]
    revisions: list[Revision]
    current: Annotated[dict[str, str], eg({"entry_id": "eb_0190c2a17b0e7c3e9f005f6d.0", "revision": "2"})]


class Change(Shape):
    """What was recorded later of one month, clock, kind, quality, reason and restatement."""

    month: Annotated[str | None, eg("2026-11")]
    clock: Annotated[str | None, eg("real")]
    kind: Annotated[str | None, eg("item")]
    quality: Annotated[str | None, eg("measured")]
    reason: Annotated[str | None, eg("settlement")]
    restatement_id: Annotated[str | None, eg(None)]
    revisions: Count
    energy_uj: Annotated[int | None, eg(0)]
    emission_g: Grams | None
    inventory_g: Grams | None
    embodied_g: Grams | None
    transfer_g: Grams | None
    baseline_g: Grams | None
    saved_g: Grams | None


class Changes(Shape):
    """What was recorded of your entries after a time."""

    object: Literal["ledger.changes"]
    since: Text
    month: Annotated[str | None, eg("2026-11")]
    data: list[Change]
    first_id: Annotated[None, eg(None)]
    last_id: Annotated[None, eg(None)]
    has_more: Literal[False]


class Proof(OpenShape):
    """That an entry is under a seal; `python -m carbonq.verify --proof FILE` checks it (docs/ledger-seals.md)."""

    carbonq_proof: Annotated[int, eg(1)]
    entry: Annotated[dict[str, Any], eg({"content": "...", "index": 1, "path": []})]
    engine_batch: Annotated[dict[str, Any], eg({"content": "...", "index": 0, "path": []})]
    seal: Annotated[Any, Field(examples=["..."])]
    head: Annotated[Any, Field(examples=["..."])]
    head_hash: Annotated[str, eg("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]


class AuditFile(OpenShape):
    """A month with sums, seals and proofs; `python -m carbonq.verify --audit FILE` checks it (docs/audit.md)."""

    carbonq_audit: Annotated[int, eg(1)]
    tenant: Annotated[str, eg("acme")]
    month: Annotated[str, eg("2026-11")]
    api_key_id: Annotated[str | None, eg(None)]
    head_hash: Annotated[str | None, eg("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    pages: Annotated[list[dict[str, Any]], eg([])]
    seals: Annotated[list[dict[str, Any]], eg([])]
    history: Annotated[str, eg("")]
    sums: Annotated[dict[str, Any], eg({"entries": 2, "revisions": 2, "customer": [], "keys": []})]

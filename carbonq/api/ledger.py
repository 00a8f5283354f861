"""The ledger over HTTP: its CSV streamed, its current entries paged, and one entry recomputed from its own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from carbonq.api import views
from carbonq.api.auth import Caller, needs
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.download import Streamed
from carbonq.api.openapi import Answer, Content, gives, operation
from carbonq.api.shapes.ledger import CheckedEntry, EntryPage
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import EntryKind, RateStatus, Scope
from carbonq.services import export as streaming
from carbonq.services.export import Format
from carbonq.store import exports, jobs
from carbonq.store.exports import Selection
from carbonq.units import grams, plain

router = APIRouter(dependencies=[needs(Scope.EXPORT)])


#: Largest number of a revision that can be asked for: what every database can compare with.
MAX_REVISION = 2**31 - 1


class Filter(BaseModel):
    """Which entries; what is left out restricts nothing. Times are RFC 3339 with an offset."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    job_id: str | None = None
    region: str | None = None
    kind: EntryKind | None = None
    status: RateStatus | None = None
    start_at: AwareDatetime | None = Field(None, alias="from")
    end_at: AwareDatetime | None = Field(None, alias="to")
    as_of: AwareDatetime | None = None

    def selection(self, caller: Caller) -> Selection:
        """Return the selection of the caller's own entries."""
        return Selection(
            tenant=caller.tenant,
            job_id=self.job_id,
            region=self.region,
            kind=self.kind and self.kind.value,
            status=self.status and self.status.value,
            start_at=self.start_at,
            end_at=self.end_at,
            as_of=self.as_of,
        )


class Download(Filter):
    """How the CSV is written, and what a reader has of it."""

    revisions: Literal["current", "all"] = "current"
    after: str | None = None
    header: Literal["present", "absent"] = "present"
    format_: Format = Field(Format.CSV, alias="format")


class Page(Filter):
    """Which page."""

    after: str | None = None
    limit: int = Field(100, ge=1, le=1000)


#: The ledger as a file, in the formats that can be asked for.
_FILE = Answer(
    "Your entries, streamed.",
    {
        "text/csv": Content(None, "entry_id,revision,...\r\neb_1.0,1,...\r\n"),
        "application/gzip": Content(),
        "application/vnd.apache.parquet": Content(),
    },
    headers=("Content-Disposition",),
)


@router.get("/v1/ledger.csv", **operation("download_ledger", "ledger", answers={200: _FILE}, errors=("not_found",)))
def ledger_csv(api: ApiDep, caller: CallerDep, wanted: Annotated[Download, Query()]) -> Streamed:
    """Stream the caller's entries as CSV (RFC 4180); ``python -m carbonq.verify FILE.csv`` recomputes it.

    A download that broke off goes on with ``after``, the last whole line's ``entry_id`` (``#revision`` behind it where
    all revisions are asked for), and ``header=absent``.
    """
    _check_job(api, caller, wanted.job_id)
    selection = replace(wanted.selection(caller), all_revisions=wanted.revisions == "all", after=wanted.after)
    pieces = streaming.stream(api.db, selection, wanted.format_, has_header=wanted.header == "present")
    name = f"ledger-{wanted.job_id}" if wanted.job_id else "ledger"
    return Streamed(
        pieces,
        media_type=wanted.format_.media_type.replace("present", wanted.header),
        headers={"Content-Disposition": f'attachment; filename="{name}.{wanted.format_.value}"'},
    )


@router.get("/v1/ledger", **operation("list_entries", "ledger", answers={200: gives(EntryPage)}, errors=("not_found",)))
def list_entries(api: ApiDep, caller: CallerDep, wanted: Annotated[Page, Query()]) -> dict[str, Any]:
    """List the caller's current entries, each with the fields of its CSV line; empty fields are null."""
    _check_job(api, caller, wanted.job_id)
    selection = wanted.selection(caller)
    streaming.check(api.db, replace(selection, after=wanted.after))
    with api.db.read() as tx:
        found = exports.page_of_entries(tx, selection=selection, after=wanted.after, limit=wanted.limit + 1)
    return views.page_view([_view(cells) for cells in found[: wanted.limit]], has_more=len(found) > wanted.limit)


@router.get(
    "/v1/ledger/{entry_id}",
    **operation("get_entry", "ledger", answers={200: gives(CheckedEntry)}, errors=("not_found",)),
)
def get_entry(
    entry_id: str, api: ApiDep, caller: CallerDep, revision: Annotated[int | None, Query(ge=1, le=MAX_REVISION)] = None
) -> dict[str, Any]:
    """Return one entry, by default its current revision, with its emission recomputed from its own fields."""
    with api.db.read() as tx:
        cells = exports.entry(tx, entry_id, tenant=caller.tenant, revision=revision)
    if cells is None:
        which = "" if revision is None else f" with revision {revision}"
        raise NotFound(f"there is no ledger entry {entry_id!r}{which}")
    recomputed = recompute_emission(cells)
    return _view(cells) | {
        "recomputed_emission_g": None if recomputed is None else plain(recomputed),
        "consistent": is_consistent(cells, recomputed),
    }


def recompute_emission(cells: Mapping[str, str]) -> Decimal | None:
    """Return ``energy_uj / 3.6e12 x pue x moer_g_per_kwh`` in grams; None where an input is unknown."""
    inputs = (cells["energy_uj"], cells["pue"], cells["moer_g_per_kwh"])
    if not all(inputs):
        return None
    return grams(int(inputs[0]), Decimal(inputs[1]), Decimal(inputs[2]))


def is_consistent(cells: Mapping[str, str], recomputed: Decimal | None) -> bool:
    """Say whether an entry's emission is what its fields give: the same number, or both unknown."""
    stored = cells["emission_g"]
    if recomputed is None or not stored:
        return recomputed is None and not stored
    return Decimal(stored) == recomputed


def _check_job(api: Api, caller: Caller, job_id: str | None) -> None:
    if job_id is None:
        return
    if not job_id:
        raise InvalidRequest("job_id is empty; leave it out to select all jobs", param="job_id")
    with api.db.read() as tx:
        jobs.get(tx, job_id, caller.tenant)


def _view(cells: Mapping[str, str]) -> dict[str, Any]:
    return {"id": cells["entry_id"], "object": "ledger.entry", **{name: value or None for name, value in cells.items()}}

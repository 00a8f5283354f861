"""Search the ledger, and one entry with its inputs and the figure they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from carbonq.api import ledger as ledger_routes
from carbonq.api import ledger_history
from carbonq.api.context import ApiDep
from carbonq.errors import InvalidRequest
from carbonq.model import Scope
from carbonq.web.pages import PageRoute, go_to, page
from carbonq.web.session import Viewer, ViewerDep

router = APIRouter(route_class=PageRoute, include_in_schema=False)

#: Entries on a page.
SHOWN = 50


def auditor_of(viewer: ViewerDep) -> Viewer:
    """Return who looks at the ledger. Raises Forbidden."""
    viewer.check(Scope.EXPORT)
    return viewer


AuditorDep = Annotated[Viewer, Depends(auditor_of)]

#: Fields of an entry's page, in groups; what is in none stands under the last.
GROUPS: Mapping[str, Sequence[str]] = {
    "Subject": ("tenant", "api_key_id", "product_line", "workload", "job_id", "custom_id", "item", "class", "model"),
    "Place and time": ("region", "hardware", "started_at", "ended_at", "duration_s", "window", "part", "parts"),
    "Energy": (
        *("gpu_uj", "cpu_uj", "dram_uj", "energy_uj", "gpu_meter", "cpu_meter", "dram_meter", "quality"),
        *("uncertainty_pct", "pue", "pue_source"),
    ),
    "Impact book (marginal)": (
        *("moer_g_per_kwh", "moer_gas", "moer_source", "moer_zone", "moer_model", "moer_window", "moer_step_s"),
        *("moer_issued_at", "moer_retrieved_at", "moer_estimated", "moer_status", "emission_g"),
    ),
    "Inventory book (average)": (
        *("aer_g_per_kwh", "aer_gas", "aer_source", "aer_zone", "aer_method", "aer_window", "aer_step_s"),
        *("aer_issued_at", "aer_retrieved_at", "aer_estimated", "aer_status", "inventory_g"),
    ),
    "Baseline": (
        *("baseline_region", "baseline_window", "baseline_pue", "baseline_moer_g_per_kwh", "baseline_moer_status"),
        *("baseline_g", "saved_g", "transfer_g"),
    ),
}


@router.get("/ledger")
def search(
    api: ApiDep,
    viewer: AuditorDep,
    *,
    q: str = "",
    start: Annotated[str, Query(alias="from")] = "",
    end: Annotated[str, Query(alias="to")] = "",
    after: str | None = None,
) -> Response:
    """Search by an entry's or a job's id, or by time; nothing is read before something is asked for."""
    asked = q.strip()
    if asked and not asked.startswith("job_"):
        return go_to(f"/ledger/{quote(asked, safe='')}")
    found = None
    if asked or start or end:
        wanted = ledger_routes.Page.model_construct(
            job_id=asked or None,
            region=None,
            kind=None,
            status=None,
            as_of=None,
            start_at=_time(start, "from"),
            end_at=_time(end, "to"),
            after=after,
            limit=SHOWN,
        )
        found = ledger_routes.list_entries(api, viewer.caller, wanted)
    return page("ledger.html", viewer, title="Ledger", found=found, q=asked, start=start, end=end)


@router.get("/ledger/{entry_id}")
def show(entry_id: str, api: ApiDep, viewer: AuditorDep, revision: int | None = None) -> Response:
    """Show an entry's fields, and its emission recomputed from them."""
    entry = ledger_routes.get_entry(entry_id, api, viewer.caller, revision)
    named = {name for names in GROUPS.values() for name in names}
    own = {"id", "object", "recomputed_emission_g", "consistent"}
    groups: dict[str, list[tuple[str, Any]]] = {
        title: [(name, entry[name]) for name in names if name in entry] for title, names in GROUPS.items()
    }
    groups["Everything else"] = [(name, value) for name, value in entry.items() if name not in named | own]
    history = ledger_history.entry_history(entry_id, api, viewer.caller)
    return page("entry.html", viewer, title=f"Entry {entry_id}", entry=entry, groups=groups, history=history)


def _time(text: str, param: str) -> datetime | None:
    """Read a time of a form; one without a zone is UTC, as everything on these pages. Raises InvalidRequest."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"{param} is {text!r}, which is no time: {error}", param=param) from error
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at

"""How a batch looks: OpenAI's object, with ``carbon`` beside it. Unknown is null; times in ``carbon`` are ISO 8601.

Sums that cost as much as the batch has lines are remembered in proportion to their cost (``sums.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from carbonq import answers
from carbonq.api import views
from carbonq.api.sums import JobChunks, JobMemory, Sums
from carbonq.model import ChunkState, Placement, RegionState, Signal
from carbonq.services import finish_batches, summary
from carbonq.store import batch_figures, batches
from carbonq.store.batches import Batch, BatchState, Progress
from carbonq.store.database import Tx
from carbonq.store.overview import PlacedChunk
from carbonq.units import UJ_PER_KWH, WINDOW, iso, wh

if TYPE_CHECKING:
    from carbonq.api.context import Api


@dataclass(frozen=True, slots=True)
class Figures:
    """What a batch's entries and placements add up to."""

    sums: Sums
    used: Sequence[batch_figures.Used]
    planned: Sequence[batch_figures.Planned]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A batch as the memory of sums knows things."""

    job_id: str
    is_final: bool
    items_ended: int
    items_total: int


def figures(tx: Tx, batch_id: str) -> Figures:
    """Add a batch's entries and placements up; three passes over its items."""
    return Figures(
        summary.of_batch(tx, batch_id), batch_figures.used(tx, batch_id), batch_figures.planned(tx, batch_id)
    )


def memory() -> JobMemory[Figures]:
    """Return an empty memory of batches' figures."""
    return JobMemory(figures)


def chunks() -> JobChunks:
    """Return an empty memory of batches' chunks."""
    return JobChunks(chunk_ids=batch_figures.chunk_ids, is_chunked=batch_figures.is_chunked)


def whole(api: Api, tx: Tx, batch: Batch) -> dict[str, Any]:
    """Return a batch with usage and carbon figures."""
    counts = batches.progress(tx, [batch.batch_id]).get(batch.batch_id)
    view = plain_view(batch, counts)
    if counts is None:  # no jobs: it is being read, or ended before it had any
        view["carbon"] = {**_CARBON, "phase": batch.state.value, "deadline": iso(batch.expires_at)}
        return view
    counted = _Counted(batch.batch_id, batch.is_final, counts.ended, counts.total)
    found = api.batch_figures.of(tx, counted)
    held = api.batch_chunks.of(tx, counted)
    view["usage"] = batch.usage or finish_batches.usage(found.used)
    carbon = _carbon(api, batch, counts, found, held)
    carbon["jobs"] = batches.job_ids(tx, batch.batch_id)
    view["carbon"] = carbon
    if view["usage"] is not None:
        told = {"gco2e": carbon["actual_gco2e"], **{name: carbon[name] for name in _USAGE_CARBON}}
        view["usage"] = {**view["usage"], "carbon": told}
    return view


def plain_view(batch: Batch, counts: Progress | None) -> dict[str, Any]:
    """Return OpenAI's Batch without what needs a pass over its lines; times are whole unix seconds."""
    ended_at = {state: None for state in ("completed", "failed", "expired", "cancelled")}
    view: dict[str, Any] = {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint.value,
        "model": batch.model,
        "errors": None if batch.errors is None else {"object": "list", "data": [dict(one) for one in batch.errors]},
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.state.value,
        "output_file_id": batch.output_file_id if batch.is_final else None,
        "error_file_id": batch.error_file_id if batch.is_final else None,
        "created_at": _unix(batch.created_at),
        "in_progress_at": _unix(batch.in_progress_at),
        "expires_at": _unix(batch.expires_at),
        "finalizing_at": _unix(batch.finalizing_at),
        "cancelling_at": _unix(batch.cancelling_at),
        **{f"{state}_at": None for state in ended_at},
        "request_counts": finish_batches.request_counts(counts or Progress(total=batch.items_total or 0)),
        "usage": batch.usage,
        "metadata": None if batch.metadata is None else dict(batch.metadata),
    }
    if batch.finished_at is not None:
        view[f"{batch.state.value}_at"] = _unix(batch.finished_at)
    return view


#: Every key of ``carbon``, with what stands before anything is known.
_CARBON: dict[str, Any] = {
    "phase": None,
    "window": None,
    "eta": None,
    "last_progress_at": None,
    "region": None,
    "regions": {},
    "deadline": None,
    "reason": None,
    "why": None,
    "baseline": None,
    "infeasible": None,
    "planned_gco2e": None,
    "actual_gco2e": None,
    "baseline_gco2e": None,
    "saved_gco2e": None,
    "compared_entries": None,
    "inventory_gco2e": None,
    "energy_wh": None,
    "facility_energy_wh": None,
    "signal": None,
    "quality": None,
    "status": None,
    "method": None,
    "entries": None,
    "unrated_entries": None,
    "unmetered_entries": None,
    "counts": None,
    "jobs": [],
}

#: What of it is repeated in ``usage.carbon``, whose ``gco2e`` is ``actual_gco2e``, as in that of a line.
_USAGE_CARBON = (
    *("energy_wh", "facility_energy_wh", "inventory_gco2e", "baseline_gco2e", "saved_gco2e"),
    *("signal", "quality", "status", "method"),
)


def _carbon(api: Api, batch: Batch, counts: Progress, found: Figures, held: Sequence[PlacedChunk]) -> dict[str, Any]:
    regions = Counter(one.region for one in held if one.region is not None)
    window = _window(held)
    reasons = Counter(one.reason for one in held if one.reason is not None)
    carbon = {
        **_CARBON,
        "phase": _phase(api, batch, counts, held),
        "window": window,
        "eta": None if window is None or batch.is_final else window["end"],
        "last_progress_at": views.time_or_none(counts.progress_at),
        "region": next(iter(regions)) if len(regions) == 1 else None,
        "regions": dict(sorted(regions.items())),
        "deadline": iso(batch.expires_at),
        "reason": reasons.most_common(1)[0][0] if reasons else None,
        "why": _why(held),
        "baseline": _baseline(held),
        "infeasible": counts.infeasible,
        "planned_gco2e": _planned_g(api, found.planned),
        "counts": {name: getattr(counts, name) for name in ("total", "succeeded", "failed", "expired", "cancelled")},
    }
    sums = views.carbon_view(found.sums)
    if sums is None:
        return carbon
    is_metered = sums["entries"] > sums["unmetered_entries"]
    return carbon | {
        "actual_gco2e": _float(sums["emission_g"]),
        "baseline_gco2e": _float(sums["baseline_g"]),
        "saved_gco2e": _float(sums["saved_g"]),
        "compared_entries": sums["compared_entries"],
        "inventory_gco2e": _float(sums["inventory_g"]),
        "energy_wh": wh(sums["energy_uj"]) if is_metered else None,
        "facility_energy_wh": _facility_wh(found.used) if is_metered else None,
        "signal": "marginal",
        "quality": sums["quality"],
        "status": sums["status"],
        "method": ", ".join(sums["methods"]) or None,
        "entries": sums["entries"],
        "unrated_entries": sums["unrated_entries"],
        "unmetered_entries": sums["unmetered_entries"],
    }


def _phase(api: Api, batch: Batch, counts: Progress, held: Sequence[PlacedChunk]) -> str:
    if batch.state is not BatchState.IN_PROGRESS:
        return batch.state.value
    states = {one.state for one in held}
    if ChunkState.RUNNING in states:
        return "running"
    hold = None if batch.model is None else api.directory.snapshot.hold_of(batch.tenant, batch.model)
    if hold is not None and hold.state is RegionState.PAUSED:
        return "paused"
    if counts.ended == counts.total:
        return BatchState.FINALIZING.value
    return "planning" if not held or ChunkState.WAITING in states else "waiting"


def _window(held: Sequence[PlacedChunk]) -> dict[str, Any] | None:
    """Return the windows of what is still to run, or else of what has run, with the region of the first."""
    open_ones = [one for one in held if one.state is not ChunkState.DONE]
    placed = [(one.window_at, one.region) for one in open_ones or held if one.window_at is not None]
    if not placed:
        return None
    first = min(placed, key=lambda one: one[0])
    last: datetime = max(at for at, _ in placed)
    return {"start": iso(first[0]), "end": iso(last + WINDOW), "region": first[1]}


def _why(held: Sequence[PlacedChunk]) -> dict[str, Any] | None:
    """Return why what runs next, or ran first, is where and when it is, with the forecast that decided it."""
    placed = [one for one in held if one.state is not ChunkState.DONE] or held
    for one in placed:  # by window
        if one.region is not None and one.window_at is not None and one.reason is not None:
            signal = Signal(one.signal or Signal.MOER)
            at = Placement(one.region, one.window_at, one.reason, signal, one.g_per_kwh, one.issued_at)
            g_per_kwh = None if one.g_per_kwh is None else float(one.g_per_kwh)
            return {**(answers.why(at) or {}), "forecast_g_per_kwh": g_per_kwh}
    return None


def _baseline(held: Sequence[PlacedChunk]) -> dict[str, Any] | None:
    """Return where and when it would have run without carbonq: of several windows, the first."""
    if not held:
        return None
    first = min(held, key=lambda one: one.baseline_window_at)
    return {"region": first.baseline_region, "window": iso(first.baseline_window_at)}


def _planned_g(api: Api, planned: Sequence[batch_figures.Planned]) -> float | None:
    """Return the grams foretold by the placements; None where one has none, or follows another signal than MOER."""
    there = api.directory.snapshot.regions or {region.name: region for region in api.regions}
    total = Decimal(0)
    for one in planned:
        region = there.get(one.region or "")
        if region is None or one.g_per_kwh is None or (one.signal or Signal.MOER) != Signal.MOER:
            return None
        share = Decimal(one.tokens) / max(one.chunk_tokens, 1)
        total += share * one.chunk_energy_uj / UJ_PER_KWH * region.pue * one.g_per_kwh
    return float(total) if planned else None


def _facility_wh(used: Sequence[batch_figures.Used]) -> float | None:
    """Return IT energy times the PUE of where it was used, in Wh."""
    return float(sum(one.pue * one.energy_uj for one in used) * 1000 / UJ_PER_KWH) if used else None


def _float(grams: str | None) -> float | None:
    return None if grams is None else float(grams)


def _unix(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())

"""How stored values look in answers: plain JSON, times as ISO 8601 in UTC, decimals as text, units in the names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from carbonq.clock import Clock
from carbonq.errors import InvalidRequest
from carbonq.model import ChunkState, Hold, Job, JobState, RegionState, Signal
from carbonq.services import carbon
from carbonq.store.overview import JobChunk, PlacedChunk, ShownItem
from carbonq.units import iso, plain

#: What a job is called whose chunks all wait for a budget, and the machine seconds until it is worth looking again.
HELD_BY_BUDGET = "held by a budget"
HELD_RETRY_S = 15


def time_or_none(at: datetime | None) -> str | None:
    """Write a time, or null."""
    return None if at is None else iso(at)


def decimal_or_none(value: Decimal | None) -> str | None:
    """Write a decimal exactly, or null."""
    return None if value is None else plain(value)


def clock_view(clock: Clock) -> dict[str, Any]:
    """Return grid time now and how fast it runs."""
    return {"now": iso(clock.now()), "kind": clock.kind.value, "factor": clock.factor}


def job_view(job: Job) -> dict[str, Any]:
    """Return a job without what needs more queries."""
    return {
        "id": job.job_id,
        "object": "job",
        "state": job.state.value,
        "phase": job.state.value,
        "endpoint": job.endpoint.value,
        "model": job.model,
        "requested_model": job.requested_model,
        "product_line": job.product_line,
        "workload": job.workload,
        "home_region": job.home_region,
        "regions": None if job.regions is None else list(job.regions),
        "deadline_at": iso(job.deadline_at),
        "late_policy": job.late_policy.value,
        "max_carbon_g": decimal_or_none(job.max_carbon_g),
        "downgrade": job.may_downgrade,
        "is_cancel_requested": job.is_cancel_requested,
        "input_bytes": job.input_bytes,
        "est_tokens": job.est_tokens,
        "created_at": iso(job.created_at),
        "started_at": time_or_none(job.started_at),
        "finished_at": time_or_none(job.finished_at),
        "is_late": job.finished_at is not None and job.finished_at > job.deadline_at,
        "infeasible": job.infeasible,
        "treatment": job.treatment.value,
        "batch_id": job.batch_id,
        "error": job.error,
        "metadata": dict(job.metadata),
        "progress": {
            "total": job.items_total,
            "ended": job.items_ended,
            "succeeded": job.items_succeeded,
            "failed": job.items_failed,
            "expired": job.items_expired,
            "cancelled": job.items_cancelled,
        },
        "has_results": job.output_blob is not None,
        "has_errors": job.error_blob is not None,
        "files_removed_at": time_or_none(job.retired_at),
        "urls": {
            name: f"/v1/jobs/{job.job_id}{path}"
            for name, path in (
                ("self", ""),
                ("items", "/items"),
                ("chunks", "/chunks"),
                ("results", "/results"),
                ("errors", "/errors"),
                ("cancel", "/cancel"),
            )
        },
    }


def placement_view(held: Sequence[PlacedChunk]) -> dict[str, Any]:
    """Return where and when a job's chunks run, in figures."""
    waiting = [one for one in held if one.state in {ChunkState.WAITING, ChunkState.PLACED}]
    planned = [chunk.window_at for chunk in waiting if chunk.window_at is not None]
    windows = [one.window_at for one in held if one.window_at is not None]
    states = Counter(one.state for one in held)
    regions = Counter(one.region for one in held if one.region is not None)
    return {
        "chunks": len(held),
        "states": {state.value: states[state] for state in ChunkState},
        "regions": dict(sorted(regions.items())),
        "next_window_at": time_or_none(min(planned, default=None)),
        "last_window_at": time_or_none(max(windows, default=None)),
    }


def carbon_view(sums: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a job's sums with the least final ``status`` and the worst ``quality`` of its entries; null before any.

    A sum over ``unrated_entries`` or ``unmetered_entries`` above 0 is only a part, as these say.
    """
    if sums is None:
        return None
    return carbon.with_status(sums)


def held_view(hold: Hold | None) -> dict[str, Any] | None:
    """Return what an operator has paused or drains of a job's; null where nothing."""
    if hold is None:
        return None
    return {
        "kind": hold.kind.value,
        "name": hold.name,
        "state": hold.state.value,
        "reason": hold.reason,
        "since": iso(hold.held_at),
    }


def phase(job: Job, held: Sequence[PlacedChunk], hold: Mapping[str, Any] | None = None) -> str:
    """Say in a word or three what a job is waiting for; ``hold`` is its ``held_view``."""
    if job.is_final or job.state is JobState.FINISHING:
        return job.state.value
    if job.is_cancel_requested:
        return "cancelling"
    states = {one.state for one in held}
    if ChunkState.RUNNING in states:
        return "running"
    if hold is not None and hold["state"] == RegionState.PAUSED.value:
        return "paused"
    waiting = [one for one in held if one.state is ChunkState.WAITING]
    if not held or any(one.held_by is None for one in waiting):
        return "being planned"
    return HELD_BY_BUDGET if waiting and ChunkState.PLACED not in states else "planned"


def retry_after_s(job: Job, held: Sequence[PlacedChunk], clock: Clock) -> int | None:
    """Return a hint in machine seconds for the next look at a job; None once it is final."""
    if job.is_final:
        return None
    if any(one.state is ChunkState.RUNNING for one in held):
        return 1
    planned = [one.window_at for one in held if one.window_at is not None]
    if not planned:
        return HELD_RETRY_S if phase(job, held) == HELD_BY_BUDGET else 1
    ahead_s = (min(planned) - clock.now()).total_seconds() / clock.factor
    return max(1, min(60, int(ahead_s)))


def chunk_view(chunk: PlacedChunk) -> dict[str, Any]:
    """Return a chunk with its placement and the reason for it."""
    return {
        "id": chunk.chunk_id,
        "object": "chunk",
        "model": chunk.model,
        "state": chunk.state.value,
        "is_dispatched": chunk.dispatched_at is not None,
        "region": chunk.region,
        "window_at": time_or_none(chunk.window_at),
        "forecast_g_per_kwh": decimal_or_none(chunk.g_per_kwh),
        "forecast_signal": None if chunk.g_per_kwh is None else chunk.signal or Signal.MOER.value,
        "forecast_issued_at": time_or_none(chunk.issued_at),
        "reason": chunk.reason,
        "latest_start_at": time_or_none(chunk.latest_start_at),
        "deadline_at": iso(chunk.deadline_at),
        "est_duration_s": chunk.est_duration_s,
        "attempt": chunk.attempt,
        "error": chunk.error,
        "baseline": {"region": chunk.baseline_region, "window_at": iso(chunk.baseline_window_at)},
    }


def job_chunk_view(held: JobChunk) -> dict[str, Any]:
    """Return a chunk of a job, with the job's own items counted."""
    return {**chunk_view(held.chunk), "items": held.items, "items_ended": held.items_ended}


def item_view(item: ShownItem) -> dict[str, Any]:
    """Return an item and how it ended; its id among the job's items is its ``custom_id``."""
    return {
        "id": item.custom_id,
        "object": "item",
        "custom_id": item.custom_id,
        "index": item.idx,
        "state": item.state.value,
        "chunk_id": item.chunk_id,
        "est_tokens": item.est_tokens,
        "error_code": item.error_code,
        "finished_at": time_or_none(item.finished_at),
    }


def part_of(data: Sequence[Mapping[str, Any]], *, after: str | None, limit: int) -> dict[str, Any]:
    """Return the page behind ``after`` of a list that is known as a whole. Raises InvalidRequest for an unknown one."""
    ids = [one["id"] for one in data]
    if after is not None and after not in ids:
        raise InvalidRequest(f"after: there is no {after!r}; pass the last id of the page before", param="after")
    start = 0 if after is None else ids.index(after) + 1
    return page_view(data[start : start + limit], has_more=start + limit < len(data))


def page_view(data: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return one page of a list in OpenAI's shape."""
    ids = [one.get("id") for one in data]
    return {
        "object": "list",
        "data": data,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }

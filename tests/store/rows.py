"""Ready-made jobs and chunks for tests of the store and the services."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from carbonq import ids
from carbonq.model import Endpoint, Job, JobState, LatePolicy, NewChunk, NewItem
from carbonq.store import items, jobs
from carbonq.store.database import Database

T0 = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "job_id": ids.new("job"),
        "tenant": "default",
        "api_key_id": None,
        "endpoint": Endpoint.EMBEDDINGS,
        "model": "m",
        "requested_model": "m",
        "product_line": None,
        "workload": None,
        "home_region": "north",
        "regions": None,
        "deadline_at": T0 + timedelta(hours=6),
        "late_policy": LatePolicy.FINISH_LATE,
        "max_carbon_g": None,
        "state": JobState.WAITING,
        "is_cancel_requested": False,
        "input_blob": "jobs/x/input.jsonl",
        "input_bytes": 100,
        "items_total": 3,
        "items_succeeded": 0,
        "items_failed": 0,
        "items_expired": 0,
        "items_cancelled": 0,
        "est_tokens": 30,
        "created_at": T0,
        "started_at": None,
        "finished_at": None,
        "output_blob": None,
        "error_blob": None,
        "infeasible": None,
        "error": None,
        "metadata": {},
    }
    return Job(**{**values, **changes})


def store_job(database: Database, *, items_total: int = 3, tokens: int = 10, **changes: Any) -> Job:
    """Store a job with its items; item n has the custom_id ``a-n``."""
    made = job(items_total=items_total, est_tokens=tokens * items_total, **changes)
    with database.write() as tx:
        jobs.insert_job(tx, made, source="jobs", machine_created_at=T0)
        items.insert_many(tx, made.job_id, [NewItem(n, f"a-{n}", n * 50, 49, tokens) for n in range(items_total)])
    return made


def chunk(item_ids: list[int], **changes: Any) -> NewChunk:
    values: dict[str, Any] = {
        "chunk_id": ids.new("chunk"),
        "tenant": None,
        "model": "m",
        "endpoint": Endpoint.EMBEDDINGS,
        "regions": ("north",),
        "release_at": T0,
        "deadline_at": T0 + timedelta(hours=6),
        "item_ids": item_ids,
        "est_tokens": 10 * len(item_ids),
        "est_duration_s": 2.0,
        "est_energy_uj": 1000,
        "baseline_region": "north",
        "baseline_window_at": T0,
    }
    return NewChunk(**{**values, **changes})

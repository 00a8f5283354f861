"""Batches in the small world of ``jobs.py``: files and rows as the API makes them, ticks by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from carbonq import ids
from carbonq.clock import Clock
from carbonq.model import Endpoint, Job
from carbonq.services import batches as service
from carbonq.services import expire, finish, finish_batches, validate
from carbonq.services import files as file_service
from carbonq.services.batches import NewBatch, Request
from carbonq.store import batches, files, jobs
from carbonq.store.batches import Batch
from carbonq.store.files import File
from carbonq.terms import Terms
from tests.services.jobs import World, lines


def add_file(world: World, data: bytes | int, **changes: Any) -> File:
    """Store an input without looking at its lines, as one that an older version took."""
    data = lines(data) if isinstance(data, int) else data
    file_id = ids.new("file", "-")
    blob = files.blob_key(file_id)
    made = File(file_id, "default", None, "batch", "in.jsonl", len(data), data.count(b"\n"), blob, world.clock.now())
    staged = world.blobs.stage()
    staged.write(data)
    file_service.store(world.db, world.blobs, staged, replace(made, **changes))
    return made


def asked(world: World, file_id: str, terms: Terms = Terms(), **changes: Any) -> NewBatch:  # noqa: B008 (frozen)
    deadline_at = terms.deadline or world.clock.now() + timedelta(hours=6)
    return replace(NewBatch("default", None, Endpoint.EMBEDDINGS, file_id, "6h", deadline_at, terms), **changes)


def add(world: World, data: bytes | int, terms: Terms = Terms(), **changes: Any) -> Batch:  # noqa: B008 (frozen)
    new = asked(world, add_file(world, data).file_id, terms, **changes)
    batch, is_new = service.create(world.db, new, Request(ids.new("fp")), world.clock)
    assert is_new
    return batch


def rules(world: World, **changes: Any) -> validate.Rules:
    given = validate.Rules(world.models, "north", world.limits, 3600.0, 7200.0, treatments=world.treatments)
    return replace(given, **changes)


def read(world: World, clock: Clock | None = None, **changes: Any) -> int:
    return validate.validate(world.db, world.blobs, clock or world.clock, rules(world, **changes))


def finish_all(world: World, keep_results_days: float | None = None) -> int:
    expire.expire(world.db, world.clock)
    finish.finish_jobs(world.db, world.blobs, world.clock)
    return finish_batches.finish_batches(world.db, world.blobs, world.clock, keep_results_days=keep_results_days)


def get(world: World, batch: Batch) -> Batch:
    with world.db.read() as tx:
        return batches.get(tx, batch.batch_id)


def jobs_of(world: World, batch: Batch) -> list[Job]:
    with world.db.read() as tx:
        return [jobs.get(tx, job_id) for job_id in batches.job_ids(tx, batch.batch_id)]


def errors(batch: Batch) -> list[tuple[Any, ...]]:
    found: Sequence[Mapping[str, Any]] = batch.errors or ()
    return [(one["code"], one["line"], one["param"]) for one in found]

"""What a run must know of jobs, and what it leaves behind for their files: segments of output and error lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import delete, insert, select

from carbonq.store import holds
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.tables import jobs, segments

SegmentKind = Literal["output", "error"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A blob with some of a job's lines, written and synced before the transaction that stores this row."""

    job_id: str
    chunk_id: str
    kind: SegmentKind
    blob: str
    bytes: int
    items: int


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What a run needs of an item's job; ``is_held``: its tenant is paused; ``trace_context``: its submit's span."""

    job_id: str
    tenant: str
    api_key_id: str | None
    product_line: str | None
    workload: str | None
    requested_model: str
    input_blob: str
    is_cancel_requested: bool
    trace_context: str | None
    is_held: bool = False


_SEGMENT = tuple(segments.c[name] for name in Segment.__dataclass_fields__)


def segment_folder(job_id: str) -> str:
    """Return the folder of blobs that holds all segments of a job."""
    return f"segments/{job_id}"


def job_infos(tx: Tx, job_ids: Sequence[str]) -> dict[str, JobInfo]:
    """Return what a run needs of these jobs, by id."""
    columns = [jobs.c[name] for name in JobInfo.__dataclass_fields__ if name != "is_held"]
    rows = tx.execute(select(*columns, holds.is_tenant_paused()).where(is_any_of(tx, jobs.c.job_id, job_ids)))
    return {row.job_id: JobInfo(*row) for row in rows}


def insert_segments(tx: Tx, new: Sequence[Segment]) -> None:
    """Store segments in the transaction that ends their items."""
    if new:
        names = Segment.__dataclass_fields__
        tx.execute(insert(segments), [{name: getattr(segment, name) for name in names} for segment in new])


def segments_of(tx: Tx, job_id: str, kind: SegmentKind) -> list[Segment]:
    """Return a job's segments of one kind in the order they were committed."""
    statement = select(*_SEGMENT).where(segments.c.job_id == job_id, segments.c.kind == kind)
    return [Segment(*row) for row in tx.execute(statement.order_by(segments.c.segment_id))]


def delete_segments(tx: Tx, job_id: str) -> None:
    """Forget a job's segments."""
    tx.execute(delete(segments).where(segments.c.job_id == job_id))

"""A small world for the tests of submit, chunk, finish, cancel and expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import select, update

from carbonq.blobs.folder import FolderStore
from carbonq.model import ChunkState, Endpoint, ItemState, Job, Model, NewJob, Region, Throughput
from carbonq.plan.treatment import TreatmentRules
from carbonq.services import chunk, submit
from carbonq.services.budget_room import Gate
from carbonq.store import chunks, items, jobs, results, tables
from carbonq.store.database import Database
from carbonq.testing import FakeClock
from tests.store.rows import T0

MODELS = {
    model.name: model
    for model in (
        Model("words", "x", Endpoint.EMBEDDINGS, 100, 4.0, 1000.0, 20, 1000, 10),
        Model("talk", "x", Endpoint.CHAT, 100, 4.0, 10.0, 20, 1000, 10, max_output_tokens=8),
    )
}
REGIONS = (
    Region("north", "zn", 2, Decimal("1.1"), "stated", "cpu"),
    Region("south", "zs", 1, Decimal("1.1"), "stated", "gpu", models=("words",)),
)


@dataclass
class World:
    """Everything the services are given."""

    db: Database
    folder: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(T0))
    models: Mapping[str, Model] = field(default_factory=lambda: MODELS)
    regions: Sequence[Region] = REGIONS
    limits: submit.Limits = field(default_factory=submit.Limits)
    learned: dict[tuple[str, str], Throughput] = field(default_factory=dict)
    treatments: TreatmentRules = field(default_factory=TreatmentRules)
    gate: Gate | None = None

    @property
    def blobs(self) -> FolderStore:
        return FolderStore(self.folder / "blobs")

    def files(self) -> list[str]:
        root = self.blobs.root
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def submit(self, source: bytes | int, **changes: Any) -> tuple[Job, bool]:
        staged = self.blobs.stage()
        staged.write(lines(source) if isinstance(source, int) else source)
        return submit.submit(
            self.db,
            self.blobs,
            staged,
            replace(request(), **changes),
            models=self.models,
            regions=self.regions,
            home_region="north",
            clock=self.clock,
            limits=self.limits,
            throughputs=self.learned,
            treatments=self.treatments,
            gate=self.gate,
        )

    def chunk(self, **changes: Any) -> int:
        options: dict[str, Any] = {
            "models": self.models,
            "regions": self.regions,
            "max_chunk_items": 10_000,
            "chunk_fill": 0.6,
            "chunk_wait_s": 0.0,
            "isolate_tenants": False,
            "factor": self.clock.factor,
        }
        return chunk.chunk_jobs(self.db, self.clock, **{**options, **changes})

    def job(self, job_id: str) -> Job:
        with self.db.read() as tx:
            return jobs.get(tx, job_id)

    def stored(self) -> tuple[int, int]:
        """Count all jobs and items."""
        with self.db.read() as tx:
            return (
                len(tx.execute(select(tables.jobs.c.job_id)).all()),
                len(tx.execute(select(tables.items.c.item_id)).all()),
            )

    def chunks(self) -> list[Any]:
        with self.db.read() as tx:
            return chunks.open_chunks(tx)

    def start(self, chunk_id: str) -> None:
        """Let a worker hold a chunk."""
        with self.db.write() as tx:
            change = update(tables.chunks).where(tables.chunks.c.chunk_id == chunk_id)
            tx.execute(change.values(state=ChunkState.RUNNING, lease_until=T0, token=1))

    def give_back(self, chunk_id: str) -> None:
        with self.db.write() as tx:
            change = update(tables.chunks).where(tables.chunks.c.chunk_id == chunk_id)
            tx.execute(change.values(state=ChunkState.PLACED, lease_until=None, token=2))

    def end(self, job: Job, states: Mapping[str, ItemState], *, lineless: frozenset[str] = frozenset()) -> None:
        """End items by custom_id as a worker would: with segments, states and counters."""
        with self.db.write() as tx:
            ids = dict(
                tx.execute(select(tables.items.c.custom_id, tables.items.c.item_id).filter_by(job_id=job.job_id)).all()
            )
            for custom_id, state in states.items():
                kind = "output" if state is ItemState.SUCCEEDED else "error"
                code = "bad" if kind == "error" else None
                code = "attempts_exhausted" if custom_id in lineless else code
                assert items.end_many(tx, [ids[custom_id]], state, at=T0, error_code=code) == [ids[custom_id]]
                if custom_id not in lineless:
                    data = orjson.dumps({"custom_id": custom_id, "was": kind}) + b"\n"
                    key = f"segments/{job.job_id}/{custom_id}.{kind}"
                    self.blobs.put(key, data)
                    made = results.Segment(job.job_id, "chunk_x", kind, key, len(data), 1)
                    results.insert_segments(tx, [made])
            values = list(states.values())
            jobs.bump(
                tx,
                job.job_id,
                succeeded=values.count(ItemState.SUCCEEDED),
                failed=values.count(ItemState.FAILED),
            )

    def lines_of(self, key: str | None) -> list[dict[str, Any]]:
        assert key is not None
        with self.blobs.open(key) as stream:
            return [orjson.loads(line) for line in stream]


def request(**changes: Any) -> NewJob:
    base = NewJob("default", Endpoint.EMBEDDINGS, "words", T0 + timedelta(hours=6))
    return replace(base, **changes)


def line(n: int | str, text: str = "some words", **changes: Any) -> bytes:
    body = {"model": "words", "input": text}
    value = {"custom_id": f"a-{n}", "method": "POST", "url": "/v1/embeddings", "body": body, **changes}
    return orjson.dumps(value) + b"\n"


def lines(count: int, text: str = "some words") -> bytes:
    return b"".join(line(n, text) for n in range(count))

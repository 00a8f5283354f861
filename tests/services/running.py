"""What tests of running share: a site with fakes on a real database, jobs with items, chunks with a ticket out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, update

from carbonq import ids
from carbonq.blobs.folder import FolderStore
from carbonq.booking import Fact
from carbonq.engines.protocol import Engine
from carbonq.meters.hub import Hub
from carbonq.model import (
    ChunkState,
    Endpoint,
    Job,
    JobState,
    LatePolicy,
    Model,
    NewChunk,
    NewItem,
    RateKind,
    Region,
    Signal,
)
from carbonq.ratebook import RateBook, make_rate
from carbonq.services.site import Limits, Site
from carbonq.spool import Spool
from carbonq.store import chunks as chunk_rows
from carbonq.store import items as item_rows
from carbonq.store import jobs as job_rows
from carbonq.store import regions
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import chunks, engine_batches, entries, items
from carbonq.testing import FAKE_EPOCH, FakeClock, FakeEngine, FakeMeter, MemoryTickets
from carbonq.units import window_of

REGION = Region("fr", "FR", 1, Decimal("1.2"), "stated", "cpu")
OTHER = Region("se", "SE", 1, Decimal("1.1"), "stated", "cpu")

MODEL = Model(
    name="fake-model",
    engine="fake",
    endpoint=Endpoint.EMBEDDINGS,
    max_input_tokens=100,
    chars_per_token=4.0,
    tokens_per_s=1000.0,
    uj_per_token=10,
    batch_tokens=1000,
    batch_items=4,
)

#: What the fake engine burns for each item, in uJ.
ITEM_UJ = 1_000


def rate_book(clock: FakeClock) -> RateBook:
    """A provisional marginal rate of 100 g/kWh in both zones for some windows around now."""
    rates = []
    for zone in ("FR", "SE"):
        for step in range(-2, 40):
            at = window_of(clock.now()) + timedelta(seconds=300 * step)
            rates.append(
                make_rate(
                    signal=Signal.MOER,
                    zone=zone,
                    source="fake",
                    model=None,
                    gas="co2",
                    method=None,
                    window_at=at,
                    step_s=300,
                    issued_at=window_of(clock.now()),
                    retrieved_at=clock.now(),
                    g_per_kwh=Decimal(100),
                    raw=Decimal(100),
                    raw_unit="g/kWh",
                    is_estimated=False,
                    kind=RateKind.FORECAST,
                    may_settle=True,
                )
            )
    return RateBook.of({"fr": "FR", "se": "SE"}, rates, now=clock.now(), settle_after_s=0)


class Bench:
    """A database with two regions and one worker's site."""

    def __init__(self, db: Database, root: Path, *, engine: Engine | None = None, limits: Limits | None = None) -> None:
        self.db = db
        self.clock = FakeClock(FAKE_EPOCH)
        self.meter = FakeMeter()
        self.engine = engine or FakeEngine(on_item=lambda _: self.burn())
        self.tickets = MemoryTickets()
        self.blobs = FolderStore(root / "blobs")
        self.root = root
        self.limits = limits or Limits(backoff_base_s=0.001, backoff_cap_s=0.002)
        with db.write() as tx:
            regions.sync(tx, [REGION, OTHER])
        self.site = self.make_site("worker-1")

    def burn(self) -> None:
        self.meter.burn(ITEM_UJ)
        self.clock.advance_machine(0.001)

    def make_site(self, worker_id: str, *, db: Database | None = None, limits: Limits | None = None) -> Site:
        book = rate_book(self.clock)
        return Site(
            db=db or self.db,
            blobs=self.blobs,
            spool=Spool(self.root / "spool" / worker_id),
            tickets=self.tickets,
            clock=self.clock,
            hub=Hub([self.meter], self.clock, self.clock.machine),
            rates=lambda: book,
            region=REGION,
            facts={region.name: Fact.of(region) for region in (REGION, OTHER)},
            models={MODEL.name: MODEL},
            engine_of=lambda _: self.engine,
            worker_id=worker_id,
            software_version="test",
            limits=limits or self.limits,
        )

    def job(self, count: int, *, prefix: str = "c", text: Callable[[int], str] = lambda i: "some words") -> str:
        """Store a job of ``count`` items and return its id."""
        job_id = ids.new("job")
        lines = [
            json.dumps(
                {
                    "custom_id": f"{prefix}{i}",
                    "method": "POST",
                    "url": "/v1/embeddings",
                    "body": {"model": MODEL.name, "input": text(i)},
                }
            ).encode()
            + b"\n"
            for i in range(count)
        ]
        key = f"inputs/{job_id}.jsonl"
        self.blobs.put(key, b"".join(lines))
        new: list[NewItem] = []
        offset = 0
        for idx, line in enumerate(lines):
            new.append(NewItem(idx, f"{prefix}{idx}", offset, len(line), 2))
            offset += len(line)
        job = Job(
            job_id=job_id,
            tenant="acme",
            api_key_id="key_1",
            endpoint=Endpoint.EMBEDDINGS,
            model=MODEL.name,
            requested_model=MODEL.name,
            product_line="search",
            workload=None,
            home_region="se",
            regions=None,
            deadline_at=FAKE_EPOCH + timedelta(hours=6),
            late_policy=LatePolicy.FINISH_LATE,
            max_carbon_g=None,
            state=JobState.WAITING,
            is_cancel_requested=False,
            input_blob=key,
            input_bytes=offset,
            items_total=count,
            items_succeeded=0,
            items_failed=0,
            items_expired=0,
            items_cancelled=0,
            est_tokens=2 * count,
            created_at=self.clock.now(),
            started_at=None,
            finished_at=None,
            output_blob=None,
            error_blob=None,
            infeasible=None,
            error=None,
            metadata={},
        )
        with self.db.write() as tx:
            job_rows.insert_job(tx, job, source="jobs", machine_created_at=machine_now(tx))
            item_rows.insert_many(tx, job_id, new)
        return job_id

    def chunk(self, *job_ids: str) -> str:
        """Put all items of jobs into one chunk and send it to the region; return its id."""
        chunk_id = ids.new("chk")
        with self.db.write() as tx:
            found = item_rows.unchunked(tx, list(job_ids))
            new = NewChunk(
                chunk_id=chunk_id,
                tenant="acme",
                model=MODEL.name,
                endpoint=Endpoint.EMBEDDINGS,
                regions=None,
                release_at=FAKE_EPOCH,
                deadline_at=FAKE_EPOCH + timedelta(hours=6),
                item_ids=[item_id for item_id, _, _ in found],
                est_tokens=sum(tokens for _, _, tokens in found),
                est_duration_s=1.0,
                est_energy_uj=100,
                baseline_region="se",
                baseline_window_at=window_of(FAKE_EPOCH),
            )
            chunk_rows.insert_many(tx, [new], created_at=self.clock.now())
        self.dispatch(chunk_id)
        return chunk_id

    def dispatch(self, chunk_id: str, region: str = "fr") -> None:
        """Do what planner and dispatcher do."""
        with self.db.write() as tx:
            tx.execute(
                update(chunks)
                .where(chunks.c.chunk_id == chunk_id, chunks.c.state.in_(("waiting", "placed")))
                .values(
                    state=ChunkState.PLACED.value,
                    region=region,
                    window_at=window_of(FAKE_EPOCH),
                    dispatched_at=machine_now(tx),
                )
            )

    def silence(self, chunk_id: str) -> None:
        """Let a chunk's lease end now."""
        with self.db.write() as tx:
            past = machine_now(tx) - timedelta(seconds=1)
            tx.execute(update(chunks).where(chunks.c.chunk_id == chunk_id).values(lease_until=past))

    # --- looking ------------------------------------------------------------------------------------------------

    def one(self, chunk_id: str) -> Any:
        with self.db.read() as tx:
            return chunk_rows.get(tx, chunk_id)

    def get_job(self, job_id: str) -> Job:
        with self.db.read() as tx:
            return job_rows.get(tx, job_id)

    def states(self, job_id: str) -> dict[str, int]:
        with self.db.read() as tx:
            return {str(state): count for state, count in item_rows.counts(tx, job_id).items()}

    def rows(self, table: Any, *where: Any) -> Sequence[Any]:
        with self.db.read() as tx:
            return tx.execute(select(table).where(*where)).all()

    def energy_uj(self, kind: str | None = None) -> int:
        """What the ledger holds, in uJ."""
        where = [] if kind is None else [entries.c.kind == kind]
        with self.db.read() as tx:
            return int(tx.execute(select(func.coalesce(func.sum(entries.c.energy_uj), 0)).where(*where)).scalar_one())

    def lines(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        """The committed lines of a job."""
        from carbonq.store import results

        with self.db.read() as tx:
            segments = results.segments_of(tx, job_id, kind)  # pyright: ignore[reportArgumentType]
        text = b"".join(b"".join(self.blobs.pieces(segment.blob)) for segment in segments)
        return [json.loads(line) for line in text.splitlines()]

    def check_shares(self) -> None:
        """Invariant 1: each part's entries sum to the part, to the microjoule, and each item has one entry a part."""
        with self.db.read() as tx:
            parts = tx.execute(select(engine_batches)).all()
            for part in parts:
                mine = tx.execute(
                    select(entries).where(
                        entries.c.engine_batch_id == part.engine_batch_id, entries.c.part == part.part
                    )
                ).all()
                assert sum(entry.energy_uj or 0 for entry in mine) == (part.energy_uj or 0)
                assert sum(entry.share_num for entry in mine) == part.weight

    def check_once(self, job_id: str) -> None:
        """Invariant 3: each item ended once, with one line and its energy booked as its own once."""
        with self.db.read() as tx:
            rows = tx.execute(select(items).where(items.c.job_id == job_id)).all()
            booked = tx.execute(
                select(entries.c.custom_id, func.count())
                .where(entries.c.job_id == job_id, entries.c.kind == "item", entries.c.part == 1)
                .group_by(entries.c.custom_id)
            ).all()
        assert all(count == 1 for _, count in booked)
        lines = [line["custom_id"] for kind in ("output", "error") for line in self.lines(job_id, kind)]
        done = sorted(row.custom_id for row in rows if row.state in {"succeeded", "failed"})
        assert sorted(lines) == done
        job = self.get_job(job_id)
        counts = self.states(job_id)
        assert job.items_succeeded == counts.get("succeeded", 0)
        assert job.items_failed == counts.get("failed", 0)
        assert job.items_cancelled == counts.get("cancelled", 0)

"""What the tests of planning and dispatch share: a clock that is set, a broker that remembers, rows of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import insert, select, update

from carbonq.clock import ClockKind
from carbonq.errors import BrokerUnavailable
from carbonq.model import ChunkState, Endpoint, NewChunk, Region
from carbonq.store import chunks as chunk_rows
from carbonq.store import regions as region_rows
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import attempts, chunks
from carbonq.units import WINDOW

START = datetime(2021, 6, 14, 12, tzinfo=UTC)
NORTH = Region("norcal", "SGIP_CAISO_PGE", 1, Decimal("1.2"), "assumed", "cpu", latency_ms=1)
SOUTH = Region("socal", "SGIP_CAISO_SCE", 1, Decimal("1.2"), "assumed", "cpu", latency_ms=9)


@dataclass
class SetClock:
    at: datetime = START
    factor: float = 1.0
    kind: ClockKind = ClockKind.ACCELERATED

    def now(self) -> datetime:
        return self.at


@dataclass
class Broker:
    sent: list[tuple[str, str]] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    is_away: bool = False

    def flexible(self, pairs: Sequence[tuple[str, str]], shown: Mapping[str, str] | None = None) -> None:
        if self.is_away:
            raise BrokerUnavailable("away")
        self.sent.extend(pairs)
        self.shown.update(shown or {})

    def nudge(self, tick: str) -> None:
        pass


def open_regions(db: Database, *regions: Region, without_worker: Sequence[str] = ()) -> None:
    with db.write() as tx:
        region_rows.sync(tx, regions)
        for region in regions:
            if region.name not in without_worker:
                region_rows.register_worker(
                    tx,
                    worker_id=f"w-{region.name}",
                    region=region.name,
                    host="h",
                    pid=1,
                    slots=region.slots,
                    software_version="0",
                    hardware="cpu",
                )


def add_chunks(db: Database, count: int, *, prefix: str = "c", hours: float = 6, **changes: Any) -> list[str]:
    names = [f"{prefix}{i:04d}" for i in range(count)]
    values: dict[str, Any] = {
        "tenant": None,
        "model": "m",
        "endpoint": Endpoint.EMBEDDINGS,
        "regions": None,
        "release_at": START - timedelta(hours=1),
        "deadline_at": START + timedelta(hours=hours),
        "item_ids": (),
        "est_tokens": 1000,
        "est_duration_s": 170.0,
        "est_energy_uj": 3_600_000_000,
        "baseline_region": "norcal",
        "baseline_window_at": START,
    }
    with db.write() as tx:
        chunk_rows.insert_many(tx, [NewChunk(chunk_id=name, **(values | changes)) for name in names], created_at=START)
    return names


def chunk(db: Database, chunk_id: str) -> Any:
    with db.read() as tx:
        return tx.execute(select(chunks).where(chunks.c.chunk_id == chunk_id)).one()


def change(db: Database, chunk_id: str, **values: Any) -> None:
    with db.write() as tx:
        tx.execute(update(chunks).where(chunks.c.chunk_id == chunk_id).values(**values))


def place(db: Database, chunk_id: str, region: str, window_at: datetime, **values: Any) -> None:
    change(db, chunk_id, state="placed", region=region, window_at=window_at, placement_id="plc_x", **values)


def run(db: Database, chunk_id: str, region: str, *, elapsed_s: float = 0.0) -> None:
    """Make a chunk look claimed by a worker."""
    with db.write() as tx:
        machine = machine_now(tx)
        tx.execute(
            update(chunks)
            .where(chunks.c.chunk_id == chunk_id)
            .values(state=ChunkState.RUNNING.value, region=region, token=1, lease_until=machine + WINDOW)
        )
        tx.execute(
            insert(attempts).values(
                chunk_id=chunk_id,
                token=1,
                attempt=1,
                worker_id="w",
                region=region,
                started_at=START,
                machine_started_at=machine - timedelta(seconds=elapsed_s),
            )
        )

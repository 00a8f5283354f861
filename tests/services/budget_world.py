"""A world in which work meets its budgets: two regions with forecasts, jobs, plans, and workers that book what ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import delete, select

from carbonq import ledger as rules
from carbonq.booking import Fact
from carbonq.budget import Action, Book, Budget, BudgetStatus, Level
from carbonq.clock import ClockKind, GridClock
from carbonq.model import AttemptOutcome, ChunkState, Endpoint, ItemState, Job, Model, Region
from carbonq.ratebook import RateBook
from carbonq.services import budget, plan
from carbonq.services.budget_room import Gate
from carbonq.services.budget_tick import Keeper
from carbonq.services.plan import PlanSummary
from carbonq.store import budgets, clocks, items, jobs, leases, ledger, regions, tables
from carbonq.store.database import Database
from carbonq.store.figures import Scope
from carbonq.testing import FakeClock
from tests.services.booked import foretell
from tests.services.budgeted import ledger_g
from tests.services.jobs import World as Jobs
from tests.store.rows import T0
from tests.unit.bookings import batch, info_of, item, part, rate

#: 3.6e6 uJ a token: at a PUE of 1 and 100 g/kWh a token emits 100 ug, and 10,000 tokens a gram.
UJ_PER_TOKEN = 3_600_000
BIG = Model("words", "x", Endpoint.EMBEDDINGS, 1_000_000, 4.0, 1000.0, UJ_PER_TOKEN, 1_000_000, 10)
SMALL = replace(BIG, name="small", uj_per_token=UJ_PER_TOKEN // 4)
MODELS: Mapping[str, Model] = {"words": replace(BIG, tier=2, smaller="small", same_space=True), "small": SMALL}
NORTH = Region("north", "zn", 2, Decimal(1), "stated", "cpu")
SOUTH = Region("south", "zs", 2, Decimal(1), "stated", "cpu")
DAY = T0.replace(hour=0)


def text(tokens: int) -> str:
    return "a" * (4 * tokens)


@dataclass
class World:
    """Everything a job meets; ``clean`` and ``dirty`` are the rates of the next hours in g/kWh."""

    db: Database
    folder: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(T0))
    models: Mapping[str, Model] = field(default_factory=lambda: MODELS)
    monotonic_s: float = 0.0

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.db, self.folder, self.clock, self.models, (NORTH, SOUTH))
        with self.db.write() as tx:
            clocks.ensure(tx, GridClock(T0, T0, 1.0, ClockKind(self.clock.kind)))
            regions.sync(tx, (NORTH, SOUTH))
            for one in (NORTH, SOUTH):
                regions.register_worker(
                    tx,
                    worker_id=f"w-{one.name}",
                    region=one.name,
                    host="h",
                    pid=1,
                    slots=one.slots,
                    software_version="0",
                    hardware="cpu",
                )
        self.gate = self.new_gate()
        self.keeper = self.new_keeper()

    def new_gate(self) -> Gate:
        return Gate(self.db, self.clock, self.models, max_stale_s=86_400.0, monotonic=lambda: self.monotonic_s)

    def new_keeper(self) -> Keeper:
        return Keeper(
            self.db,
            self.clock,
            models=self.models,
            max_stale_s=86_400.0,
            worker_alive_s=86_400.0,
            monotonic=lambda: self.monotonic_s,
        )

    def pass_on(self, **span: float) -> None:
        self.clock.advance(timedelta(**span).total_seconds())
        self.monotonic_s += 1_000.0

    def foresee(self, *, north: list[str | None], south: list[str | None] | None = None, hours: int = 48) -> None:
        """Foretell rates from now on, each for an equal share of so many hours."""
        self.monotonic_s += 1_000.0
        with self.db.write() as tx:
            tx.execute(delete(tables.forecasts))
        for zone, values in (("zn", north), ("zs", south or north)):
            each = hours * 12 // len(values)
            spread = [value for value in values for _ in range(each)]
            foretell(self.db, zone, self.clock.now(), spread, start_at=_window(self.clock.now()))

    def budget(self, cap_g: float | str = 10, action: Action = Action.REJECT, **changes: Any) -> Budget:
        values: dict[str, Any] = {
            "budget_id": f"bgt_{changes.get('name', 'backfill')}_{changes.get('level', 'w')}",
            "tenant": "acme",
            "level": Level.WORKLOAD,
            "name": "backfill",
            "book": Book.IMPACT,
            "action": action,
            "cap_g": Decimal(str(cap_g)),
            "created_at": self.clock.now(),
            "updated_at": self.clock.now(),
        }
        self.monotonic_s += 1_000.0
        with self.db.write() as tx:
            return budgets.put(tx, Budget(**values | changes))

    def submit(self, *tokens: int, **changes: Any) -> Job:
        lines = [orjson.dumps(_line(n, one)) for n, one in enumerate(tokens)]
        values: dict[str, Any] = {
            "tenant": "acme",
            "product_line": "search",
            "workload": "backfill",
            "deadline_at": self.clock.now() + timedelta(hours=6),
        }
        self.jobs.gate = self.gate
        return self.jobs.submit(b"\n".join(lines) + b"\n", **values | changes)[0]

    def plan(self, *, keeper: bool = True) -> PlanSummary:
        """Do what the plan tick does."""
        self.jobs.chunk()
        if keeper:
            self.keeper.tick()
        return plan.plan_waiting(
            self.db, self.clock, models=self.models, worker_alive_s=86_400.0, max_stale_s=86_400.0, is_forced=True
        )

    def status(self, name: str = "backfill") -> BudgetStatus:
        found = budget.statuses(self.db, self.clock.now())
        return next(one for one in found if one.budget.name == name)

    def chunks(self, state: ChunkState | None = None) -> list[Any]:
        statement = select(tables.chunks).order_by(tables.chunks.c.deadline_at, tables.chunks.c.chunk_id)
        with self.db.read() as tx:
            return [one for one in tx.execute(statement) if state in (None, one.state)]

    def run(self, chunk_id: str, *, g_per_kwh: str = "100", part_of: float = 1.0) -> None:
        """Let a worker run a placed chunk and book its items, as a checkpoint does: all in one transaction."""
        now = self.clock.now()
        with self.db.write() as tx:
            row = tx.execute(select(tables.chunks).where(tables.chunks.c.chunk_id == chunk_id)).one()
            tx.execute(
                tables.chunks.update()
                .where(tables.chunks.c.chunk_id == chunk_id)
                .values(dispatched_at=now, region=row.region or "north", window_at=row.window_at or _window(now))
            )
        region = row.region or "north"
        with self.db.write() as tx:
            claim = leases.claim(tx, chunk_id, worker_id=f"w-{region}", region=region, lease_s=60, now=now)
            assert claim is not None
        with self.db.write() as tx:
            leases.fence(tx, chunk_id, claim.token, lease_s=60)
            mine = items.of_chunk(tx, chunk_id)
            mine = mine[: max(1, round(len(mine) * part_of))]
            kind = str(self.clock.kind)
            made = _booked(tx, mine, self.models[row.model], row, now, g_per_kwh=g_per_kwh, clock=kind)
            items.end_many(tx, [one.item_id for one in mine], ItemState.SUCCEEDED, at=now)
            for job_id in sorted({one.job_id for one in mine}):
                jobs.bump(tx, job_id, succeeded=sum(one.job_id == job_id for one in mine))
            ledger.record_bookings(tx, [made])
            if not leases.has_open_items(tx, chunk_id):
                leases.finish(tx, chunk_id, claim.token, outcome=AttemptOutcome.COMMITTED, now=now)

    def ledger_g(self, **scope: Any) -> Decimal:
        """The day's impact of the workload, added up anew."""
        start = self.clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
        given: dict[str, Any] = {
            "tenant": "acme",
            "workload": "backfill",
            "start_at": start,
            "clock": str(self.clock.kind),
        }
        return ledger_g(self.db, Scope(**given | scope))


def _window(at: datetime) -> datetime:
    return at.replace(minute=at.minute - at.minute % 5, second=0, microsecond=0)


def _line(number: int, tokens: int) -> dict[str, Any]:
    return {
        "custom_id": f"doc-{number}",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "words", "input": text(tokens)},
    }


def _booked(tx: Any, mine: Any, model: Model, chunk: Any, at: datetime, *, g_per_kwh: str, clock: str) -> Any:
    """The booking of some items of a chunk, all in one engine batch, at a rate that is only foreseen."""
    wanted = tables.jobs.c.job_id.in_({one.job_id for one in mine})
    lines = {one.job_id: one for one in tx.execute(select(tables.jobs).where(wanted))}
    work = [
        item(
            number,
            tokens=(one.est_tokens, 0, 0),
            tenant=lines[one.job_id].tenant,
            product_line=lines[one.job_id].product_line,
            workload=lines[one.job_id].workload,
            job_id=one.job_id,
            custom_id=one.custom_id,
            chunk_id=chunk.chunk_id,
            baseline_region=None,
            baseline_window_at=None,
        )
        for number, one in enumerate(mine)
    ]
    uj = sum(one.est_tokens for one in mine) * model.uj_per_token
    spent = replace(part(cpu=uj), window_at=_window(at), started_at=at, ended_at=at + timedelta(seconds=1))
    region = SOUTH if chunk.region == "south" else NORTH
    made = batch(work, [spent], fact=Fact.of(region), info=info_of([spent]), clock=ClockKind(clock))
    known = [rate(region.zone, _window(at), g_per_kwh)]
    book = RateBook.of({"north": "zn", "south": "zs"}, known, now=at, settle_after_s=0)
    return rules.book(made, book, recorded_at=at, recorded_by="w", baseline_facts={})

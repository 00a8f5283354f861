"""What ``bench store`` lets its claimers do: claim dispatched chunks and commit checkpoints, as region workers do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from carbonq import ids, ledger
from carbonq.booking import Booking, EngineBatch, Fact, WorkItem
from carbonq.clock import ClockKind
from carbonq.meters.protocol import MeteredPart, MeterInfo, MeterKind, Quality
from carbonq.model import (
    AttemptOutcome,
    Claim,
    Endpoint,
    Item,
    ItemState,
    Job,
    JobState,
    LatePolicy,
    NewChunk,
    NewItem,
    Rate,
    RateKind,
    Region,
    Signal,
    WorkClass,
)
from carbonq.models import BUILTIN
from carbonq.ratebook import RateBook, make_rate
from carbonq.services import checkpoint
from carbonq.services.checkpoint import Checkpoint, Final
from carbonq.store import chunks as chunk_rows
from carbonq.store import dispatch, items, jobs, leases, regions, schema
from carbonq.store.database import Database
from carbonq.store.dispatch import Sent
from carbonq.store.results import Segment
from carbonq.store.tables import entries
from carbonq.units import WINDOW, window_of

REGION = Region(
    "north", "LEVEL", 4, Decimal("1.2"), "assumed", "cpu", embodied_kg=Decimal(1300), life_h=Decimal(35_000)
)
MODEL = BUILTIN["wordllama-256"]
JOB = "job_bench"
LEASE_S = 600.0

#: Width of an entry's row.
COLUMNS = len(entries.columns)

_INFO = MeterInfo(MeterKind.NONE, MeterKind.CPU_TIME, MeterKind.NONE, Quality.ESTIMATED, 50.0, ("cpu",))


def prepare(url: str, chunks: int, count: int, *, now: datetime) -> list[str]:
    """Make a database with one job in ``chunks`` dispatched chunks of ``count`` items, and return the chunks' ids."""
    db = Database(url)
    schema.upgrade(db)
    with db.write() as tx:
        regions.sync(tx, [REGION])
        jobs.insert_job(tx, _job(chunks * count, now), source="jobs", machine_created_at=now)
        new = [NewItem(number, f"c{number}", number * 300, 299, 60) for number in range(chunks * count)]
        items.insert_many(tx, JOB, new)
        found = [item_id for item_id, _, _ in items.unchunked(tx, [JOB])]
        made = [_chunk(found[start : start + count], now) for start in range(0, len(found), count)]
        chunk_rows.insert_many(tx, made, created_at=now)
        sent = [Sent(one.chunk_id, REGION.name, window_of(now), ids.new("plc")) for one in made]
        dispatch.mark_sent(tx, sent, now=now, reason="carbon")
    db.dispose()
    return [one.chunk_id for one in made]


def _job(count: int, now: datetime) -> Job:
    return Job(
        job_id=JOB,
        tenant="default",
        api_key_id=None,
        endpoint=Endpoint.EMBEDDINGS,
        model=MODEL.name,
        requested_model=MODEL.name,
        product_line=None,
        workload=None,
        home_region=REGION.name,
        regions=None,
        deadline_at=now + timedelta(hours=6),
        late_policy=LatePolicy.FINISH_LATE,
        max_carbon_g=None,
        state=JobState.RUNNING,
        is_cancel_requested=False,
        input_blob="jobs/bench/input.jsonl",
        input_bytes=300 * count,
        items_total=count,
        items_succeeded=0,
        items_failed=0,
        items_expired=0,
        items_cancelled=0,
        est_tokens=60 * count,
        created_at=now,
        started_at=now,
        finished_at=None,
        output_blob=None,
        error_blob=None,
        infeasible=None,
        error=None,
        metadata={},
    )


def _chunk(item_ids: Sequence[int], now: datetime) -> NewChunk:
    return NewChunk(
        chunk_id=ids.new("chunk"),
        tenant=None,
        model=MODEL.name,
        endpoint=Endpoint.EMBEDDINGS,
        regions=None,
        release_at=now,
        deadline_at=now + timedelta(hours=6),
        item_ids=item_ids,
        est_tokens=60 * len(item_ids),
        est_duration_s=2.0,
        est_energy_uj=10**6,
        baseline_region=REGION.name,
        baseline_window_at=window_of(now),
    )


def claimer(url: str, chunk_ids: Sequence[str]) -> None:
    """Say ready; claim at the first line of stdin, load at the second, commit at the third; say done after each."""
    db = Database(url)
    with db.read():
        pass
    worker_id = ids.new("wrk")
    claims: list[Claim] = []
    _say_and_wait()
    for chunk_id in chunk_ids:
        with db.write() as tx:
            now = jobs.get(tx, JOB).created_at
            claim = leases.claim(tx, chunk_id, worker_id=worker_id, region=REGION.name, lease_s=LEASE_S, now=now)
        assert claim is not None
        claims.append(claim)
    _say_and_wait()
    with db.read() as tx:
        held = {claim.chunk.chunk_id: items.of_chunk(tx, claim.chunk.chunk_id) for claim in claims}
    _say_and_wait()
    for claim in claims:
        made = _checkpoint(claim, held[claim.chunk.chunk_id])
        with db.write() as tx:
            assert checkpoint.apply(tx, made, lease_s=LEASE_S, pending=None)
    sys.stdout.write("true\n")
    sys.stdout.flush()
    db.dispose()


def _say_and_wait() -> None:
    sys.stdout.write("true\n")
    sys.stdout.flush()
    sys.stdin.readline()


def _checkpoint(claim: Claim, held: Sequence[Item]) -> Checkpoint:
    at = claim.chunk.release_at
    made = Checkpoint(claim.chunk.chunk_id, claim.token, claim.attempt, at)
    made.ended = [(JOB, ItemState.SUCCEEDED, None, [item.item_id for item in held])]
    blob = f"segments/{claim.chunk.chunk_id}"
    made.segments = [Segment(JOB, claim.chunk.chunk_id, "output", blob, 300 * len(held), len(held))]
    made.bookings = list(_bookings(claim, held, at))
    made.tenants = {JOB: "default"}
    made.final = Final("finish", AttemptOutcome.COMMITTED)
    return made


def _bookings(claim: Claim, held: Sequence[Item], at: datetime) -> Iterator[Booking]:
    fact = Fact.of(REGION)
    rates = RateBook.of({REGION.name: REGION.zone}, [_rate(window_of(at))], now=at, settle_after_s=0)
    for start in range(0, len(held), MODEL.batch_items):
        some = held[start : start + MODEL.batch_items]
        yield ledger.book(
            EngineBatch(
                engine_batch_id=ids.new("eb"),
                worker_id=claim.worker_id,
                work_class=WorkClass.FLEXIBLE,
                fact=fact,
                info=_INFO,
                parts=[MeteredPart(window_of(at), at, at + timedelta(seconds=1), 1.0, None, 10**6 + start, None)],
                items=[_work(claim, item) for item in some],
                model=MODEL,
                engine=MODEL.engine,
                engine_version="1",
                software_version="bench",
                clock=ClockKind.REAL,
            ),
            rates,
            recorded_at=at,
            recorded_by=claim.worker_id,
            baseline_facts={REGION.name: fact},
        )


def _work(claim: Claim, item: Item) -> WorkItem:
    return WorkItem(
        tenant="default",
        api_key_id=None,
        product_line=None,
        workload=None,
        job_id=JOB,
        custom_id=item.custom_id,
        item=item.idx,
        chunk_id=claim.chunk.chunk_id,
        attempt=claim.attempt,
        work_class=WorkClass.FLEXIBLE,
        requested_model=MODEL.name,
        outcome="succeeded",
        prompt_tokens=item.est_tokens,
        cached_tokens=0,
        completion_tokens=0,
        placement_id=claim.chunk.placement_id,
        baseline_region=REGION.name,
        baseline_window_at=claim.chunk.baseline_window_at,
    )


def _rate(at: datetime) -> Rate:
    value = Decimal("300.5")
    return make_rate(
        signal=Signal.MOER,
        zone=REGION.zone,
        source="bench",
        model=None,
        gas="co2",
        method=None,
        window_at=at,
        step_s=int(WINDOW.total_seconds()),
        issued_at=at,
        retrieved_at=at,
        g_per_kwh=value,
        raw=value,
        raw_unit="g/kWh",
        is_estimated=False,
        kind=RateKind.FORECAST,
        may_settle=True,
    )

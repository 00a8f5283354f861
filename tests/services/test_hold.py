"""What operators pause and drain: nothing of it starts, what runs goes back uncounted, and all of it ends later."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from carbonq.engines.protocol import EngineRequest
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import AttemptOutcome, HeldKind, ItemState, LatePolicy, RegionState
from carbonq.services import dispatch, expire, hold
from carbonq.services.plan import plan_waiting
from carbonq.services.run import Result, run_chunk
from carbonq.services.site import Limits
from carbonq.store import events, holds, items, regions, waiting
from carbonq.store.database import Database
from carbonq.store.tables import attempts, chunks, jobs
from carbonq.testing import FakeEngine
from tests.services.jobs import World
from tests.services.planning import NORTH, Broker, SetClock, add_chunks, chunk, open_regions, place
from tests.services.running import Bench
from tests.store.rows import T0
from tests.system.processes import until

GO = threading.Event()


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


@pytest.fixture
def bench(sqlite_database: Database, tmp_path: Path) -> Bench:
    return Bench(sqlite_database, tmp_path, limits=Limits(renew_s=0.01))


def say(world: World, kind: HeldKind, name: str, state: RegionState) -> RegionState:
    return hold.set_state(world.db, world.clock, kind, name, state, reason="a test", acted_by="ops")


def held_items(world: World, job_id: str) -> int:
    with world.db.read() as tx:
        return len(items.unchunked(tx, [job_id]))


def test_a_paused_tenants_items_leave_shared_chunks_and_come_back(world: World) -> None:
    mine, _ = world.submit(3, tenant="acme")
    other, _ = world.submit(2, tenant="beta")
    assert world.chunk() == 1
    (shared,) = world.chunks()
    assert say(world, HeldKind.TENANT, "acme", RegionState.PAUSED) is RegionState.ACTIVE
    (left,) = world.chunks()
    assert (left.chunk_id, left.items_count) == (shared.chunk_id, 2)
    assert (held_items(world, mine.job_id), held_items(world, other.job_id)) == (3, 0)
    assert world.chunk() == 0  # what is paused is not cut again
    late, _ = world.submit(1, tenant="acme")  # and is still taken
    assert world.chunk() == 0
    assert say(world, HeldKind.TENANT, "acme", RegionState.ACTIVE) is RegionState.PAUSED
    assert world.chunk() == 1
    assert sorted(one.items_count for one in world.chunks()) == [2, 4]
    assert (held_items(world, mine.job_id), held_items(world, late.job_id)) == (0, 0)


def test_who_paused_what_and_why_stays_on_record(world: World) -> None:
    say(world, HeldKind.TENANT, "acme", RegionState.PAUSED)
    with world.db.read() as tx:
        (kept,) = holds.get_all(tx)
        (event,) = events.after(tx, "acme")
    assert (kept.kind, kept.name, kept.state, kept.reason, kept.held_by) == (
        HeldKind.TENANT,
        "acme",
        RegionState.PAUSED,
        "a test",
        "ops",
    )
    assert (event.type, event.data["by"], event.data["before"]) == ("tenant.paused", "ops", "active")
    say(world, HeldKind.TENANT, "acme", RegionState.ACTIVE)
    with world.db.read() as tx:
        assert holds.get_all(tx) == []


@pytest.mark.parametrize(("kind", "name"), [(HeldKind.MODEL, "words"), (HeldKind.TENANT, "default")])
def test_what_drains_takes_no_new_job_and_ends_the_old_ones(world: World, kind: HeldKind, name: str) -> None:
    world.submit(3)
    say(world, kind, name, RegionState.DRAINING)
    with pytest.raises(InvalidRequest, match=f"{kind.value} '{name}' is draining .a test.") as refused:
        world.submit(1)
    assert refused.value.code == f"{kind.value}_draining"
    assert world.stored() == (1, 3)
    assert world.chunk() == 1
    with world.db.read() as tx:
        assert len(waiting.read(tx)) == 1


@pytest.mark.parametrize("kind", [HeldKind.MODEL, HeldKind.TENANT])
def test_paused_chunks_are_neither_planned_nor_sent_nor_run(database: Database, kind: HeldKind) -> None:
    clock, broker = SetClock(), Broker()
    open_regions(database, NORTH)
    (one,) = add_chunks(database, 1)
    place(database, one, "norcal", clock.now())
    with database.write() as tx:
        tx.execute(update(chunks).values(tenant="acme"))
    model = chunk(database, one).model
    name = model if kind is HeldKind.MODEL else "acme"

    def send() -> int:
        return dispatch.dispatch(database, broker, clock, redispatch_after_s=10, worker_alive_s=15)

    hold.set_state(database, clock, kind, name, RegionState.PAUSED)
    assert chunk(database, one).state == "waiting"
    assert plan_waiting(database, clock).plan_id is None
    place(database, one, "norcal", clock.now(), latest_start_at=clock.now())  # as if it had just been placed
    assert send() == 0
    hold.sweep(database, clock)
    assert chunk(database, one).state == "waiting"
    hold.set_state(database, clock, kind, name, RegionState.ACTIVE)
    assert plan_waiting(database, clock).placed == 1
    assert send() == 1


def test_a_paused_ticket_is_worth_nothing(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(2))
    with bench.db.write() as tx:
        holds.put(tx, HeldKind.MODEL, "fake-model", RegionState.PAUSED)
    assert run_chunk(bench.site, chunk_id, GO) is Result.NOTHING
    assert (bench.one(chunk_id).state, bench.one(chunk_id).attempt) == ("waiting", 0)


def test_a_model_paused_in_the_middle_goes_back_uncounted(bench: Bench) -> None:
    job_id = bench.job(8)
    chunk_id = bench.chunk(job_id)
    pausing = _Pausing(bench, HeldKind.MODEL, "fake-model")
    assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
    assert bench.states(job_id) == {"succeeded": 4, "waiting": 4}
    assert bench.one(chunk_id).attempt == 0
    pausing.resume()
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    bench.check_once(job_id)
    bench.check_shares()


def test_of_a_shared_chunk_only_the_paused_tenants_items_go_back(bench: Bench) -> None:
    mine, other = bench.job(10, prefix="m"), bench.job(6, prefix="o")
    with bench.db.write() as tx:
        tx.execute(update(jobs).where(jobs.c.job_id == other).values(tenant="beta"))
    chunk_id = bench.chunk(mine, other)
    with bench.db.write() as tx:
        tx.execute(update(chunks).values(tenant=None))
    pausing = _Pausing(bench, HeldKind.TENANT, "acme")
    assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
    assert bench.states(other) == {"succeeded": 6}
    assert bench.states(mine) == {"succeeded": 4, "waiting": 6}
    assert [row.outcome for row in bench.rows(attempts)] == [AttemptOutcome.YIELDED.value]
    assert hold.sweep(bench.db, bench.clock) == 1
    assert bench.one(chunk_id).state == "done"
    pausing.resume()
    again = bench.chunk(mine)
    assert run_chunk(bench.site, again, GO) is Result.DONE
    for job_id in (mine, other):
        bench.check_once(job_id)
    bench.check_shares()


def test_what_is_paused_past_its_deadline_expires_where_the_job_asked_for_it(world: World) -> None:
    job, _ = world.submit(2, late_policy=LatePolicy.EXPIRE, deadline_at=T0 + timedelta(hours=1))
    world.chunk()
    say(world, HeldKind.TENANT, "default", RegionState.PAUSED)
    world.clock.advance(2 * 3600)
    assert expire.expire(world.db, world.clock) == 2
    with world.db.read() as tx:
        assert items.counts(tx, job.job_id) == {ItemState.EXPIRED: 2}


def test_a_region_is_paused_by_name_and_unknown_ones_are_named(bench: Bench) -> None:
    hold.set_state(bench.db, bench.clock, HeldKind.REGION, "fr", RegionState.DRAINING, reason="new cards")
    with bench.db.read() as tx:
        assert regions.state_of(tx, "fr") is RegionState.DRAINING
        assert [one.reason for one in holds.get_all(tx)] == ["new cards"]
    for kind, known in ((HeldKind.REGION, None), (HeldKind.MODEL, ["fake-model"])):
        with pytest.raises(NotFound, match=rf"there is no {kind.value} 'fx'; known: f"):
            hold.set_state(bench.db, bench.clock, kind, "fx", RegionState.PAUSED, known=known)
    with pytest.raises(InvalidRequest, match="reason must be printable"):
        hold.set_state(bench.db, bench.clock, HeldKind.REGION, "fr", RegionState.PAUSED, reason="a\x00b")


class _Pausing:
    """Pauses something while the second engine batch of a run begins, and lets the run hear of it at once."""

    def __init__(self, bench: Bench, kind: HeldKind, name: str) -> None:
        self.bench, self.kind, self.name, self.count = bench, kind, name, 0
        bench.engine = FakeEngine(on_item=self.ran)

    def ran(self, _: EngineRequest) -> None:
        self.bench.burn()
        self.count += 1
        if self.count == 5:
            hold.set_state(self.bench.db, self.bench.clock, self.kind, self.name, RegionState.PAUSED)
            for _ in range(2):  # the second renewal begins when what the first one heard is known
                before = self._lease()
                until(lambda before=before: self._lease() != before, 5, "renewal")

    def _lease(self) -> object:
        return [row.lease_until for row in self.bench.rows(chunks) if row.state == "running"]

    def resume(self) -> None:
        hold.set_state(self.bench.db, self.bench.clock, self.kind, self.name, RegionState.ACTIVE)

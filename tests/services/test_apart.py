"""What goes wrong with one job or batch, whatever it is, holds up no other and is not tried at every tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from carbonq.errors import StoreUnavailable
from carbonq.model import ChunkState, ItemState, JobState, LatePolicy
from carbonq.services import (
    batch_input,
    chunk,
    expire,
    finish,
    finish_batches,
    reap,
    retire,
    settle,
    validate,
)
from carbonq.services import batches as service
from carbonq.services.apart import MAX_PAUSE_S, Postponed, each, halved
from carbonq.services.batches import Request
from carbonq.store import batches, leases, regions, retention, revisions, tables
from carbonq.store.batches import Batch, BatchState
from carbonq.store.database import Database
from carbonq.units import WINDOW
from tests.services.batching import add, add_file, asked, errors, get, jobs_of, read, rules
from tests.services.booked import configure, observe, store
from tests.services.jobs import REGIONS, World
from tests.services.running import Bench
from tests.unit import bookings
from tests.unit.bookings import FACTS, W0, book


@pytest.fixture
def world(sqlite_database: Database, tmp_path: Path) -> World:
    with sqlite_database.write() as tx:
        regions.sync(tx, REGIONS)
    return World(sqlite_database, tmp_path)


def broken_for(names: set[str], act: Any, name_of: Callable[[tuple[Any, ...]], str]) -> Any:
    """Return ``act`` with a defect for some of what it is called with."""

    def maybe(*given: Any, **more: Any) -> Any:
        return 1 // 0 if name_of(given) in names else act(*given, **more)

    return maybe


def test_each_has_its_turn_and_the_first_defect_is_raised() -> None:
    seen: list[int] = []

    def act(number: int) -> int:
        seen.append(number)
        return 6 // number

    assert each([1, 2, 3], act) == 11
    with pytest.raises(ZeroDivisionError):
        each([0, 1, 0, 2], act)
    assert seen == [1, 2, 3, 0, 1, 0, 2]


def test_a_store_that_is_away_is_not_tried_for_each() -> None:
    seen: list[int] = []

    def away(number: int) -> int:
        seen.append(number)
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        each([1, 2], away)
    assert seen == [1]


def test_what_went_wrong_is_let_be_longer_each_time() -> None:
    now_s, tried_s = 0.0, list[float]()
    later = Postponed(lambda: now_s)
    for _ in range(300):
        if later.due(["a"], 1):
            tried_s.append(now_s)
            later.put_off("a")
        now_s += 1
    assert tried_s == [0, 2, 6, 14, 30, 62, 122, 182, 242]
    assert tried_s[-1] - tried_s[-2] == MAX_PAUSE_S
    assert later.due(["a", "b", "c"], 1) == ["b"]
    assert (later.due(["c"], 1), len(later)) == (["c"], 0)


def test_batches_that_meet_a_defect_leave_a_ticks_room_to_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "TICK_BATCHES", 2)
    bad = [add(world, 1) for _ in range(3)]
    good = [add(world, 1) for _ in range(3)]
    tried: list[str] = []

    def name_of(given: tuple[Any, ...]) -> str:
        batch: Batch = given[1]
        tried.append(batch.batch_id)
        return batch.batch_id

    broken = broken_for({one.batch_id for one in bad}, batch_input.read, name_of)
    monkeypatch.setattr(batch_input, "read", broken)
    now_s, later = 0.0, Postponed(lambda: now_s)

    def tick() -> int:
        return validate.validate(world.db, world.blobs, world.clock, rules(world), later)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            tick()
    assert (tick(), tick()) == (2, 0)
    assert {get(world, one).state for one in good} == {BatchState.IN_PROGRESS}
    assert len(tried) == len(set(tried)) == 6
    now_s = 2.5
    with pytest.raises(ZeroDivisionError):
        tick()
    assert {get(world, one).state for one in bad} == {BatchState.VALIDATING}


def test_a_batch_that_a_defect_keeps_from_being_read_ends_at_its_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = add(world, 1)
    monkeypatch.setattr(
        batch_input, "read", broken_for({batch.batch_id}, batch_input.read, lambda given: given[1].batch_id)
    )
    world.clock.advance((batch.expires_at - world.clock.now()).total_seconds() - 1)
    with pytest.raises(ZeroDivisionError):
        read(world)
    assert get(world, batch).state is BatchState.VALIDATING
    world.clock.advance(1)
    with pytest.raises(ZeroDivisionError):
        read(world)
    final = get(world, batch)
    assert (final.state, errors(final)) == (BatchState.FAILED, [("internal_error", None, None)])
    assert final.errors is not None
    assert "ZeroDivisionError" in final.errors[0]["message"]
    assert (final.model, jobs_of(world, batch), read(world)) == (None, [], 0)


def test_a_job_that_cannot_be_finished_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = world.submit(1)[0], world.submit(1)[0]
    for job in (bad, good):
        world.end(job, {"a-0": ItemState.SUCCEEDED})
    monkeypatch.setattr(finish, "_summary", broken_for({bad.job_id}, finish._summary, lambda given: given[0].job_id))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ZeroDivisionError):
        finish.finish_jobs(world.db, world.blobs, world.clock)
    assert (world.job(bad.job_id).is_final, world.job(good.job_id).state) == (False, JobState.COMPLETED)


def test_a_batch_that_cannot_be_finished_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = add(world, 1), add(world, 1)
    assert read(world) == 2
    for batch in (bad, good):
        (job,) = jobs_of(world, batch)
        world.end(job, {"a-0": ItemState.SUCCEEDED})
    finish.finish_jobs(world.db, world.blobs, world.clock)
    broken = broken_for({bad.batch_id}, finish_batches._assemble, lambda given: given[1].batch_id)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(finish_batches, "_assemble", broken)
    with pytest.raises(ZeroDivisionError):
        finish_batches.finish_batches(world.db, world.blobs, world.clock, keep_results_days=None)
    assert (get(world, bad).is_final, get(world, good).state) == (False, BatchState.COMPLETED)


def test_a_job_that_cannot_be_expired_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = (world.submit(1, late_policy=LatePolicy.EXPIRE)[0] for _ in range(2))
    world.clock.advance(1e6)
    monkeypatch.setattr(expire, "sweep", broken_for({bad.job_id}, expire.sweep, lambda given: given[1]))
    with pytest.raises(ZeroDivisionError):
        expire.expire(world.db, world.clock)
    assert (world.job(bad.job_id).items_expired, world.job(good.job_id).items_expired) == (0, 1)


def test_a_job_that_cannot_be_cut_into_chunks_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = world.submit(1)[0]
    world.submit(1, regions=("south",))
    broken = broken_for({bad.job_id}, chunk._chunk_group, lambda given: given[1].jobs[0].job_id)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(chunk, "_chunk_group", broken)
    with pytest.raises(ZeroDivisionError):
        world.chunk()
    assert len(world.chunks()) == 1


def test_a_tenant_with_many_batches_takes_no_turn_of_others(database: Database, tmp_path: Path) -> None:
    with database.write() as tx:
        regions.sync(tx, REGIONS)
    world = World(database, tmp_path)

    def of(tenant: str) -> str:
        world.clock.advance(1)
        file = add_file(world, 1, tenant=tenant)
        new = asked(world, file.file_id, tenant=tenant)
        return service.create(world.db, new, Request(file.file_id), world.clock)[0].batch_id

    many = [of("many") for _ in range(4)]
    one, few = of("one"), [of("few") for _ in range(2)]
    with world.db.read() as tx:
        assert batches.validating(tx, 6) == [many[0], one, few[0], many[1], few[1], many[2]]


def test_a_tick_that_took_long_begins_no_further_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        add(world, 1)
    monkeypatch.setattr(validate, "TICK_S", -1.0)
    assert read(world) == 1
    monkeypatch.undo()
    assert read(world) == 2


# --- leases, settlement and what is kept -----------------------------------------------------------------------------


@given(bad=st.sets(st.integers(0, 39), max_size=5), count=st.integers(0, 40))
def test_what_goes_wrong_is_found_by_halving_and_all_else_is_done_once(bad: set[int], count: int) -> None:
    done: list[int] = []
    turns = 0

    def act(some: Sequence[int]) -> int:
        nonlocal turns
        turns += 1
        if bad & set(some):
            raise ZeroDivisionError
        done.extend(some)
        return len(some)

    defects: dict[int, Exception] = {}
    wrong = {one for one in bad if one < count}
    assert halved(list(range(count)), act, defects, most=50) == count - len(wrong)
    assert sorted([*done, *wrong]) == list(range(count)) and defects.keys() == wrong
    assert turns <= 1 + 2 * len(wrong) * 6  # log2 of 40


def test_a_defect_that_all_meet_is_not_tried_for_each() -> None:
    turns: list[int] = []

    def act(some: Sequence[int]) -> int:
        turns.append(len(some))
        raise ZeroDivisionError

    defects: dict[int, Exception] = {}
    assert halved(list(range(5_000)), act, defects, most=20) == 0
    assert len(defects) == 20 and len(turns) < 60
    with pytest.raises(StoreUnavailable):
        halved([1, 2], lambda _some: _away(), {}, most=20)


def _away() -> int:
    raise StoreUnavailable("away")


def test_a_lease_that_cannot_be_reaped_holds_up_no_other(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    names = [bench.chunk(bench.job(1)) for _ in range(5)]
    with bench.db.write() as tx:
        for name in names:
            claim = leases.claim(tx, name, worker_id="w", region="fr", lease_s=60, now=bench.clock.now())
            assert claim is not None
            # The second one's report is of no version that this code knows.
            leases.report(tx, name, claim.token, {"odd": []} if name == names[1] else {"burnt": []})
    for name in names:
        bench.silence(name)

    def tick() -> int:
        return reap.reap(
            bench.db, bench.clock, rates=bench.site.rates, models={}, max_attempts=4, recorded_by="control"
        )

    with pytest.raises(KeyError, match="burnt"):
        tick()
    states = [bench.one(name).state for name in names]
    assert states == [ChunkState.RUNNING if name == names[1] else ChunkState.WAITING for name in names]
    with pytest.raises(KeyError):  # it goes on being said
        tick()
    lost = [row.data["chunk_id"] for row in bench.rows(tables.events) if row.type == "chunk.lost"]
    assert sorted(lost) == sorted(set(names) - {names[1]})


@pytest.mark.parametrize("at_once", [5_000, 5])
def test_entries_that_cannot_be_settled_hold_up_no_other_part_and_no_other_zone(
    at_once: int, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_ENTRIES", at_once)
    configure(sqlite_database)
    made = [bookings.batch(fact=FACTS[region]) for region in ("away", "home") for _ in range(3)]
    store(sqlite_database, *(book(one) for one in made))
    for zone in ("Z-AWAY", "Z-HOME"):
        observe(sqlite_database, zone, W0, "100")
    poison = made[1].engine_batch_id  # of the zone that comes first
    append = revisions.append

    def fails(tx: Any, parts: Sequence[tuple[str, int]], *more: Any) -> int:
        return 1 // 0 if poison in {name for name, _ in parts} else append(tx, parts, *more)

    def tick() -> int:
        return settle.settle(sqlite_database, W0 + WINDOW, settle_after_s=0)

    monkeypatch.setattr(revisions, "append", fails)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            tick()
    with sqlite_database.read() as tx:
        settled = select(tables.entries.c.engine_batch_id).where(tables.entries.c.reason == "settled")
        found = tx.execute(settled).scalars().all()
    assert sorted(found) == sorted(5 * [one.engine_batch_id for one in made if one.engine_batch_id != poison])
    monkeypatch.setattr(revisions, "append", append)
    assert (tick(), tick()) == (5, 0)


def test_a_job_that_cannot_be_removed_holds_up_no_other_and_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = world.submit(1)[0], world.submit(1)[0]
    for job in (bad, good):
        world.end(job, {"a-0": ItemState.SUCCEEDED})
    finish.finish_jobs(world.db, world.blobs, world.clock)
    world.clock.advance(40 * 86_400)
    monkeypatch.setattr(retention, "purge_job", broken_for({bad.job_id}, retention.purge_job, lambda given: given[1]))
    monkeypatch.setattr(retire, "_days", broken_for({"all"}, retire._days, lambda _given: "all"))  # pyright: ignore[reportPrivateUsage]
    keep = retire.Keep(results_days=30)
    with pytest.raises(ZeroDivisionError):
        retire.retire(world.db, world.blobs, world.clock, keep)
    with world.db.read() as tx:
        purged = dict(tx.execute(select(tables.jobs.c.job_id, tables.jobs.c.purged_at.is_not(None))).all())
    assert purged == {bad.job_id: False, good.job_id: True}
    assert world.chunks() == []

"""The policy of tiers, and a smaller model's work from chunk to ledger: named, booked, recomputed, what it saved."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from carbonq import export, verify
from carbonq.engines.protocol import EngineRequest
from carbonq.engines.wordllama import WordLlamaEngine
from carbonq.errors import EngineAway
from carbonq.model import ChunkState, DowngradeReason, HeldKind, Model, RegionState, Signal
from carbonq.models import WORDLLAMA_256
from carbonq.ratebook import RateBook
from carbonq.services import downgrade as downgrading
from carbonq.services import summary, tiers
from carbonq.services.dispatch import dispatch
from carbonq.services.downgrade import Tiering
from carbonq.services.plan import plan_waiting
from carbonq.services.refresh import refresh
from carbonq.services.run import Result, run_chunk
from carbonq.store import exports, holds, tables, throughputs
from carbonq.store.database import Database
from carbonq.store.exports import Selection
from carbonq.store.figures import Scope
from carbonq.testing import FakeEngine
from carbonq.tiers import OFF, TierPolicy
from tests.services.jobs import line
from tests.services.planning import NORTH, SOUTH, Broker, SetClock, add_chunks, chunk, open_regions, place
from tests.services.running import ITEM_UJ, MODEL, REGION, Bench
from tests.services.test_downgrade import BIG
from tests.services.test_downgrade import Bench as World
from tests.services.test_plan import RecentSource
from tests.store.rows import T0

GO = threading.Event()
EASY = TierPolicy(easy_tokens=25)


@pytest.fixture
def world(sqlite_database: Database, tmp_path: Path) -> World:
    return World(sqlite_database, tmp_path)


# --- short items, at chunking -----------------------------------------------------------------------------------------


def submitted(world: World, *texts: str, **changes: Any) -> str:
    body = [{"model": "big", "messages": [{"role": "user", "content": text}]} for text in texts]
    data = b"".join(line(n, url="/v1/chat/completions", body=one) for n, one in enumerate(body))
    job, _ = world.submit(data, **{"endpoint": BIG.endpoint, "model": "big", **changes})
    return job.job_id


def kinds(world: World) -> list[tuple[str, str | None, list[str]]]:
    """Return model, reason and items of each chunk."""
    held = world.held()
    return sorted((one.model, one.downgraded, held[one.chunk_id]) for one in world.chunks())


def test_short_items_get_chunks_of_their_own_on_the_smaller_model(world: World) -> None:
    with world.db.write() as tx:
        throughputs.learn(tx, "small", "gpu", 100, 2.0, 3000)
    submitted(world, "x" * 40, "x" * 200, "x" * 52, "x" * 44)  # estimated 22, 62, 25 and 23 tokens
    assert world.chunk(tier_policy=EASY) == 2
    assert kinds(world) == [("big", None, ["a-1"]), ("small", DowngradeReason.POLICY, ["a-0", "a-2", "a-3"])]
    small = next(one for one in world.chunks() if one.model == "small")
    assert (small.est_duration_s, small.est_energy_uj) == (pytest.approx(70 / 50), 70 * 30)
    assert world.chunk(tier_policy=EASY) == 0
    # What the policy chose, no budget takes further down.
    assert world.downgrade([small]) == set()


def test_short_items_of_several_jobs_share_chunks(world: World) -> None:
    for _ in range(3):
        submitted(world, "x" * 40, "x" * 200)
    assert world.chunk(tier_policy=EASY) == 2
    assert sorted((one.model, one.items_count) for one in world.chunks()) == [("big", 3), ("small", 3)]


@pytest.mark.parametrize("why", ["off", "refused", "held", "elsewhere", "observed"])
def test_short_items_stay(world: World, why: str) -> None:
    changes: dict[str, Any] = {"refused": {"may_downgrade": False}, "elsewhere": {"regions": ("north",)}}.get(why, {})
    if why == "observed":
        world.treatments = replace(world.treatments, is_observed=True)
    if why == "held":
        with world.db.write() as tx:
            holds.put(tx, HeldKind.MODEL, "small", RegionState.PAUSED)
    submitted(world, "x" * 40, "x" * 200, **changes)
    world.chunk(tier_policy=OFF if why == "off" else EASY)
    assert {one.model for one in world.chunks()} == {"big"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=30), limit=st.integers(1, 100))
def test_every_item_is_in_one_chunk_of_the_right_model(world: World, lengths: list[int], limit: int) -> None:
    before = {one.chunk_id for one in world.chunks()}
    job_id = submitted(world, *("x" * length for length in lengths))
    world.chunk(tier_policy=TierPolicy(easy_tokens=limit), max_chunk_items=7)
    model_of = {one.chunk_id: one.model for one in world.chunks() if one.chunk_id not in before}
    with world.db.read() as tx:
        rows = tx.execute(select(tables.items).where(tables.items.c.job_id == job_id)).all()
    assert len(rows) == len(lengths)
    for row in rows:
        assert model_of[row.chunk_id] == ("small" if row.est_tokens <= limit else "big")


# --- a dirty grid, at planning ----------------------------------------------------------------------------------------

GRID = {(region.zone, Signal.MOER): [RecentSource()] for region in (NORTH, SOUTH)}
TALK = replace(BIG, name="m", smaller="m-small")
TALKERS = {"m": TALK, "m-small": replace(TALK, name="m-small", tier=1, smaller=None)}


def tiering(db: Database, clock: SetClock, limit: float | None) -> Tiering:
    policy = TierPolicy(above_g_per_kwh=limit)
    return Tiering(db, clock, models=TALKERS, regions=[NORTH, SOUTH], policy=policy)


def models_of(db: Database, names: Sequence[str]) -> list[str]:
    return [chunk(db, name).model for name in names]


def test_what_is_about_to_start_on_a_dirty_grid_goes_to_the_smaller_model(database: Database) -> None:
    clock = SetClock()
    open_regions(database, NORTH, SOUTH)
    refresh(database, GRID, clock)
    soon = add_chunks(database, 2, prefix="s", hours=0.14)
    late = add_chunks(database, 2, prefix="l", hours=5)
    refusing = add_chunks(database, 1, prefix="r", hours=0.3, may_downgrade=False)
    mine = tiering(database, clock, 1.0)
    seen: list[list[str]] = []

    def on_placed(tx: Any) -> None:
        mine.on_placed(tx)
        rows = tx.execute(select(tables.chunks).where(tables.chunks.c.chunk_id.in_(soon)))
        seen.append(sorted(f"{row.model} {row.state}" for row in rows))

    plan_waiting(database, clock, models=TALKERS, on_placed=on_placed)
    # In the transaction that placed them, so that no dispatcher could send them to the larger one.
    assert seen[-1] == ["m-small waiting", "m-small waiting"]
    assert mine.take_moved() == 2
    assert {one.downgraded for one in (chunk(database, name) for name in soon)} == {"policy"}
    # What starts later may yet find a cleaner window.
    assert models_of(database, [*late, *refusing]) == ["m", "m", "m"]
    plan_waiting(database, clock, models=TALKERS, on_placed=mine.on_placed)
    assert mine.take_moved() == 0
    assert {chunk(database, name).state for name in soon} == {"placed"}
    # When its window comes it goes, too; not when the grid is cleaner than the limit.
    clock.at = chunk(database, late[0]).window_at - timedelta(seconds=60)
    tiering(database, clock, 5_000.0).tidy()
    assert models_of(database, late[:1]) == ["m"]
    mine.tidy()
    assert models_of(database, late[:1]) == ["m-small"]
    # And it stays, whatever the rate is then.
    tiering(database, clock, 5_000.0).tidy()
    assert models_of(database, late[:1]) == ["m-small"]


def test_a_ticket_or_a_smaller_model_but_never_both(database: Database) -> None:
    clock, broker = SetClock(), Broker()
    roomy = replace(NORTH, slots=20)
    open_regions(database, roomy)
    names = add_chunks(database, 40)
    for name in names:
        place(database, name, roomy.name, clock.now())
    moved: set[str] = set()
    ready = threading.Barrier(2)

    def send() -> None:
        ready.wait()
        dispatch(database, broker, clock, redispatch_after_s=10, worker_alive_s=15)

    def move() -> None:
        ready.wait()
        for start in range(0, len(names), 4):
            with database.write() as tx:
                moved.update(
                    downgrading.downgrade(
                        tx,
                        names[start : start + 4],
                        models=TALKERS,
                        regions=[roomy],
                        now=clock.now(),
                        factor=1.0,
                        reason=DowngradeReason.BUDGET,
                    )
                )

    threads = [threading.Thread(target=act) for act in (send, move)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = {chunk_id for _, chunk_id in broker.sent}
    assert sent.isdisjoint(moved) and sent | moved == set(names)
    assert {chunk(database, name).model for name in sent} <= {"m"}
    assert {(one.model, one.state, one.dispatched_at) for one in (chunk(database, name) for name in moved)} == {
        ("m-small", "waiting", None)
    }


def test_without_a_limit_nothing_is_moved(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH, SOUTH)
    refresh(sqlite_database, GRID, clock)
    names = add_chunks(sqlite_database, 2, hours=0.14)
    mine = tiering(sqlite_database, clock, None)
    plan_waiting(sqlite_database, clock, models=TALKERS, on_placed=mine.on_placed)
    mine.tidy()
    assert (mine.take_moved(), models_of(sqlite_database, names)) == (0, ["m", "m"])


def test_an_average_rate_is_not_compared_with_the_limit(sqlite_database: Database) -> None:
    clock = SetClock()
    open_regions(sqlite_database, NORTH, SOUTH)
    refresh(sqlite_database, GRID, clock)
    (name,) = add_chunks(sqlite_database, 1, hours=0.14)
    plan_waiting(sqlite_database, clock, models=TALKERS)
    with sqlite_database.write() as tx:
        tx.execute(update(tables.placements).values(signal=Signal.AER.value))
    tiering(sqlite_database, clock, 1.0).tidy()
    assert models_of(sqlite_database, [name]) == ["m"]
    with sqlite_database.write() as tx:
        tx.execute(update(tables.placements).values(signal=Signal.MOER.value))
    tiering(sqlite_database, clock, 1.0).tidy()
    assert models_of(sqlite_database, [name]) == ["m-small"]


# --- from chunk to ledger ---------------------------------------------------------------------------------------------

LARGE = replace(MODEL, tier=2, smaller="fake-small", same_space=True)
FAKES = {MODEL.name: LARGE, "fake-small": replace(MODEL, name="fake-small")}


class Running(Bench):
    """A bench on which each model has an engine of its own, the larger one burning four times as much."""

    def __init__(self, db: Database, root: Path) -> None:
        super().__init__(db, root)
        self.asked: list[EngineRequest] = []
        self.small = FakeEngine(model="fake-small", on_item=self.small_item)
        self.large = FakeEngine(on_item=self.large_item)
        self.use(FAKES, {MODEL.name: self.large, "fake-small": self.small})

    def use(self, models: Mapping[str, Model], engines: Mapping[str, Any]) -> None:
        self.site = replace(self.site, models=models, engine_of=engines.__getitem__)

    def small_item(self, request: EngineRequest) -> None:
        self.asked.append(request)
        self.burn()

    def large_item(self, request: EngineRequest) -> None:
        self.asked.append(request)
        for _ in range(4):
            self.burn()

    def smaller(self, chunk_id: str, reason: DowngradeReason = DowngradeReason.BUDGET) -> None:
        """Withdraw the ticket, downgrade, and send it again."""
        with self.db.write() as tx:
            tx.execute(update(tables.chunks).where(tables.chunks.c.chunk_id == chunk_id).values(dispatched_at=None))
            moved = downgrading.downgrade(
                tx,
                [chunk_id],
                models=self.site.models,
                regions=[REGION],
                now=self.clock.now(),
                factor=1.0,
                reason=reason,
            )
        assert moved == {chunk_id}
        self.dispatch(chunk_id)

    def run_large(self, count: int) -> str:
        job_id = self.job(count)
        assert run_chunk(self.site, self.chunk(job_id), GO) is Result.DONE
        return job_id

    def run_small(self, count: int, reason: DowngradeReason = DowngradeReason.BUDGET) -> str:
        job_id = self.job(count, prefix="s")
        chunk_id = self.chunk(job_id)
        self.smaller(chunk_id, reason)
        assert run_chunk(self.site, chunk_id, GO) is Result.DONE
        return job_id

    def restored(self) -> list[str]:
        with self.db.write() as tx:
            return downgrading.restore(tx, models=self.site.models, regions=[REGION], now=self.clock.now(), factor=1.0)

    def saved(self, **scope: Any) -> list[tiers.Saved]:
        with self.db.read() as tx:
            return tiers.saved(tx, Scope(**scope))


@pytest.fixture
def running(database: Database, tmp_path: Path) -> Running:
    return Running(database, tmp_path)


def test_result_entry_and_export_name_both_models(running: Running) -> None:
    job_id = running.run_small(3)
    lines = running.lines(job_id, "output")
    assert len(lines) == 3
    for one in lines:
        body = one["response"]["body"]
        assert body["model"] == "fake-small"
        carbon = body["usage"]["carbon"]
        assert (carbon["requested_model"], carbon["downgraded"]) == (MODEL.name, "budget")
    assert {one.body["model"] for one in running.asked} == {"fake-small"}
    assert running.large.calls == []
    assert {row.requested_model for row in running.rows(tables.entries)} == {MODEL.name}
    batches = {(row.model, row.downgraded) for row in running.rows(tables.engine_batches)}
    assert batches == {("fake-small", "budget")}
    running.check_once(job_id)
    running.check_shares()
    assert running.energy_uj("item") == 3 * ITEM_UJ
    # What was learned is the smaller model's.
    with running.db.read() as tx:
        assert set(throughputs.get_all(tx)) == {("fake-small", "cpu")}
    text = export.header() + "".join(exports.csv_pages(running.db, Selection()))
    report = verify.check_lines(text.splitlines(keepends=True))
    assert (report.lines, report.problems) == (3, [])
    assert all(f",fake-small,{MODEL.name}," in one for one in text.splitlines()[1:])


def test_what_was_not_downgraded_says_so(running: Running) -> None:
    (one,) = running.lines(running.run_large(1), "output")
    carbon = one["response"]["body"]["usage"]["carbon"]
    assert (carbon["requested_model"], carbon["downgraded"]) == (MODEL.name, None)
    assert running.saved() == []


def test_what_the_smaller_model_refuses_is_run_by_the_one_that_was_asked_for(running: Running) -> None:
    refusing = FakeEngine(model="fake-small", bad_items={"s1": "context_length_exceeded"}, on_item=running.small_item)
    running.use(FAKES, {MODEL.name: running.large, "fake-small": refusing})
    job_id = running.job(3, prefix="s")
    chunk_id = running.chunk(job_id)
    running.smaller(chunk_id)
    assert run_chunk(running.site, chunk_id, GO) is Result.GIVEN_BACK
    assert running.states(job_id) == {"succeeded": 2, "waiting": 1}
    (again,) = running.restored()
    running.dispatch(again)
    assert run_chunk(running.site, again, GO) is Result.DONE
    assert running.one(chunk_id).state is ChunkState.DONE
    ran = {one["custom_id"]: one["response"]["body"]["model"] for one in running.lines(job_id, "output")}
    assert ran == {"s0": "fake-small", "s1": MODEL.name, "s2": "fake-small"}
    running.check_once(job_id)
    running.check_shares()
    # What the refused try took is the others', and booked once.
    assert running.energy_uj() == running.energy_uj("item") == (3 + 4) * ITEM_UJ


def test_what_nobody_brings_back_ends_as_other_tries_do(running: Running) -> None:
    small = FakeEngine(model="fake-small", bad_items={"s0": "theirs"}, on_item=running.small_item)
    running.use(FAKES, {MODEL.name: running.large, "fake-small": small})
    job_id = running.job(1, prefix="s")
    chunk_id = running.chunk(job_id)
    running.smaller(chunk_id)
    most = running.site.limits.max_attempts
    for _ in range(most):
        assert run_chunk(running.site, chunk_id, GO) is Result.GIVEN_BACK
        running.dispatch(chunk_id)
    assert run_chunk(running.site, chunk_id, GO) is Result.DONE
    assert running.states(job_id) == {"failed": 1}
    running.check_once(job_id)


def test_a_model_that_left_the_settings_is_not_waited_for(running: Running) -> None:
    small = FakeEngine(model="fake-small", bad_items={"s0": "theirs"}, on_item=running.small_item)
    job_id = running.job(1, prefix="s")
    chunk_id = running.chunk(job_id)
    running.smaller(chunk_id)
    running.use({"fake-small": FAKES["fake-small"]}, {"fake-small": small})
    assert run_chunk(running.site, chunk_id, GO) is Result.DONE
    assert running.states(job_id) == {"failed": 1}


def test_an_item_that_both_refuse_fails_with_the_word_of_the_one_asked_for(running: Running) -> None:
    bad = {"s0": "not_mine"}
    small = FakeEngine(model="fake-small", bad_items={"s0": "theirs"}, on_item=running.small_item)
    running.use(FAKES, {MODEL.name: FakeEngine(bad_items=bad), "fake-small": small})
    job_id = running.job(1, prefix="s")
    chunk_id = running.chunk(job_id)
    running.smaller(chunk_id)
    assert run_chunk(running.site, chunk_id, GO) is Result.GIVEN_BACK
    (again,) = running.restored()
    running.dispatch(again)
    assert run_chunk(running.site, again, GO) is Result.DONE
    (one,) = running.lines(job_id, "error")
    assert one["response"]["body"]["error"]["code"] == "not_mine"
    running.check_once(job_id)


def test_a_smaller_model_that_is_away_holds_up_nobody(running: Running) -> None:
    away = FakeEngine(model="fake-small", failures=[EngineAway("no server", code="engine_away")])
    running.use(FAKES, {MODEL.name: running.large, "fake-small": away})
    job_id = running.job(2, prefix="s")
    chunk_id = running.chunk(job_id)
    running.smaller(chunk_id)
    assert run_chunk(running.site, chunk_id, GO) is Result.GIVEN_BACK
    (again,) = running.restored()
    running.dispatch(again)
    assert run_chunk(running.site, again, GO) is Result.DONE
    assert running.states(job_id) == {"succeeded": 2}


# --- what it saved ----------------------------------------------------------------------------------------------------


def test_what_it_saved_stands_beside_what_it_is_compared_with(running: Running) -> None:
    running.run_large(4)  # 2,000 uJ for each of two tokens
    running.run_small(3)
    running.run_small(2, DowngradeReason.POLICY)
    found = running.saved()
    assert [(one.reason, one.items, one.tokens) for one in found] == [("budget", 3, 6), ("policy", 2, 4)]
    budget = found[0]
    assert (budget.requested_model, budget.model, budget.clock) == (MODEL.name, "fake-small", "simulated")
    emission = 3 * (Decimal(ITEM_UJ) / Decimal(3_600_000_000_000) * Decimal("1.2") * 100).quantize(Decimal("1e-15"))
    assert budget.emission_g == budget.compared_g == emission
    # Four times as much for a token was learned of the larger one.
    assert (budget.requested_g, budget.saved_g) == (4 * emission, 3 * emission)
    assert (budget.energy_uj, budget.unknown_items, budget.statuses) == (3 * ITEM_UJ, 0, ("provisional",))
    assert running.saved(tenant="nobody") == []
    document = summary.summarize(running.db, Scope())
    assert document["smaller_models"] == tiers.views(found)
    assert document["smaller_models"][0]["is_estimated"] is True
    # It is in no other saving: that one has the same energy on both sides.
    parts = [Decimal(document[name]) for name in ("baseline_g", "compared_emission_g", "saved_g")]
    assert parts[0] - parts[1] == parts[2]


def test_nothing_is_claimed_where_nothing_was_learned(running: Running) -> None:
    running.run_small(3)
    (one,) = running.saved()
    assert one.emission_g is not None
    assert (one.compared_g, one.requested_g, one.saved_g, one.unknown_items) == (None, None, None, 3)


def test_an_item_without_a_rate_is_unknown(running: Running) -> None:
    running.run_large(2)
    nothing = RateBook.of({"fr": "FR", "se": "SE"}, [], now=T0, settle_after_s=0)
    running.site = replace(running.site, rates=lambda: nothing)
    running.run_small(2)
    (one,) = running.saved()
    assert (one.emission_g, one.requested_g, one.saved_g, one.unknown_items) == (None, None, None, 2)


def test_a_smaller_model_that_took_more_shows_a_loss(running: Running) -> None:
    with running.db.write() as tx:
        throughputs.learn(tx, MODEL.name, "cpu", 10, 1.0, 1000)  # 100 uJ a token
    running.run_small(2)
    (one,) = running.saved()
    assert one.saved_g is not None and one.saved_g < 0


# --- real engines -----------------------------------------------------------------------------------------------------


def test_a_matryoshka_cut_of_real_vectors(sqlite_database: Database, tmp_path: Path) -> None:
    """wordllama-256 is downgraded to its own first 64 dimensions: real vectors, no engine told the wrong name."""
    large = replace(WORDLLAMA_256, tier=2, smaller="words-64", same_space=True)
    short = replace(WORDLLAMA_256, name="words-64", options={"dimensions": 64})
    running = Running(sqlite_database, tmp_path)
    engines = {large.name: WordLlamaEngine(large), short.name: WordLlamaEngine(short)}
    for engine in engines.values():
        engine.load()
    running.use({large.name: large, short.name: short}, engines)
    vectors: dict[str, list[list[float]]] = {}
    for name in (large.name, short.name):
        job_id = _of(running, large.name)
        chunk_id = running.chunk(job_id)
        with running.db.write() as tx:
            tx.execute(update(tables.chunks).where(tables.chunks.c.chunk_id == chunk_id).values(model=large.name))
        if name == short.name:
            running.smaller(chunk_id)
        assert run_chunk(running.site, chunk_id, GO) is Result.DONE
        bodies = [one["response"]["body"] for one in running.lines(job_id, "output")]
        assert {body["model"] for body in bodies} == {name}
        vectors[name] = [body["data"][0]["embedding"] for body in bodies]
    assert [len(one) for one in vectors[short.name]] == [64, 64, 64]
    for whole, cut in zip(vectors[large.name], vectors[short.name], strict=True):
        norm = sum(value * value for value in whole[:64]) ** 0.5
        assert sum(a * b for a, b in zip(whole, cut, strict=False)) / norm == pytest.approx(1.0, abs=1e-3)


def _of(running: Running, model: str) -> str:
    """Store a job of three texts that ask for a model."""
    job_id = running.job(3, text=lambda i: f"the grid is cleanest at night, part {i}")
    with running.db.write() as tx:
        mine = tables.jobs.c.job_id == job_id
        tx.execute(update(tables.jobs).where(mine).values(model=model, requested_model=model))
    return job_id

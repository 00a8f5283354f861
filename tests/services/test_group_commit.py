"""Jobs that are stored together come out as if each had been stored alone; a crash leaves whole groups or none."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carbonq.blobs.folder import FolderStaged, FolderStore
from carbonq.errors import CarbonqError, StoreUnavailable, Unavailable
from carbonq.model import HeldKind, Job, JobState, Quota, RegionState
from carbonq.services import group_commit, hold, run
from carbonq.services.group_commit import GroupCommit, Waiting
from carbonq.services.retire import Keep, retire
from carbonq.store import events, jobs, tables
from carbonq.store.database import Database, Tx
from carbonq.testing import FakeEngine
from tests.services.grouped import inputs_of, settle, store_of, waiting
from tests.services.jobs import World, line, lines, request
from tests.services.running import MODEL, OTHER, REGION, Bench

ROOT = Path(__file__).parents[2]


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


def outcome(future: Future[tuple[Job, bool]]) -> tuple[str, bool | None]:
    assert future.done()
    error = future.exception()
    if error is None:
        return "stored", future.result()[1]
    return error.code if isinstance(error, CarbonqError) else "unstorable", None


def alone(world: World, source: bytes, changes: dict[str, Any]) -> tuple[str, bool | None]:
    try:
        return "stored", world.submit(source, **changes)[1]
    except CarbonqError as error:
        return error.code, None
    except Exception:
        return "unstorable", None


#: What a job of a group may be: its fields, and what becomes of it is for the way of single jobs to say.
KINDS: list[dict[str, Any]] = [
    {},
    {"idempotency_key": "k-1"},
    {"idempotency_key": "k-1", "workload": "another"},
    {"idempotency_key": "k-2"},
    {"tenant": "rival", "idempotency_key": "k-1"},
    {"tenant": "drained"},
    {"deadline_at": request().deadline_at - timedelta(hours=6) + timedelta(seconds=1)},
    {"metadata": {"text": "\ud800"}},  # no database can hold it
]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3), st.booleans()), min_size=1, max_size=7))
def test_each_is_answered_as_if_it_had_come_alone(world: World, plan: list[tuple[dict[str, Any], int, bool]]) -> None:
    sources = [lines(count).rstrip(b"\n") + b"\n" * ends for _, count, ends in plan]
    empty(world)
    expected = [alone(world, source, kind) for (kind, _, _), source in zip(plan, sources, strict=True)]
    empty(world)
    group = [waiting(world, source, **kind) for (kind, _, _), source in zip(plan, sources, strict=True)]
    settle(store_of(world), group)
    assert [outcome(one.future) for one in group] == expected
    new = [(one.future.result()[0], one.data) for one in group if outcome(one.future) == ("stored", True)]
    assert inputs_of(world) == {job.job_id: data.strip().split(b"\n") for job, data in new}
    assert [job.job_id for job, _ in new] == sorted(job.job_id for job, _ in new)
    for job, _ in new:
        assert world.job(job.job_id) == job
    with world.db.read() as tx:
        assert [event.job_id for event in events.after(tx, None)] == [job.job_id for job, _ in new]


def empty(world: World) -> None:
    with world.db.write() as tx:
        for table in (tables.items, tables.jobs, tables.events):
            tx.execute(table.delete())
    hold.set_state(world.db, world.clock, HeldKind.TENANT, "drained", RegionState.DRAINING)
    with world.db.write() as tx:
        tx.execute(tables.events.delete())


class Late(FolderStore):
    """A folder in which something happens before the group's blob is staged, or when it is given its key."""

    def __init__(self, root: Path, act: Callable[[], object]) -> None:
        super().__init__(root)
        self._act = act

    def stage(self) -> FolderStaged:
        self._act()
        return super().stage()


def test_a_key_that_another_process_used_meanwhile(world: World) -> None:
    group = [waiting(world, lines(1)), waiting(world, lines(2), idempotency_key="k"), waiting(world, lines(3))]
    first: list[Job] = []

    def be_faster() -> None:
        if not first:
            first.append(world.submit(lines(2), idempotency_key="k")[0])

    store_of(world, Late(world.blobs.root, be_faster)).settle(group)
    assert [outcome(one.future) for one in group] == [("stored", True), ("stored", False), ("stored", True)]
    assert group[1].future.result()[0] == first[0]
    assert len(world.files()) == 3  # nothing is left of the group's blob


def test_a_group_gets_as_far_as_the_quota_goes(world: World) -> None:
    limits = {"default": Quota(open_jobs=3), "rival": Quota(items_waiting=2)}
    rivals = [waiting(world, lines(2), tenant="rival") for _ in range(2)]
    group = [*(waiting(world, lines(1)) for _ in range(4)), *rivals, waiting(world, lines(1), tenant="free")]
    store_of(world, quota_of=lambda tenant: limits.get(tenant, Quota())).settle(group)
    said = [outcome(one.future)[0] for one in group]
    assert said == ["stored"] * 3 + ["quota_exceeded", "stored", "quota_exceeded", "stored"]
    assert world.stored() == (5, 6)


def test_a_full_disk_refuses_the_group_and_keeps_nothing(world: World) -> None:
    def refuse() -> None:
        raise StoreUnavailable("the disk is full", code="disk_full")

    group = [waiting(world, lines(1)) for _ in range(3)]
    store_of(world, Late(world.blobs.root, refuse)).settle(group)
    assert [outcome(one.future) for one in group] == [("disk_full", None)] * 3
    assert (world.stored(), world.files()) == ((0, 0), [])


def test_a_commit_whose_answer_was_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write = world.db.write

    @contextmanager
    def lost() -> Iterator[Tx]:
        with write() as tx:
            yield tx
        raise StoreUnavailable("the connection broke")

    group = [waiting(world, lines(1)) for _ in range(3)]
    monkeypatch.setattr(world.db, "write", lost)
    store_of(world).settle(group)
    assert [outcome(one.future) for one in group] == [("stored", True)] * 3
    assert len(inputs_of(world)) == 3


def test_a_commit_that_is_refused_leaves_no_blob(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write = world.db.write

    @contextmanager
    def refused() -> Iterator[Tx]:
        with write() as tx:
            yield tx
            raise StoreUnavailable("no room for the journal")

    group = [waiting(world, lines(1)) for _ in range(3)]
    monkeypatch.setattr(world.db, "write", refused)
    store_of(world).settle(group)
    assert [outcome(one.future) for one in group] == [("store_unavailable", None)] * 3
    assert (world.stored(), world.files()) == ((0, 0), [])


def test_those_that_come_while_a_group_is_stored_are_the_next_one(world: World) -> None:
    groups: list[int] = []
    reached, may_go = threading.Event(), threading.Event()
    store = store_of(world)

    def held(group: Sequence[Waiting]) -> None:
        groups.append(len(group))
        reached.set()
        assert may_go.wait(30)
        store.settle(group)

    queue = GroupCommit(held)
    one = waiting(world, lines(1))
    futures = [queue.put(one.checked, one.data)]
    assert reached.wait(30)
    futures += [queue.put(one.checked, one.data) for _ in range(4)]
    given_up = queue.put(one.checked, one.data)
    assert given_up.cancel()  # its client went away
    assert not futures[0].cancel()  # this one's turn has come
    assert queue.waiting == 5
    may_go.set()
    queue.close()
    assert groups == [1, 4]
    assert [outcome(future) for future in futures] == [("stored", True)] * 5
    assert len(world.files()) == 2
    with pytest.raises(Unavailable, match="about to end"):
        queue.put(one.checked, one.data)


def test_a_defect_leaves_nobody_waiting(world: World) -> None:
    store = store_of(world)

    def broken(group: Sequence[Waiting]) -> None:
        if len(group[0].checked.found.items) == 2:
            raise RuntimeError("a defect")
        store.settle(group)

    queue = GroupCommit(broken)
    bad, good = waiting(world, lines(2)), waiting(world, lines(1))
    with pytest.raises(RuntimeError, match="a defect"):
        queue.put(bad.checked, bad.data).result(30)
    assert queue.put(good.checked, good.data).result(30)[1]
    queue.close()


def test_what_waits_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = waiting(world, lines(1))
    monkeypatch.setattr(group_commit, "MAX_WAITING_BYTES", 3 * len(one.data))
    may_go = threading.Event()

    def held(group: Sequence[Waiting]) -> None:
        assert may_go.wait(30)
        for waits in group:
            waits.future.set_exception(StoreUnavailable("gone"))

    queue = GroupCommit(held)
    queue.put(one.checked, one.data)
    while queue.waiting:  # the first is taken and counts no more
        threading.Event().wait(0.001)
    for _ in range(3):
        queue.put(one.checked, one.data)
    with pytest.raises(Unavailable, match="too many jobs wait") as refused:
        queue.put(one.checked, one.data)
    assert refused.value.retry_after_s == 1.0
    may_go.set()
    queue.close()


@pytest.mark.parametrize(("limit", "most"), [("MAX_JOBS", 4), ("MAX_ITEMS", 8), ("MAX_BYTES", 4)])
def test_a_group_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    one = waiting(world, lines(2))
    monkeypatch.setattr(group_commit, limit, most * len(one.data) if limit == "MAX_BYTES" else most)
    assert group_commit.fitting([one] * 3) == 3
    assert group_commit.fitting([one] * 9) == 4
    keyed = waiting(world, lines(2), idempotency_key="k")
    assert group_commit.fitting([one, keyed, keyed]) == 2  # the second will be answered with the first one's job
    monkeypatch.setattr(group_commit, limit, 1)
    assert group_commit.fitting([one] * 9) == 1  # one that is too large for any goes by itself


def test_a_worker_opens_a_shared_input_once(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    world = World(sqlite_database, tmp_path, clock=bench.clock, models={MODEL.name: MODEL}, regions=(REGION, OTHER))
    texts = ["one", "two words", "and three words"]
    new = {"model": MODEL.name, "deadline_at": bench.clock.now() + timedelta(hours=6), "tenant": "acme"}
    group = [waiting(world, line(0, text, body={"input": text}), **new) for text in texts]
    store_of(world, bench.blobs).settle(group)
    job_ids = [one.future.result()[0].job_id for one in group]
    opened: list[str] = []
    ranges = bench.blobs.ranges
    bench.blobs.ranges = lambda key, spans: opened.append(key) or ranges(key, spans)  # type: ignore[method-assign]
    ran: list[str] = []
    bench.engine = FakeEngine(on_item=lambda request: ran.append(request.body["input"]))
    bench.site = bench.make_site("worker-1")
    assert run.run_chunk(bench.site, bench.chunk(*job_ids), threading.Event()) is run.Result.DONE
    assert sorted(ran) == sorted(texts)
    assert opened == [bench.get_job(job_ids[0]).input_blob]
    for job_id in job_ids:
        bench.check_once(job_id)


def test_a_shared_input_stays_until_all_its_jobs_are_retired(world: World) -> None:
    group = [waiting(world, lines(1)) for _ in range(3)]
    store_of(world).settle(group)
    made = [one.future.result()[0] for one in group]
    neighbour = world.submit(1)[0]
    assert len({job.input_blob for job in made}) == 1

    def finish(job: Job) -> None:
        with world.db.write() as tx:
            jobs.mark_finishing(tx, job.job_id)
            at = world.clock.now()
            jobs.finish(tx, job.job_id, JobState.COMPLETED, output_blob=None, error_blob=None, error=None, at=at)

    for job in made[:2]:
        finish(job)
    world.clock.advance(3 * 86_400)
    finish(made[2])
    retire(world.db, world.blobs, world.clock, Keep(results_days=1))
    assert made[0].input_blob in world.files()
    world.clock.advance(3 * 86_400)
    retire(world.db, world.blobs, world.clock, Keep(results_days=1))
    assert world.files() == [neighbour.input_blob]


def test_a_kill_leaves_all_of_a_group_or_nothing(sqlite_database: Database, tmp_path: Path) -> None:
    # In a process of its own: forking one that has threads is asking for trouble.
    code = "from pathlib import Path; from tests.services.grouped import check_kills; check_kills({!r}, Path({!r}))"
    command = [sys.executable, "-c", code.format(sqlite_database.url, str(tmp_path))]
    subprocess.run(command, check=True, cwd=ROOT, timeout=60)

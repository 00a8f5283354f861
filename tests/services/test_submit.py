"""A job is stored whole, or one sentence says why not and nothing stays."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from carbonq.errors import Infeasible, InvalidRequest, StoreUnavailable
from carbonq.model import Endpoint, JobState, Throughput
from carbonq.services import submit
from carbonq.store import events, items, jobs
from carbonq.store import regions as region_rows
from carbonq.store.database import Database
from tests.services.jobs import REGIONS, World, line, lines
from tests.store.rows import T0


@pytest.fixture
def world(sqlite_database: Database, tmp_path: Path) -> World:
    return World(sqlite_database, tmp_path)


def test_a_job_is_stored_with_its_items_and_its_input(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    source = b"\xef\xbb\xbf" + line(0) + b"\r\n" + line("ü", "12345678901234567890")
    job, is_new = world.submit(
        source, regions=("south", "north", "south"), max_carbon_g=Decimal("5.5"), metadata={"a": "b"}
    )
    assert is_new
    assert world.job(job.job_id) == job
    assert (job.state, job.items_total, job.est_tokens, job.created_at) == (JobState.WAITING, 2, 8, T0)
    assert (job.regions, job.home_region, job.input_bytes) == (("south", "north"), "north", len(source))
    assert world.files() == [job.input_blob]
    with world.db.read() as tx:
        stored = items.unchunked(tx, [job.job_id])
        assert [tokens for _, _, tokens in stored] == [3, 5]
        assert [event.type for event in events.after(tx, "default", job.job_id)] == ["job.created"]
        rows = tx.execute(text("SELECT line_offset, line_bytes, custom_id FROM items ORDER BY idx")).all()
    assert [source[offset : offset + size] for offset, size, _ in rows] == [
        line(0).strip(),
        line("ü", "1234567890" * 2).strip(),
    ]
    assert [name for _, _, name in rows] == ["a-0", "a-ü"]


def _limits(**changes: int) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.limits = replace(world.limits, **changes)

    return change


def _nothing(_world: World) -> None:
    pass


CASES: list[tuple[bytes, dict[str, Any], Callable[[World], None], str, str, int | None, str | None]] = [
    (b"", {}, _nothing, "empty_file", "the input has no items", None, None),
    (b"\n \r\n", {}, _nothing, "empty_file", "the input has no items", None, None),
    (line(0) + b"\nnope\n", {}, _nothing, "invalid_json_line", "line 3 is not JSON", 3, None),
    (
        line(0) + line(1) + b"\n" + line(0),
        {},
        _nothing,
        "duplicate_custom_id",
        'line 4: custom_id "a-0" was used by line 1 already',
        4,
        "custom_id",
    ),
    (line(0, url="/v1/chat/completions"), {}, _nothing, "url_mismatch", "line 1: url is", 1, "url"),
    (
        line(0) + line(1, body={"model": "talk", "input": "x"}),
        {},
        _nothing,
        "model_mismatch",
        "line 2: body.model is \"talk\", but this job is for 'words'",
        2,
        "body.model",
    ),
    (
        line(0) + line(1, "x" * 4 * 151),
        {},
        _nothing,
        "context_length_exceeded",
        "line 2: body.input has about 151 tokens; model 'words' takes 100 at most: shorten the text or split it",
        2,
        "body.input",
    ),
    (lines(4), {}, _limits(max_items=3), "too_many_tasks", "line 4: the job has more than 3 items; split it", 4, None),
    (
        line(1, carbon={"deadline": "1h"}),
        {},
        _nothing,
        "invalid_request",
        "carbon cannot be said of single lines",
        1,
        "carbon",
    ),
    (lines(4), {}, _limits(max_line_bytes=50), "line_too_long", "line 1 is longer than 50 bytes", 1, None),
    (
        lines(4),
        {},
        _limits(max_input_bytes=99),
        "input_too_large",
        "the limit is 99: split it over several jobs or raise CARBONQ_MAX_INPUT_BYTES",
        None,
        None,
    ),
    (
        lines(1),
        {"model": "wrods"},
        _nothing,
        "model_not_found",
        "there is no model 'wrods'; did you mean 'words'? known models: talk, words",
        None,
        "model",
    ),
    (
        lines(1),
        {"model": "talk"},
        _nothing,
        "invalid_request",
        "model 'talk' answers /v1/chat/completions, not /v1/embeddings; models for that: words",
        None,
        "model",
    ),
    (
        lines(1),
        {"regions": ("north", "mars")},
        _nothing,
        "region_not_found",
        "there is no region 'mars'; known regions: north, south",
        None,
        "region",
    ),
    (lines(1), {"regions": ()}, _nothing, "invalid_request", "region is an empty list", None, "region"),
    (
        lines(1),
        {"model": "talk", "endpoint": Endpoint.CHAT, "regions": ("south",)},
        _nothing,
        "invalid_request",
        "none of the allowed regions serves model 'talk'; it runs in: north",
        None,
        "region",
    ),
    (
        lines(1),
        {"deadline_at": T0},
        _nothing,
        "deadline_in_the_past",
        "deadline 2026-03-02T08:00:00.000000Z is in the past (grid time is 2026-03-02T08:00:00.000000Z)",
        None,
        "deadline",
    ),
    (lines(1), {"max_carbon_g": Decimal(0)}, _nothing, "invalid_request", "above 0 grams", None, "max_carbon_g"),
    (lines(1), {"max_carbon_g": Decimal("NaN")}, _nothing, "invalid_request", "above 0 grams", None, "max_carbon_g"),
    (lines(1), {"workload": "a\0"}, _nothing, "invalid_request", "printable text", None, "workload"),
    (lines(1), {"product_line": "x" * 256}, _nothing, "invalid_request", "at most 255", None, "product_line"),
    (lines(1), {"idempotency_key": ""}, _nothing, "invalid_request", "is empty", None, "Idempotency-Key"),
    (lines(1), {"metadata": {"k": "v" * 513}}, _nothing, "invalid_request", "values of 512", None, "metadata"),
]


@pytest.mark.parametrize(("source", "changes", "prepare", "code", "says", "number", "param"), CASES)
def test_a_bad_request_is_told_what_is_wrong_and_nothing_stays(  # noqa: PLR0917 (a table)
    world: World,
    source: bytes,
    changes: dict[str, Any],
    prepare: Callable[[World], None],
    code: str,
    says: str,
    number: int | None,
    param: str | None,
) -> None:
    prepare(world)
    with pytest.raises(InvalidRequest) as error:
        world.submit(source, **changes)
    assert says in error.value.message
    assert (error.value.code, error.value.line, error.value.param) == (code, number, param)
    assert world.files() == []
    assert world.stored() == (0, 0)


def test_a_deadline_that_cannot_be_met_says_what_can(world: World) -> None:
    world.regions = REGIONS[:1]
    source = lines(2_000, "x" * 400)  # 200,000 tokens at 1,000/s on two slots
    with pytest.raises(Infeasible) as error:
        world.submit(source, deadline_at=T0 + timedelta(seconds=100))
    assert error.value.param == "deadline"
    assert error.value.message.startswith(
        "the deadline in 100 s cannot be met: 2,000 items of about 200,000 tokens need"
    )
    assert "with all 2 slots of north to itself it would be finished by about 2026-03-02T08:0" in error.value.best
    assert world.files() == []
    world.learned[("words", "cpu")] = Throughput("words", "cpu", 100_000.0, 3, 9)
    assert world.submit(source, deadline_at=T0 + timedelta(seconds=100))[1]


def test_the_span_it_names_is_enough(world: World) -> None:
    source = lines(2_000, "x" * 400)
    with pytest.raises(Infeasible) as error:
        world.submit(source, deadline_at=T0 + timedelta(seconds=10))
    words = error.value.best.rpartition(", ")[2].split()
    assert words[1:] == ["min", "from", "now"]
    assert world.submit(source, deadline_at=T0 + timedelta(minutes=int(words[0])))[1]


def test_a_repeated_request_returns_the_first_job(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    first, is_new = world.submit(3, idempotency_key="k")
    assert is_new
    world.clock.advance(8 * 3600)
    again, is_new = world.submit(3, idempotency_key="k", deadline_at=T0 + timedelta(hours=1))
    assert (again, is_new) == (first, False)
    assert world.files() == [first.input_blob]
    with pytest.raises(InvalidRequest, match=f"was used for job {first.job_id}.*use a fresh key") as error:
        world.submit(4, idempotency_key="k", deadline_at=T0 + timedelta(hours=14))
    assert error.value.code == "idempotency_key_reused"
    with pytest.raises(InvalidRequest, match="other fields"):
        world.submit(3, idempotency_key="k", workload="w")
    other, is_new = world.submit(3, idempotency_key="k", tenant="other", deadline_at=T0 + timedelta(hours=14))
    assert is_new
    assert world.stored() == (2, 6)
    assert world.files() == sorted([first.input_blob, other.input_blob])


def test_the_same_request_twice_at_once_makes_one_job(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(database, tmp_path)
    both = threading.Barrier(2, timeout=20)
    real = submit.read_input

    def read(*arguments: Any) -> Any:
        found = real(*arguments)
        both.wait()  # neither has seen the other's job by now
        return found

    monkeypatch.setattr(submit, "read_input", read)
    outcomes: list[tuple[str, bool]] = []

    def run() -> None:
        job, is_new = world.submit(3, idempotency_key="k")
        outcomes.append((job.job_id, is_new))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(is_new for _, is_new in outcomes) == [False, True]
    assert len({job_id for job_id, _ in outcomes}) == 1
    assert world.stored() == (1, 3)
    assert len(world.files()) == 1


@pytest.mark.parametrize("error", [RuntimeError, StoreUnavailable, KeyboardInterrupt])
def test_a_failure_while_storing_leaves_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    world = World(database, tmp_path)

    def fail(*_arguments: object) -> None:
        raise error("no")

    for module, name in ((items, "insert_many"), (events, "append_many")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(error):
                world.submit(3)
        assert world.files() == []
        assert world.stored() == (0, 0)
    assert world.submit(3)[1]


def test_a_job_whose_commit_was_not_answered_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Database.write

    class Lost:
        """The commit arrives, its answer does not."""

        def __init__(self) -> None:
            self.inner = real(world.db)

        def __enter__(self) -> Any:
            return self.inner.__enter__()

        def __exit__(self, *error: Any) -> None:
            self.inner.__exit__(*error)
            raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(world.db, "write", Lost)
    job, is_new = world.submit(3)
    assert is_new
    assert world.files() == [job.input_blob]
    with world.db.read() as tx:
        assert jobs.get(tx, job.job_id) == job


def test_a_job_says_what_cannot_be_in_time_beside_the_work_accepted_before(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    north = replace(REGIONS[0], slots=1)
    with database.write() as tx:
        region_rows.sync(tx, [north])
    world.regions = (north,)
    hour = T0 + timedelta(hours=1)
    # Eighty items of 25,000 tokens each need 2,000 s of the hour on the only slot.
    heavy = b"".join(line(n, "x" * 400, body={"model": "words", "input": ["x" * 400] * 250}) for n in range(80))
    first, _ = world.submit(heavy, deadline_at=hour)
    assert first.infeasible is None
    # Neither cut into chunks yet nor afterwards is it forgotten.
    for is_cut in (False, True):
        if is_cut:
            assert world.chunk() > 1
        second, _ = world.submit(heavy, deadline_at=hour)
        assert second.infeasible is not None
        assert "% of this job cannot be in time; all of it by about 2026-03-02T09:" in second.infeasible
        assert re.search(r"\(\d+ s are kept free before a deadline for delays", second.infeasible)
        assert world.job(second.job_id).infeasible == second.infeasible
        with database.write() as tx:
            jobs.request_cancel(tx, second.job_id)
            tx.execute(text("UPDATE jobs SET finished_at = created_at WHERE job_id = :job"), {"job": second.job_id})
    small, _ = world.submit(1, deadline_at=hour)
    assert small.infeasible is None
    later, _ = world.submit(heavy, deadline_at=hour + timedelta(hours=1))
    assert later.infeasible is None

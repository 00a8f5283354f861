"""What a run makes of its engine: one that is away, items that may be tried again, its pace, and its figures."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from carbonq import rooms
from carbonq.engines.protocol import EngineRequest, EngineResult, ShouldStop
from carbonq.errors import EngineAway
from carbonq.services.run import PATIENCE, Result, run_chunk
from carbonq.services.site import Limits
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import chunks, engine_batches
from carbonq.testing import FakeEngine
from tests.services.running import ITEM_UJ, MODEL, Bench

GO = threading.Event()


@pytest.fixture
def bench(sqlite_database: Database, tmp_path: Path) -> Bench:
    return Bench(sqlite_database, tmp_path, limits=Limits(backoff_base_s=0.001, backoff_cap_s=90, max_attempts=2))


class Shaky(FakeEngine):
    """A fake whose results may be changed: ``mend`` gets each item's name and result."""

    flaky: frozenset[str] = frozenset()

    def run(self, requests: Sequence[EngineRequest], should_stop: ShouldStop) -> Sequence[EngineResult]:
        results = super().run(requests, should_stop)
        gone = EngineResult(502, None, 0, error_code="engine_error", error_message="reset", is_retryable=True)
        named = zip(requests, results, strict=True)
        return [
            gone if request.custom_id in self.flaky else replace(one, ttft_s=0.5, is_estimated=True)
            for request, one in named
        ]


def test_while_its_engine_is_away_a_chunk_waits_and_uses_up_no_attempt(bench: Bench) -> None:
    engine = bench.engine = FakeEngine(failures=[EngineAway("nobody listens") for _ in range(5)])
    job_id = bench.job(10)
    chunk_id = bench.chunk(job_id)
    for _ in range(5):  # more often than attempts are allowed
        assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
        bench.dispatch(chunk_id)
    assert [len(call) for call in engine.calls] == [4] * 5  # it is asked once and not in halves
    (row,) = bench.rows(chunks)
    assert (row.attempt, "nobody listens" in row.error) == (0, True)
    with bench.db.read() as tx:
        assert timedelta(seconds=60) < row.not_before - machine_now(tx) <= timedelta(seconds=90)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert bench.states(job_id) == {"succeeded": 10}


def test_a_day_after_the_deadline_tries_count_so_that_nothing_stays_open_for_ever(bench: Bench) -> None:
    away = EngineAway("nobody listens")
    engine = bench.engine = FakeEngine(failures=[away] * 6)
    job_id = bench.job(6)
    chunk_id = bench.chunk(job_id)
    deadline_s = (bench.one(chunk_id).deadline_at - bench.clock.now()).total_seconds()
    bench.clock.advance(deadline_s + PATIENCE.total_seconds() - 1)
    for _ in range(3):
        assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
        bench.dispatch(chunk_id)
    assert bench.one(chunk_id).attempt == 0
    bench.clock.advance(2)
    assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
    assert bench.one(chunk_id).attempt == 1
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert [len(call) for call in engine.calls[-2:]] == [4, 2]  # each engine batch of the last try asks once more
    assert bench.states(job_id) == {"failed": 6}
    assert {line["response"]["body"]["error"]["code"] for line in bench.lines(job_id, "error")} == {"engine_away"}
    bench.check_once(job_id)


def test_a_model_that_cannot_be_loaded_here_uses_up_no_attempt(bench: Bench) -> None:
    engines = rooms.load("workers", "engines")
    bench.engine = engines.MissingEngine("llama_cpp", "xllamacpp is not installed")
    chunk_id = bench.chunk(bench.job(3))
    for _ in range(3):
        assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
        bench.dispatch(chunk_id)
    (row,) = bench.rows(chunks)
    assert (row.attempt, row.error) == (0, "xllamacpp is not installed")


def test_items_that_may_be_tried_again_are_and_fail_when_the_attempts_are_used_up(bench: Bench) -> None:
    engine = bench.engine = Shaky(on_item=lambda _: bench.burn())
    engine.flaky = frozenset({"c1", "c4", "c5", "c6", "c7"})
    job_id = bench.job(8)
    chunk_id = bench.chunk(job_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
    assert bench.states(job_id) == {"succeeded": 3, "waiting": 5}
    # An engine batch without a single answer is wasted; the energy of one with some is theirs.
    assert (bench.energy_uj("wasted"), bench.energy_uj("item")) == (4 * ITEM_UJ, 4 * ITEM_UJ)
    engine.flaky = frozenset({"c5"})
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert bench.states(job_id) == {"succeeded": 7, "failed": 1}
    [line] = bench.lines(job_id, "error")
    assert (line["custom_id"], line["response"]["status_code"]) == ("c5", 502)
    bench.check_once(job_id)
    bench.check_shares()


def test_an_engine_batch_s_fill_and_times_are_kept_with_its_first_part_and_estimates_are_marked(bench: Bench) -> None:
    bench.engine = Shaky(on_item=lambda _: (bench.burn(), bench.clock.advance_machine(120)))
    job_id = bench.job(3, text=lambda index: "word " * (1 + index))
    assert run_chunk(bench.site, bench.chunk(job_id), GO) is Result.DONE
    first, *others = sorted(bench.rows(engine_batches, engine_batches.c["items"] == 3), key=lambda row: row.part)
    assert (first.capacity_items, first.tokens, first.padded_tokens, first.estimated_items) == (4, 6, 9, 3)
    assert (first.ttft_us, first.output_token_us, first.speculative) == (500_000, None, None)
    assert others and {row.tokens for row in others} == {None}
    assert all(line["response"]["body"]["usage"]["is_estimated"] for line in bench.lines(job_id, "output"))


def test_an_engine_batch_takes_no_more_than_a_third_of_the_lease_by_the_pace_it_has(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, limits=Limits(lease_s=3.0))
    model = replace(MODEL, batch_items=50)
    engine = bench.engine = FakeEngine()
    job_id = bench.job(20)  # 40 estimated tokens, foretold to take 1 s
    site = replace(bench.site, models={MODEL.name: model})
    run_chunk(site, bench.chunk(job_id), GO)
    # 40 tokens a second for 1 s; each item weighs 2.
    assert len(engine.calls[0]) == 20
    again = bench.job(200, prefix="d")
    chunk_id = bench.chunk(again)
    with bench.db.write() as tx:
        tx.execute(chunks.update().where(chunks.c.chunk_id == chunk_id).values(est_duration_s=100.0))
    run_chunk(site, chunk_id, GO)
    # 4 tokens a second are foretold; what is measured is more, and what follows as large as the model allows.
    assert [len(call) for call in engine.calls[1:3]] == [2, 50]

"""What runs, calls and ticks tell a tracer: the ledger's figures, links to submits, nothing of what clients wrote."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from carbonq import tracing
from carbonq.booking import Booking
from carbonq.engines.protocol import Stopped
from carbonq.errors import EngineError, LeaseLost
from carbonq.ratebook import RateBook
from carbonq.services import checkpoint, realtime, traced, validate
from carbonq.services.plan import PlanSummary
from carbonq.services.run import Result, run_chunk
from carbonq.services.site import Site
from carbonq.store import results
from carbonq.store.database import Database
from carbonq.store.tables import entries, jobs
from carbonq.testing import FakeEngine
from carbonq.tracing import Traces
from tests.collector import Collector, Seen, collector
from tests.services import batching
from tests.services.grouped import store_of, waiting
from tests.services.jobs import World, lines
from tests.services.running import ITEM_UJ, MODEL, Bench
from tests.services.test_realtime import payload
from tests.services.test_trailing_meter import LAG_S, Trailing
from tests.services.test_validate import made
from tests.unit.test_tracing import CALLER, UNKEPT

GO = threading.Event()

#: What must never be in a span: a prompt, names of items, a tenant, its key and its words for its work.
SECRETS = (b"whispered", b"item-name", b"acme", b"key_1", b"search")


@pytest.fixture
def bench(sqlite_database: Database, tmp_path: Path) -> Bench:
    return Bench(sqlite_database, tmp_path)


@contextmanager
def tracer(monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[Traces, Collector]]:
    """A real tracer and the collector that has all its spans when the body is over."""
    with collector() as there:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url)
        traces = tracing.start("test", version="1")
        try:
            yield traces, there
        finally:
            traces.close()


def seen_of(bench: Bench, *job_ids: str, monkeypatch: pytest.MonkeyPatch, **site: Any) -> tuple[Result, list[Seen]]:
    with tracer(monkeypatch) as (traces, there):
        result = run_chunk(replace(bench.site, traces=traces, **site), bench.chunk(*job_ids), GO)
    assert not any(secret in body for secret in SECRETS for body in there.bodies)
    return result, there.spans


def job(bench: Bench, count: int, context: str | None = None) -> str:
    job_id = bench.job(count, prefix="item-name-", text=lambda _: "whispered words")
    with bench.db.write() as tx:
        tx.execute(update(jobs).where(jobs.c.job_id == job_id).values(trace_context=context))
    return job_id


def context(number: int) -> str:
    return f"00-{number:032x}-{number:016x}-01"


def at(*contexts: str) -> list[tuple[str, str]]:
    return [(one[3:35], one[36:52]) for one in contexts]


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_is_linked_to_its_submits_and_tells_the_ledgers_figures(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = [context(2), None, context(1), UNKEPT, context(2)]
    result, seen = seen_of(bench, *(job(bench, 2, one) for one in contexts), monkeypatch=monkeypatch)
    assert result is Result.DONE
    (run,) = [one for one in seen if one.name == "run chunk"]
    assert run.links == at(context(2), context(1)) and not run.parent_id and run.kind == 5
    said = run.attributes
    assert (said["carbonq.items"], said["carbonq.jobs"], said["carbonq.attempt"]) == (10, 5, 1)
    assert (said["carbonq.region"], said["messaging.destination.name"]) == ("fr", "flexible.fr")
    assert (said["gen_ai.operation.name"], said["gen_ai.request.model"]) == ("embeddings", MODEL.name)
    assert said["carbonq.result"] == "done"
    assert not {"carbonq.links_left_out", "carbonq.placement.forecast"} & said.keys()  # there was no placement
    (commit,) = [one for one in seen if one.name == "commit"]
    assert (commit.attributes["carbonq.items"], commit.attributes["carbonq.entries"]) == (10, 10)
    batches = [one for one in seen if one.name == f"embeddings {MODEL.name}"]
    assert len(batches) == 3 and len(seen) == 5
    assert all(one.trace_id == run.trace_id and one.parent_id == run.span_id for one in [*batches, commit])
    assert all(run.began_ns <= one.began_ns <= one.ended_ns <= run.ended_ns for one in batches)
    for one in batches:
        booked = bench.rows(entries, entries.c.engine_batch_id == one.attributes["carbonq.engine_batch.id"])
        assert one.attributes.pop("carbonq.energy_meter") == ["cpu:cpu_time"]
        assert one.attributes == pytest.approx(
            {
                "gen_ai.operation.name": "embeddings",
                "gen_ai.request.model": MODEL.name,
                "gen_ai.response.model": MODEL.name,
                "gen_ai.provider.name": "fake",
                "gen_ai.usage.input_tokens": 2 * len(booked),
                "carbonq.engine_batch.id": one.attributes["carbonq.engine_batch.id"],
                "carbonq.region": "fr",
                "carbonq.window": one.attributes["carbonq.window"],
                "carbonq.windows": 1,
                "carbonq.items": len(booked),
                "carbonq.energy_kind": "item",
                "carbonq.energy_joules": float(sum(row.energy_uj for row in booked)) / 1e6,
                "carbonq.energy_quality": "estimated",
                "carbonq.pue": 1.2,
                "carbonq.intensity": 100.0,
                "carbonq.intensity_status": "provisional",
                "carbonq.emission_grams": float(sum(row.emission_g for row in booked)),
                "carbonq.inventory_status": "missing",  # and no inventory_grams: no average rate is known
            }
        )
    assert sum(one.attributes["carbonq.energy_joules"] for one in batches) == pytest.approx(10 * ITEM_UJ / 1e6)


def test_without_a_rate_there_are_no_grams(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = RateBook.of({"fr": "FR"}, [], now=bench.clock.now(), settle_after_s=0)
    _, seen = seen_of(bench, job(bench, 1), monkeypatch=monkeypatch, rates=lambda: empty)
    (said,) = (one.attributes for one in seen if one.name.startswith("embeddings"))
    assert said["carbonq.intensity_status"] == "missing"
    assert not {"carbonq.intensity", "carbonq.emission_grams", "carbonq.inventory_grams"} & said.keys()
    assert said["carbonq.energy_joules"] > 0


def test_a_run_of_many_jobs_says_how_many_links_it_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_ids = [job(bench, 1, context(number)) for number in range(1, tracing.MAX_LINKS + 6)]
    _, seen = seen_of(bench, *job_ids, monkeypatch=monkeypatch)
    (run,) = [one for one in seen if one.name == "run chunk"]
    assert run.links == at(*(context(number) for number in range(1, tracing.MAX_LINKS + 1)))  # the oldest
    assert (run.attributes["carbonq.links_left_out"], run.attributes["carbonq.jobs"]) == (5, tracing.MAX_LINKS + 5)


def test_a_checkpoint_of_many_engine_batches_tells_of_some_and_counts_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced, "MAX_ENGINE_BATCHES", 2)
    _, seen = seen_of(bench, job(bench, 20), monkeypatch=monkeypatch)
    (commit,) = [one for one in seen if one.name == "commit"]
    assert commit.attributes["carbonq.engine_batches"] == 5
    assert commit.attributes["carbonq.engine_batches_left_out"] == 3
    assert len([one for one in seen if one.name.startswith("embeddings")]) == 2


def test_energy_of_a_failed_engine_call_is_told_as_wasted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class FailsLate(FakeEngine):
        def run(self, requests: Any, should_stop: Any) -> Any:
            bench.burn()
            return super().run(requests, should_stop)

    engine = FailsLate(failures=[EngineError("whispered words are too long", is_retryable=True)])
    result, seen = seen_of(bench, job(bench, 2), monkeypatch=monkeypatch, engine_of=lambda _: engine)
    assert result is Result.DONE
    wasted = [one for one in seen if one.attributes.get("carbonq.energy_kind") == "wasted"]
    (one,) = wasted
    assert one.is_error and one.attributes["error.type"] == "engine_failed" and one.message == ""
    assert one.attributes["carbonq.energy_joules"] == ITEM_UJ / 1e6
    assert "gen_ai.usage.input_tokens" not in one.attributes  # nobody knows, and it is not 0


def test_a_refused_checkpoint_has_no_figures(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_more: Any) -> bool:
        raise LeaseLost("taken away")

    monkeypatch.setattr(checkpoint, "apply", refuse)
    result, seen = seen_of(bench, job(bench, 2, CALLER), monkeypatch=monkeypatch)
    assert result is Result.LOST
    by_name = {one.name: one for one in seen}
    assert by_name["commit"].attributes["error.type"] == LeaseLost.code
    call = by_name[f"embeddings {MODEL.name}"]
    assert call.is_error and call.attributes["error.type"] == "not_committed"
    assert not {name for name in call.attributes if name.endswith(("_joules", "_grams"))}
    run = by_name["run chunk"]
    assert run.attributes["carbonq.result"] == "lost" and run.links == at(CALLER)


def test_a_later_attempt_is_linked_to_the_same_submit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracer(monkeypatch) as (traces, there):
        site = replace(bench.site, traces=traces)
        chunk_id = bench.chunk(job(bench, 8, CALLER))
        stop = threading.Event()
        bench.engine = FakeEngine(on_item=lambda _: stop.set())
        assert run_chunk(site, chunk_id, stop) is Result.GIVEN_BACK
        bench.engine = FakeEngine()
        bench.dispatch(chunk_id)
        assert run_chunk(site, chunk_id, GO) is Result.DONE
    runs = there.named("run chunk")
    assert [one.attributes["carbonq.result"] for one in runs] == ["given_back", "done"]
    assert [one.links for one in runs] == [at(CALLER), at(CALLER)]
    assert runs[0].trace_id != runs[1].trace_id


# --- realtime --------------------------------------------------------------------------------------------------------


def answered(site: Site, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[list[Booking], list[Seen]]:
    kept: list[Booking] = []
    with tracer(monkeypatch) as (traces, there):
        realtime.answer(replace(site, traces=traces), payload(traceparent=CALLER, **changes), kept.append)
    return kept, there.spans


def test_a_realtime_call_is_the_apis_child(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (booked,), (seen,) = answered(bench.site, monkeypatch, **{"class": "interactive"})
    assert (seen.trace_id, seen.parent_id) == at(CALLER)[0]
    assert seen.attributes["carbonq.class"] == "interactive"
    assert seen.attributes["carbonq.energy_joules"] == ITEM_UJ / 1e6
    assert seen.attributes["carbonq.emission_grams"] == pytest.approx(float(booked.entries[0]["emission_g"]))
    assert seen.attributes["gen_ai.usage.input_tokens"] == 2


@pytest.mark.parametrize(
    ("failure", "code"), [(EngineError("two words", is_retryable=False), "engine_failed"), (Stopped(), None)]
)
def test_a_call_that_fails_or_is_given_up_is_told_as_wasted(
    failure: Exception, code: str | None, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.engine = FakeEngine(failures=[failure])
    _, (seen,) = answered(bench.site, monkeypatch)
    assert seen.attributes["carbonq.energy_kind"] == "wasted"
    assert (seen.attributes.get("error.type"), seen.is_error) == (code, code is not None)


def test_a_call_whose_meter_trails_is_told_with_its_energy(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trailing = Trailing(sqlite_database, tmp_path, LAG_S)
    with tracer(monkeypatch) as (traces, there):
        realtime.answer(replace(trailing.site, traces=traces), payload(), trailing.kept.append)
        trailing.hub.close()  # what was not known by then is now
        traces.close()
    (booked,) = trailing.kept
    (seen,) = there.spans
    assert seen.attributes["carbonq.energy_joules"] * 1e6 == pytest.approx(booked.engine_batches[0]["energy_uj"])


# --- submits, batches and ticks ---------------------------------------------------------------------------------------


def test_a_submits_context_is_kept_with_its_job(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    alone, _ = world.submit(1, trace_context=CALLER)
    group = [waiting(world, lines(1), trace_context=context(7)), waiting(world, lines(2))]
    store_of(world).settle(group)
    stored = [alone.job_id, *(one.future.result()[0].job_id for one in group)]
    with database.read() as tx:
        infos = results.job_infos(tx, stored)
    assert [infos[job_id].trace_context for job_id in stored] == [CALLER, context(7), None]


def test_a_batchs_jobs_are_linked_to_its_create(database: Database, tmp_path: Path, monkeypatch: Any) -> None:
    world = made(database, tmp_path)
    good = batching.add(world, 3, trace_context=CALLER)
    bad = batching.add(world, b"no json\n", trace_context=context(9))
    with tracer(monkeypatch) as (traces, there):
        assert validate.validate(database, world.blobs, world.clock, batching.rules(world), None, traces) == 2
    with database.read() as tx:
        kept = tx.execute(select(jobs.c.batch_id, jobs.c.trace_context)).all()
    assert [tuple(row) for row in kept] == [(good.batch_id, CALLER)]
    found = {one.attributes["carbonq.batch.id"]: one for one in there.named("validate")}
    assert found[good.batch_id].links == at(CALLER) and found[good.batch_id].attributes["carbonq.items"] == 3
    assert found[bad.batch_id].links == at(context(9)) and found[bad.batch_id].is_error
    assert not any(b"no json" in body for body in there.bodies)


def test_ticks_that_found_nothing_to_do_leave_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    summaries = [PlanSummary(), PlanSummary("plan_1", chunks=4, placed=3, late=0, objective_g=1.5)]
    with tracer(monkeypatch) as (traces, there):
        send = traced.ticking(traces, "dispatch", int, traced.of_tickets, kind="producer")
        assert [send("0"), send("3")] == [0, 3]
        plan = traced.ticking(traces, "plan", summaries.pop, traced.of_plan)
        assert plan(0).plan_id is None and plan(0).plan_id == "plan_1"
        assert traced.ticking(traces, "chunk", int, traced.of_chunking)() == 0
    sent_span, planned = there.spans
    assert sent_span.attributes["messaging.batch.message_count"] == 3 and sent_span.kind == 4
    said = planned.attributes
    assert (said["carbonq.chunks"], said["carbonq.chunks_placed"], said["carbonq.chunks_late"]) == (4, 3, 0)
    assert said["carbonq.plan.objective_grams"] == 1.5 and "carbonq.plan.lower_bound_grams" not in said


def test_off_a_tick_is_called_as_it_is() -> None:
    def act() -> int:
        return 1

    assert traced.ticking(tracing.OFF, "dispatch", act, traced.of_tickets) is act

"""Running a chunk: everything commits once, one bad item fails alone, energy is never lost nor counted twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from carbonq.blobs.disk import FileRanges
from carbonq.engines.protocol import EngineRequest, Stopped
from carbonq.errors import EngineError, StoreUnavailable
from carbonq.model import ChunkState, JobState, RegionState
from carbonq.services import burnt, heartbeat, lines
from carbonq.services.attempt import Attempt
from carbonq.services.finish import finish_jobs
from carbonq.services.run import Result, run_chunk
from carbonq.services.site import Limits
from carbonq.store import jobs as job_rows
from carbonq.store import leases, regions, throughputs
from carbonq.store.database import Database
from carbonq.store.tables import attempts, chunks, entries, events, jobs, placements
from carbonq.testing import FakeEngine
from carbonq.units import iso
from tests.services.running import ITEM_UJ, MODEL, Bench
from tests.system.processes import until

GO = threading.Event()


@pytest.fixture
def bench(sqlite_database: Database, tmp_path: Path) -> Bench:
    return Bench(sqlite_database, tmp_path)


def test_a_chunk_runs_to_its_end(bench: Bench) -> None:
    job_id = bench.job(10)
    chunk_id = bench.chunk(job_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert bench.one(chunk_id).state is ChunkState.DONE
    assert bench.states(job_id) == {"succeeded": 10}
    assert bench.get_job(job_id).state is JobState.RUNNING
    bench.check_once(job_id)
    bench.check_shares()
    assert bench.energy_uj("item") == 10 * ITEM_UJ == bench.energy_uj()
    assert bench.tickets.nudges == ["dispatch", "finish"]
    types = [row.type for row in bench.rows(events)]
    assert types == ["job.running"]
    finish_jobs(bench.db, bench.site.blobs, bench.site.clock)
    (told,) = (row.data for row in bench.rows(events) if row.type == "job.completed")
    carbon = told["carbon"]
    assert (told["total"], carbon["status"], carbon["signal"]) == (10, "provisional", "marginal")
    assert carbon["energy_wh"] == pytest.approx(10 * ITEM_UJ / 3.6e9)
    assert carbon["actual_gco2e"] == pytest.approx(10 * ITEM_UJ / 3.6e12 * 1.2 * 100)
    with bench.db.read() as tx:
        learned = throughputs.get_all(tx)[MODEL.name, "cpu"]
    assert learned.uj_per_token == ITEM_UJ // 2


def test_an_output_line_is_openais_with_carbon(bench: Bench) -> None:
    job_id = bench.job(1)
    run_chunk(bench.site, bench.chunk(job_id), GO)
    (line,) = bench.lines(job_id, "output")
    assert line["custom_id"] == "c0"
    assert line["error"] is None
    body = line["response"]["body"]
    assert line["response"]["status_code"] == 200
    assert body["object"] == "list"
    assert body["usage"]["prompt_tokens"] == 2
    carbon = body["usage"]["carbon"]
    assert carbon["region"] == "fr"
    assert carbon["signal"] == "marginal"
    assert carbon["status"] == "provisional"
    assert carbon["energy_wh"] == pytest.approx(ITEM_UJ / 3.6e9)
    assert carbon["facility_energy_wh"] == pytest.approx(ITEM_UJ / 3.6e9 * 1.2)
    assert carbon["gco2e"] == pytest.approx(ITEM_UJ / 3.6e12 * 1.2 * 100)
    assert carbon["intensity_g_per_kwh"] == 100
    (entry,) = bench.rows(entries)
    assert carbon["entry_ids"] == [entry.entry_id]
    assert Decimal(str(carbon["baseline_gco2e"])) == entry.baseline_g
    assert carbon["why"] is None  # it was dispatched without a placement


def test_an_output_line_says_why_it_ran_there_and_then(bench: Bench) -> None:
    job_id = bench.job(1)
    chunk_id = bench.chunk(job_id)
    placed = {"placement_id": "plc_1", "chunk_id": chunk_id, "plan_id": "plan_1", "region": "fr", "reason": "carbon"}
    at = bench.clock.now()
    with bench.db.write() as tx:
        tx.execute(insert(placements).values(**placed, window_at=at, g_per_kwh=Decimal("80.50"), created_at=at))
        tx.execute(update(chunks).where(chunks.c.chunk_id == chunk_id).values(placement_id="plc_1"))
    run_chunk(bench.site, chunk_id, GO)
    (line,) = bench.lines(job_id, "output")
    why = line["response"]["body"]["usage"]["carbon"]["why"]
    assert (why["reason"], why["planned_region"], why["planned_window"]) == ("carbon", "fr", iso(at))
    assert (why["forecast_g_per_kwh"], why["forecast_signal"], why["forecast_issued_at"]) == (80.5, "moer", None)


def test_entries_name_their_placement_and_baseline(bench: Bench) -> None:
    job_id = bench.job(1)
    chunk_id = bench.chunk(job_id)
    run_chunk(bench.site, chunk_id, GO)
    (entry,) = bench.rows(entries)
    assert (entry.chunk_id, entry.attempt, entry.tenant, entry.product_line) == (chunk_id, 1, "acme", "search")
    assert entry.baseline_region == "se"
    assert entry.baseline_g is not None
    assert entry.saved_g == entry.baseline_g - entry.emission_g


def test_a_doubled_or_late_ticket_does_nothing(bench: Bench) -> None:
    job_id = bench.job(5)
    chunk_id = bench.chunk(job_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert run_chunk(bench.site, chunk_id, GO) is Result.NOTHING
    assert run_chunk(bench.site, "chk_unknown", GO) is Result.NOTHING
    bench.check_once(job_id)


def test_a_ticket_of_another_region_or_undispatched_does_nothing(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(1))
    bench.dispatch(chunk_id, "se")
    assert run_chunk(bench.site, chunk_id, GO) is Result.NOTHING


def test_a_paused_region_takes_nothing_and_frees_the_chunk(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(1))
    with bench.db.write() as tx:
        regions.set_state(tx, "fr", RegionState.PAUSED)
    assert run_chunk(bench.site, chunk_id, GO) is Result.NOTHING
    chunk = bench.one(chunk_id)
    assert (chunk.state, chunk.dispatched_at, chunk.region, chunk.attempt) == (ChunkState.WAITING, None, None, 0)


def test_many_jobs_share_a_chunk(bench: Bench) -> None:
    job_ids = [bench.job(3, prefix=f"j{i}-") for i in range(4)]
    run_chunk(bench.site, bench.chunk(*job_ids), GO)
    for job_id in job_ids:
        assert bench.states(job_id) == {"succeeded": 3}
        bench.check_once(job_id)
    bench.check_shares()


def test_a_chunk_of_many_jobs_keeps_few_inputs_open(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_INPUTS", 2)
    bench = Bench(sqlite_database, tmp_path)
    job_ids = [bench.job(2, text=lambda i: "words " * (1 + i)) for _ in range(5)]
    chunk_id = bench.chunk(*job_ids)
    open_now, most = set[object](), list[int]()
    make = bench.blobs.ranges

    def ranges(key: str, spans: Sequence[tuple[int, int]]) -> FileRanges:
        made = make(key, spans)
        close = made.close

        def counted() -> None:
            open_now.discard(made)
            close()

        monkeypatch.setattr(made, "close", counted)
        open_now.add(made)
        most.append(len(open_now))
        return made

    monkeypatch.setattr(bench.blobs, "ranges", ranges)
    assert run_chunk(bench.site, chunk_id, threading.Event()) is Result.DONE
    assert max(most) == 2 and not open_now
    assert all(bench.get_job(job_id).items_succeeded == 2 for job_id in job_ids)


def test_a_bad_item_fails_alone(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    bench.engine = FakeEngine(bad_items={"c3": "context_length_exceeded"}, on_item=lambda _: bench.burn())
    job_id = bench.job(8)
    assert run_chunk(bench.site, bench.chunk(job_id), GO) is Result.DONE
    assert bench.states(job_id) == {"succeeded": 7, "failed": 1}
    (line,) = bench.lines(job_id, "error")
    assert line["custom_id"] == "c3"
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["code"] == "context_length_exceeded"
    # What it took is its own as anybody's: the lines of both files sum to what was metered.
    told = [
        one["response"]["body"]["usage"]["carbon"] for kind in ("output", "error") for one in bench.lines(job_id, kind)
    ]
    assert sum(one["energy_uj"] for one in told) == bench.energy_uj("item")
    (entry,) = bench.rows(entries, entries.c.custom_id == "c3")
    assert line["response"]["body"]["usage"]["carbon"]["entry_ids"] == [entry.entry_id]
    bench.check_once(job_id)
    assert {entry.outcome for entry in bench.rows(entries)} == {"succeeded", "failed"}


def test_a_poison_item_is_found_and_the_others_commit_at_once(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path, limits=Limits(max_attempts=2, backoff_base_s=0.0001))
    bench.engine = FakeEngine(poison={"c5"}, on_item=lambda _: bench.burn())
    job_id = bench.job(8)
    chunk_id = bench.chunk(job_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
    assert bench.states(job_id) == {"succeeded": 7, "waiting": 1}
    chunk = bench.one(chunk_id)
    assert (chunk.state, chunk.attempt, chunk.items_count) == (ChunkState.WAITING, 1, 1)
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert bench.states(job_id) == {"succeeded": 7, "failed": 1}
    (line,) = bench.lines(job_id, "error")
    assert line["response"]["body"]["error"]["code"] == "engine_error"
    bench.check_once(job_id)
    bench.check_shares()
    assert bench.energy_uj() == bench.meter.uj


def test_an_engine_that_is_down_gives_the_chunk_back_with_a_backoff(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path, limits=Limits(backoff_base_s=60))
    down = [EngineError("no answer", is_retryable=True) for _ in range(1000)]
    bench.engine = FakeEngine(failures=down)
    job_id = bench.job(100)
    chunk_id = bench.chunk(job_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
    assert len(bench.engine.calls) == 16
    assert bench.states(job_id) == {"waiting": 100}
    from carbonq.store.tables import chunks

    (row,) = bench.rows(chunks)
    assert row.not_before is not None
    assert "no answer" in row.error
    assert [attempt.outcome for attempt in bench.rows(attempts)] == ["failed"]


def test_an_error_that_no_retry_mends_fails_its_items_only(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    bench.engine = FakeEngine(failures=[EngineError("bad kernel", is_retryable=False, code="bad_kernel")] * 3)
    job_id = bench.job(4)
    assert run_chunk(bench.site, bench.chunk(job_id), GO) is Result.DONE
    assert bench.states(job_id) == {"succeeded": 3, "failed": 1}
    bench.check_once(job_id)


def test_stop_gives_the_rest_back_uncounted(sqlite_database: Database, tmp_path: Path) -> None:
    stop = threading.Event()
    bench = Bench(sqlite_database, tmp_path)

    def burn(request: EngineRequest) -> None:
        bench.burn()
        if request.custom_id == "c5":
            stop.set()

    bench.engine = FakeEngine(on_item=burn)
    job_id = bench.job(12)
    chunk_id = bench.chunk(job_id)
    assert run_chunk(bench.site, chunk_id, stop) is Result.GIVEN_BACK
    chunk = bench.one(chunk_id)
    assert (chunk.state, chunk.attempt, chunk.items_count, chunk.est_tokens) == (ChunkState.WAITING, 0, 8, 16)
    assert bench.states(job_id) == {"succeeded": 4, "waiting": 8}
    assert bench.energy_uj("wasted") == 2 * ITEM_UJ  # the engine batch that was stopped in the middle
    assert bench.energy_uj() == bench.meter.uj
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    bench.check_once(job_id)
    bench.check_shares()
    assert bench.energy_uj() == bench.meter.uj


def test_what_stopped_an_engine_may_be_over_and_cancels_nothing(bench: Bench) -> None:
    """A lease that could not be renewed for too long, or a pause, ends while the engine stops in the middle."""
    bench.engine = FakeEngine(failures=[Stopped()])
    job_id = bench.job(4)
    chunk_id = bench.chunk(job_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.GIVEN_BACK
    assert bench.states(job_id) == {"waiting": 4}
    assert bench.one(chunk_id).attempt == 0
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    bench.check_once(job_id)


def test_cancelled_jobs_of_a_chunk_do_not_run(bench: Bench) -> None:
    kept, dropped = bench.job(3), bench.job(3, prefix="d")
    chunk_id = bench.chunk(kept, dropped)
    with bench.db.write() as tx:
        job_rows.request_cancel(tx, dropped)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert bench.states(kept) == {"succeeded": 3}
    assert bench.states(dropped) == {"cancelled": 3}
    bench.check_once(dropped)
    assert bench.energy_uj() == 3 * ITEM_UJ
    assert [row.outcome for row in bench.rows(attempts)] == ["committed"]  # the other job's items ran to the end


def test_a_cancel_in_the_middle_is_obeyed_between_engine_batches(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path, limits=Limits(renew_s=0.01, lease_s=60))

    def renewed() -> None:
        before = bench.rows(chunks)[0].lease_until
        until(lambda: bench.rows(chunks)[0].lease_until != before, 20, "renewed lease", pause_s=0.002)

    def burn(request: EngineRequest) -> None:
        bench.burn()
        if request.custom_id == "c3":
            with bench.db.write() as tx:
                tx.execute(update(jobs).values(is_cancel_requested=True))
            renewed()
            renewed()  # the one before has been heard

    bench.engine = FakeEngine(on_item=burn)
    job_id = bench.job(40)
    assert run_chunk(bench.site, bench.chunk(job_id), GO) is Result.DONE
    counts = bench.states(job_id)
    assert counts["cancelled"] >= 36
    assert sum(counts.values()) == 40
    bench.check_once(job_id)
    assert bench.energy_uj() == bench.meter.uj
    assert [row.outcome for row in bench.rows(attempts)] == ["cancelled"]


def test_checkpoints_commit_along_the_way(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path, limits=Limits(checkpoint_items=8))
    progress: list[int] = []

    def burn(request: EngineRequest) -> None:
        bench.burn()
        progress.append(bench.get_job(job_id).items_succeeded)

    bench.engine = FakeEngine(on_item=burn)
    job_id = bench.job(60)
    assert run_chunk(bench.site, bench.chunk(job_id), GO) is Result.DONE
    assert 0 < max(progress) < 60
    bench.check_once(job_id)


def test_a_zombie_is_fenced_and_its_energy_booked_once_as_wasted(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path, limits=Limits(renew_s=20, lease_s=60))
    thief = bench.make_site("worker-2")

    def burn(request: EngineRequest) -> None:
        bench.burn()
        if request.custom_id == "c2" and not bench.rows(attempts, attempts.c.worker_id == "worker-2"):
            bench.silence(chunk_id)
            _reap(bench)
            bench.dispatch(chunk_id)
            engine, bench.engine = bench.engine, FakeEngine()  # the thief's own engine burns nothing here
            assert run_chunk(thief, chunk_id, GO) is Result.DONE
            bench.engine = engine

    bench.engine = FakeEngine(on_item=burn)
    job_id = bench.job(4)
    chunk_id = bench.chunk(job_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.LOST
    assert bench.states(job_id) == {"succeeded": 4}
    bench.check_once(job_id)
    bench.check_shares()
    assert bench.energy_uj("wasted") == 4 * ITEM_UJ == bench.meter.uj
    outcomes = {row.worker_id: row.outcome for row in bench.rows(attempts)}
    assert outcomes == {"worker-1": "fenced", "worker-2": "committed"}


def _reap(bench: Bench) -> None:
    from carbonq.services.reap import reap

    reap(
        bench.db,
        bench.clock,
        rates=bench.site.rates,
        models={MODEL.name: MODEL},
        max_attempts=4,
        recorded_by="reaper",
    )


class _Away(Database):
    """A database whose writes fail while ``is_away``."""

    is_away = False

    def write(self):  # type: ignore[no-untyped-def]
        from carbonq.errors import StoreUnavailable

        if self.is_away:
            raise StoreUnavailable("away on purpose")
        return super().write()


def test_a_database_that_comes_back_in_time_costs_nothing(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    away = _Away(sqlite_database.url)
    site = bench.make_site("worker-3", db=away)

    def burn(request: EngineRequest) -> None:
        bench.burn()
        if request.custom_id == "c3":
            away.is_away = True
            threading.Timer(0.7, lambda: setattr(away, "is_away", False)).start()

    bench.engine = FakeEngine(on_item=burn)
    job_id = bench.job(4)
    assert run_chunk(site, bench.chunk(job_id), GO) is Result.DONE
    bench.check_once(job_id)
    away.dispose()


def _spooled(bench: Bench, away: _Away) -> tuple[str, str, object]:
    site = bench.make_site("worker-3", db=away, limits=Limits(lease_s=0.2, renew_s=0.1, checkpoint_items=4))

    def burn(request: EngineRequest) -> None:
        bench.burn()
        if request.custom_id == "c3":
            away.is_away = True

    bench.engine = FakeEngine(on_item=burn)
    job_id = bench.job(12)
    chunk_id = bench.chunk(job_id)
    assert run_chunk(site, chunk_id, GO) is Result.SPOOLED
    return job_id, chunk_id, site


def test_what_cannot_be_committed_is_spooled_and_replayed(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    away = _Away(sqlite_database.url)
    job_id, chunk_id, site = _spooled(bench, away)
    assert heartbeat.replay_spool(site) == 0
    away.is_away = False
    assert heartbeat.replay_spool(site) >= 1
    assert heartbeat.replay_spool(site) == 0
    assert bench.states(job_id)["succeeded"] >= 1
    assert bench.one(chunk_id).state in (ChunkState.WAITING, ChunkState.DONE)
    assert bench.energy_uj() == bench.meter.uj
    bench.dispatch(chunk_id)
    run_chunk(bench.site, chunk_id, GO)
    assert bench.states(job_id) == {"succeeded": 12}
    bench.check_once(job_id)
    bench.check_shares()
    assert bench.energy_uj() == bench.meter.uj
    away.dispose()


def test_a_spooled_checkpoint_that_comes_too_late_is_refused(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    away = _Away(sqlite_database.url)
    job_id, chunk_id, site = _spooled(bench, away)
    burnt = bench.meter.uj
    bench.silence(chunk_id)
    _reap(bench)
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    again = bench.meter.uj - burnt
    away.is_away = False
    heartbeat.replay_spool(site)
    assert bench.states(job_id) == {"succeeded": 12}
    bench.check_once(job_id)
    bench.check_shares()
    assert bench.energy_uj("wasted") == burnt
    assert bench.energy_uj("item") == again
    away.dispose()


def test_a_refused_checkpoint_is_not_taken_for_stored_because_the_reaper_booked_its_report(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path)
    away = _Away(sqlite_database.url)
    job_id, chunk_id, site = _spooled(bench, away)
    spent = bench.meter.uj
    # What the last renewal reported: the first half of the engine batch that the spooled checkpoint holds whole.
    record = next(record for _, record in site.spool.records() if record["kind"] == "checkpoint")
    (whole,) = burnt.from_json(record["burnt"])
    (part,) = whole.parts
    halves = {name: value // 2 for name in ("gpu_uj", "cpu_uj", "dram_uj") if (value := getattr(part, name))}
    half = replace(whole, parts=(replace(part, **halves),), is_over=False)
    with sqlite_database.write() as tx:
        leases.report(tx, chunk_id, record["token"], burnt.to_json([half]))
    bench.silence(chunk_id)
    _reap(bench)
    assert 0 < bench.energy_uj("wasted") < spent
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    away.is_away = False
    heartbeat.replay_spool(site)
    bench.check_once(job_id)
    assert bench.energy_uj("wasted") == spent
    assert bench.energy_uj() == bench.meter.uj
    assert [row.outcome for row in bench.rows(attempts)] == ["fenced", "committed"]
    away.dispose()


class _Forgetful(Database):
    """A database that commits and is then away, so that nobody hears of it: the commits numbered in ``lost``."""

    lost: tuple[int, ...] = ()
    number = 0

    @contextmanager
    def write(self):  # type: ignore[no-untyped-def]
        self.number += 1
        is_lost = self.number in self.lost
        with super().write() as tx:
            yield tx
        if is_lost:
            raise StoreUnavailable("the connection went away during the commit")


@pytest.mark.parametrize("lost", [(2,), (3,), (2, 3, 4, 5)])
def test_a_commit_whose_answer_is_lost_counts_once(
    sqlite_database: Database, tmp_path: Path, lost: tuple[int, ...]
) -> None:
    bench = Bench(sqlite_database, tmp_path, limits=Limits(checkpoint_items=4, renew_s=30))
    forgetful = _Forgetful(sqlite_database.url)
    forgetful.lost = lost
    site = bench.make_site("worker-3", db=forgetful)
    job_id = bench.job(8)
    assert run_chunk(site, bench.chunk(job_id), GO) is Result.DONE
    assert bench.states(job_id) == {"succeeded": 8}
    assert len(bench.lines(job_id, "output")) == 8  # the segments are all there
    bench.check_once(job_id)
    bench.check_shares()
    assert bench.energy_uj() == bench.energy_uj("item") == bench.meter.uj
    forgetful.dispose()


def test_a_spooled_checkpoint_that_is_stored_already_counts_once(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(sqlite_database, tmp_path)
    forgetful = _Forgetful(sqlite_database.url)
    forgetful.lost = (2,)
    # No time to try again: it goes to the spool although it is committed.
    monkeypatch.setattr(Attempt, "is_overdue", property(lambda _: forgetful.number >= 2))
    site = bench.make_site("worker-3", db=forgetful, limits=Limits(renew_s=30))
    job_id = bench.job(4)
    assert run_chunk(site, bench.chunk(job_id), GO) is Result.SPOOLED
    assert heartbeat.replay_spool(site) == 1
    assert bench.states(job_id) == {"succeeded": 4}
    assert len(bench.lines(job_id, "output")) == 4
    bench.check_once(job_id)
    bench.check_shares()
    assert bench.energy_uj() == bench.meter.uj
    forgetful.dispose()


def test_a_renewal_that_fails_in_any_way_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renewed = threading.Event()
    real = leases.renew
    tries: list[int] = []

    def renew(*arguments: Any, **named: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("a bug")
        renewed.set()
        return real(*arguments, **named)

    monkeypatch.setattr(leases, "renew", renew)
    site = bench.make_site("worker-3", limits=Limits(renew_s=0.01))
    bench.engine = FakeEngine(on_item=lambda _: renewed.wait(10))
    job_id = bench.job(1)
    assert run_chunk(site, bench.chunk(job_id), GO) is Result.DONE
    assert renewed.is_set()
    assert "not renewed" in caplog.text


def test_an_unexpected_error_books_its_energy_and_frees_the_chunk(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)

    def burn(request: EngineRequest) -> None:
        bench.burn()
        if request.custom_id == "c5":
            raise RuntimeError("a bug in the engine")

    bench.engine = FakeEngine(on_item=burn)
    job_id = bench.job(8)
    chunk_id = bench.chunk(job_id)
    with pytest.raises(RuntimeError):
        run_chunk(bench.site, chunk_id, GO)
    chunk = bench.one(chunk_id)
    assert (chunk.state, chunk.attempt) == (ChunkState.WAITING, 1)
    assert bench.energy_uj("wasted") == bench.meter.uj
    assert bench.states(job_id) == {"waiting": 8}

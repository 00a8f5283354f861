"""Silent workers: their chunks go on elsewhere, their last report is booked once, a killer item is found."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from carbonq import retry
from carbonq.clock import ClockKind
from carbonq.model import ChunkState, Claim
from carbonq.services import burnt, commit, heartbeat
from carbonq.services.burnt import Burnt
from carbonq.services.reap import reap
from carbonq.services.run import Result, run_chunk
from carbonq.store import leases
from carbonq.store.database import Database
from carbonq.store.tables import attempts, chunks, entries, events, items
from tests.services.running import MODEL, Bench


@pytest.fixture
def bench(database: Database, tmp_path: Path) -> Bench:
    return Bench(database, tmp_path)


def run(bench: Bench, max_attempts: int = 4) -> int:
    return reap(
        bench.db,
        bench.clock,
        rates=bench.site.rates,
        models={MODEL.name: MODEL},
        max_attempts=max_attempts,
        recorded_by="reaper",
    )


def lose(bench: Bench, chunk_id: str, *, burnt_uj: int = 0) -> Claim:
    """A worker claims, burns, reports, and falls silent."""
    with bench.db.write() as tx:
        claim = leases.claim(tx, chunk_id, worker_id="gone", region="fr", lease_s=60, now=bench.clock.now())
        assert claim is not None
        if burnt_uj:
            handle = bench.site.hub.start()
            bench.meter.burn(burnt_uj)
            parts, info = bench.site.hub.end(handle)
            one = Burnt("eb_gone", "gone", "fr", MODEL.name, "fake", "1", "0", ClockKind.SIMULATED, parts, info)
            leases.report(tx, chunk_id, claim.token, burnt.to_json([one]))
    bench.silence(chunk_id)
    return claim


def test_living_leases_are_left_alone(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(1))
    with bench.db.write() as tx:
        leases.claim(tx, chunk_id, worker_id="w", region="fr", lease_s=60, now=bench.clock.now())
    assert run(bench) == 0
    assert bench.one(chunk_id).state is ChunkState.RUNNING


def test_a_lost_chunk_runs_again_and_its_energy_is_booked_once(bench: Bench) -> None:
    job_id = bench.job(3)
    chunk_id = bench.chunk(job_id)
    lose(bench, chunk_id, burnt_uj=777)
    assert run(bench) == 1
    assert run(bench) == 0
    (entry,) = bench.rows(entries)
    assert (entry.kind, entry.outcome, entry.energy_uj, entry.tenant) == ("wasted", "lost", 777, None)
    assert (entry.chunk_id, entry.attempt) == (chunk_id, 1)
    chunk = bench.one(chunk_id)
    assert (chunk.state, chunk.attempt, chunk.region) == (ChunkState.WAITING, 1, None)
    assert [row.outcome for row in bench.rows(attempts)] == ["lost"]
    assert "chunk.lost" in [row.type for row in bench.rows(events)]
    bench.dispatch(chunk_id)
    assert run_chunk(bench.site, chunk_id, threading.Event()) is Result.DONE
    bench.check_once(job_id)
    bench.check_shares()
    assert bench.energy_uj() == bench.meter.uj


def test_an_item_that_kills_its_workers_is_found_and_fails_alone(bench: Bench) -> None:
    job_id = bench.job(8)
    bench.chunk(job_id)
    with bench.db.read() as tx:
        (killer,) = tx.execute(items.select().where(items.c.custom_id == "c5")).all()
    for _ in range(40):
        waiting = [row.chunk_id for row in bench.rows(chunks) if row.state in {"waiting", "placed"}]
        if not waiting:
            break
        for chunk_id in waiting:
            bench.dispatch(chunk_id)
            holds = bench.rows(items, items.c.chunk_id == chunk_id, items.c.item_id == killer.item_id)
            if holds:
                lose(bench, chunk_id)
                run(bench, max_attempts=2)
            else:
                assert run_chunk(bench.site, chunk_id, threading.Event()) is Result.DONE
    assert bench.states(job_id) == {"succeeded": 7, "failed": 1}
    (failed,) = bench.rows(items, items.c.state == "failed")
    assert (failed.custom_id, failed.error_code) == ("c5", retry.ATTEMPTS_EXHAUSTED)
    assert bench.get_job(job_id).items_failed == 1
    assert all(row.state == "done" for row in bench.rows(chunks))


def test_a_worker_that_comes_back_by_its_spool_is_fenced_too(bench: Bench) -> None:
    chunk_id = bench.chunk(bench.job(1))
    claim = lose(bench, chunk_id, burnt_uj=700)
    (row,) = bench.rows(attempts)
    refused = commit.Refused(chunk_id, claim.token, 1, burnt.from_json(row.pending))
    assert run(bench) == 1
    assert bench.rows(attempts)[0].outcome == "lost"
    commit.spool_refused(bench.site, refused)  # it woke while the database was away
    assert heartbeat.replay_spool(bench.site) == 1
    (row,) = bench.rows(attempts)
    assert (row.outcome, row.error) == ("fenced", commit.TAKEN_AWAY)
    assert bench.energy_uj("wasted") == 700 == bench.energy_uj()

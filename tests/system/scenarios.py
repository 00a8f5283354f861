"""What is done to an installation at work; ``chaos.run`` then checks that nothing is lost and nothing counted twice."""

from __future__ import annotations

import signal

import pytest
from sqlalchemy import func, select

from carbonq.errors import CarbonqError
from carbonq.store.tables import attempts, chunks, jobs
from tests.system.chaos import Run, scenario
from tests.system.flawed import REGIONS
from tests.system.processes import MODEL, documents

ON_POSTGRESQL = ("postgresql-redis", "postgresql-rabbitmq")


def other(region: str) -> str:
    return next(one for one in REGIONS if one != region)


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@scenario()
def a_worker_is_killed_in_an_engine_batch(run: Run) -> None:
    _, region = run.caught()
    fault = run.fault(region)
    assert fault.items
    run.kill(region)
    run.release(region)
    run.restart(region)
    run.recovered(fault)
    assert "lost" in run.outcomes()


@scenario()
def a_worker_is_killed_in_a_commit(run: Run) -> None:
    fault, region = run.dies("commit-middle", *REGIONS, act=run.submit)
    run.restart(region)
    run.recovered(fault)
    assert "lost" in run.outcomes()


@scenario()
def a_worker_is_killed_before_it_hears_of_its_commit(run: Run) -> None:
    fault, region = run.dies("commit-done", *REGIONS, act=run.submit)
    run.restart(region)
    run.recovered(fault)


@scenario()
def the_dispatcher_is_killed_between_ticket_and_commit(run: Run) -> None:
    fault, name = run.dies("ticket-out", "control", act=run.submit)
    run.restart(name)
    run.finished()
    run.recovered(fault)


@scenario("sqlite-redis", "postgresql-redis")
def the_reaper_is_killed_in_its_work(run: Run) -> None:
    _, region = run.caught()
    # An engine call that has used nothing would leave nothing to book.
    run.when(lambda: _has_reported(run, region), "report of burnt energy")

    def kill() -> None:
        run.kill(region)
        run.release(region)

    fault, name = run.dies("reaping", "control", act=kill)
    run.restart(name)
    run.restart(region)
    run.recovered(fault)
    assert "lost" in run.outcomes()


def _has_reported(run: Run, region: str) -> bool:
    with run.on.db.read() as tx:
        found = tx.execute(
            select(attempts.c.pending)
            .join(chunks, (chunks.c.chunk_id == attempts.c.chunk_id) & (chunks.c.token == attempts.c.token))
            .where(chunks.c.state == "running", chunks.c.region == region)
        ).scalar_one_or_none()
    return bool(found and found["burnt"])


@scenario("sqlite-redis", "postgresql-redis")
def the_finisher_is_killed_before_its_last_step(run: Run) -> None:
    _, name = run.dies("finishing", "control", act=run.submit)
    run.restart(name)


@scenario("sqlite-redis", "postgresql-redis")
def the_chunker_is_killed_in_its_transaction(run: Run) -> None:
    _, name = run.dies("chunking", "control-slow", act=run.submit)
    run.restart(name)


@scenario()
def beat_is_killed(run: Run) -> None:
    _, region = run.caught()
    fault = run.fault()
    run.kill("beat")
    run.release(region)
    run.restart("beat")
    run.recovered(fault)


@scenario("sqlite-redis", "postgresql-redis")
def the_api_is_killed_while_it_accepts(run: Run) -> None:
    def submit() -> str:
        job = run.stack.client.submit(
            documents(400), endpoint="/v1/embeddings", model=MODEL, deadline="40m", idempotency_key="one of a kind"
        )
        return str(job["id"])

    def refused() -> None:
        with pytest.raises(CarbonqError):
            submit()

    run.dies("accepting", "api", act=refused)
    run.restart("api")
    run.when(run.stack.is_ready, "ready API")
    run.job_ids.append(submit())
    assert submit() == run.job_ids[0]
    with run.on.db.read() as tx:
        keys = select(func.count()).select_from(jobs).where(jobs.c.idempotency_key == "one of a kind")
        assert tx.execute(keys).scalar_one() == 1


# --- zombies ----------------------------------------------------------------------------------------------------------


@scenario()
def a_zombie_wakes_after_its_lease(run: Run) -> None:
    _, region = run.caught()
    fault = run.fault(region)
    with run.frozen(region):
        run.release(region)
        run.recovered(fault)
        run.finished()
    run.when(lambda: "fenced" in run.outcomes(), "fenced attempt")


@scenario(*ON_POSTGRESQL)
def a_zombie_holds_a_commit_open(run: Run) -> None:
    # PostgreSQL ends a transaction that is idle for 10 s: until then its locks hold up the reaper.
    _, region = run.caught("commit-middle")
    fault = run.fault(region)
    process = run.on.processes[region]
    process.send_signal(signal.SIGSTOP)
    run.release(region, "commit-middle")
    run.finished()
    run.recovered(fault)
    process.send_signal(signal.SIGCONT)
    run.when(lambda: "fenced" in run.outcomes(), "fenced attempt")

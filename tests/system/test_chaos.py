"""Real processes, really killed: nothing is lost, nothing is counted twice (invariants 1, 3 and 4)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from carbonq.model import JobState
from carbonq.store import chunks
from carbonq.store.tables import attempts
from tests.system.backends import backend
from tests.system.processes import Installation, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

ITEMS = 12_000


@pytest.fixture
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    with backend(getattr(request, "param", "sqlite-redis"), request) as chosen:
        made = Installation(
            tmp_path, chosen, lease_s=8, renew_s=2, checkpoint_items=1_000, redispatch_after_s=2, worker_alive_s=5
        )
        try:
            yield made
        finally:
            made.close()
            print(made.logs())  # shown by pytest when the test failed


def running_in(installation: Installation, job_id: str) -> str | None:
    """The region that has committed something of the job and is still at it."""
    if not 0 < installation.job(job_id).items_succeeded < ITEMS:
        return None
    with installation.db.read() as tx:
        return next((chunk.region for chunk in chunks.of_job(tx, job_id) if chunk.state.value == "running"), None)


def outcomes(installation: Installation) -> list[str | None]:
    with installation.db.read() as tx:
        return list(tx.execute(select(attempts.c.outcome)).scalars())


@pytest.mark.parametrize("installation", ["sqlite-redis", "postgresql-rabbitmq"], indirect=True)
def test_a_killed_worker_a_flushed_broker_and_doubled_tickets(installation: Installation) -> None:
    installation.start_all()
    job_id = installation.submit(ITEMS)
    installation.tickets.nudge("plan")
    region = until(lambda: running_in(installation, job_id), 60, "chunk that runs")
    installation.kill(region)
    installation.backend.lose_tickets("north", "south")
    installation.start(region, "worker", "--region", region)
    with installation.db.read() as tx:
        doubled = [(name, chunk.chunk_id) for chunk in chunks.of_job(tx, job_id) for name in ("north", "south")]
    installation.tickets.flexible(doubled * 3)
    until(lambda: installation.job(job_id).is_final, 90, "finished job")
    assert installation.job(job_id).state is JobState.COMPLETED
    assert installation.job(job_id).items_succeeded == ITEMS
    installation.check(job_id)
    assert "lost" in outcomes(installation)


@pytest.mark.parametrize("installation", ["sqlite-redis", "postgresql-redis"], indirect=True)
def test_a_zombie_comes_back_to_a_refused_commit(installation: Installation) -> None:
    installation.start_all()
    job_id = installation.submit(ITEMS)
    installation.tickets.nudge("plan")
    region = until(lambda: running_in(installation, job_id), 60, "chunk that runs")
    installation.stop_outside_a_transaction(region)
    until(lambda: installation.job(job_id).is_final, 90, "finished job")
    installation.check(job_id)
    installation.processes[region].send_signal(signal.SIGCONT)
    until(lambda: "fenced" in outcomes(installation), 30, "fenced attempt")
    assert installation.job(job_id).items_succeeded == ITEMS
    installation.check(job_id)


def test_a_stopped_worker_gives_its_chunk_back_uncounted(installation: Installation) -> None:
    installation.start_all()
    job_id = installation.submit(ITEMS)
    installation.tickets.nudge("plan")
    region = until(lambda: running_in(installation, job_id), 60, "chunk that runs")
    installation.processes[region].terminate()
    assert installation.processes[region].wait(20) == 0
    assert region not in installation.live()
    until(lambda: installation.job(job_id).is_final, 90, "finished job")
    installation.check(job_id)
    assert set(outcomes(installation)) <= {"yielded", "committed"}


def test_realtime_does_not_wait_for_flexible_work(installation: Installation) -> None:
    installation.start_all(["north"])
    assert installation.realtime("north")["status_code"] == 200
    job_id = installation.submit(ITEMS)
    installation.tickets.nudge("plan")
    until(lambda: running_in(installation, job_id), 60, "chunk that runs")
    answers = [installation.realtime("north") for _ in range(5)]
    assert running_in(installation, job_id) is not None  # it answered in the middle of the chunk
    assert all(answer["status_code"] == 200 for answer in answers)
    assert answers[0]["carbon"]["region"] == "north"
    until(lambda: installation.job(job_id).is_final, 90, "finished job")
    installation.check(job_id)

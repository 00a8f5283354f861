"""What spans a whole job is computed as seldom as it is worth, but a final job is told with all its energy."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import update

from carbonq.api.sums import JobChunks, JobSums
from carbonq.model import Endpoint, Job, JobState, LatePolicy
from carbonq.store import chunks, items
from carbonq.store import jobs as job_rows
from carbonq.store.database import Database, Tx
from carbonq.store.tables import chunks as chunk_table
from carbonq.store.tables import items as item_table
from carbonq.store.tables import jobs as job_table
from carbonq.testing import FakeClock
from tests.store.rows import T0, chunk, store_job

AT = datetime(2026, 1, 1, tzinfo=UTC)
TX = cast("Tx", None)
JOB = Job(
    job_id="job_1",
    tenant="acme",
    api_key_id=None,
    endpoint=Endpoint.EMBEDDINGS,
    model="m",
    requested_model="m",
    product_line=None,
    workload=None,
    home_region="fr",
    regions=None,
    deadline_at=AT,
    late_policy=LatePolicy.FINISH_LATE,
    max_carbon_g=None,
    state=JobState.RUNNING,
    is_cancel_requested=False,
    input_blob="b",
    input_bytes=1,
    items_total=10,
    items_succeeded=4,
    items_failed=0,
    items_expired=0,
    items_cancelled=0,
    est_tokens=1,
    created_at=AT,
    started_at=AT,
    finished_at=None,
    output_blob=None,
    error_blob=None,
    infeasible=None,
    error=None,
    metadata={},
)


class Counting:
    """Computes in ``cost_s`` and counts how often."""

    def __init__(self, clock: FakeClock, cost_s: float) -> None:
        self.clock, self.cost_s, self.calls = clock, cost_s, 0

    def __call__(self, tx: Tx, job_id: str) -> dict[str, Any]:
        self.calls += 1
        self.clock.advance_machine(self.cost_s)
        return {"call": self.calls}


def test_cheap_sums_are_nearly_always_fresh_and_dear_ones_take_a_share_of_the_time() -> None:
    for cost_s, most in ((0.001, 21), (0.2, 4)):
        clock = FakeClock()
        counting = Counting(clock, cost_s)
        sums = JobSums(counting, clock.machine)
        while clock.machine() < 10:
            sums.of(TX, JOB)
            clock.advance_machine(0.25)
        assert 1 < counting.calls <= most


def test_a_job_that_became_final_is_summed_up_again_at_once() -> None:
    clock = FakeClock()
    counting = Counting(clock, 1.0)
    sums = JobSums(counting, clock.machine)
    assert sums.of(TX, JOB) == {"call": 1}
    assert sums.of(TX, replace(JOB, items_succeeded=9)) == {"call": 1}
    final = replace(JOB, items_succeeded=10, state=JobState.COMPLETED)
    assert sums.of(TX, final) == {"call": 2}
    assert sums.of(TX, final) == {"call": 2}
    clock.advance_machine(60)
    assert sums.of(TX, final) == {"call": 3}  # settlement goes on after the end


def test_memory_is_bounded() -> None:
    clock = FakeClock()
    counting = Counting(clock, 0.0)
    sums = JobSums(counting, clock.machine)
    for number in range(1_100):
        sums.of(TX, replace(JOB, job_id=f"job_{number}"))
    sums.of(TX, replace(JOB, job_id="job_1099"))
    assert counting.calls == 1_100
    sums.of(TX, replace(JOB, job_id="job_0"))
    assert counting.calls == 1_101


def test_chunks_are_told_as_they_are_without_a_pass_over_the_items(database: Database) -> None:
    job = store_job(database)
    remembered = JobChunks(lambda: 0.0)  # no time passes
    with database.write() as tx:
        assert remembered.of(tx, job) == []
        made = chunk([item_id for item_id, _, _ in items.unchunked(tx, [job.job_id])])
        chunks.insert_many(tx, [made], created_at=T0)
        job_rows.take_unchunked(tx, [job.job_id])
        assert [one.chunk_id for one in remembered.of(tx, job)] == [made.chunk_id]
        tx.execute(update(chunk_table).values(attempt=7))
        tx.execute(update(item_table).values(chunk_id=None))
        (shown,) = remembered.of(tx, job)  # the chunk's row was read, the items were not
        assert (shown.chunk_id, shown.attempt) == (made.chunk_id, 7)
        tx.execute(update(job_table).values(is_chunked=False))  # an operator's pause took them out
        assert remembered.of(tx, job) == []

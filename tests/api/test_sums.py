"""Sums are recomputed as seldom as it is worth, but a final job is told with all its energy."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from carbonq.api.sums import JobSums
from carbonq.model import Endpoint, Job, JobState, LatePolicy
from carbonq.store.database import Tx
from carbonq.testing import FakeClock

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

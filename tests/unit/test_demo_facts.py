from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from carbonq.demo.facts import CheckFacts, JobFacts, RealtimeFacts, conditions, job_facts

DEADLINE = datetime(2021, 6, 9, 5, tzinfo=UTC)

JOB = JobFacts(
    label="embeddings",
    job_id="job_1",
    state="completed",
    items=2_400,
    succeeded=2_400,
    deadline_at=DEADLINE,
    finished_at=DEADLINE - timedelta(minutes=5),
    energy_uj=1_000_000,
    emission_g=Decimal("0.08"),
    baseline_g=Decimal("0.1"),
    saved_g=Decimal("0.02"),
    is_settled=True,
)
REALTIME = RealtimeFacts(12.0, 1.0, "norcal", True, 1_200, 1, DEADLINE)
CHECK = CheckFacts("ledger.csv", 2_407, 0, "2,407 lines hold")


def broken(
    *,
    job: JobFacts = JOB,
    realtime: RealtimeFacts | None = REALTIME,
    check: CheckFacts | None = CHECK,
    total_s: float = 120,
) -> list[str]:
    return [found.name for found in conditions([job], realtime, check, total_s=total_s) if not found.is_met]


def test_a_good_run_meets_everything() -> None:
    assert broken() == []


def test_each_claim_can_fail_alone() -> None:
    assert broken(job=replace(JOB, succeeded=2_399)) == ["embeddings: all done"]
    assert broken(job=replace(JOB, finished_at=DEADLINE + timedelta(seconds=1))) == ["embeddings: by its deadline"]
    assert broken(job=replace(JOB, saved_g=None)) == ["embeddings: figures"]
    assert broken(job=replace(JOB, is_settled=False)) == ["embeddings: figures"]
    assert broken(realtime=None) == ["real-time did not wait"]
    assert broken(realtime=replace(REALTIME, latency_ms=1_500)) == ["real-time did not wait"]
    assert broken(realtime=replace(REALTIME, items_waiting=0)) == ["real-time did not wait"]
    assert broken(realtime=replace(REALTIME, is_in_ledger=False)) == ["real-time did not wait"]
    assert broken(check=None) == ["ledger recomputed"]
    assert broken(check=replace(CHECK, exit_status=1)) == ["ledger recomputed"]
    assert broken(check=replace(CHECK, lines=0)) == ["ledger recomputed"]
    assert broken(total_s=181) == ["within three minutes"]


def test_a_negative_saving_is_told_and_is_no_failure() -> None:
    job = replace(JOB, saved_g=Decimal("-0.01"))
    assert job.saved_pct == -10
    assert broken(job=job) == []


def test_without_a_baseline_there_is_no_percentage() -> None:
    assert replace(JOB, baseline_g=None).saved_pct is None
    assert replace(JOB, baseline_g=Decimal(0)).saved_pct is None


def test_unknown_figures_of_the_api_stay_unknown() -> None:
    job = {
        "id": "job_1",
        "state": "running",
        "progress": {"total": 2, "succeeded": 1},
        "deadline_at": "2021-06-09T05:00:00.000000Z",
        "finished_at": None,
        "carbon": None,
    }
    facts = job_facts("x", job)
    assert facts.energy_uj is facts.emission_g is facts.saved_g is facts.finished_at is None
    assert not facts.is_in_time

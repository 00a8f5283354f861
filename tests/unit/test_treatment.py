from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from carbonq.model import Region, RegionState, Treatment
from carbonq.plan.treatment import TreatmentRules, home_of, treatment_of

HOME = Region("home", "Z", 1, Decimal(1), "stated", "cpu", latency_ms=50)
NEAR = replace(HOME, name="near", latency_ms=1)
FAR = replace(HOME, name="far", latency_ms=90)


def test_observed_are_all_or_some_tenants_and_never_held_out() -> None:
    everything = TreatmentRules(is_observed=True, holdout_share=1.0)
    some = TreatmentRules(observed_tenants=frozenset({"acme"}), holdout_share=1.0)
    assert treatment_of("job_1", "acme", everything) is Treatment.OBSERVED
    assert treatment_of("job_1", "acme", some) is Treatment.OBSERVED
    assert treatment_of("job_1", "other", some) is Treatment.HELD_OUT
    assert treatment_of("job_1", "other", TreatmentRules()) is Treatment.PLANNED


def test_the_held_out_share_is_drawn_by_the_job_id_alone() -> None:
    rules = TreatmentRules(holdout_share=0.2)
    drawn = [treatment_of(f"job_{n}", "t", rules) for n in range(5000)]
    assert drawn == [treatment_of(f"job_{n}", "another", rules) for n in range(5000)]
    share = drawn.count(Treatment.HELD_OUT) / 5000
    assert 0.17 < share < 0.23
    # A larger share holds out all that a smaller one did.
    more = TreatmentRules(holdout_share=0.3)
    assert all(
        treatment_of(f"job_{n}", "t", more) is Treatment.HELD_OUT for n in range(5000) if drawn[n] is Treatment.HELD_OUT
    )


@pytest.mark.parametrize(
    ("regions", "allowed", "expected"),
    [
        ([NEAR, HOME, FAR], None, "home"),
        ([NEAR, replace(HOME, is_healthy=False)], None, "home"),  # without carbonq it would wait there, too
        ([NEAR, HOME, FAR], ("far", "near"), "near"),
        ([NEAR, replace(HOME, models=("other",)), FAR], None, "near"),
        ([FAR, replace(HOME, state=RegionState.PAUSED)], None, "far"),
        ([replace(FAR, is_healthy=False)], None, None),
    ],
)
def test_work_runs_at_home_unless_it_may_not(
    regions: list[Region], allowed: tuple[str, ...] | None, expected: str | None
) -> None:
    assert home_of("home", allowed, "m", regions) == expected

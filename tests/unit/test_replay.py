from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import numpy as np
import pytest

from carbonq.demo import day
from carbonq.grid.recorded import recording
from carbonq.model import Region
from carbonq.plan.typical import pick_start, typicality

REGIONS = [
    Region("norcal", "SGIP_CAISO_PGE", 1, Decimal("1.2"), "assumed", "cpu", latency_ms=1),
    Region("socal", "SGIP_CAISO_SCE", 1, Decimal("1.2"), "assumed", "cpu", latency_ms=9),
]


def test_a_recorded_day_saves_with_the_forecasts_as_issued() -> None:
    made = day.replay(day.choose(REGIONS), REGIONS)
    rows = {row.name: row for row in made.rows}
    assert [row.name for row in made.rows] == list(day.WAYS.values())
    assert {row.late for row in made.rows} == {0}
    at_once, best_region, best_time, planned, perfect = (row.g for row in made.rows)
    assert perfect <= planned < 0.9 * at_once
    assert perfect <= best_time <= at_once
    assert best_region <= at_once
    assert made.chunks == 144
    # 144 chunks of 30 kJ at a PUE of 1.2, at some 30 to 500 g/kWh.
    assert 144 * 30 / 3600 * 1.2 * 30 < rows[day.WAYS["perfect"]].g < 144 * 30 / 3600 * 1.2 * 500


def test_typical_hours_are_found_by_rule_and_said() -> None:
    days = recording()
    observed = np.array([days.observed[zone] for zone in sorted(days.observed)], dtype=float)
    first = pick_start(observed, 0, windows=30, earliest=7 * 288)
    found = typicality(observed, 0, first, 30)
    assert 48 <= found.potential_pct <= 52
    assert first >= 7 * 288
    said = found.sentence(days.start_at, days.end_at - days.start_at)
    assert said.startswith("the 2.5 h from 2021-06-1")
    assert "of the 14 recorded days" in said
    more = pick_start(observed, 0, windows=30, earliest=7 * 288, percentile=90)
    assert typicality(observed, 0, more, 30).potential > found.potential
    with pytest.raises(ValueError, match="does not hold"):
        typicality(observed, 0, observed.shape[1] - 10, 30)
    with pytest.raises(ValueError, match="no span that late"):
        pick_start(observed, 0, windows=30, earliest=observed.shape[1])


def test_a_span_of_zeros_has_no_potential() -> None:
    found = typicality(np.zeros((1, 60)), 0, 0, 30)
    assert (found.potential, found.spread_g, found.mean_pct) == (0, 0, 0)
    assert "0 g/kWh" in found.sentence(recording().start_at, timedelta(days=14))

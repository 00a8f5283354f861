from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

from carbonq.grid.recorded import recording, replayable
from carbonq.model import Region
from carbonq.plan.forecaster import Series
from carbonq.plan.replay import Recorded, Way, Work, replay
from carbonq.plan.typical import pick_start, typicality
from carbonq.units import UJ_PER_KWH, window_index

A = Region("a", "A", 1, Decimal("1.5"), "stated", "cpu", latency_ms=1)
B = Region("b", "B", 1, Decimal(1), "stated", "cpu", latency_ms=2)
FIRST = window_index(datetime.fromisoformat("2021-06-10T00:00+00:00"))


def small() -> Recorded:
    observed = {
        "A": Series(FIRST - 4, np.array([9, 9, 9, 9, 40, 30, 20, 10], dtype=float)),
        "B": Series(FIRST - 4, np.array([9, 9, 9, 9, 50, 45, 40, 35], dtype=float)),
    }
    # What was foretold is wrong: it says that B's third window is the cleanest.
    foretold = {"A": [30.0, 30, 30, 30], "B": [60.0, 45, 1, 45]}

    def issued(zone: str, window: int) -> Series | None:
        return Series(window + 1, np.array(foretold[zone])[window - FIRST + 1 :])

    return Recorded(observed, issued)


def test_every_way_runs_the_same_energy_and_is_judged_by_what_was_observed() -> None:
    rows = replay(small(), [A, B], "a", [Work(FIRST, 2, 4, UJ_PER_KWH)], every=1)
    grams = {row.way: row.grams for row in rows}
    assert grams[Way.AT_ONCE] == pytest.approx(1.5 * (40 + 30))
    assert grams[Way.BEST_REGION] == pytest.approx(50 + 45)
    assert grams[Way.BEST_TIME] == pytest.approx(1.5 * (20 + 10))
    assert grams[Way.PERFECT] == pytest.approx(1.5 * (20 + 10))
    assert grams[Way.PERFECT] <= grams[Way.PLANNED] < grams[Way.AT_ONCE]
    assert grams[Way.PLANNED] >= 40
    assert {row.late for row in rows} == {0}


def test_a_replay_outside_the_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="does not cover"):
        replay(small(), [A, B], "a", [Work(FIRST, 1, 9, 1)])


def test_work_that_is_too_much_for_home_is_late_there() -> None:
    rows = {row.way: row for row in replay(small(), [A, B], "a", [Work(FIRST, 4, 2, 1)], every=1)}
    assert rows[Way.AT_ONCE].late == 2
    assert rows[Way.PERFECT].late == 0
    assert rows[Way.PLANNED].late == 0


def test_a_recorded_day_saves_with_the_forecasts_as_issued() -> None:
    days = recording()
    regions = [
        Region("norcal", "SGIP_CAISO_PGE", 1, Decimal("1.2"), "assumed", "cpu", latency_ms=1),
        Region("socal", "SGIP_CAISO_SCE", 1, Decimal("1.2"), "assumed", "cpu", latency_ms=9),
    ]
    first = days.first_window + 9 * 288
    work = [Work(first + 12 * hour, 1, 144, 10**9) for hour in range(24)]
    rows = {row.way: row for row in replay(replayable(days), regions, "norcal", work)}
    assert {row.late for row in rows.values()} == {0}
    perfect, planned, at_once = (rows[way].grams for way in (Way.PERFECT, Way.PLANNED, Way.AT_ONCE))
    assert perfect <= planned < 0.95 * at_once
    assert perfect <= rows[Way.BEST_TIME].grams <= at_once


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

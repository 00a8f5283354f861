from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.model import Region
from carbonq.plan import outlook
from carbonq.plan.blend import BUCKETS, ENOUGH, MAX_LEAD, NO_SKILL, Pairs, Skill, blend, bucket_of, learn, origins_of
from carbonq.plan.evidence import FEATURES, ISSUE_AGES, Evidence, IntArray, Kind, Known, Part, evidence
from carbonq.plan.forecaster import EMPTY, FloatArray, Series
from carbonq.plan.outlook import Basis, ZoneData
from carbonq.units import window_index

NOW = datetime(2021, 6, 10, 12, 0, 30, tzinfo=UTC)
FIRST = window_index(NOW)
AHEAD = np.arange(FIRST, FIRST + 40)
A = Region("a", "Z", 2, Decimal("1.1"), "stated", "cpu")
B = Region("b", "Y", 1, Decimal(1), "stated", "cpu")
VALUES = st.one_of(st.just(float("nan")), st.floats(0, 900))


def rising(days: float = 8, seed: int = 0) -> Series:
    """A noisy day-and-night history up to now."""
    windows = np.arange(FIRST - int(days * 288), FIRST)
    noise = np.random.default_rng(seed).normal(0, 20, len(windows))
    return Series(int(windows[0]), np.maximum(300 + 100 * np.sin(2 * np.pi * windows / 288) + noise, 0))


def foretold(at: int, seed: int = 1, length: int = 36) -> Series:
    return Series(at + 1, np.random.default_rng(seed + at).uniform(100, 500, length))


def known(seed: int = 1) -> Known:
    return Known(FIRST, [foretold(FIRST - age, seed) for age in ISSUE_AGES], rising())


def taught(feature: str | None = None, weight: float = 1.0, seed: int = 3) -> Skill:
    """A skill that saw many pairs in every bucket: the truth was the base plus ``weight`` times one difference."""
    random = np.random.default_rng(seed)
    skill = Skill(has_prior=False)
    for until in (FIRST - 600, FIRST - 300, FIRST):
        rows = 900 * len(BUCKETS)
        x = random.normal(0, 30, (rows, len(FEATURES)))
        base = np.full(rows, 1000.0)
        truth = base + random.normal(0, 1, rows)
        if feature is not None:
            truth = truth + weight * x[:, FEATURES.index(feature)]
        kind = random.integers(0, len(Kind), rows)
        skill = learn(skill, Pairs(np.repeat(BUCKETS, 900), kind, base, x, truth), until)
    return skill


@pytest.fixture(scope="module")
def holding() -> Skill:
    return taught("last - base")


def test_without_a_skill_the_value_is_the_source_s_own() -> None:
    seen = evidence(known(), AHEAD)
    made = blend(NO_SKILL, seen)
    np.testing.assert_array_equal(made.values, seen.base)
    assert not made.is_blended.any()
    assert np.isnan(made.spread).all()
    assert seen.base[1:37].tolist() == foretold(FIRST).values.tolist()


def test_what_was_learned_is_what_is_done(holding: Skill) -> None:
    seen = evidence(known(), AHEAD)
    made = blend(holding, seen)
    assert made.is_blended.all()
    last = rising().values[-1]
    # The truth had always been the last observation, less what the prior holds back.
    assert made.values == pytest.approx(np.full(40, last), abs=40)
    assert np.abs(made.values - last).mean() < 0.25 * np.abs(seen.base - last).mean()
    assert (made.spread < 15).all()  # the prior's first judgement included
    assert (made.spread > 0).all()


def test_weights_that_did_worse_than_the_base_are_not_used(holding: Skill) -> None:
    judged = holding.judged.copy()
    judged[:, :, 4] = judged[:, :, 2] * 1.01
    worse = replace(holding, judged=judged)
    seen = evidence(known(), AHEAD)
    np.testing.assert_array_equal(blend(worse, seen).values, seen.base)
    judged[:, :, 4], judged[:, :, 3] = 0, judged[:, :, 1] * 1.01
    np.testing.assert_array_equal(blend(replace(holding, judged=judged), seen).values, seen.base)


def test_few_pairs_are_not_believed() -> None:
    rows = int(ENOUGH) - 1
    one = np.ones(rows, dtype=np.int64)
    pairs = Pairs(one, one, np.ones(rows), np.ones((rows, len(FEATURES))), np.full(rows, 50.0))
    skill = learn(Skill(), pairs, FIRST)
    np.testing.assert_array_equal(skill.weights, NO_SKILL.weights)
    assert not skill.is_trusted.any()
    assert np.isnan(skill.spread).all()


def test_a_new_zone_is_judged_by_the_prior_before_it_is_used() -> None:
    assert NO_SKILL.weights[Kind.FRESH, :17].any(axis=1).all()
    assert not NO_SKILL.weights[[Kind.NONE, Kind.OLD]].any()
    rows = int(ENOUGH)
    random = np.random.default_rng(5)
    x = random.normal(0, 30, (rows, len(FEATURES)))
    base = np.full(rows, 500.0)
    lead, kind = np.full(rows, 2), np.full(rows, int(Kind.FRESH))
    right = learn(Skill(), Pairs(lead, kind, base, x, base + x @ NO_SKILL.weights[Kind.FRESH, 2]), FIRST)
    assert np.argwhere(right.is_trusted).tolist() == [[Kind.FRESH, 2]]
    wrong = learn(Skill(), Pairs(lead, kind, base, x, base), FIRST)
    assert not wrong.is_trusted.any()


def test_a_skill_survives_json_and_another_version_is_learned_anew(holding: Skill) -> None:
    state = json.loads(json.dumps(holding.to_json()))
    back = Skill.from_json(state)
    for name in ("pairs", "gram", "moment", "judged"):
        np.testing.assert_array_equal(getattr(back, name), getattr(holding, name))
    assert back.until == holding.until
    assert not Skill.from_json(state | {"version": 0}).pairs.any()
    assert not Skill.from_json(state | {"features": 2}).pairs.any()
    state["buckets"][0]["sums"] = state["buckets"][0]["sums"][:-12]
    with pytest.raises(ValueError, match="damaged"):
        Skill.from_json(state)


def test_two_skills_add_up_and_old_pairs_fade() -> None:
    one, other = taught("last - base", seed=1), taught("last - base", seed=2)
    both = one.plus(other)
    np.testing.assert_allclose(both.gram, one.gram + other.gram)
    assert both.pairs.sum() == pytest.approx(one.pairs.sum() + other.pairs.sum())
    later = one.aged(one.until + 60 * 288)
    assert later.pairs.sum() == pytest.approx(one.pairs.sum() / 2)
    assert one.plus(later).until == later.until


@given(
    history=st.lists(VALUES, max_size=400),
    forecast=st.lists(VALUES, max_size=60),
    offset=st.integers(-30, 30),
    gap=st.integers(0, 40),
    is_taught=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_never_negative_never_above_what_was_seen_and_missing_only_where_nothing_is_known(  # noqa: PLR0917
    holding: Skill, history: list[float], forecast: list[float], offset: int, gap: int, is_taught: bool
) -> None:
    data = ZoneData(
        Series(FIRST + offset, np.array(forecast, dtype=float)),
        NOW,
        Series(FIRST - gap - len(history), np.array(history, dtype=float)),
        skill=holding if is_taught else NO_SKILL,
    )
    made = outlook.build([A], {"Z": data}, NOW, 40)
    values = made.g_per_kwh[0]
    seen = [value for value in (*history, *forecast) if not np.isnan(value)]
    assert not (values < 0).any()
    if not seen:
        assert np.isnan(values).all()
    if is_taught and seen:
        assert np.append(values[made.basis[0] == 4], 0).max() <= max(seen) + 0.05
    np.testing.assert_array_equal(np.isnan(values), made.basis[0] == 0)
    np.testing.assert_array_equal(np.isnan(values), made.parts[0] == 0)
    told = data.forecast.at(AHEAD)
    assert not np.isnan(values[~np.isnan(told)]).any()


@given(seed=st.integers(0, 10_000), is_taught=st.booleans())
@settings(max_examples=20, deadline=None)
def test_one_zone_never_influences_another(holding: Skill, seed: int, is_taught: bool) -> None:
    skill = holding if is_taught else NO_SKILL
    mine = ZoneData(foretold(FIRST), NOW, rising(), tuple(foretold(FIRST - age) for age in ISSUE_AGES[1:]), skill)
    other = ZoneData(foretold(FIRST, seed), NOW, rising(seed=seed), skill=taught_once())
    alone = outlook.build([A], {"Z": mine}, NOW, 50)
    together = outlook.build([B, A], {"Y": other, "Z": mine}, NOW, 50)
    np.testing.assert_array_equal(together.g_per_kwh[1], alone.g_per_kwh[0])
    np.testing.assert_array_equal(together.spread[1], alone.spread[0])
    np.testing.assert_array_equal(together.parts[1], alone.parts[0])


_TAUGHT: list[Skill] = []


def taught_once() -> Skill:
    if not _TAUGHT:
        _TAUGHT.append(taught("daily shape - base", seed=9))
    return _TAUGHT[0]


@given(future=st.lists(VALUES, min_size=1, max_size=50))
@settings(max_examples=30, deadline=None)
def test_what_comes_later_changes_nothing(future: list[float]) -> None:
    past = known()
    longer = Series(past.history.first_window, np.concatenate((past.history.values, np.array(future))))
    before, after = evidence(past, AHEAD), evidence(replace(past, history=longer), AHEAD)
    np.testing.assert_array_equal(before.base, after.base)
    np.testing.assert_array_equal(before.differences, after.differences)
    assert before.cap == after.cap


def test_missing_observations_stay_missing() -> None:
    history = rising()
    holes = history.values.copy()
    holes[-1], holes[-289:-280] = np.nan, np.nan
    seen = evidence(Known(FIRST, [foretold(FIRST)], Series(history.first_window, holes)), AHEAD)
    place = FEATURES.index("last - base")
    np.testing.assert_allclose(seen.differences[:, place], holes[-2] - seen.base)
    yesterday = FEATURES.index("yesterday - base")
    assert not seen.differences[:8, yesterday].any()  # no opinion, and not "0 g/kWh less the base"
    assert seen.differences[10, yesterday] == pytest.approx(holes[-278] - seen.base[10])


def test_an_old_observation_says_nothing_of_the_present() -> None:
    history = rising()
    old = history.before(FIRST - 36)
    seen = evidence(Known(FIRST, [foretold(FIRST)], old), AHEAD)
    assert not seen.differences[:, FEATURES.index("last - base")].any()
    assert evidence(Known(FIRST, [foretold(FIRST)], history.before(FIRST - 35)), AHEAD).differences[0, 2]


def test_a_base_without_forecast_is_seasonal_and_then_held() -> None:
    seen = evidence(Known(FIRST, [EMPTY], rising()), AHEAD)
    assert (seen.kind == Kind.NONE).all()
    assert not np.isnan(seen.base).any()
    short = Series(FIRST - 2, np.array([100.0, 120.0]))
    seen = evidence(Known(FIRST, [], short), AHEAD)
    assert seen.base[:12] == pytest.approx(np.full(12, 120.0), abs=15)
    assert seen.base[4:12].tolist() == [120.0] * 8
    assert seen.is_held[4:12].all()
    assert np.isnan(seen.base[12:]).all()


def test_a_forecast_of_the_morning_is_old_for_the_next_hour_and_fresh_for_tomorrow() -> None:
    windows = np.array([FIRST, FIRST + 237, FIRST + 238])
    seen = evidence(Known(FIRST, [foretold(FIRST - 120, length=600)], rising()), windows)
    assert seen.kind.tolist() == [Kind.OLD, Kind.OLD, Kind.FRESH]
    assert evidence(known(), AHEAD).kind[1:37].tolist() == [Kind.FRESH] * 36


def test_the_outlook_says_which_parts_it_used(holding: Skill) -> None:
    earlier = tuple(foretold(FIRST - age) for age in ISSUE_AGES[1:])
    made = outlook.build([A, B], {"Z": ZoneData(foretold(FIRST), NOW, rising(), earlier, holding)}, NOW, 40)
    assert made.basis_of(0, 5) is Basis.BLEND
    assert made.parts_of(0, 5) == Part.FORECAST | Part.EARLIER | Part.OBSERVED | Part.SEASONAL
    assert made.parts_of(1, 5) is Part.NOTHING
    assert made.g_per_kwh[0, 5] == round(made.g_per_kwh[0, 5], 1)
    alone = outlook.build([A], {"Z": ZoneData(history=rising(), skill=holding)}, NOW, 40)
    assert alone.basis_of(0, 5) is Basis.BLEND
    assert alone.parts_of(0, 5) == Part.OBSERVED | Part.SEASONAL
    plain = outlook.build([A], {"Z": ZoneData(foretold(FIRST), NOW, rising())}, NOW, 40)
    assert (plain.basis_of(0, 0), plain.parts_of(0, 0)) == (Basis.HELD, Part.OBSERVED)
    assert (plain.basis_of(0, 5), plain.parts_of(0, 5)) == (Basis.FORECAST, Part.FORECAST)
    assert (plain.basis_of(0, 39), plain.parts_of(0, 39)) == (Basis.SEASONAL, Part.FORECAST | Part.SEASONAL)


def test_each_observed_window_teaches_each_bucket_and_never_from_its_own_future() -> None:
    for window in range(FIRST, FIRST + 500, 7):
        leads = window - np.array(origins_of(window))
        assert (leads >= 0).all()
        assert leads.max() <= MAX_LEAD
        assert set(bucket_of(leads[leads < 37])) == set(range(17))
    everything: IntArray = np.concatenate([w - np.array(origins_of(w)) for w in range(FIRST, FIRST + 300)])
    assert set(range(37)) <= set(everything.tolist())


def test_twenty_zones_of_three_days_take_no_time(holding: Skill) -> None:
    windows = np.arange(FIRST, FIRST + 864)
    issues = [foretold(FIRST - age, length=864) for age in ISSUE_AGES]
    one = Known(FIRST, issues, rising(14))
    took: list[float] = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(20):
            blend(holding, evidence(one, windows))
        took.append(time.process_time() - began)
    assert min(took) < 0.2  # 15 ms on one core of a quiet machine


def sample(values: FloatArray) -> Evidence:
    return evidence(Known(FIRST, [Series(FIRST + 1, values)], rising()), AHEAD)


def test_the_level_and_surroundings_of_a_forecast_are_told() -> None:
    values = np.arange(36, dtype=float)
    seen = sample(values)
    assert seen.differences[10, FEATURES.index("window before - base")] == -1
    assert seen.differences[10, FEATURES.index("window after - base")] == 1
    assert seen.differences[1, FEATURES.index("mean of 7 windows around - base")] == pytest.approx(1.5)
    assert seen.differences[1, FEATURES.index("mean of the next 6 windows - base")] == pytest.approx(2.5)

"""Why a chunk is where it is: each reason to pass over a cell, the runner-up, and the sentences made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.model import ChunkState, Signal
from carbonq.plan.because import Facts, because
from carbonq.plan.outlook import Basis, Outlook
from carbonq.plan.why import Case, Cell, Explained, Why, explain
from carbonq.units import WINDOW, window_index

START = datetime(2021, 6, 14, 12, tzinfo=UTC)
KWH = 3_600_000_000_000.0
NAN = float("nan")


def outlook(rates: list[list[float]], *, spread: list[list[float]] | None = None) -> Outlook:
    shape = np.array(rates).shape
    names = ("north", "south", "east")[: shape[0]]
    return Outlook(
        regions=names,
        first_window=window_index(START),
        g_per_kwh=np.array(rates, dtype=np.float64),
        basis=np.ones(shape, dtype=np.int8),
        issued_at=tuple(START for _ in names),
        pue=np.ones(shape[0]),
        spread=np.full(shape, NAN) if spread is None else np.array(spread, dtype=np.float64),
    )


def case(region: int, window: int, regions: int, **changes: Any) -> Case:
    values: dict[str, Any] = {
        "release_s": 0.0,
        "latest_s": 9999.0,
        "duration_s": 180.0,
        "energy_uj": np.full(regions, KWH),
        "extra_g": np.zeros(regions),
        "allowed": frozenset(range(regions)),
        "usable": frozenset(range(regions)),
    }
    return Case(region, window, **(values | changes))


def told(made: Outlook, one: Case, free: list[list[int]] | None = None, **options: Any) -> Explained:
    lanes = np.ones(made.g_per_kwh.shape, dtype=np.int64) if free is None else np.array(free)
    return explain(one, made, lanes, np.arange(made.windows) * 300.0, **options)


def whys(found: Explained) -> dict[Why, tuple[int, tuple[int, int]]]:
    return {one.why: (one.cells, (one.best.region, one.best.window)) for one in found.passed}


def test_the_cheapest_cell_has_nothing_before_it() -> None:
    found = told(outlook([[300, 100, 200]]), case(0, 1, 1))
    assert (found.is_cheapest, found.passed, found.choices) == (True, (), 3)
    assert found.runner_up == Cell(0, 2, 200, 200)
    assert (found.more_g, found.more_share) == (100, 1.0)


def test_each_reason_to_pass_over_a_cell_is_told_apart() -> None:
    made = outlook([[10, 50, 20, 100, 30, 25], [5, 5, 5, 5, 5, 5], [6, 6, 6, 6, 6, 6]])
    one = case(0, 3, 3, release_s=300.0, latest_s=1200.0, allowed=frozenset({0, 2}), usable=frozenset({0}))
    found = told(made, one, [[1, 1, 0, 1, 0, 1], [1] * 6, [1] * 6], margin=0.6)
    assert whys(found) == {
        Why.NOT_ALLOWED: (6, (1, 0)),
        Why.AWAY: (6, (2, 0)),
        Why.BEFORE_RELEASE: (1, (0, 0)),
        Why.AFTER_DEADLINE: (1, (0, 5)),
        Why.FULL: (2, (0, 2)),
        Why.BELOW_MARGIN: (1, (0, 1)),
    }
    assert (found.choices, found.runner_up, found.more_g) == (2, Cell(0, 1, 50, 50), -50)
    assert not found.is_cheapest
    assert Why.FREE in whys(told(made, one, [[1, 1, 0, 1, 0, 1], [1] * 6, [1] * 6], margin=0.4))


def test_a_difference_within_the_error_is_a_near_tie() -> None:
    rates, spread = [[100.0, 99.5]], [[10.0, 26.0]]
    found = told(outlook(rates, spread=spread), case(0, 0, 1))
    assert Why.NEAR_TIE in whys(found) and "far within the error" in said(found, rates)
    # A fiftieth of 24 is less than the half gram: then only the margin says why it stays.
    assert Why.BELOW_MARGIN in whys(told(outlook(rates, spread=[[10.0, 24.0]]), case(0, 0, 1)))
    assert Why.BELOW_MARGIN in whys(told(outlook(rates), case(0, 0, 1)))  # no error is known, so none is claimed


def test_energy_pue_and_what_is_beside_the_rates_decide_what_is_cheaper() -> None:
    made = replace(outlook([[100.0], [90.0]]), pue=np.array([1.0, 1.2]))
    assert told(made, case(0, 0, 2)).is_cheapest
    frugal = case(0, 0, 2, energy_uj=np.array([KWH, KWH / 2]))
    assert told(made, frugal).passed[0].best == Cell(1, 0, 90, 54)
    far = case(0, 0, 2, energy_uj=np.array([KWH, KWH / 2]), extra_g=np.array([0.0, 50.0]))
    assert told(made, far).is_cheapest and told(made, far).more_g == pytest.approx(4)


def test_what_is_not_known_is_never_cheaper_and_its_own_rate_unknown_says_nothing() -> None:
    found = told(outlook([[100.0, NAN]]), case(0, 0, 1))
    assert found.is_cheapest and found.runner_up is None and found.choices == 2
    blind = told(outlook([[NAN, 50.0]]), case(0, 0, 1))
    assert (blind.own, blind.passed, blind.runner_up) == (None, (), Cell(0, 1, 50, 50))
    decided = told(outlook([[NAN, 50.0]]), case(0, 0, 1), own_g_per_kwh=40.0)
    assert decided.own == Cell(0, 0, 40, 40) and decided.is_cheapest


def test_the_cap_is_told() -> None:
    assert told(outlook([[100.0]]), case(0, 0, 1, max_g=99.0)).is_over_cap
    assert not told(outlook([[100.0]]), case(0, 0, 1, max_g=100.0)).is_over_cap


def test_long_chunks_cost_the_mean_and_need_all_their_windows() -> None:
    made = outlook([[10.0, 90.0, 50.0, 40.0]])
    found = told(made, case(0, 2, 1, duration_s=600.0), [[1, 0, 1, 1]])
    assert found.own == Cell(0, 2, 50, 45)
    assert found.runner_up == Cell(0, 3, 40, 40)  # past the outlook its last value repeats
    assert told(made, case(0, 0, 1, duration_s=600.0), [[1, 0, 1, 1]]).own == Cell(0, 0, 10, 50)


def test_what_the_price_weighs_counts_and_is_told_apart_from_grams() -> None:
    made = outlook([[100.0], [110.0], [105.0]])
    dear = case(0, 0, 3, price_g=np.array([50.0, 0.0, 90.0]), max_g=120.0)
    found = told(made, dear, [[1], [1], [0]])
    assert found.own is not None and (found.own.grams, found.own.price_g, found.own.cost_g) == (100, 50, 150)
    assert whys(found) == {Why.FREE: (1, (1, 0))}
    assert (found.more_g, found.more_price_g) == (10, -50)
    assert found.more_share == pytest.approx(-40 / 150) and not found.is_over_cap
    other = told(made, case(1, 0, 3, price_g=np.array([50.0, 0.0, 90.0])))
    (line,) = [one for one in because(facts(), other, made) if "runner-up" in one]
    assert "would cost 40 gCO2e (36.4 %) more: 10 gCO2e less of carbon, 50 gCO2e more by price." in line
    lines = because(facts(), found, made)
    assert any("1 cheaper cell is free by now; the cheapest is south" in one and "26.7 % less" in one for one in lines)


def test_a_placement_outside_the_outlook_is_refused() -> None:
    with pytest.raises(ValueError, match="outside the outlook"):
        told(outlook([[1.0]]), case(0, 1, 1))


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.none() | st.integers(0, 9), min_size=5, max_size=5), min_size=2, max_size=2),
    st.lists(st.lists(st.integers(0, 1), min_size=5, max_size=5), min_size=2, max_size=2),
    st.tuples(st.integers(0, 1), st.integers(0, 4)),
    st.integers(0, 5),
)
def test_every_cheaper_cell_is_accounted_for_once(
    rates: list[list[int | None]], free: list[list[int]], own: tuple[int, int], until: int
) -> None:
    made = outlook([[NAN if one is None else float(one) for one in row] for row in rates])
    found = told(made, case(*own, 2, latest_s=until * 300.0), free)
    value = rates[own[0]][own[1]]
    if value is None:
        assert found.own is None
        return
    cheaper = sum(one is not None and one < value for row in rates for one in row)
    assert sum(one.cells for one in found.passed) == cheaper
    for one in found.passed:
        assert one.best.grams < value
        if one.why is Why.FULL:
            assert free[one.best.region][one.best.window] == 0
        if one.why is Why.AFTER_DEADLINE:
            assert one.best.window > until
    assert found.is_cheapest == all(one.why in {Why.FULL, Why.AFTER_DEADLINE} for one in found.passed)


def facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "chunks": 1,
        "state": ChunkState.PLACED,
        "reason": "carbon",
        "region": "north",
        "window_at": START,
        "deadline_at": START + 12 * WINDOW,
        "latest_start_at": START + 11 * WINDOW,
        "g_per_kwh": 100.0,
        "issued_at": START - WINDOW,
        "signal": Signal.MOER,
        "basis": Basis.FORECAST,
        "planned_at": START - WINDOW,
        "rate_now": 100.0,
        "is_rebuilt": True,
        "margin": 0.03,
        "windows": 1,
        "first_at": START,
        "last_at": START,
        "lowest_g_per_kwh": 100.0,
    }
    return Facts(**(values | changes))


def said(found: Explained | None = None, rates: list[list[float]] | None = None, **changes: Any) -> str:
    return "\n".join(because(facts(**changes), found, outlook(rates or [[100.0, 90.0, 130.0]])))


def test_the_sentences_of_a_chunk_in_the_cheapest_cell() -> None:
    made = outlook([[100.0, 90.0, 130.0]])
    found = told(made, case(0, 0, 1, energy_uj=np.full(1, KWH / 1000)), [[1, 0, 1]])
    assert said(found) == (
        "1 chunk is to run in north in the window of 14 Jun 12:00Z: 100 g/kWh MOER by the forecast, newest forecast of "
        "14 Jun 11:55Z.\n"
        "Of the 2 cells that are allowed, in time and free, none causes less.\n"
        "1 cleaner cell is full; the cleanest is north at 14 Jun 12:05Z (90 g/kWh), 10.0 % less.\n"
        "The runner-up, north at 14 Jun 12:10Z (130 g/kWh), would cost 30 mgCO2e (30.0 %) more."
    )


def test_a_group_is_told_of_by_its_dirtiest() -> None:
    text = said(chunks=5, windows=3, last_at=START + 6 * WINDOW, lowest_g_per_kwh=61.0, state=ChunkState.DONE)
    assert text.startswith(
        "5 chunks ran in north in 3 windows from 14 Jun 12:00Z to 14 Jun 12:30Z: 61 to 100 g/kWh MOER"
    )
    assert "What follows is of the dirtiest, 14 Jun 12:00Z." in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reason": "late"}, "cannot be finished by its deadline 14 Jun 13:00Z"),
        ({"reason": "overlay", "g_per_kwh": None}, "no rate was known"),
        ({"reason": "at_once"}, "It runs at once at home"),
        ({"reason": "deadline"}, "Its deadline 14 Jun 13:00Z left no other window"),
        ({"signal": Signal.AER}, "100 g/kWh AER by"),
        ({"basis": Basis.HELD}, "by the last observation"),
        ({"basis": Basis.SEASONAL}, "by what is usual at that time of day"),
        ({"basis": Basis.BLEND}, "by all that was known"),
        ({"state": ChunkState.RUNNING}, "1 chunk runs now in"),
        ({"rate_now": 130.4}, "Since then its forecast went up from 100 to 130 g/kWh."),
        ({"rate_now": 70.0}, "went down from 100 to 70"),
        ({"is_rebuilt": False}, "cannot be put together exactly any more"),
        ({}, "what was known at that time is no longer kept"),
    ],
)
def test_what_else_is_said(changes: dict[str, Any], words: str) -> None:
    assert words in said(**changes)


def test_what_is_not_so_is_not_said() -> None:
    text = said()
    for words in ("Since then", "exactly any more", "cap", "runner-up", "at once"):
        assert words not in text
    assert "Since then" not in said(rate_now=None)


def test_the_other_sentences_of_a_comparison() -> None:
    made = [[100.0, 50.0, 40.0], [30.0, 20.0, 10.0]]
    one = case(0, 0, 2, latest_s=300.0, allowed=frozenset({0}), max_g=10.0)
    text = said(told(outlook(made), one, margin=0.6), made, max_g=10.0)
    assert "That is above its share of the job's carbon cap, 10 gCO2e a chunk." in text
    assert "3 cleaner cells lie in regions where the job may not run" in text
    assert "after its latest safe start 14 Jun 12:55Z for the deadline 14 Jun 13:00Z" in text
    assert "50.0 % less, and a chunk that has a place is moved only for more than 3 %" in text
    assert "runner-up" not in text  # the only other choice is cheaper, and was told of as such
    none = told(outlook([[100.0]]), case(0, 0, 1))
    assert "No other cell is allowed, in time and free." in said(none, [[100.0]])
    assert math.isclose(facts().margin, 0.03) and timedelta(minutes=5) == WINDOW

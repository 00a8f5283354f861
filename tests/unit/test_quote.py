"""Quotes: the optimum of what is left, the baseline at the same energy, and spreads that promise nothing."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carbonq.plan.capacity import Capacity
from carbonq.plan.outlook import Outlook
from carbonq.plan.quote import Baseline, Quoter, Work, baseline_of
from carbonq.plan.taken import Held, LongChunk, lanes_taken
from carbonq.units import WINDOW, window_index

START = datetime(2021, 6, 14, 12, tzinfo=UTC)
KWH = 3_600_000_000_000.0
NAN = float("nan")


def quoter(
    rates: list[list[float]],
    slots: list[list[int]],
    *,
    spread: list[list[float]] | None = None,
    pue: list[float] | None = None,
    left_s: float = 300.0,
) -> Quoter:
    shape = np.array(rates).shape
    names = tuple("abc"[: shape[0]])
    outlook = Outlook(
        regions=names,
        first_window=window_index(START),
        g_per_kwh=np.array(rates, dtype=np.float64),
        basis=np.ones(shape, dtype=np.int8),
        issued_at=tuple(None for _ in names),
        pue=np.array(pue or [1.0] * shape[0]),
        spread=np.full(shape, NAN) if spread is None else np.array(spread),
    )
    capacity = Capacity(names, outlook.first_window, np.array(slots), tuple(range(shape[0])))
    starts = np.maximum(np.arange(shape[1]) * 300.0 - (300.0 - left_s), 0.0)
    return Quoter(outlook, capacity, starts, left_s)


def work(chunks: int, regions: int = 1, **changes: Any) -> Work:
    values = {
        "duration_s": np.full(regions, 180.0),
        "energy_uj": np.full(regions, KWH),
        "extra_g": np.zeros(regions),
        "guard_s": 0.0,
    }
    return Work(chunks, **(values | changes))


def base(region: int, counts: list[int]) -> Baseline:
    return baseline_of(
        [column for column, count in enumerate(counts) for _ in range(count)], region, len(counts), 300.0
    )


def test_cheapest_cells_within_the_deadline_and_not_one_lane_too_many() -> None:
    made = quoter([[300, 100, 200, 50]], [[1, 2, 1, 9]])
    found = made.point(work(3), [0], 900.0, base(0, [3, 0, 0, 0]))
    assert (found.grams, found.baseline_g, found.saved_g, found.is_met) == (400, 900, 500, True)
    assert found.finish_s == 780 and found.first_window == 1 and found.per_region == (3,)
    later = made.point(work(3), [0], 1200.0)
    assert (later.grams, later.baseline_g, later.saved_g) == (150, None, None)
    early = made.point(work(3), [0], None)
    assert (early.grams, early.finish_s, early.first_window) == (500, 480, 0)


def test_the_guard_is_kept_free_and_what_is_late_is_said() -> None:
    made = quoter([[100, 50, 10]], [[1, 1, 1]])
    assert made.point(work(2, guard_s=120.0), [0], 600.0).is_met
    tight = made.point(work(2, guard_s=121.0), [0], 600.0)
    assert (tight.late, tight.unplaced, tight.is_met, tight.grams, tight.finish_s) == (1, 0, False, 150, 480)
    over = made.point(work(4), [0], 900.0)
    assert (over.late, over.unplaced, over.grams, over.finish_s) == (0, 1, None, None)


def test_regions_have_energies_durations_pue_and_extras_of_their_own() -> None:
    made = quoter([[100, 100], [80, 80]], [[1, 1], [1, 1]], pue=[1.0, 1.5])
    unlike = work(2, 2, energy_uj=np.array([KWH, KWH / 2]), extra_g=np.array([0.0, 30.0]))
    found = made.point(unlike, [0, 1], 600.0, base(0, [1, 1]))
    # b costs 0.5 x 1.5 x 80 = 60 each and 30 besides; the baseline is at the same energy, 2 x 0.5 kWh at home's 100.
    assert (found.grams, found.extra_g, found.per_region, found.baseline_g) == (120, 60, (0, 2), 100)
    assert (found.saved_g, found.energy_uj) == (-20, KWH)
    dear = work(2, 2, energy_uj=np.array([KWH, KWH / 2]), extra_g=np.array([0.0, 50.0]))
    assert made.point(dear, [0, 1], 600.0).per_region == (2, 0)  # what is beside the rates decides too
    slow = made.point(work(2, 2, duration_s=np.array([180.0, 310.0])), [1], 610.0)
    assert (slow.late, slow.per_region) == (0, (0, 2))  # 310 s reach a fifth of a window into the next at most


def test_short_chunks_share_lanes_as_in_plans() -> None:
    made = quoter([[100, 50, 10]], [[1, 1, 1]], left_s=160.0)
    short = work(7, duration_s=np.array([75.0]))
    # Three to a lane (225 s of it); two in what is left of the running window.
    found = made.point(short, [0], 760.0)
    assert (found.grams, found.late, found.unplaced, found.finish_s) == (3 * 10 + 3 * 50 + 100, 0, 0, 685)
    assert made.point(work(9, duration_s=np.array([75.0])), [0], 760.0).unplaced == 1
    assert made.point(work(4, duration_s=np.array([113.0])), [0], 760.0).unplaced == 1  # two do not fit


def test_what_the_price_weighs_decides_and_is_no_carbon() -> None:
    made = quoter([[100, 100], [80, 80]], [[1, 1], [1, 1]])
    found = made.point(work(2, 2, price_g=np.array([0.0, 30.0])), [0, 1], 600.0)
    assert (found.per_region, found.grams, found.price_g) == ((2, 0), 200, 0)
    cheap = made.point(work(2, 2, price_g=np.array([0.0, 15.0])), [0, 1], 600.0)
    assert (cheap.per_region, cheap.grams, cheap.price_g) == ((0, 2), 160, 30)


def test_a_missing_rate_is_the_last_choice_and_makes_grams_unknown() -> None:
    made = quoter([[NAN, 500, 400]], [[2, 1, 1]])
    assert made.point(work(2), [0], 900.0).grams == 900
    found = made.point(work(3), [0], 900.0, base(0, [3, 0, 0]))
    assert (found.grams, found.unrated, found.saved_g, found.spread_g) == (None, 1, None, None)
    at_home = made.baseline_grams(work(3), base(0, [3, 0, 0]))
    assert at_home == (None, None)
    blind = quoter([[NAN, NAN]], [[1, 1]])
    assert blind.point(work(1), [0], 600.0).unrated == 1 and blind.known_until_s([0]) == 0.0
    assert made.known_until_s([0]) == 900.0


def test_spreads_add_up_and_a_cell_that_both_use_cancels() -> None:
    made = quoter([[100, 50, 60]], [[1, 1, 1]], spread=[[10, 20, 40]], pue=[2.0])
    found = made.point(work(2), [0], 900.0, base(0, [1, 1, 0]))
    assert (found.spread_g, found.saved_g) == (120, 80)
    assert found.saved_spread_g == 100  # 20 x 1 kWh of the first cell, 80 of the third; the second is in both
    assert made.baseline_grams(work(2), base(0, [1, 1, 0])) == (300, 60)
    unknown = quoter([[100, 50]], [[1, 1]], spread=[[10, NAN]])
    assert unknown.point(work(1), [0], 600.0).spread_g is None
    assert unknown.point(work(1), [0], 300.0).spread_g == 10


def test_a_baseline_beyond_the_outlook_says_nothing() -> None:
    beyond = baseline_of([0, 5], 0, 3, 1800.0)
    assert (beyond.counts.tolist(), beyond.beyond) == ([1, 0, 0], 1)
    found = quoter([[1, 1, 1]], [[9, 9, 9]]).point(work(2), [0], 900.0, beyond)
    assert (found.grams, found.baseline_g, found.saved_g) == (2, None, None)


def test_the_rest_of_the_running_window_may_be_too_short() -> None:
    made = quoter([[10, 90]], [[1, 1]], left_s=100.0)
    assert made.point(work(1), [0], 600.0).grams == 90
    assert made.point(work(1, duration_s=np.array([160.0])), [0], 600.0).grams == 10


def test_long_chunks_hold_their_lane_in_all_their_windows() -> None:
    made = quoter([[90, 10, 90, 20, 20, 20]], [[1, 1, 1, 1, 1, 0]])
    long = work(2, duration_s=np.array([600.0]))
    found = made.point(long, [0], 1500.0)
    assert (found.grams, found.late, found.finish_s) == (70, 0, 1500)  # 3-4, and 1-2
    assert made.point(long, [0], 900.0).late == 1
    one = quoter([[90, 10, 90, 20, 20, 20]], [[1, 1, 1, 1, 1, 0]]).point(
        work(1, duration_s=np.array([600.0])), [0], 1800.0
    )
    assert one.grams == 20


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 99), min_size=4, max_size=4), min_size=2, max_size=2),
    st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=2, max_size=2),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_equal_to_trying_everything(rates: list[list[int]], slots: list[list[int]], chunks: int, until: int) -> None:
    made = quoter([[float(one) for one in row] for row in rates], slots)
    deadline_s = until * 300.0
    cells = [(r, w) for r in range(2) for w in range(until) for _ in range(slots[r][w])]
    found = made.point(work(chunks, 2), [0, 1], deadline_s)
    if len(cells) < chunks:
        assert not found.is_met
        return
    best = min(sum(rates[r][w] for r, w in some) for some in itertools.combinations(cells, chunks))
    assert found.is_met and found.grams == pytest.approx(best)
    more = made.point(work(chunks, 2), [0, 1], deadline_s + 300.0)
    assert more.grams is not None and more.grams <= best + 1e-9
    alone = made.point(work(chunks, 2), [0], deadline_s)
    assert not alone.is_met or (alone.grams is not None and alone.grams >= best - 1e-9)


def test_quoting_about_other_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="same regions and windows"):
        quoter([[1, 1]], [[1]])


def test_lanes_of_accepted_work() -> None:
    first = window_index(START)
    held = [
        Held("a", START, 2, 0.0),
        Held("a", START + WINDOW, 0, 225.0),
        Held("b", START + WINDOW, 1, 225.1),
        Held("gone", START, 9, 9.0),
        Held("a", START - WINDOW, 5, 0.0),
    ]
    long = [LongChunk("b", START - WINDOW, 700.0), LongChunk("a", START + 2 * WINDOW, 360.0)]
    taken = lanes_taken(held, long, ("a", "b"), first, 4)
    assert taken.tolist() == [[2, 1, 1, 0], [1, 4, 0, 0]]
    assert math.isclose(float(taken.sum()), 9) and timedelta(minutes=5) == WINDOW

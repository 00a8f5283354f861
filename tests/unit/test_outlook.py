from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

from carbonq.model import Maintenance, Region
from carbonq.plan import capacity, outlook
from carbonq.plan.forecaster import EMPTY, FloatArray, Series, daily_shapes, seasonal
from carbonq.plan.outlook import Basis, ZoneData
from carbonq.units import window_index

NOW = datetime(2021, 6, 10, 12, 0, 30, tzinfo=UTC)
FIRST = window_index(NOW)
A = Region("a", "Z", 2, Decimal("1.1"), "stated", "cpu")
B = Region("b", "Y", 1, Decimal(1), "stated", "cpu")


def daily(days: int, end: int) -> Series:
    """A history whose value is the number of the window in its day."""
    windows = np.arange(end - days * 288, end)
    return Series(int(windows[0]), (windows % 288).astype(float))


def daily_shape(history: Series) -> FloatArray:
    return daily_shapes(history)[0]


def test_the_daily_shape_is_the_smoothed_mean_of_each_time_of_day() -> None:
    shape = daily_shape(daily(3, FIRST))
    assert shape[100] == pytest.approx(100)
    assert shape[1] == pytest.approx((1 + 2 + 3 + 4 + 0 + 287 + 286) / 7)  # the day is a ring
    assert np.isnan(daily_shape(EMPTY)).all()


def test_missing_values_are_no_zeros_in_the_shape() -> None:
    history = daily(2, FIRST)
    history.values[:288] = np.nan
    assert daily_shape(history)[100] == pytest.approx(100)
    alone = Series(FIRST, np.array([np.nan, 50.0]))
    shape = daily_shape(alone)
    assert shape[(FIRST + 1) % 288] == 50
    assert np.isnan(shape[(FIRST + 100) % 288])


def test_a_known_deviation_fades_out_and_nothing_goes_below_zero() -> None:
    history = daily(3, FIRST)
    base = seasonal(history, None, np.array([FIRST + 1, FIRST + 72]))
    tied = seasonal(history, (FIRST, float(FIRST % 288) + 40), np.array([FIRST + 1, FIRST + 72]))
    assert tied - base == pytest.approx([40 * np.exp(-1 / 72), 40 / np.e], rel=1e-3)
    assert seasonal(history, (FIRST, -1e6), np.array([FIRST + 1])).tolist() == [0]
    assert seasonal(history, (FIRST, float("nan")), np.array([FIRST + 1])) == pytest.approx(base[:1])


def test_a_series_knows_its_ends() -> None:
    series = Series(10, np.array([1.0, 2.0, np.nan]))
    assert (series.end_window, series.last()) == (13, (11, 2.0))
    assert EMPTY.last() is None
    np.testing.assert_array_equal(series.at(np.array([9, 10, 12, 13])), [np.nan, 1, np.nan, np.nan])


def test_held_then_forecast_then_the_daily_shape() -> None:
    data = ZoneData(Series(FIRST + 1, np.array([7.0, np.nan, 9.0])), NOW, daily(2, FIRST - 1))
    made = outlook.build([A, B], {"Z": data}, NOW, 6)
    assert [made.basis_of(0, i) for i in range(6)] == [
        Basis.HELD,
        Basis.FORECAST,
        Basis.SEASONAL,
        Basis.FORECAST,
        Basis.SEASONAL,
        Basis.SEASONAL,
    ]
    assert made.g_per_kwh[0, [0, 1, 3]].tolist() == [(FIRST - 2) % 288, 7, 9]
    assert made.rate(0, 1) == Decimal("7.0")
    assert [made.basis_of(1, i) for i in range(6)] == [Basis.NONE] * 6
    assert (made.rate(1, 0), made.issued_at, made.windows) == (None, (NOW, None), 6)
    assert made.window_at(1) == datetime(2021, 6, 10, 12, 5, tzinfo=UTC)
    assert made.pue.tolist() == [1.1, 1.0]


def test_an_old_observation_is_not_held() -> None:
    data = ZoneData(EMPTY, None, daily(2, FIRST - 3))
    assert outlook.build([A], {"Z": data}, NOW, 2).basis_of(0, 0) is Basis.SEASONAL


def test_nothing_known_is_down() -> None:
    assert outlook.build([A], {"Z": ZoneData()}, NOW, 3).is_down
    assert outlook.build([A], {}, NOW, 3).is_down


def test_capacity_is_slots_less_what_runs_and_what_is_due() -> None:
    # 30 s of the window are gone, so the next ones begin in 270 s, 570 s and 870 s.
    made = capacity.build([A, B], now=NOW, windows=4, running_s={"a": [100], "b": [331]}, due_s={"a": [400, 300]})
    assert made.slots.tolist() == [[0, 0, 2, 2], [0, 0, 1, 1]]
    assert capacity.build([A], now=NOW, windows=2, running_s={}, due_s={}).slots.tolist() == [[2, 2]]
    overrun = capacity.build([B], now=NOW, windows=2, running_s={"b": [329]}, due_s={})
    assert overrun.slots.tolist() == [[0, 1]]
    shrunk = capacity.build([B], now=NOW, windows=3, running_s={"b": [1, 500]}, due_s={})
    assert shrunk.slots.tolist() == [[0, 0, 1]]


def test_a_lane_that_frees_itself_in_the_running_window_is_told_apart() -> None:
    # 270 s are left: one lane is free now, one from 100 s on, one in the next window only.
    three = replace(A, slots=3)
    made = capacity.build([three, B], now=NOW, windows=3, running_s={"a": [100, 280]}, due_s={})
    assert made.slots.tolist() == [[1, 3, 3], [1, 1, 1]]
    assert made.freeing_s == ((100.0,), ())
    shut = replace(three, maintenance=(Maintenance(NOW, NOW + timedelta(seconds=10), 1),))
    assert capacity.build([shut], now=NOW, windows=1, running_s={"a": [100, 280]}, due_s={}).freeing_s == ((),)
    wider = replace(three, maintenance=(Maintenance(NOW, NOW + timedelta(seconds=10), 2),))
    made = capacity.build([wider], now=NOW, windows=1, running_s={"a": [100, 200, 280]}, due_s={})
    assert (made.slots.tolist(), made.freeing_s) == ([[0]], ((200.0,),))


def test_maintenance_takes_slots_away_in_every_window_it_touches() -> None:
    def slots(*spans: tuple[float, float, int], running: Sequence[float] = ()) -> list[int]:
        region = replace(
            A,
            slots=3,
            maintenance=tuple(
                Maintenance(NOW + timedelta(seconds=start), NOW + timedelta(seconds=end), left)
                for start, end, left in spans
            ),
        )
        made = capacity.build([region], now=NOW, windows=5, running_s={"a": running}, due_s={})
        return made.slots[0].tolist()

    assert slots() == [3, 3, 3, 3, 3]
    # Windows begin in 270, 570, 870 and 1170 s.
    assert slots((300, 600, 1)) == [3, 1, 1, 3, 3]
    assert slots((270, 570, 0)) == [3, 0, 3, 3, 3]
    assert slots((-900, -30, 0), (1200, 99999, 0)) == [3, 3, 3, 3, 0]
    assert slots((-900, 0.5, 1)) == [1, 3, 3, 3, 3]
    assert slots((300, 900, 2), (600, 700, 7), running=[700]) == [2, 1, 1, 2, 3]


def test_closed_regions_offer_nothing() -> None:
    made = capacity.build([A, B], now=NOW, windows=1, running_s={}, due_s={}, closed=frozenset({"a"}))
    assert made.slots.tolist() == [[0], [1]]
    assert made.latency_ms == (0.0, 0.0)


def test_window_starts_count_from_now() -> None:
    assert capacity.window_starts(NOW, 3).tolist() == [0, 270, 570]
    assert capacity.window_starts(NOW - timedelta(seconds=30), 2).tolist() == [0, 300]

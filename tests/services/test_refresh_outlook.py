from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

from carbonq.errors import SignalUnavailable
from carbonq.grid.recorded import RecordedSource, recording
from carbonq.model import RateStatus, Signal
from carbonq.plan.outlook import Basis
from carbonq.services.outlook import load_outlook, read_history, series
from carbonq.services.rates import RateCache
from carbonq.services.refresh import refresh
from carbonq.signals import Forecast, Observation
from carbonq.store import forecasts
from carbonq.store.database import Database
from carbonq.units import WINDOW, window_index
from tests.services.planning import NORTH, SOUTH, START, SetClock
from tests.store.test_forecasts import FORECAST, OBSERVATION


class Away:
    name = "away"
    signal = Signal.MOER

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        raise SignalUnavailable("the provider does not answer")

    def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
        raise SignalUnavailable("the provider does not answer")


def test_one_source_that_is_away_does_not_stop_the_others(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    clock = SetClock()
    sources = {("X", Signal.MOER): [Away()], (NORTH.zone, Signal.MOER): [RecordedSource()]}
    days = (START - recording().start_at).days
    assert refresh(database, sources, clock) == 2 + days * 288 + 144  # the running window is of the issue before
    assert "moer of X cannot be had from away: the provider does not answer" in caplog.text
    assert refresh(database, sources, clock) == 0
    clock.at += 2 * WINDOW
    assert refresh(database, sources, clock) == 3


def test_the_first_window_of_a_fresh_installation_has_a_rate(database: Database) -> None:
    clock = SetClock(START + timedelta(seconds=100))
    refresh(database, {(NORTH.zone, Signal.MOER): [RecordedSource()]}, clock)
    cache = RateCache([NORTH])
    cache.refresh(database, clock.now())
    rate, status = cache.book().lookup(Signal.MOER, NORTH.zone, START)
    assert rate is not None and rate.issued_at == START - WINDOW
    assert rate.retrieved_at == clock.now()
    assert status is RateStatus.PROVISIONAL


def test_the_outlook_says_where_each_value_comes_from(database: Database) -> None:
    clock = SetClock(START + timedelta(seconds=100))
    refresh(database, {(NORTH.zone, Signal.MOER): [RecordedSource()]}, clock)
    made = load_outlook(database, [NORTH, SOUTH], clock.now(), 300, 7200)
    days = recording()
    now = window_index(START) - days.first_window
    assert made.regions == ("norcal", "socal")
    assert made.first_window == window_index(START)
    assert made.g_per_kwh[0, 0] == days.observed[NORTH.zone][now - 1]
    assert made.g_per_kwh[0, 1:37].tolist() == days.forecast[NORTH.zone][now].tolist()
    assert [made.basis_of(0, i) for i in (0, 1, 36, 37, 299)] == [
        Basis.HELD,
        Basis.FORECAST,
        Basis.FORECAST,
        Basis.SEASONAL,
        Basis.SEASONAL,
    ]
    assert not np.isnan(made.g_per_kwh[0]).any()
    assert np.isnan(made.g_per_kwh[1]).all()
    assert made.issued_at == (START, None)
    assert made.rate(0, 1) == Decimal(int(days.forecast[NORTH.zone][now][0]))
    assert made.rate(1, 0) is None
    assert not made.is_down
    assert load_outlook(database, [NORTH], START + timedelta(hours=3), 10, 7200).is_down


def test_observations_alone_are_continued_by_the_daily_shape(sqlite_database: Database) -> None:
    source = RecordedSource()
    with sqlite_database.write() as tx:
        forecasts.add_observations(
            tx, source.observations(NORTH.zone, START - timedelta(days=3), START - 2 * WINDOW, START)
        )
    made = load_outlook(sqlite_database, [NORTH], START, 20, 7200)
    assert {made.basis_of(0, i) for i in range(1, 20)} == {Basis.SEASONAL}
    assert made.issued_at == (None,)


@pytest.mark.parametrize(
    ("step_s", "start_s", "expected"),
    [
        (300, 0, [1.0, 2.0, np.nan, 4.0]),
        (900, 0, [1.0] * 3 + [2.0] * 3 + [np.nan] * 3 + [4.0] * 3),
        (150, 0, [1.5, 4.0]),
        (300, 60, [1.0, 1.0, 2.0, np.nan, 4.0]),
    ],
)
def test_steps_become_windows(step_s: int, start_s: int, expected: list[float]) -> None:
    start_at = datetime(2021, 1, 1, tzinfo=UTC) + timedelta(seconds=start_s)
    values = (Decimal(1), Decimal(2), None, Decimal(4))
    made = series(replace(FORECAST, start_at=start_at, step_s=step_s, values=values))
    assert made.first_window == window_index(start_at)
    np.testing.assert_array_equal(made.values, expected)


def test_longer_steps_are_repeated_and_what_was_said_later_counts(database: Database) -> None:
    said = [(-12, 3600, 10), (0, 3600, 20), (3, 300, 30), (3, 300, 31), (12, 900, 40)]
    one = replace(OBSERVATION, source="s", may_settle=False)
    with database.write() as tx:
        for number, (window, step_s, value) in enumerate(said):
            times = {"window_at": START + window * WINDOW, "retrieved_at": START + number * WINDOW}
            forecasts.add_observations(tx, [replace(one, step_s=step_s, g_per_kwh=Decimal(value), **times)])
    with database.read() as tx:
        found = read_history(tx, ("Z", Signal.MOER, None), START, START + 14 * WINDOW)
    assert found.first_window == window_index(START)
    assert found.values.tolist() == [20.0] * 3 + [31.0] + [20.0] * 8 + [40.0] * 2

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from carbonq.model import Signal
from carbonq.signals import Forecast, Observation
from carbonq.store import forecasts
from carbonq.store.database import Database
from carbonq.units import WINDOW

NOW = datetime(2021, 6, 10, 12, tzinfo=UTC)
FORECAST = Forecast(
    zone="Z",
    signal=Signal.MOER,
    source="s",
    model="m",
    gas="co2",
    method=None,
    issued_at=NOW,
    retrieved_at=NOW,
    start_at=NOW + WINDOW,
    step_s=300,
    values=(Decimal("100.10"), None, Decimal(0)),
    raw_unit="lbs/MWh",
    raw_per_g_per_kwh=Decimal("2.2046"),
    is_estimated=False,
    may_settle=True,
)
OBSERVATION = Observation(
    zone="Z",
    signal=Signal.MOER,
    source="s",
    model="m",
    gas="co2",
    method=None,
    window_at=NOW,
    step_s=300,
    retrieved_at=NOW + WINDOW,
    g_per_kwh=Decimal("104.50"),
    raw=Decimal("0.1045"),
    raw_unit="kg/kWh",
    is_estimated=True,
    may_settle=False,
)


def test_a_forecast_is_kept_as_issued(database: Database) -> None:
    with database.write() as tx:
        assert forecasts.add_forecast(tx, FORECAST)
        assert not forecasts.add_forecast(tx, replace(FORECAST, values=(Decimal(1),)))
        later = replace(FORECAST, issued_at=NOW + WINDOW, values=(Decimal(7),))
        assert forecasts.add_forecast(tx, later)
        assert forecasts.add_forecast(tx, replace(FORECAST, signal=Signal.AER))
    with database.read() as tx:
        found = forecasts.newest_forecast(tx, "Z", Signal.MOER, NOW + timedelta(seconds=299))
        assert found is not None
        assert replace(found, values=tuple(found.values)) == FORECAST
        assert [str(value) for value in found.values] == ["100.10", "None", "0"]
        newest = forecasts.newest_forecast(tx, "Z", Signal.MOER, NOW + WINDOW)
        assert newest is not None
        assert newest.issued_at == NOW + WINDOW
        assert forecasts.newest_forecast(tx, "Z", Signal.MOER, NOW - WINDOW) is None
        assert forecasts.newest_forecast(tx, "Y", Signal.MOER, NOW) is None


def test_a_changed_observation_is_a_new_revision(database: Database) -> None:
    series = [replace(OBSERVATION, window_at=NOW + i * WINDOW, g_per_kwh=Decimal(100 + i)) for i in range(3)]
    with database.write() as tx:
        assert forecasts.add_observations(tx, series) == 3
        assert forecasts.add_observations(tx, series) == 0
        assert forecasts.add_observations(tx, []) == 0
        changed = replace(series[1], g_per_kwh=Decimal("55.5"), retrieved_at=NOW + 9 * WINDOW)
        assert forecasts.add_observations(tx, [series[0], changed, series[2]]) == 1
    with database.read() as tx:
        assert forecasts.last_observed(tx, "Z", Signal.MOER, "s", NOW + 9 * WINDOW) == NOW + 2 * WINDOW
        assert forecasts.last_observed(tx, "Z", Signal.MOER, "s", NOW + WINDOW) == NOW + WINDOW
        assert forecasts.last_observed(tx, "Z", Signal.AER, "s", NOW) is None
        found = forecasts.observed(tx, "Z", Signal.MOER, NOW, NOW + 2 * WINDOW)
        assert found == [series[0], changed]
        values = forecasts.history(tx, "Z", Signal.MOER, NOW, NOW + 9 * WINDOW)
        nothing = forecasts.history(tx, "Z", Signal.AER, NOW, NOW + 9 * WINDOW)
    assert values.window_s.tolist() == [(NOW + n * WINDOW).timestamp() for n in (0, 1, 1, 2)]
    assert (values.step_s.tolist(), values.g_per_kwh.tolist()) == ([300] * 4, [100.0, 101.0, 55.5, 102.0])
    assert len(nothing.window_s) == len(nothing.step_s) == len(nothing.g_per_kwh) == 0


def test_the_same_value_of_another_step_is_a_new_revision(database: Database) -> None:
    hour = replace(OBSERVATION, step_s=3600)
    with database.write() as tx:
        assert forecasts.add_observations(tx, [OBSERVATION]) == 1
        assert forecasts.add_observations(tx, [hour]) == 1
        assert forecasts.add_observations(tx, [hour]) == 0

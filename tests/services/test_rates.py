"""The snapshot of rates that a worker books with."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from carbonq.grid.readings import unit_of
from carbonq.model import RateKind, RateStatus, Signal
from carbonq.services import rates as cache
from carbonq.services.rates import RateCache
from carbonq.store.database import Database
from carbonq.units import LEDGER_CONTEXT, WINDOW, plain
from tests.services.booked import foretell, observe
from tests.unit.bookings import AWAY, HOME, W0

NOW = W0 + timedelta(minutes=2)


def refreshed(database: Database, *, now=NOW, baselines=(), **options) -> RateCache:
    made = RateCache([HOME, AWAY], **options)
    made.refresh(database, now, baselines=baselines)
    return made


def found(made: RateCache, at=W0, zone="Z-AWAY", signal=Signal.MOER) -> tuple[str | None, RateStatus]:
    rate, status = made.book().lookup(signal, zone, at)
    return rate and str(rate.g_per_kwh), status


def test_all_is_missing_before_the_first_refresh_and_with_an_empty_store(database: Database) -> None:
    assert found(RateCache([AWAY])) == (None, RateStatus.MISSING)
    assert found(refreshed(database)) == (None, RateStatus.MISSING)


def test_the_newest_forecast_issued_by_now_counts_as_issued(database: Database) -> None:
    foretell(database, "Z-AWAY", W0 - WINDOW, ["1", "2", "3"])
    foretell(database, "Z-AWAY", W0, ["20", None, "40"])
    foretell(database, "Z-AWAY", W0 + WINDOW, ["300", "400"])  # not issued yet
    made = refreshed(database)
    assert found(made, W0 - WINDOW) == ("1", RateStatus.PROVISIONAL)
    assert found(made, W0) == ("20", RateStatus.PROVISIONAL)
    assert found(made, W0 + WINDOW) == ("3", RateStatus.PROVISIONAL)  # the newer one has a gap there
    assert found(made, W0 + 2 * WINDOW) == ("40", RateStatus.PROVISIONAL)
    assert found(made, W0 + 3 * WINDOW) == (None, RateStatus.MISSING)
    rate, _ = made.book().lookup(Signal.MOER, "Z-AWAY", W0)
    assert rate is not None
    assert (rate.kind, rate.issued_at, rate.raw_unit) == (RateKind.FORECAST, W0, "lb/MWh")
    assert rate.raw == Decimal("44.0924524369756")


def test_a_long_forecast_of_a_source_that_fell_silent_still_covers(database: Database) -> None:
    foretell(database, "Z-AWAY", W0 - timedelta(hours=20), [str(n) for n in range(288)])
    assert found(refreshed(database)) == ("240", RateStatus.PROVISIONAL)


def test_an_observation_replaces_the_forecast_and_settles_in_time(database: Database) -> None:
    foretell(database, "Z-AWAY", W0, ["20"])
    observe(database, "Z-AWAY", W0, "22")
    observe(database, "Z-AWAY", W0, "23", revision=2)
    assert found(refreshed(database)) == ("23", RateStatus.PROVISIONAL)
    assert found(refreshed(database, now=W0 + WINDOW)) == ("23", RateStatus.SETTLED)
    assert found(refreshed(database, now=W0 + WINDOW, settle_after_s=600)) == ("23", RateStatus.PROVISIONAL)


def test_demo_values_that_never_settle_are_called_so(database: Database) -> None:
    foretell(database, "Z-AWAY", W0, ["20"], may_settle=False)
    assert found(refreshed(database)) == ("20", RateStatus.UNSETTLEABLE)


def test_half_hourly_steps_cover_their_windows(database: Database) -> None:
    observe(database, "Z-AWAY", W0 - timedelta(minutes=20), "22", step_s=1800)
    foretell(database, "Z-HOME", W0 - timedelta(minutes=20), ["7", "8"], step_s=1800)
    made = refreshed(database)
    assert found(made, W0 + WINDOW)[0] == "22"
    assert found(made, W0 + 2 * WINDOW)[0] is None
    assert found(made, W0 + 2 * WINDOW, "Z-HOME")[0] == "8"


def test_average_and_marginal_rates_stay_apart(database: Database) -> None:
    observe(database, "Z-AWAY", W0, "50", signal=Signal.AER, method="lifecycle")
    made = refreshed(database)
    assert found(made) == (None, RateStatus.MISSING)
    assert found(made, signal=Signal.AER)[0] == "50"


def test_baselines_far_from_now_are_loaded_when_watched(database: Database) -> None:
    long_ago, soon = W0 - timedelta(days=2), W0 + timedelta(hours=30)
    observe(database, "Z-HOME", long_ago, "400")
    foretell(database, "Z-HOME", W0, [str(n) for n in range(400)])
    made = refreshed(database, baselines=[("gone", long_ago)])
    assert found(made, long_ago, "Z-HOME")[0] is None
    assert made.watch([("home", long_ago), ("home", soon)])
    assert not made.watch([("home", soon)])
    made.refresh(database, NOW)
    assert found(made, long_ago, "Z-HOME") == ("400", RateStatus.SETTLED)
    assert found(made, soon, "Z-HOME") == ("360", RateStatus.PROVISIONAL)


def test_it_does_not_remember_baselines_for_ever(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_BASELINES", 2)
    made = RateCache([HOME])
    made.watch([("home", W0 - number * WINDOW) for number in range(5)])
    assert made.watch([("home", W0)])
    assert not made.watch([("home", W0 - 4 * WINDOW)])


def test_a_snapshot_in_use_does_not_change(sqlite_database: Database) -> None:
    made = refreshed(sqlite_database)
    before = made.book()
    observe(sqlite_database, "Z-AWAY", W0, "22")
    made.refresh(sqlite_database, NOW)
    assert before.lookup(Signal.MOER, "Z-AWAY", W0)[0] is None
    assert made.book().lookup(Signal.MOER, "Z-AWAY", W0)[0] is not None


def test_a_step_of_a_day_covers_its_windows(database: Database) -> None:
    observe(database, "Z-AWAY", W0 - timedelta(hours=23, minutes=55), "22", step_s=86_400)
    observe(database, "Z-HOME", W0 - timedelta(hours=23, minutes=55), "33", step_s=300)
    made = refreshed(database)
    assert found(made, W0)[0] == "22"
    assert found(made, W0 + WINDOW)[0] is None
    assert found(made, W0, "Z-HOME")[0] is None


@pytest.mark.parametrize("raw", ["258.53", "0", "0.5554", "900", "812.4000", "0.1234567890123456789"])
def test_the_raw_figure_of_a_forecast_is_the_one_that_came(database: Database, raw: str) -> None:
    unit = unit_of("lb/MWh", "a test")
    value = LEDGER_CONTEXT.multiply(Decimal(raw), unit.g_per_kwh)
    foretell(database, "Z-AWAY", W0, [str(value)], raw_per_g_per_kwh=unit.raw_per_g_per_kwh)
    rate, _ = refreshed(database).book().lookup(Signal.MOER, "Z-AWAY", W0)
    assert rate is not None
    assert plain(rate.raw) == plain(Decimal(raw.rstrip("0") if "." in raw else raw))

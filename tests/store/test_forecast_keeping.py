"""How forecasts and observations are kept: as issued, by source, thinned, retired; and how older rows are converted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from carbonq import rooms
from carbonq.model import Signal
from carbonq.store import forecasts, schema
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import Json
from carbonq.units import WINDOW
from tests.store.test_forecasts import FORECAST, NOW, OBSERVATION

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def issue(tx: Tx, after: timedelta, *, source: str = "s", zone: str = "Z") -> None:
    assert forecasts.add_forecast(tx, replace(FORECAST, issued_at=NOW + after, source=source, zone=zone))


def minutes(tx: Tx, *, source: str | None = None, zone: str = "Z") -> list[int]:
    found = forecasts.issues(tx, zone, Signal.MOER, NOW - 99 * HOUR, NOW + 99 * HOUR, source=source)
    return [int((one.issued_at - NOW) / MINUTE) for one in found]


def test_issues_come_by_time_and_source(database: Database) -> None:
    with database.write() as tx:
        for after in (10, 0, 5):
            issue(tx, after * MINUTE)
        issue(tx, 7 * MINUTE, source="t")
        issue(tx, 7 * MINUTE, zone="Y")
        forecasts.add_observations(tx, [replace(OBSERVATION, source="u")])
    with database.read() as tx:
        assert minutes(tx) == [0, 5, 7, 10]
        assert minutes(tx, source="s") == [0, 5, 10]
        (found,) = forecasts.issues(tx, "Z", Signal.MOER, NOW, NOW + MINUTE)
        assert replace(found, values=tuple(found.values)) == FORECAST
        last = forecasts.issues(tx, "Z", Signal.MOER, NOW, NOW + 10 * MINUTE, limit=2, is_newest_first=True)
        assert [one.source for one in last] == ["t", "s"]  # the end is not part of the span
        assert forecasts.sources_of(tx, "Z", Signal.MOER) == ["s", "t", "u"]
        assert forecasts.sources_of(tx, "Z", Signal.AER) == []
        newest = forecasts.newest_forecast(tx, "Z", Signal.MOER, NOW + HOUR, source="t")
        assert newest is not None and newest.source == "t"


def test_old_forecasts_are_thinned_to_the_first_of_each_hour_and_then_go(database: Database) -> None:
    with database.write() as tx:
        for after in range(0, 180, 5):
            issue(tx, after * MINUTE)
        issue(tx, 65 * MINUTE, source="t")
    old, thin = NOW, NOW + 2 * HOUR
    turns = 0
    while True:
        with database.write() as tx:
            # Limits that cut hours in two: what was kept of an hour before counts.
            done = forecasts.retire(tx, before=old, thin_before=thin, limit=5)
        turns += 1
        if not done:
            break
    assert turns == 6  # 25 rows are older than ``thin``, five at a time, and a last look
    with database.read() as tx:
        assert minutes(tx, source="s") == [0, 60, *range(120, 180, 5)]
        assert minutes(tx, source="t") == [65]
    with database.write() as tx:
        assert forecasts.retire(tx, before=NOW + HOUR, thin_before=None, limit=100) == 1
        assert forecasts.retire(tx, before=None, thin_before=None, limit=100) == 0
        assert minutes(tx, source="s")[0] == 60


def test_old_observations_go_with_all_their_revisions(database: Database) -> None:
    series = [replace(OBSERVATION, window_at=NOW + i * WINDOW) for i in range(6)]
    with database.write() as tx:
        forecasts.add_observations(tx, series)
        forecasts.add_observations(tx, [replace(series[0], g_per_kwh=Decimal(9)), replace(series[5], source="t")])
    gone: list[int] = []
    while not gone or gone[-1]:
        with database.write() as tx:
            gone.append(forecasts.retire_observations(tx, before=NOW + 4 * WINDOW, limit=2))
    assert sum(gone) == 5 and max(gone) <= 3
    with database.read() as tx:
        left = forecasts.observed(tx, "Z", Signal.MOER, NOW, NOW + HOUR, source="s")
    assert [one.window_at for one in left] == [NOW + 4 * WINDOW, NOW + 5 * WINDOW]


def test_an_estimate_that_became_final_is_a_new_revision_though_its_value_is_the_same(database: Database) -> None:
    with database.write() as tx:
        assert forecasts.add_observations(tx, [OBSERVATION]) == 1
        assert forecasts.add_observations(tx, [replace(OBSERVATION, is_estimated=False, may_settle=True)]) == 1
        assert forecasts.add_observations(tx, [replace(OBSERVATION, is_estimated=False, may_settle=True)]) == 0
        (found,) = forecasts.observed(tx, "Z", Signal.MOER, NOW, NOW + WINDOW)
    assert (found.is_estimated, found.may_settle) == (False, True)


def test_a_window_given_twice_at_once_is_two_revisions(sqlite_database: Database) -> None:
    with sqlite_database.write() as tx:
        assert forecasts.add_observations(tx, [OBSERVATION, replace(OBSERVATION, g_per_kwh=Decimal(1))]) == 2


def test_forecasts_of_the_older_schema_are_converted_and_back(database_url: str) -> None:
    database = Database(database_url)
    config = Config()
    config.set_main_option("script_location", str(rooms.folder("migrations")))
    config.attributes["engine"] = database.engine
    command.upgrade(config, "0002")
    texts = [["368.498441388", None, "0", "100.10"], [None], []]
    columns = ["zone", "signal", "source", "gas", "issued_at", "retrieved_at", "start_at", "step_s", "values"]
    columns += ["raw_unit", "raw_per_g_per_kwh", "is_estimated", "may_settle"]
    old = sa.table("forecasts", *(sa.column(name, Json()) if name == "values" else sa.column(name) for name in columns))
    stamp = "2021-06-10T12:00:00.000000Z"
    with database.write() as tx:
        for number, values in enumerate(texts):
            row = ["Z", "moer", f"s{number}", "co2", stamp, stamp, stamp, 300, values, "g/kWh", 1, False, True]
            typed = [
                sa.literal(one, Json()) if name == "values" else one for name, one in zip(columns, row, strict=True)
            ]
            if not database.is_sqlite:
                typed = [sa.cast(one, sa.TIMESTAMP(timezone=True)) if one == stamp else one for one in typed]
            tx.execute(sa.insert(old).values(dict(zip(columns, typed, strict=True))))
    assert schema.upgrade(database) == schema.head()
    with database.read() as tx:
        found = [forecasts.newest_forecast(tx, "Z", Signal.MOER, NOW, source=f"s{number}") for number in range(3)]
        floor = tx.execute(sa.text("SELECT revision FROM schema_floor")).scalar_one()
    assert floor >= "0003"
    assert [[None if value is None else str(value) for value in one.values] for one in found if one] == texts
    command.downgrade(config, "0002")
    with database.read() as tx:
        kept = (
            tx.execute(sa.select(sa.column("values", Json())).select_from(old).order_by(old.c.source)).scalars().all()
        )
    assert kept == texts
    database.dispose()

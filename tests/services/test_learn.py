from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

from carbonq.model import Region, Signal
from carbonq.plan.blend import Skill
from carbonq.plan.outlook import Basis
from carbonq.services.learn import AT_LEAST, AT_MOST, learn_source, learn_tick
from carbonq.services.outlook import load_outlook
from carbonq.signals import Forecast, Observation
from carbonq.store import forecasts, skills, sources
from carbonq.store.database import Database
from carbonq.units import WINDOW, window_at, window_index
from tests.store.test_forecasts import FORECAST, OBSERVATION

START = datetime(2021, 6, 14, tzinfo=OBSERVATION.window_at.tzinfo)
KEY = ("Z", Signal.MOER, "s")
Z = Region("z", "Z", 1, Decimal(1), "stated", "cpu")


def told(at: datetime, off: float = 100.0) -> Forecast:
    """A forecast that is always wrong by the same amount."""
    first = window_index(at) + 1
    values = tuple(Decimal(round(truth(window) + off)) for window in range(first, first + 36))
    return replace(FORECAST, issued_at=at, retrieved_at=at, start_at=at + WINDOW, values=values)


def truth(window: int) -> float:
    return 300 + 100 * np.sin(2 * np.pi * window / 288) + 5 * ((window * 7919) % 11)


def seen(start: datetime, windows: int) -> Sequence[Observation]:
    return [
        replace(OBSERVATION, window_at=at, retrieved_at=at + WINDOW, g_per_kwh=Decimal(round(truth(window_index(at)))))
        for at in (start + place * WINDOW for place in range(windows))
    ]


def fill(database: Database, windows: int, start: datetime = START) -> datetime:
    with database.write() as tx:
        sources.configure(tx, {("Z", Signal.MOER): ["s"]})
        forecasts.add_observations(tx, seen(start, windows))
        for place in range(windows):
            forecasts.add_forecast(tx, told(start + place * WINDOW))
        end = start + windows * WINDOW
        sources.note_ok(tx, KEY, end, fresh_at=end, may_settle=True, revised_at=None, lacking=None, max_stale_s=7200)
    return start + windows * WINDOW


def learned(database: Database) -> tuple[Skill, datetime]:
    with database.read() as tx:
        row = skills.load(tx, *KEY)
    assert row is not None
    return Skill.from_json(row.state), row.learned_until


def test_a_source_that_is_always_too_high_is_corrected(sqlite_database: Database) -> None:
    now = fill(sqlite_database, 300)
    before = load_outlook(sqlite_database, [Z], now, 37, 7200)
    while learn_tick(sqlite_database, now):
        pass
    after = load_outlook(sqlite_database, [Z], now, 37, 7200)
    right = np.array([truth(window) for window in range(window_index(now), window_index(now) + 37)])
    assert before.basis_of(0, 6) is Basis.FORECAST
    assert after.basis_of(0, 6) is Basis.BLEND
    assert np.abs(after.g_per_kwh[0, 1:37] - right[1:]).mean() < 40
    assert np.abs(before.g_per_kwh[0, 1:37] - right[1:]).mean() > 90
    assert 0 < after.spread[0, 6] < 80


def test_each_window_is_learned_once_whoever_learns_and_work_is_bounded(database: Database) -> None:
    now = fill(database, 100)
    assert learn_source(database, KEY, now) == AT_MOST
    first, _ = learned(database)
    steps = 1
    while learn_source(database, KEY, now):
        steps += 1
    assert steps == 4  # the day that learning begins with
    skill, until = learned(database)
    assert until == now
    assert skill.pairs.sum() > first.pairs.sum()
    assert learn_source(database, KEY, now) == 0
    assert learn_tick(database, now) == 0
    with database.write() as tx:
        stale = until - WINDOW
        assert not skills.save(tx, KEY, {}, learned_until=now, before=stale, now=now)
        assert not skills.save(tx, KEY, {}, learned_until=now, before=None, now=now)
    assert learned(database)[0].pairs.sum() == pytest.approx(skill.pairs.sum())


def test_a_few_new_windows_are_awaited(sqlite_database: Database) -> None:
    now = fill(sqlite_database, 20)
    while learn_source(sqlite_database, KEY, now):
        pass
    later = fill(sqlite_database, AT_LEAST - 1, now)
    assert learn_source(sqlite_database, KEY, later) == 0
    last = fill(sqlite_database, 1, later)
    assert learn_source(sqlite_database, KEY, last) == AT_LEAST


def test_what_is_learned_does_not_depend_on_what_came_after(sqlite_database: Database) -> None:
    now = fill(sqlite_database, 90)
    fill(sqlite_database, 30, now)  # it is there, but lies after now
    while learn_source(sqlite_database, KEY, now):
        assert learned(sqlite_database)[1] <= now
    assert learned(sqlite_database)[1] == now


def test_an_hour_s_value_is_one_target_and_not_twelve(sqlite_database: Database) -> None:
    with sqlite_database.write() as tx:
        sources.configure(tx, {("Z", Signal.MOER): ["s"]})
        hours = [replace(one, step_s=3600) for one in seen(START, 24 * 12)[::12]]
        forecasts.add_observations(tx, hours)
    now = START + timedelta(days=1)
    while learn_source(sqlite_database, KEY, now):
        pass
    skill, until = learned(sqlite_database)
    assert until == now
    assert skill.pairs.max() <= 24
    assert window_at(skill.until) == now


def test_nothing_observed_is_nothing_learned(sqlite_database: Database) -> None:
    with sqlite_database.write() as tx:
        sources.configure(tx, {("Z", Signal.MOER): ["s"]})
    assert learn_tick(sqlite_database, START) == 0
    assert learn_tick(sqlite_database, START) == 0


def test_learning_goes_on_after_a_clock_that_ran_ahead(database: Database) -> None:
    ahead = fill(database, 24, START + timedelta(days=400))
    assert learn_source(database, KEY, ahead)
    now = fill(database, 24)
    assert learn_source(database, KEY, now) and learned(database)[1] <= now
    while learn_source(database, KEY, now):
        assert learned(database)[1] <= now
    assert learned(database)[1] == now

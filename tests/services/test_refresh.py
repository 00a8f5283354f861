"""Asking the sources: side by side, in order, with a deadline; what they say is kept apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from carbonq.errors import SignalUnavailable, StoreUnavailable
from carbonq.model import Signal
from carbonq.services.outlook import load_outlook
from carbonq.services.refresh import REVISE_EVERY, Outcome, Refresher, Sources, refresh
from carbonq.signals import Forecast, Observation
from carbonq.store import forecasts
from carbonq.store import sources as source_rows
from carbonq.store.database import Database
from carbonq.store.sources import SourceState
from carbonq.testing import FakeGrid, RecordedSignal
from carbonq.units import WINDOW
from tests.services.planning import NORTH, START, SetClock
from tests.store.test_forecasts import OBSERVATION

ZONE = NORTH.zone
KEY = (ZONE, Signal.MOER)
HOUR = timedelta(hours=1)


def grid(name: str, value: int, *, zones: Sequence[str] = (ZONE,), **options: object) -> FakeGrid:
    start = START - 2 * HOUR
    return FakeGrid([RecordedSignal(zone, start, [value] * 600) for zone in zones], name=name, **options)  # type: ignore[arg-type]


def state(db: Database, source: str, zone: str = ZONE) -> SourceState:
    with db.read() as tx:
        (found,) = [one for one in source_rows.states(tx, [zone]) if one.source == source]
    return found


class Stuck(FakeGrid):
    """Answers only once it is let go."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.is_asked = threading.Event()
        self.go = threading.Event()

    def forecast(self, zone: str, now: datetime) -> Forecast | None:
        self.is_asked.set()
        assert self.go.wait(60)
        return super().forecast(zone, now)


def stuck(name: str) -> Stuck:
    return Stuck([RecordedSignal(ZONE, START - 2 * HOUR, [5] * 600)], name=name)


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_at, "it did not happen in 20 s"
        threading.Event().wait(0.01)


def test_a_fallback_is_asked_only_when_the_preferred_source_is_away(database: Database) -> None:
    clock = SetClock()
    first, second = grid("first", 100), grid("second", 300)
    sources: Sources = {KEY: (first, second)}
    refresh(database, sources, clock)
    assert state(database, "first").last_ok_at == START and state(database, "first").fresh_at == START
    assert state(database, "second").last_ok_at is None
    with database.read() as tx:
        assert forecasts.sources_of(tx, *KEY) == ["first"]

    first.is_down = True
    clock.at += WINDOW
    outcomes = Refresher(database, sources, clock).run()
    assert [(one.source, one.is_answered, one.is_fresh) for one in outcomes] == [
        ("first", False, False),
        ("second", True, True),
    ]
    found = state(database, "first")
    assert (found.failures, found.last_error_at, found.is_down) == (1, clock.at, False)
    assert found.last_error == f"first has nothing for zone {ZONE}"
    # Not stale yet: what it said a window ago still counts, and the fallback's values are beside it, not over it.
    assert load_outlook(database, [NORTH], clock.at, 3, 7200).g_per_kwh[0].tolist() == [100] * 3
    with database.read() as tx:
        assert forecasts.sources_of(tx, *KEY) == ["first", "second"]
        kept = forecasts.newest_forecast(tx, *KEY, clock.at, source="first")
    assert kept is not None and kept.issued_at == START and kept.values[0] == 100

    clock.at = START + timedelta(hours=2, minutes=5)
    refresh(database, sources, clock)
    assert state(database, "first").is_down and state(database, "first").failures == 2
    assert load_outlook(database, [NORTH], clock.at, 3, 7200).g_per_kwh[0].tolist() == [300] * 3

    first.is_down = False
    clock.at += WINDOW
    refresh(database, sources, clock)
    found = state(database, "first")
    assert (found.failures, found.is_down) == (0, False)
    assert found.last_error is not None  # of when it was away; last_ok_at is later
    assert load_outlook(database, [NORTH], clock.at, 3, 7200).g_per_kwh[0].tolist() == [100] * 3


def test_a_source_that_answers_with_old_values_is_down_and_the_fallback_is_asked(sqlite_database: Database) -> None:
    clock = SetClock(START)
    # Its last window ended three hours ago; it says so without any error.
    old = FakeGrid([RecordedSignal(ZONE, START - 6 * HOUR, [7] * 36)], name="old")
    outcomes = Refresher(sqlite_database, {KEY: (old, grid("second", 300))}, clock).run()
    assert [(one.source, one.is_answered, one.is_fresh) for one in outcomes] == [
        ("old", True, False),
        ("second", True, True),
    ]
    found = state(sqlite_database, "old")
    assert (found.is_down, found.failures, found.fresh_at) == (True, 0, START - 3 * HOUR)


def test_what_was_imported_does_not_stand_in_for_configured_sources_that_are_down(sqlite_database: Database) -> None:
    refresh(sqlite_database, {KEY: (FakeGrid([], name="away"),)}, SetClock())
    imported = grid("archive", 5).forecast(ZONE, START)
    assert imported is not None
    with sqlite_database.write() as tx:
        forecasts.add_forecast(tx, imported)
    assert load_outlook(sqlite_database, [NORTH], START, 3, 7200).is_down


def test_a_stuck_source_delays_no_other_and_its_fallback_is_asked_after_the_deadline(database: Database) -> None:
    clock = SetClock()
    slow, other = stuck("slow"), grid("other", 200, zones=["OTHER"])
    sources: Sources = {KEY: (slow, grid("second", 300)), ("OTHER", Signal.MOER): (other,)}
    refresher = Refresher(database, sources, clock, deadline_s=0.3, patience_s=20)
    began = time.monotonic()
    outcomes = {one.source: one for one in refresher.run()}
    assert time.monotonic() - began < 10
    assert outcomes["other"].is_fresh and outcomes["second"].is_fresh
    assert outcomes["slow"].error == "no answer within 0.3 s"
    assert state(database, "slow").failures == 1

    # The next round does not call it again while it is at it, and does not wait for it either.
    clock.at += WINDOW
    outcomes = {one.source: one for one in refresher.run()}
    assert "has not answered yet" in str(outcomes["slow"].error) and outcomes["other"].is_fresh

    # What it says in the end is stored all the same.
    slow.go.set()
    wait_for(lambda: state(database, "slow").failures == 0)
    with database.read() as tx:
        assert forecasts.newest_forecast(tx, *KEY, clock.at, source="slow") is not None


def test_a_round_does_not_wait_for_the_slow_ones(sqlite_database: Database) -> None:
    clock = SetClock()
    slow = stuck("slow")
    refresher = Refresher(sqlite_database, {KEY: (slow,)}, clock, deadline_s=30, patience_s=0.05)
    assert refresher.run() == []
    clock.at += WINDOW
    assert refresher.run() == []  # the zone is still being asked
    slow.go.set()
    wait_for(lambda: state(sqlite_database, "slow").last_ok_at == START)
    assert state(sqlite_database, "slow").failures == 0


def test_a_defect_in_a_source_is_noted_and_does_not_stop_the_fallback(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeGrid):
        def forecast(self, zone: str, now: datetime) -> Forecast | None:
            raise KeyError("point_time")

    broken = Broken([], name="broken")
    outcomes = Refresher(sqlite_database, {KEY: (broken, grid("second", 300))}, SetClock()).run()
    assert outcomes[0].error == "a defect in the source: KeyError: 'point_time'" and outcomes[1].is_fresh
    assert "the source broken failed" in caplog.text


def test_half_an_answer_is_used_and_what_is_lacking_is_noted(sqlite_database: Database) -> None:
    class NoPast(FakeGrid):
        def observations(self, zone: str, start: datetime, end: datetime, now: datetime) -> Sequence[Observation]:
            raise SignalUnavailable("the plan has no observations")

    source = NoPast([RecordedSignal(ZONE, START, [5] * 20)], name="half")
    (outcome,) = Refresher(sqlite_database, {KEY: (source,)}, SetClock()).run()
    assert (outcome.is_answered, outcome.is_fresh, outcome.forecasts) == (True, True, 1)
    found = state(sqlite_database, "half")
    assert (found.failures, found.last_error) == (0, "the plan has no observations")


def test_what_was_corrected_is_asked_for_hourly_and_becomes_a_revision(database: Database) -> None:
    asked: list[datetime] = []

    class Correcting(FakeGrid):
        def revisions(self, zone: str, since: datetime, now: datetime) -> Sequence[Observation]:
            asked.append(since)
            at = START - 100 * HOUR
            changed = replace(OBSERVATION, zone=zone, source=self.name, window_at=at, retrieved_at=now)
            return [replace(changed, g_per_kwh=Decimal(7 + len(asked)))]

    clock = SetClock()
    source = Correcting([RecordedSignal(ZONE, START - 2 * HOUR, [5] * 600)], name="correcting")
    refresher = Refresher(database, {KEY: (source,)}, clock)
    refresher.run()
    clock.at += REVISE_EVERY - WINDOW
    refresher.run()
    assert asked == []
    clock.at += WINDOW
    refresher.run()
    assert asked == [START - timedelta(minutes=10)]
    clock.at += REVISE_EVERY
    refresher.run()
    assert asked[1] == START + REVISE_EVERY - timedelta(minutes=10)
    with database.read() as tx:
        (found,) = forecasts.observed(tx, *KEY, START - 101 * HOUR, START - 99 * HOUR)
        revisions = forecasts.history(tx, *KEY, START - 101 * HOUR, START - 99 * HOUR)
    assert found.g_per_kwh == 9 and revisions.g_per_kwh.tolist() == [8.0, 9.0]


def test_a_forecast_without_a_stamp_of_its_own_is_not_stored_again_while_it_says_the_same(
    sqlite_database: Database,
) -> None:
    said = [5, 6, *range(20)]

    class Unstamped(FakeGrid):
        def forecast(self, zone: str, now: datetime) -> Forecast | None:
            made = super().forecast(zone, START)
            return made and replace(made, issued_at=now, retrieved_at=now, values=[Decimal(one) for one in said])

    clock = SetClock()
    source = Unstamped([RecordedSignal(ZONE, START - HOUR, [5] * 600)], name="unstamped")
    refresher = Refresher(sqlite_database, {KEY: (source,)}, clock)
    stored: list[int] = []
    for minute in range(17):
        clock.at = START + timedelta(minutes=minute)
        said[1] = 6 if minute < 5 else 7
        stored.append(sum(one.forecasts for one in refresher.run()))
    assert [minute for minute, count in enumerate(stored) if count] == [0, 5]
    assert state(sqlite_database, "unstamped").fresh_at == clock.at
    clock.at = START + timedelta(minutes=20)
    assert sum(one.forecasts for one in refresher.run()) == 1


def test_the_two_signals_of_a_zone_are_asked_and_kept_apart(database: Database) -> None:
    marginal, average = grid("m", 100), grid("a", 40, signal=Signal.AER)
    refresh(database, {KEY: (marginal,), (ZONE, Signal.AER): (average,)}, SetClock())
    for signal, value in ((Signal.MOER, 100.0), (Signal.AER, 40.0)):
        made = load_outlook(database, [NORTH], START, 3, 7200, signal=signal)
        assert made.g_per_kwh[0].tolist() == [value] * 3


def test_two_workers_at_once_store_nothing_twice_and_ask_once(database: Database) -> None:
    clock = SetClock()
    asked: list[str] = []

    class Counting(FakeGrid):
        def forecast(self, zone: str, now: datetime) -> Forecast | None:
            asked.append(zone)
            return super().forecast(zone, now)

    zones = [f"Z{number}" for number in range(6)]

    def worker(*, is_forced: bool) -> tuple[Refresher, list[Outcome]]:
        source = Counting([RecordedSignal(zone, START - 2 * HOUR, [5] * 600) for zone in zones], name="s")
        made = Refresher(database, {(zone, Signal.MOER): (source,) for zone in zones}, clock)
        barrier.wait()
        return made, made.run(is_forced=is_forced)

    def both(*, is_forced: bool) -> list[Outcome]:
        results: list[list[Outcome]] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(worker(is_forced=is_forced)[1])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        return [outcome for found in results for outcome in found]

    barrier = threading.Barrier(2)
    outcomes = both(is_forced=False)
    assert sorted(asked) == zones  # each zone was asked by one of them
    assert sum(one.forecasts for one in outcomes) == 6 and sum(one.observations for one in outcomes) == 6 * 24
    # Both ask and store the same windows: nothing is new twice.
    clock.at += 2 * WINDOW
    outcomes = both(is_forced=True)
    assert len(asked) == 6 + 12
    assert sum(one.forecasts for one in outcomes) == 6 and sum(one.observations for one in outcomes) == 6 * 2
    with database.read() as tx:
        for zone in zones:
            assert len(forecasts.history(tx, zone, Signal.MOER, START - HOUR * 3, START + HOUR).window_s) == 26


def test_sources_that_left_the_settings_are_forgotten_and_their_values_stay(sqlite_database: Database) -> None:
    clock = SetClock()
    refresh(sqlite_database, {KEY: (grid("first", 100), grid("second", 300))}, clock)
    clock.at += WINDOW
    refresh(sqlite_database, {KEY: (grid("second", 300), grid("third", 500))}, clock)
    with sqlite_database.read() as tx:
        found = source_rows.states(tx)
        assert forecasts.newest_forecast(tx, *KEY, clock.at, source="first") is not None
    assert [(one.source, one.position) for one in found] == [("second", 0), ("third", 1)]


def test_a_database_that_does_not_answer_is_said(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_args: object, **_options: object) -> None:
        raise StoreUnavailable("the database does not answer")

    refresher = Refresher(sqlite_database, {KEY: (grid("first", 100),)}, SetClock())
    with monkeypatch.context() as patch:
        patch.setattr(source_rows, "note_ok", away)
        with pytest.raises(StoreUnavailable):
            refresher.run(is_forced=True)
    (outcome,) = refresher.run(is_forced=True)
    assert outcome.is_fresh


def test_a_clock_that_ran_ahead_for_a_while_leaves_nothing_behind(database: Database) -> None:
    clock = SetClock()
    clock.at = START + timedelta(days=400)
    ahead = FakeGrid([RecordedSignal(ZONE, clock.at - 2 * HOUR, [900] * 600)], name="only")
    refresh(database, {KEY: (ahead,)}, clock)
    assert state(database, "only").fresh_at == clock.at

    clock.at = START
    with database.read() as tx:
        assert source_rows.choose(source_rows.states(tx), *KEY, START, 7200.0) == (False, None)
    source = grid("only", 100)
    source.is_down = True
    refresh(database, {KEY: (source,)}, clock)
    assert state(database, "only").is_down
    clock.at += WINDOW
    source.is_down = False
    assert refresh(database, {KEY: (source,)}, clock) > 20, "the past is asked for again"
    assert state(database, "only").fresh_at == clock.at
    clock.at += WINDOW
    (asked,) = [outcome.stored for outcome in Refresher(database, {KEY: (source,)}, clock).run()]
    assert 0 < asked < 5, "and then only what is new"

"""Checks of `carbonq doctor` on where rates come from: each source by itself, how fresh it is, and what is lacking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from carbonq.clock import Clock, GridClock
from carbonq.config import Settings
from carbonq.embedded.finding import Finding, State, within
from carbonq.errors import CarbonqError, SignalUnavailable
from carbonq.grid.protocol import GridSource
from carbonq.grid.readings import scale_note
from carbonq.model import Signal
from carbonq.signals import Forecast, NoteLevel, SourceNote
from carbonq.sourcing import make_sources
from carbonq.store import clocks, forecasts, schema, sources
from carbonq.store.database import Database
from carbonq.units import iso

#: Machine seconds a source has to answer; all of them are asked at the same time.
SOURCE_S = 9.0

#: A control worker asks every minute of grid time.
_ASKED_LATELY = timedelta(minutes=10)

#: How far back stored rates are looked at for their scale.
_SCALE_DAYS = 7

WORDS = {Signal.MOER: "marginal", Signal.AER: "average"}

_STATES = {NoteLevel.OK: State.OK, NoteLevel.WARN: State.WARN, NoteLevel.FAIL: State.FAIL}


@dataclass(frozen=True, slots=True)
class _Looked:
    """What looking at one source showed."""

    notes: Sequence[SourceNote]
    forecast: Forecast | None


def check_files(settings: Settings) -> Iterator[Finding]:
    """Look over the sources that are files: one that is missing or wrong must keep a stack from starting."""
    clock, _ = _installed(settings)
    for (zone, signal), given in make_sources(settings, clock).items():
        for source in given:
            if not source.name.startswith(("csv:", "annual:")):
                continue
            for note in source.check(zone, clock.now()):
                if note.level is NoteLevel.FAIL:
                    yield Finding("grid", State.FAIL, f"zones.{zone}.{WORDS[signal]}: {note.text}")


def check_grid(settings: Settings) -> Iterator[Finding]:
    """Ask every source and look at what is stored of it; say where one of the two signals is lacking."""
    clock, states = _installed(settings)
    now = clock.now()
    made = make_sources(settings, clock)
    try:
        begun = {
            key: [
                (source, within(SOURCE_S, lambda zone=key[0], source=source: _look(source, zone, now)))
                for source in given
            ]
            for key, given in made.items()
        }
        for (zone, signal), given in begun.items():
            looked: list[tuple[GridSource, _Looked]] = []
            for source, result in given:
                try:
                    looked.append((source, result()))
                except CarbonqError as error:
                    looked.append((source, _Looked([SourceNote(NoteLevel.FAIL, error.message)], None)))
            yield from _findings(zone, signal, looked)
            yield from _scales(settings, zone, signal, looked, now)
    finally:
        for given in made.values():
            for source in given:
                source.close()
    yield from _stale(states, now, settings.max_stale_s)
    yield from lacking(settings)


def _look(source: GridSource, zone: str, now: datetime) -> _Looked:
    notes = list(source.check(zone, now))
    if any(note.level is NoteLevel.FAIL for note in notes):
        return _Looked(notes, None)
    try:
        return _Looked(notes, source.forecast(zone, now))
    except SignalUnavailable as error:
        return _Looked([*notes, SourceNote(NoteLevel.FAIL, error.message)], None)


def _findings(zone: str, signal: Signal, looked: Sequence[tuple[GridSource, _Looked]]) -> Iterator[Finding]:
    works = [all(note.level is not NoteLevel.FAIL for note in found.notes) for _, found in looked]
    for position, (source, found) in enumerate(looked):
        role = "" if len(looked) == 1 else " (preferred)" if position == 0 else f" (fallback {position})"
        where = f"{zone} {WORDS[signal]}: {source.name}{role}"
        if found.forecast is not None:
            yield Finding("grid", State.OK, f"{where}, {_issue(found.forecast)}")
        elif works[position]:
            yield Finding(
                "grid", State.WARN, f"{where} has no forecast for now; carbonq makes its own of what was observed"
            )
        for note in found.notes:
            state = _STATES[note.level]
            if state is State.FAIL and any(works):
                state = State.WARN  # another source of the zone answers
            yield Finding("grid", state, f"{where}: {note.text}")


def _issue(forecast: Forecast) -> str:
    words = (("estimated", forecast.is_estimated), ("never settles", not forecast.may_settle))
    label = ", ".join(word for word, is_so in words if is_so)
    text = f"issued {forecast.issued_at:%Y-%m-%d %H:%M}Z"
    return f"{text} ({label})" if label else text


def _scales(
    settings: Settings, zone: str, signal: Signal, looked: Sequence[tuple[GridSource, _Looked]], now: datetime
) -> Iterator[Finding]:
    """Warn of a series that could be an index: what is stored of a week says more than one forecast does."""
    database = Database(settings.resolved_database_url)
    try:
        for source, found in looked:
            note = None if found.forecast is None else scale_note(found.forecast.values)
            observed = _week(database, zone, signal, source.name, now)
            if observed:
                note = scale_note(observed)
            if note is not None and not any("lie within 0 and 100" in one.text for one in found.notes):
                yield Finding("grid", _STATES[note.level], f"{zone} {WORDS[signal]}: {source.name}: {note.text}")
    finally:
        database.dispose()


def _week(database: Database, zone: str, signal: Signal, source: str, now: datetime) -> list[Decimal]:
    try:
        if database.is_absent() or schema.current(database) != schema.head():
            return []
        with database.read() as tx:
            found = forecasts.observed(tx, zone, signal, now - timedelta(days=_SCALE_DAYS), now, source=source)
    except CarbonqError:
        return []
    return [one.g_per_kwh for one in found]


def _stale(states: Sequence[sources.SourceState], now: datetime, max_stale_s: float) -> Iterator[Finding]:
    """Say what the installation's own asking has come to."""
    asked_at = max((state.asked_at for state in states if state.asked_at is not None), default=None)
    if asked_at is None:
        return
    if asked_at < now - _ASKED_LATELY:
        yield Finding(
            "grid", State.OK, f"the installation last asked its sources at {iso(asked_at)}; it does not run now"
        )
        return
    for zone, signal in dict.fromkeys((state.zone, state.signal) for state in states):
        mine = [state for state in states if (state.zone, state.signal) == (zone, signal)]
        where = f"{zone} {WORDS[signal]}"
        for state in mine:
            if state.failures:
                since = "never" if state.last_ok_at is None else f"last at {iso(state.last_ok_at)}"
                text = f"{where}: {state.source} left {state.failures} in a row unanswered (answered {since})"
                yield Finding("grid", State.WARN, f"{text}: {state.last_error}")
        if all(state.is_stale(now, max_stale_s) for state in mine):
            newest = max((state.fresh_at for state in mine if state.fresh_at is not None), default=None)
            age = "nothing was ever told" if newest is None else f"nothing newer than {iso(newest)}"
            text = f"{where} is stale: {age} (max_stale_s is {max_stale_s:g}); work runs without it, by its deadline"
            yield Finding("grid", State.WARN, text)


def lacking(settings: Settings) -> Iterator[Finding]:
    """Say which signal has no source, and what follows from that; a zone without any source fails."""
    zones = list(dict.fromkeys(region.zone for region in settings.regions.values()))
    for zone in zones:
        if not settings.zones[zone].marginal and not settings.zones[zone].average:
            yield Finding("grid", State.FAIL, f"zone {zone} has no source; set [zones.{zone}.marginal]")
    without_marginal = [zone for zone in zones if not settings.zones[zone].marginal]
    without_average = [zone for zone in zones if not settings.zones[zone].average]
    if without_marginal and len(without_marginal) == len(zones):
        text = "no zone has a marginal source: plans are made by average rates, and the impact book stays empty"
        yield Finding("grid", State.WARN, text)
    elif without_marginal:
        text = f"no marginal source for {', '.join(without_marginal)}: to the planner nothing is known of its rates"
        yield Finding("grid", State.WARN, f"{text}, because average ones are never ranked against marginal ones")
    if without_average:
        names = "any zone" if len(without_average) == len(zones) else ", ".join(without_average)
        yield Finding("grid", State.WARN, f"no average source for {names}: its inventory book stays empty")
    for zone in zones:
        deciding = (
            settings.zones[zone].average if len(without_marginal) == len(zones) else settings.zones[zone].marginal
        )
        if deciding and all(source.source == "annual" for source in deciding):
            yield Finding("grid", State.WARN, f"{zone} has annual factors only: no work is moved in time there")


def _installed(settings: Settings) -> tuple[Clock, Sequence[sources.SourceState]]:
    """Return the installation's clock and the states of its sources; a real clock and none where there is neither."""
    database = Database(settings.resolved_database_url)
    try:
        if database.is_absent() or schema.current(database) is None:
            return GridClock.real(), ()
        with database.read() as tx:
            clock = clocks.get(tx) or GridClock.real()
        if schema.current(database) != schema.head():
            return clock, ()
        with database.read() as tx:
            return clock, sources.states(tx)
    except CarbonqError:
        return GridClock.real(), ()  # the database has a finding of its own
    finally:
        database.dispose()

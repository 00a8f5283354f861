"""Ask the grid sources what they have to say and store it as said: forecasts, observations, what was corrected.

All zones are asked at the same time, each in a thread of its own, and every source has a deadline: one that is slow or
dead delays no other. A zone's sources are asked in the order of preference; a fallback only when those before it did
not answer or have nothing fresh. Each source's values are kept under its own name, so none overwrites another's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from carbonq import telemetry
from carbonq.clock import Clock
from carbonq.errors import SignalUnavailable, StoreUnavailable
from carbonq.grid.protocol import Forecast, GridSource, Observation
from carbonq.model import Signal
from carbonq.plan.forecaster import HISTORY_DAYS
from carbonq.store import forecasts
from carbonq.store import sources as source_rows
from carbonq.store.database import Database
from carbonq.units import WINDOW, window_of

logger = logging.getLogger(__name__)

#: Windows that are asked for again: providers correct what they have just published.
OVERLAP_WINDOWS = 12

#: Grid time between two questions about what was corrected further back, and how much they overlap.
REVISE_EVERY = timedelta(hours=1)
REVISE_OVERLAP = timedelta(minutes=10)

#: Grid time after which a forecast that a provider does not stamp is stored again though it says the same.
REPEAT_EVERY = timedelta(minutes=15)

#: Grid seconds within which a zone is not asked again, whoever asked: several control workers may share a database.
ASK_EVERY_S = 30.0

#: Machine seconds a source has for its answers; then the next one of its zone is asked.
DEADLINE_S = 60.0

#: Machine seconds a round waits for the slow ones, which go on by themselves.
PATIENCE_S = 20.0

#: Zones asked at the same time at most.
MAX_THREADS = 64

Sources = Mapping[tuple[str, Signal], Sequence[GridSource]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What asking one source came to; ``error`` says what could not be had, all of it unless ``is_answered``."""

    zone: str
    signal: Signal
    source: str
    is_answered: bool
    is_fresh: bool
    forecasts: int = 0
    observations: int = 0
    error: str | None = None

    @property
    def stored(self) -> int:
        """How many rows were new."""
        return self.forecasts + self.observations


@dataclass(slots=True)
class _Answer:
    """What a source said; ``errors`` are of the parts that it could not say."""

    issued: list[Forecast] = field(default_factory=list[Forecast])
    observed: list[Observation] = field(default_factory=list[Observation])
    corrected: list[Observation] = field(default_factory=list[Observation])
    errors: list[str] = field(default_factory=list[str])
    is_answered: bool = False
    is_revised: bool = False


class Refresher:
    """Asks the configured sources, round by round; what a round left unfinished goes on beside the next one."""

    def __init__(
        self,
        db: Database,
        sources: Sources,
        clock: Clock,
        *,
        max_stale_s: float = 7200.0,
        deadline_s: float = DEADLINE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Take the sources of each zone and signal, preferred first; nothing is asked yet.

        ``max_stale_s`` is grid seconds, ``deadline_s`` and ``patience_s`` machine seconds.
        """
        self._db = db
        self._sources = {key: tuple(given) for key, given in sources.items() if given}
        self._clock = clock
        self._max_stale_s = max_stale_s
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._turns = threading.BoundedSemaphore(MAX_THREADS)
        self._lock = threading.Lock()
        self._zones_in_flight: set[tuple[str, Signal]] = set()
        self._calls_in_flight: set[tuple[str, Signal, str]] = set()
        self._is_configured = False

    def run(self, *, zones: Collection[str] | None = None, is_forced: bool = False) -> list[Outcome]:
        """Ask all zones, or some, and return what came within ``patience_s``. Idempotent.

        A zone that is still being asked, or was a moment ago by whomever, is left out; ``is_forced`` asks the latter
        again. Raises StoreUnavailable.
        """
        wanted = [key for key in self._sources if zones is None or key[0] in zones]
        rounds = [_Round(key) for key in self._take(wanted, is_forced=is_forced)]
        for one in rounds:
            # Daemons: a provider that never answers must not keep the process from ending.
            threading.Thread(target=self._ask_zone, args=(one,), name=f"grid-{one.key[0]}", daemon=True).start()
        give_up_at = time.monotonic() + self._patience_s
        for one in rounds:
            one.is_over.wait(max(0.0, give_up_at - time.monotonic()))
        for one in rounds:
            if one.failure is not None:
                raise one.failure
        return [outcome for one in rounds for outcome in list(one.outcomes)]

    def _take(self, wanted: Sequence[tuple[str, Signal]], *, is_forced: bool) -> list[tuple[str, Signal]]:
        now = self._clock.now()
        with self._db.write() as tx:
            if not self._is_configured:
                names = {key: [source.name for source in given] for key, given in self._sources.items()}
                source_rows.configure(tx, names)
            taken = [
                key
                for key in wanted
                if source_rows.take(
                    tx, *key, self._sources[key][0].name, now=now, every_s=0.0 if is_forced else ASK_EVERY_S
                )
            ]
        self._is_configured = True
        with self._lock:
            free = [key for key in taken if key not in self._zones_in_flight]
            self._zones_in_flight |= set(free)
        return free

    def _ask_zone(self, one: _Round) -> None:
        try:
            with self._turns:
                for source in self._sources[one.key]:
                    outcome = self._ask(one.key, source)
                    one.outcomes.append(outcome)
                    if outcome.is_fresh:
                        break
        except StoreUnavailable as error:
            logger.warning("what %s's sources said could not be stored: %s", one.key[0], error.message)
            one.failure = error
        finally:
            with self._lock:
                self._zones_in_flight.discard(one.key)
            one.is_over.set()

    def _ask(self, key: tuple[str, Signal], source: GridSource) -> Outcome:
        zone, signal = key
        now = self._clock.now()
        row = (zone, signal, source.name)
        with self._db.read() as tx:
            last = forecasts.last_observed(tx, zone, signal, source.name, now)
            before = forecasts.newest_forecast(tx, zone, signal, now, source=source.name)
            state = next(
                (one for one in source_rows.states(tx, [zone]) if row == (one.zone, one.signal, one.source)), None
            )
        revised_at = None if state is None else state.revised_at
        is_revision_due = revised_at is not None and not revised_at <= now < revised_at + REVISE_EVERY
        since = window_of(now) - timedelta(days=HISTORY_DAYS)
        if last is not None:
            since = max(since, last - OVERLAP_WINDOWS * WINDOW)

        def listen() -> _Answer:
            answer = _Answer()
            _try(answer, lambda: answer.issued.extend(_issued(source, zone, now, before)))
            _try(answer, lambda: answer.observed.extend(source.observations(zone, since, now, now)))
            if answer.is_answered and is_revision_due and revised_at is not None:
                begin = min(revised_at, now) - REVISE_OVERLAP
                answer.is_revised = _try(answer, lambda: answer.corrected.extend(source.revisions(zone, begin, now)))
            return answer

        # Outside any transaction: a slow provider must not hold a lock.
        def store(answer: _Answer) -> Outcome:
            return self._store(row, answer, now, before=before, is_first=revised_at is None)

        outcome = store(self._within_deadline(row, listen, store))
        telemetry.GRID_ASKS.labels(source.name, "answered" if outcome.is_answered else "failed").inc()
        # Once, not every minute for as long as it lasts: how it is now stands in the database.
        level = (
            logging.DEBUG
            if state is not None and state.last_error == outcome.error and state.failures
            else logging.WARNING
        )
        if outcome.error is not None:
            logger.log(level, "%s of %s cannot be had from %s: %s", signal.value, zone, source.name, outcome.error)
        elif state is not None and state.failures:
            logger.info("%s of %s is to be had from %s again", signal.value, zone, source.name)
        return outcome

    def _within_deadline(
        self, row: tuple[str, Signal, str], listen: Callable[[], _Answer], store: Callable[[_Answer], Outcome]
    ) -> _Answer:
        """Call a source in a thread of its own; one that is still at it is not called a second time.

        What comes after the deadline is stored all the same, when it comes.
        """
        with self._lock:
            is_busy = row in self._calls_in_flight
            self._calls_in_flight.add(row)
        if is_busy:
            return _Answer(errors=[f"has not answered yet; it was asked more than {self._deadline_s:g} s ago"])
        answers: list[_Answer] = []
        is_given_up = False

        def call() -> None:
            try:
                answer = listen()
            except Exception as error:  # a defect in one source: the others, and its fallbacks, must go on
                logger.exception("the source %s failed", row[2])
                answer = _Answer(errors=[f"a defect in the source: {type(error).__name__}: {error}"])
            with self._lock:
                self._calls_in_flight.discard(row)
                answers.append(answer)
                is_late = is_given_up
            if is_late:
                _store_late(row, answer, store)

        thread = threading.Thread(target=call, name=f"grid-{row[0]}-{row[2]}", daemon=True)
        thread.start()
        thread.join(self._deadline_s)
        with self._lock:
            is_given_up = not answers
        return answers[0] if answers else _Answer(errors=[f"no answer within {self._deadline_s:g} s"])

    def _store(
        self, row: tuple[str, Signal, str], answer: _Answer, now: datetime, *, before: Forecast | None, is_first: bool
    ) -> Outcome:
        zone, signal, name = row
        error = "; ".join(dict.fromkeys(answer.errors)) or None
        with self._db.write() as tx:
            if not answer.is_answered:
                source_rows.note_error(tx, row, now, error or "no answer", max_stale_s=self._max_stale_s)
                return Outcome(zone, signal, name, is_answered=False, is_fresh=False, error=error)
            seen = forecasts.add_observations(tx, answer.observed)
            seen += forecasts.add_observations(tx, answer.corrected)
            issued = sum(
                forecasts.add_forecast(tx, forecast) for forecast in answer.issued if not _repeats(forecast, before)
            )
            is_fresh = source_rows.note_ok(
                tx,
                row,
                now,
                fresh_at=_fresh_at(answer, now),
                may_settle=_may_settle(answer),
                # The first answer holds everything there is; corrections are asked for from then on.
                revised_at=now if is_first or answer.is_revised else None,
                lacking=error,
                max_stale_s=self._max_stale_s,
            )
        return Outcome(
            zone, signal, name, is_answered=True, is_fresh=is_fresh, forecasts=issued, observations=seen, error=error
        )


@dataclass(slots=True)
class _Round:
    """One zone and signal being asked."""

    key: tuple[str, Signal]
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    failure: StoreUnavailable | None = None
    is_over: threading.Event = field(default_factory=threading.Event)


def refresh(db: Database, sources: Sources, clock: Clock, *, max_stale_s: float = 7200.0) -> int:
    """Ask every source once and return how many new forecasts and observations were stored. Raises StoreUnavailable."""
    return sum(outcome.stored for outcome in Refresher(db, sources, clock, max_stale_s=max_stale_s).run())


def _try(answer: _Answer, part: Callable[[], None]) -> bool:
    try:
        part()
    except SignalUnavailable as error:
        answer.errors.append(error.message)
        return False
    answer.is_answered = True
    return True


def _store_late(row: tuple[str, Signal, str], answer: _Answer, store: Callable[[_Answer], Outcome]) -> None:
    try:
        store(answer)
    except StoreUnavailable as error:
        logger.warning("what %s said of %s came late and could not be stored: %s", row[2], row[0], error.message)


def _issued(source: GridSource, zone: str, now: datetime, before: Forecast | None) -> list[Forecast]:
    """Return the newest forecast, and the one before it where only that covers the window that runs now.

    Some sources begin with the next window. A fresh installation would then know no rate of its first one.
    """
    newest = source.forecast(zone, now)
    if newest is None:
        return []
    if _covers(newest, now) or (before is not None and _covers(before, now)):
        return [newest]
    try:
        earlier = source.forecast(zone, newest.issued_at - timedelta(microseconds=1))
    except SignalUnavailable as error:
        logger.debug("%s keeps no earlier forecast of %s: %s", source.name, zone, error.message)
        earlier = None
    if earlier is None or earlier.issued_at >= newest.issued_at:
        return [newest]
    # A source stamps its answers with the time it was asked about; this one was fetched now.
    return [replace(earlier, retrieved_at=now), newest]


def _repeats(forecast: Forecast, before: Forecast | None) -> bool:
    """Say whether a forecast without a time of issue of its own only says again what the one before said lately."""
    return (
        before is not None
        and forecast.issued_at == forecast.retrieved_at
        and timedelta(0) <= forecast.issued_at - before.issued_at < REPEAT_EVERY
        and (forecast.start_at, forecast.step_s) == (before.start_at, before.step_s)
        and list(forecast.values) == list(before.values)
    )


def _covers(forecast: Forecast, at: datetime) -> bool:
    end_at = forecast.start_at + len(forecast.values) * timedelta(seconds=forecast.step_s)
    return forecast.start_at <= at < end_at


def _fresh_at(answer: _Answer, now: datetime) -> datetime | None:
    """Return the newest moment that an answer tells of, never later than now."""
    times = [forecast.issued_at for forecast in answer.issued]
    times += [one.window_at + timedelta(seconds=one.step_s) for one in answer.observed[-1:]]
    return min(max(times), now) if times else None


def _may_settle(answer: _Answer) -> bool | None:
    said = [one.may_settle for one in (*answer.observed[-1:], *answer.issued[-1:])]
    return any(said) if said else None


__all__ = ["Outcome", "Refresher", "Sources", "refresh"]

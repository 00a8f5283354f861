"""Rows of ``source_states``: how each configured source does, and in which order a zone's sources are preferred.

All times are grid times. A source is stale once the newest moment it has told of is older than ``max_stale_s``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, or_, select, update

from carbonq.model import Signal
from carbonq.ratebook import Standing, Standings
from carbonq.signals import SourceFigures
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_new
from carbonq.store.tables import forecasts, observations, source_states

#: (zone, signal): the sources' names, preferred first.
Configured = Mapping[tuple[str, Signal], Sequence[str]]


@dataclass(frozen=True, slots=True)
class SourceState:
    """How a source does; ``position`` 0 is the preferred one of its zone and signal."""

    zone: str
    signal: Signal
    source: str
    position: int
    asked_at: datetime | None
    last_ok_at: datetime | None
    last_error: str | None
    last_error_at: datetime | None
    failures: int
    fresh_at: datetime | None
    is_down: bool
    may_settle: bool | None
    revised_at: datetime | None

    def is_stale(self, now: datetime, max_stale_s: float) -> bool:
        """Say whether it has told of nothing newer than ``max_stale_s`` before ``now``.

        What lies as far ahead says nothing either: it was told while the clock ran ahead.
        """
        return self.fresh_at is None or abs(now - self.fresh_at) > timedelta(seconds=max_stale_s)


#: Characters kept of what went wrong.
_MOST_SAID = 1000

_ORDER = (source_states.c.zone, source_states.c.signal, source_states.c.position)


def states(tx: Tx, zones: Collection[str] | None = None) -> list[SourceState]:
    """Return the states of the configured sources, of all zones by default, in order of preference."""
    statement = select(source_states).order_by(*_ORDER)
    if zones is not None:
        statement = statement.where(source_states.c.zone.in_(zones))
    return [
        SourceState(**{**row, "signal": Signal(row["signal"])})  # pyright: ignore[reportArgumentType] - columns are the fields
        for row in tx.execute(statement).mappings()
    ]


def configure(tx: Tx, configured: Configured) -> None:
    """Make the states those of the configured sources: new ones are added, others forgotten, positions brought up."""
    wanted = {
        (zone, signal.value, name): position
        for (zone, signal), names in configured.items()
        for position, name in enumerate(names)
    }
    columns = (source_states.c.zone, source_states.c.signal, source_states.c.source)
    known = {(row[0], row[1], row[2]): row[3] for row in tx.execute(select(*columns, source_states.c.position))}
    for key in known.keys() - wanted.keys():
        tx.execute(delete(source_states).where(*_is(*key)))
    new = [
        {"zone": key[0], "signal": key[1], "source": key[2], "position": position, "failures": 0, "is_down": False}
        for key, position in sorted(wanted.items())
        if key not in known
    ]
    insert_new(tx, source_states, new)
    for key, position in sorted(wanted.items()):
        if known.get(key, position) != position:
            tx.execute(update(source_states).where(*_is(*key)).values(position=position))


def take(tx: Tx, zone: str, signal: Signal, source: str, *, now: datetime, every_s: float) -> bool:
    """Take it on to ask a zone's sources; False if somebody did less than ``every_s`` ago. ``source``: the first."""
    stamp = source_states.c.asked_at
    # A clock that was set back must not keep everybody from asking.
    is_due = or_(stamp.is_(None), stamp <= now - timedelta(seconds=every_s), stamp > now)
    change = update(source_states).where(*_is(zone, signal.value, source), is_due).values(asked_at=now)
    return tx.execute(change).rowcount == 1


def note_ok(
    tx: Tx,
    key: tuple[str, Signal, str],
    now: datetime,
    *,
    fresh_at: datetime | None,
    may_settle: bool | None,
    revised_at: datetime | None,
    lacking: str | None,
    max_stale_s: float,
) -> bool:
    """Note that a source answered; None leaves what is known. Says whether it is fresh.

    ``lacking`` says what part of the answer could not be had.
    """
    row = tx.execute(select(source_states).where(*_is(key[0], key[1].value, key[2]))).mappings().one_or_none()
    known = None if row is None else row["fresh_at"]
    # What was known of later than now was told while a clock ran ahead.
    newest = max((at for at in (known, fresh_at) if at is not None and at <= now), default=None)
    is_fresh = newest is not None and newest >= now - timedelta(seconds=max_stale_s)
    values: dict[str, Any] = {"last_ok_at": now, "failures": 0, "fresh_at": newest, "is_down": not is_fresh}
    if may_settle is not None:
        values["may_settle"] = may_settle
    if revised_at is not None:
        values["revised_at"] = revised_at
    if lacking is not None:
        values |= {"last_error": lacking[:_MOST_SAID], "last_error_at": now}
    tx.execute(update(source_states).where(*_is(key[0], key[1].value, key[2])).values(values))
    return is_fresh


def note_error(tx: Tx, key: tuple[str, Signal, str], now: datetime, message: str, *, max_stale_s: float) -> None:
    """Note that a source did not answer, and why; it is down once it is stale too."""
    patience = timedelta(seconds=max_stale_s)
    fresh = source_states.c.fresh_at
    tx.execute(
        update(source_states)
        .where(*_is(key[0], key[1].value, key[2]))
        .values(
            last_error=message[:_MOST_SAID],
            last_error_at=now,
            failures=source_states.c.failures + 1,
            is_down=or_(fresh.is_(None), fresh < now - patience, fresh > now + patience),
        )
    )


def standings(tx: Tx, zones: Collection[str], *, now: datetime | None = None, max_stale_s: float = 0.0) -> Standings:
    """Return how the sources of some zones stand to one another; without ``now`` all of them count as fresh."""
    return {
        (state.signal, state.zone, state.source): Standing(
            position=state.position,
            is_fresh=now is None or not state.is_stale(now, max_stale_s),
            may_settle=state.may_settle is not False,
        )
        for state in states(tx, zones)
    }


def choose(
    known: Sequence[SourceState], zone: str, signal: Signal, now: datetime, max_stale_s: float
) -> tuple[bool, str | None]:
    """Return whether anything of a zone may be used now, and the source: the most preferred one that is not stale.

    Where no source is configured (rates that were imported), anything may be used: (True, None).
    """
    mine = [state for state in known if (state.zone, state.signal) == (zone, signal)]
    fresh = next((state.source for state in mine if not state.is_stale(now, max_stale_s)), None)
    return (not mine or fresh is not None), fresh


def figures(known: Sequence[SourceState], now: datetime, max_stale_s: float) -> list[SourceFigures]:
    """Return what is shown of each source in metrics."""
    return [
        SourceFigures(
            zone=state.zone,
            signal=state.signal.value,
            source=state.source,
            age_s=None if state.fresh_at is None else max(0.0, (now - state.fresh_at).total_seconds()),
            failures=state.failures,
            is_stale=state.is_stale(now, max_stale_s),
            is_down=state.is_down,
        )
        for state in known
    ]


def decision_signal(tx: Tx) -> Signal:
    """Return the signal that the installation decides by: average only where no zone has any marginal source.

    By what is configured and not by what answers: a marginal source that is down is not replaced by another quantity.
    Before any source was asked, what is stored decides.
    """
    known = set(tx.execute(select(source_states.c.signal).distinct()).scalars())
    if not known:
        for table in (forecasts, observations):
            known |= {
                signal.value
                for signal in Signal
                if tx.execute(select(table.c.zone).where(table.c.signal == signal.value).limit(1)).first() is not None
            }
    return Signal.AER if known == {Signal.AER.value} else Signal.MOER


def _is(zone: str, signal: str, source: str) -> tuple[Any, ...]:
    return (source_states.c.zone == zone, source_states.c.signal == signal, source_states.c.source == source)

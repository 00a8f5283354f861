"""Rows of ``forecasts`` and ``observations``: what grid sources said, as it was said; nothing is ever overwritten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, RowMapping, Table, delete, func, select, tuple_, update

from carbonq.model import Signal
from carbonq.signals import Forecast, Observation
from carbonq.store import packing, restatements
from carbonq.store.bulk import epochs, raw_time
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_new, is_any_of, serialise
from carbonq.store.tables import forecasts, observations

_FORECAST_FIELDS = tuple(Forecast.__dataclass_fields__)


def add_forecast(tx: Tx, forecast: Forecast) -> bool:
    """Store a forecast as issued; False when that issue is there already."""
    row: dict[str, Any] = {name: getattr(forecast, name) for name in _FORECAST_FIELDS if name != "values"}
    row["signal"] = forecast.signal.value
    row["packed"] = packing.pack(forecast.values)
    return insert_new(tx, forecasts, [row]) == 1


def add_observations(tx: Tx, found: Sequence[Observation]) -> int:
    """Store observations of one zone, signal and source; what changed becomes a new revision.

    That is a new value, or the same one that is no estimate any more. Returns how many rows were new: what another
    process stored at the same time counts there.
    """
    if not found:
        return 0
    first = found[0]
    serialise(tx, f"observations {first.zone} {first.signal.value} {first.source}")
    mine = (
        observations.c.zone == first.zone,
        observations.c.signal == first.signal.value,
        observations.c.source == first.source,
        observations.c.window_at >= min(one.window_at for one in found),
        observations.c.window_at <= max(one.window_at for one in found),
    )
    statement = select(*(observations.c[name] for name in ("window_at", "revision", *_TELLING))).where(*mine)
    known: dict[datetime, tuple[int, tuple[Any, ...]]] = {}
    for row in tx.execute(statement.order_by(observations.c.revision)):
        known[row.window_at] = (row.revision, tuple(row[2:]))
    rows: list[dict[str, Any]] = []
    # In one order everywhere, so that two processes that store the same never wait for each other in a ring.
    for one in sorted(found, key=lambda one: one.window_at):
        revision, before = known.get(one.window_at, (0, ()))
        said = tuple(getattr(one, name) for name in _TELLING)
        if before != said:
            new: dict[str, Any] = {name: getattr(one, name) for name in Observation.__dataclass_fields__}
            rows.append(new | {"signal": one.signal.value, "revision": revision + 1})
            known[one.window_at] = (revision + 1, said)
    again = [row["window_at"] for row in rows if row["revision"] > 1]
    restatements.note_corrections(tx, [(first.signal, first.zone, first.source, at) for at in again])
    return insert_new(tx, observations, rows)


#: What makes an observation of a window another one than the last: what it says, how final it is, what it covers.
_TELLING = ("g_per_kwh", "is_estimated", "may_settle", "step_s")


def last_observed(tx: Tx, zone: str, signal: Signal, source: str, now: datetime) -> datetime | None:
    """Return the start of the newest window observed by a source; None if there is none.

    Windows after ``now`` do not count: they were stored while a clock ran ahead.
    """
    mine = (observations.c.zone == zone, observations.c.signal == signal.value, observations.c.source == source)
    return tx.execute(select(func.max(observations.c.window_at)).where(*mine, observations.c.window_at <= now)).scalar()


def newest_forecast(tx: Tx, zone: str, signal: Signal, now: datetime, *, source: str | None = None) -> Forecast | None:
    """Return the forecast of a zone that was issued last, at or before grid time ``now``; by default of any source."""
    terms = [forecasts.c.zone == zone, forecasts.c.signal == signal.value, forecasts.c.issued_at <= now]
    if source is not None:
        terms.append(forecasts.c.source == source)
    statement = select(forecasts).where(*terms)
    statement = statement.order_by(forecasts.c.issued_at.desc(), forecasts.c.forecast_id.desc())
    row = tx.execute(statement.limit(1)).mappings().one_or_none()
    return None if row is None else _forecast(row)


def issues(
    tx: Tx,
    zone: str,
    signal: Signal,
    start: datetime,
    end: datetime,
    *,
    source: str | None = None,
    limit: int | None = None,
    is_newest_first: bool = False,
) -> list[Forecast]:
    """Return the forecasts issued in ``[start, end)``, by default of any source, oldest first."""
    terms = [
        forecasts.c.zone == zone,
        forecasts.c.signal == signal.value,
        forecasts.c.issued_at >= start,
        forecasts.c.issued_at < end,
    ]
    if source is not None:
        terms.append(forecasts.c.source == source)
    order = (forecasts.c.issued_at, forecasts.c.forecast_id)
    chosen = select(forecasts).where(*terms).order_by(*(one.desc() if is_newest_first else one for one in order))
    return [_forecast(row) for row in tx.execute(chosen.limit(limit)).mappings()]


def page_of_issues(
    tx: Tx,
    zone: str,
    signal: Signal,
    *,
    source: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    after: int | None = None,
    limit: int,
) -> list[tuple[int, Forecast]]:
    """Return up to ``limit`` forecasts with their numbers, newest issue first, after the one of number ``after``."""
    terms = [forecasts.c.zone == zone, forecasts.c.signal == signal.value]
    if source is not None:
        terms.append(forecasts.c.source == source)
    if start is not None:
        terms.append(forecasts.c.issued_at >= start)
    if end is not None:
        terms.append(forecasts.c.issued_at < end)
    if after is not None:
        last = tx.execute(select(forecasts.c.issued_at).where(forecasts.c.forecast_id == after)).scalar_one_or_none()
        if last is None:
            return []
        terms.append(tuple_(forecasts.c.issued_at, forecasts.c.forecast_id) < (last, after))
    chosen = select(forecasts).where(*terms).order_by(forecasts.c.issued_at.desc(), forecasts.c.forecast_id.desc())
    return [(row["forecast_id"], _forecast(row)) for row in tx.execute(chosen.limit(limit)).mappings()]


def sources_of(tx: Tx, zone: str, signal: Signal) -> list[str]:
    """Return the names of all sources that anything is stored of for a zone and signal."""
    return sorted(
        {
            source
            for table in (forecasts, observations)
            for _, of_signal, source in series(tx, table, zone)
            if of_signal == signal.value
        }
    )


def series(tx: Tx, table: Table = forecasts, zone: str | None = None) -> Iterator[tuple[str, str, str]]:
    """Walk from one (zone, signal, source) to the next along the index: there are few, and millions of rows."""
    key = (table.c.zone, table.c.signal, table.c.source)
    terms = () if zone is None else (table.c.zone == zone,)
    last = ("" if zone is None else zone, "", "")
    while True:
        following = tx.execute(select(*key).where(tuple_(*key) > last, *terms).order_by(*key).limit(1)).first()
        if following is None:
            return
        last = (following.zone, following.signal, following.source)
        yield last


def _forecast(row: RowMapping) -> Forecast:
    values: dict[str, Any] = {name: row[name] for name in _FORECAST_FIELDS if name != "values"}
    values["signal"] = Signal(row["signal"])
    return Forecast(values=packing.unpack(row["packed"]), **values)


def observed(
    tx: Tx, zone: str, signal: Signal, start: datetime, end: datetime, *, source: str | None = None
) -> list[Observation]:
    """Return the newest revision of each window in ``[start, end)``, oldest first; by default of any source."""
    span = _span(zone, signal, start, end, source)
    rows = tx.execute(select(observations).where(*span).order_by(*_ORDER)).mappings()
    newest: dict[datetime, Observation] = {}
    for row in rows:
        values: dict[str, Any] = {name: row[name] for name in Observation.__dataclass_fields__}
        values["signal"] = Signal(row["signal"])
        newest[row["window_at"]] = Observation(**values)
    return list(newest.values())


@dataclass(frozen=True, slots=True)
class History:
    """What was observed, by column: window starts (s since 1970), steps (s) and g/kWh, in order of window."""

    window_s: npt.NDArray[np.float64]
    step_s: npt.NDArray[np.int64]
    g_per_kwh: npt.NDArray[np.float64]


def history(tx: Tx, zone: str, signal: Signal, start: datetime, end: datetime, *, source: str | None = None) -> History:
    """Return all revisions in ``[start, end)``, by default of any source; of each window the last one counts.

    Rows are ordered by window, then by when each was said. For arithmetic over weeks of windows, hence columns of
    floats: an object for each row would take most of the time.
    """
    columns = (raw_time(tx, observations.c.window_at), observations.c.step_s, observations.c.g_per_kwh)
    statement = select(*columns).where(*_span(zone, signal, start, end, source)).order_by(*_ORDER)
    with tx.execute(statement) as result:
        rows = [] if result.cursor is None else result.cursor.fetchall()
    times, steps, values = zip(*rows, strict=True) if rows else ((), (), ())
    rates = np.fromiter(map(float, values), dtype=np.float64, count=len(values))
    return History(epochs(times), np.array(steps, dtype=np.int64), rates)


#: Revisions of a window in the order in which they replace each other.
_ORDER = (observations.c.window_at, observations.c.retrieved_at, observations.c.revision)


def _span(
    zone: str, signal: Signal, start: datetime, end: datetime, source: str | None
) -> tuple[ColumnElement[bool], ...]:
    terms = (
        observations.c.zone == zone,
        observations.c.signal == signal.value,
        observations.c.window_at >= start,
        observations.c.window_at < end,
    )
    return terms if source is None else (*terms, observations.c.source == source)


def retire(tx: Tx, *, before: datetime | None, thin_before: datetime | None, limit: int) -> int:
    """Delete forecasts issued before ``before``, and of those issued before ``thin_before`` all but one an hour.

    At most about ``limit`` rows in one short transaction; call again until it returns 0. Nothing refers to these rows:
    placements and entries keep the figures they used themselves.
    """
    gone = 0
    if before is not None:
        old = select(forecasts.c.forecast_id).where(forecasts.c.issued_at < before).limit(limit)
        gone = tx.execute(delete(forecasts).where(forecasts.c.forecast_id.in_(old))).rowcount
    if thin_before is None or gone >= limit:
        return gone
    return gone + _thin(tx, thin_before, limit - gone)


def _thin(tx: Tx, before: datetime, limit: int) -> int:
    """Keep the first issue of each hour, marked so that it is not looked at again; return the rows dealt with."""
    key = (forecasts.c.zone, forecasts.c.signal, forecasts.c.source, forecasts.c.issued_at)
    fresh = select(forecasts.c.forecast_id, *key).where(
        forecasts.c.is_thinned.is_(False), forecasts.c.issued_at < before
    )
    rows = tx.execute(fresh.order_by(forecasts.c.issued_at).limit(limit)).all()
    if not rows:
        return 0
    kept_before = select(*key).where(
        forecasts.c.is_thinned.is_(True),
        forecasts.c.issued_at >= _hour(rows[0].issued_at),
        forecasts.c.issued_at < before,
    )
    hours = {(zone, signal, source, _hour(at)) for zone, signal, source, at in tx.execute(kept_before)}
    kept: list[int] = []
    spare: list[int] = []
    for number, zone, signal, source, at in rows:
        hour = (zone, signal, source, _hour(at))
        (spare if hour in hours else kept).append(number)
        hours.add(hour)
    tx.execute(update(forecasts).where(is_any_of(tx, forecasts.c.forecast_id, kept)).values(is_thinned=True))
    tx.execute(delete(forecasts).where(is_any_of(tx, forecasts.c.forecast_id, spare)))
    return len(rows)


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def retire_observations(tx: Tx, *, before: datetime, limit: int) -> int:
    """Delete observations of windows before ``before``; about ``limit`` rows, call again until it returns 0."""
    gone = 0
    for zone, signal, source in list(series(tx, observations)):
        mine = (observations.c.zone == zone, observations.c.signal == signal, observations.c.source == source)
        oldest = select(observations.c.window_at).where(*mine, observations.c.window_at < before)
        windows = tx.execute(oldest.order_by(observations.c.window_at).limit(limit - gone)).scalars().all()
        if windows:
            # With all their revisions: a later one alone would look like the first.
            gone += tx.execute(delete(observations).where(*mine, observations.c.window_at <= windows[-1])).rowcount
        if gone >= limit:
            break
    return gone

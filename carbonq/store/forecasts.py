"""Rows of ``forecasts`` and ``observations``: what grid sources said, as it was said; nothing is ever overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Text, func, insert, select, type_coerce
from sqlalchemy.dialects import postgresql, sqlite

from carbonq.model import Signal
from carbonq.signals import Forecast, Observation
from carbonq.store.database import Tx
from carbonq.store.tables import forecasts, observations
from carbonq.units import plain


def add_forecast(tx: Tx, forecast: Forecast) -> bool:
    """Store a forecast as issued; False when that issue is there already."""
    new = (postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert)(forecasts)
    row: dict[str, Any] = {name: getattr(forecast, name) for name in Forecast.__dataclass_fields__}
    row["signal"] = forecast.signal.value
    row["values"] = [None if value is None else plain(value) for value in forecast.values]
    # .values(dict) cannot name a column that is called like the method's own keyword, so the row is bound on execution.
    stored = tx.execute(new.on_conflict_do_nothing().returning(forecasts.c.forecast_id), row)
    return stored.first() is not None


def add_observations(tx: Tx, found: Sequence[Observation]) -> int:
    """Store observations of one zone, signal and source; a value that changed becomes a new revision.

    Returns how many rows were new.
    """
    if not found:
        return 0
    first = found[0]
    mine = (
        observations.c.zone == first.zone,
        observations.c.signal == first.signal.value,
        observations.c.source == first.source,
        observations.c.window_at >= min(one.window_at for one in found),
        observations.c.window_at <= max(one.window_at for one in found),
    )
    statement = select(observations.c.window_at, observations.c.revision, observations.c.g_per_kwh).where(*mine)
    known: dict[datetime, tuple[int, Decimal]] = {}
    for at, revision, value in tx.execute(statement.order_by(observations.c.revision)):
        known[at] = (revision, value)
    rows: list[dict[str, Any]] = []
    for one in found:
        revision, value = known.get(one.window_at, (0, None))
        if value != one.g_per_kwh:
            row: dict[str, Any] = {name: getattr(one, name) for name in Observation.__dataclass_fields__}
            rows.append(row | {"signal": one.signal.value, "revision": revision + 1})
    if rows:
        tx.execute(insert(observations), rows)
    return len(rows)


def last_observed(tx: Tx, zone: str, signal: Signal, source: str) -> datetime | None:
    """Return the start of the newest window observed by a source; None if there is none."""
    mine = (observations.c.zone == zone, observations.c.signal == signal.value, observations.c.source == source)
    return tx.execute(select(func.max(observations.c.window_at)).where(*mine)).scalar_one()


def newest_forecast(tx: Tx, zone: str, signal: Signal, now: datetime) -> Forecast | None:
    """Return the forecast of a zone that was issued last, at or before grid time ``now``."""
    mine = (forecasts.c.zone == zone, forecasts.c.signal == signal.value, forecasts.c.issued_at <= now)
    statement = select(forecasts).where(*mine).order_by(forecasts.c.issued_at.desc(), forecasts.c.forecast_id.desc())
    row = tx.execute(statement.limit(1)).mappings().one_or_none()
    if row is None:
        return None
    values: dict[str, Any] = {name: row[name] for name in Forecast.__dataclass_fields__}
    values["signal"] = Signal(row["signal"])
    values["values"] = [None if value is None else Decimal(value) for value in row["values"]]
    return Forecast(**values)


def observed(tx: Tx, zone: str, signal: Signal, start: datetime, end: datetime) -> list[Observation]:
    """Return the newest revision of each window in ``[start, end)``, oldest first."""
    rows = tx.execute(select(observations).where(*_span(zone, signal, start, end)).order_by(*_ORDER)).mappings()
    newest: dict[datetime, Observation] = {}
    for row in rows:
        values: dict[str, Any] = {name: row[name] for name in Observation.__dataclass_fields__}
        values["signal"] = Signal(row["signal"])
        newest[row["window_at"]] = Observation(**values)
    return list(newest.values())


def history(tx: Tx, zone: str, signal: Signal, start: datetime, end: datetime) -> list[tuple[datetime, int, float]]:
    """Return (window start, step in s, g/kWh) of all revisions in ``[start, end)``; of each window the last one counts.

    For arithmetic over weeks of windows, hence floats and no more columns than that needs.
    """
    # Read as text or number, whichever the database gives: a Decimal for each would take most of the time.
    value = type_coerce(observations.c.g_per_kwh, Text) if tx.dialect.name == "sqlite" else observations.c.g_per_kwh
    columns: tuple[ColumnElement[Any], ...] = (observations.c.window_at, observations.c.step_s, value)
    rows = tx.execute(select(*columns).where(*_span(zone, signal, start, end)).order_by(*_ORDER))
    return [(at, step_s, float(g_per_kwh)) for at, step_s, g_per_kwh in rows]


#: Revisions of a window in the order in which they replace each other.
_ORDER = (observations.c.window_at, observations.c.retrieved_at, observations.c.revision)


def _span(zone: str, signal: Signal, start: datetime, end: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        observations.c.zone == zone,
        observations.c.signal == signal.value,
        observations.c.window_at >= start,
        observations.c.window_at < end,
    )

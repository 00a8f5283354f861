"""Let the database compute: rows given to a statement, and exact grams. What differs between the engines stays here.

Grams come out as ``units.grams`` would give them: one division by 3.6e12 uJ/kWh, rounded once, half to even, to 15
places. PostgreSQL does it with its exact numerics; SQLite, which has none, calls back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal, Inexact
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    NUMERIC,
    ColumnElement,
    Connection,
    Delete,
    FromClause,
    Insert,
    Select,
    Text,
    UnaryExpression,
    case,
    cast,
    event,
    func,
    literal,
    select,
    type_coerce,
)
from sqlalchemy import column as sql_column
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Engine
from sqlalchemy.sql.operators import custom_op
from sqlalchemy.types import TypeEngine

from carbonq.store.dialect import ExactDecimal, array_text
from carbonq.units import UJ_PER_KWH, grams_text, plain

#: Multiplies without ever rounding: a product of two stored decimals has far fewer digits.
_EXACT = Context(prec=200, traps=[Inexact])

#: 1e15 quanta a gram over 3.6e12 uJ a kWh is 2500 / 9.
_NUM, _DEN = 2500, 9
assert _NUM * UJ_PER_KWH == _DEN * 10**15

Columns = Mapping[str, tuple[TypeEngine[Any], Sequence[Any]]]


def product(pue: Decimal | None, g_per_kwh: Decimal | None) -> Decimal | None:
    """Return ``pue x g_per_kwh`` exactly, what ``grams`` is given; None where either is unknown."""
    return None if pue is None or g_per_kwh is None else _EXACT.multiply(pue, g_per_kwh)


def given(tx: Connection, name: str, columns: Columns) -> FromClause:
    """Return rows given by column as something to select from; all columns equally long, one bound value each or all.

    Times and decimals are those of the stored columns they will be compared with.
    """
    processed: list[list[Any]] = []
    for kind, values in columns.values():
        process = kind.dialect_impl(tx.dialect).bind_processor(tx.dialect)
        processed.append(list(values) if process is None else [process(value) for value in values])
    if tx.dialect.name == "postgresql":
        arrays = [
            cast(literal(array_text(values), Text()), ARRAY(kind))
            for (kind, _), values in zip(columns.values(), processed, strict=True)
        ]
        typed = [sql_column(key, kind) for key, (kind, _) in columns.items()]
        return func.unnest(*arrays).table_valued(*typed, name=name).render_derived()
    rows = json.dumps(list(zip(*processed, strict=True)), ensure_ascii=False)
    value = func.json_each(rows).table_valued("value").c.value
    cells = [
        func.json_extract(value, f"$[{number}]", type_=kind).label(key)
        for number, (key, (kind, _)) in enumerate(columns.items())
    ]
    # A CTE that is computed once: SQLite would extract a cell again at every comparison.
    return select(*cells).cte(name).prefix_with("MATERIALIZED")


def first(tx: Connection, rows: Select[Any], name: str) -> FromClause:
    """Return rows that a join is to begin with: PostgreSQL's planner takes a few given rows for as good as none."""
    return (rows if tx.dialect.name == "sqlite" else rows.offset(0)).subquery(name)


def unindexed(tx: Connection, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a column by which no index is to be looked up: SQLite's planner would begin with the least telling one.

    PostgreSQL's knows how many rows there are of each value, and is told nothing.
    """
    if tx.dialect.name != "sqlite":
        return column
    return UnaryExpression(column, operator=custom_op("+"), type_=column.type)  # the sign that its manual has for this


def is_alike(tx: Connection, column: ColumnElement[Any], value: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return whether two values are the same or both NULL, as a condition that no index is to be looked up by."""
    return unindexed(tx, column).is_not_distinct_from(value)


def grams(tx: Connection, energy_uj: ColumnElement[Any], factor: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return ``energy_uj / 3.6e12 x factor`` in grams, where ``factor`` is pue x g/kWh; NULL where either is."""
    if tx.dialect.name != "postgresql":
        return func.carbonq_grams(energy_uj, factor, type_=ExactDecimal())
    exact = NUMERIC()
    factor = type_coerce(factor, exact)
    scaled = func.abs(cast(energy_uj, exact) * factor, type_=exact) * _NUM
    whole = func.div(scaled, _DEN, type_=exact)
    twice = (scaled - whole * _DEN) * 2
    is_up = (twice > _DEN) | ((twice == _DEN) & (func.mod(whole, 2, type_=exact) == 1))
    count = (whole + case((is_up, 1), else_=0)) * func.sign(factor, type_=exact)
    return type_coerce(count * cast("0.000000000000001", exact), ExactDecimal())


def less(
    tx: Connection, baseline_g: ColumnElement[Any], emission_g: ColumnElement[Any], transfer_g: ColumnElement[Any]
) -> ColumnElement[Any]:
    """Return ``baseline_g - emission_g - transfer_g``; NULL where one of the first two is, the third may be."""
    if tx.dialect.name != "postgresql":
        return func.carbonq_less(baseline_g, emission_g, transfer_g, type_=ExactDecimal())
    exact = NUMERIC()
    left = type_coerce(baseline_g, exact) - type_coerce(emission_g, exact)
    return type_coerce(left - func.coalesce(type_coerce(transfer_g, exact), 0, type_=exact), ExactDecimal())


def changed(tx: Connection, statement: Insert | Delete) -> int:
    """Run a statement that adds or takes away rows given to it and return how many that were."""
    result = tx.execute(statement, execution_options={"preserve_rowcount": True})
    # Python's driver counts nothing where the statement begins with its CTE; triggers' rows do not count here.
    return int(tx.execute(select(func.changes())).scalar_one()) if tx.dialect.name == "sqlite" else result.rowcount


def configure(engine: Engine) -> None:
    """Give SQLite's connections the functions that it lacks."""
    if engine.dialect.name == "postgresql":
        return

    @event.listens_for(engine, "connect")
    def add_functions(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.create_function("carbonq_grams", 2, _grams, deterministic=True)
        connection.create_function("carbonq_less", 3, _less, deterministic=True)


@lru_cache(maxsize=4096)
def _ratio(factor: str) -> tuple[int, int]:
    num, den = Decimal(factor).as_integer_ratio()
    return num * _NUM, den * _DEN


@lru_cache(maxsize=65_536)
def _grams(energy_uj: int | None, factor: str | None) -> str | None:
    if energy_uj is None or factor is None:
        return None
    num, den = _ratio(factor)
    quotient, remainder = divmod(energy_uj * num, den)
    twice = 2 * remainder
    return grams_text(quotient + (twice > den or (twice == den and quotient & 1)))


def _less(baseline_g: str | None, emission_g: str | None, transfer_g: str | None) -> str | None:
    if baseline_g is None or emission_g is None:
        return None
    return plain(_EXACT.subtract(_EXACT.subtract(Decimal(baseline_g), Decimal(emission_g)), Decimal(transfer_g or 0)))

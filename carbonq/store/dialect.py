"""All that differs between PostgreSQL and SQLite: column types, the database's clock, connection set-up."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    NUMERIC,
    TEXT,
    TIMESTAMP,
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Table,
    any_,
    case,
    cast,
    event,
    func,
    literal,
    literal_column,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, array
from sqlalchemy.engine import Dialect, Engine, make_url
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from carbonq.units import LEDGER_CONTEXT, iso, parse_iso, plain

#: How long a SQLite writer waits for another one before it gives up, in milliseconds.
SQLITE_BUSY_TIMEOUT_MS = 30_000

#: How long a PostgreSQL statement waits for a lock before it gives up, in milliseconds.
POSTGRES_LOCK_TIMEOUT_MS = 30_000

#: How long a PostgreSQL transaction may hold its locks and do nothing, in milliseconds: a process that is frozen or cut
#: off in the middle of one would otherwise hold up everybody who works on the same job, past all deadlines.
POSTGRES_IDLE_TIMEOUT_MS = 10_000

#: Bound parameters one statement may have: SQLite's limit since 3.32.
MAX_PARAMETERS = 32_766


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC time: timestamptz on PostgreSQL, fixed-width ISO text on SQLite (text order is time order)."""

    impl = TEXT
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the column type."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(TEXT())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Write an aware time."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive time {value!r} given to the store")
        return value if dialect.name == "postgresql" else iso(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Read an aware UTC time."""
        if value is None:
            return None
        return parse_iso(value) if isinstance(value, str) else value.astimezone(UTC)


class ExactDecimal(TypeDecorator[Decimal]):
    """A decimal that comes back exactly as written: NUMERIC on PostgreSQL, text on SQLite."""

    impl = TEXT
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the column type."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(NUMERIC(asdecimal=True))
        return dialect.type_descriptor(TEXT())

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> Any:
        """Write a decimal without exponent."""
        if value is None:
            return None
        return value if dialect.name == "postgresql" else plain(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Decimal | None:
        """Read a decimal."""
        return None if value is None else Decimal(value)


class Json(TypeDecorator[Any]):
    """JSON: jsonb on PostgreSQL, text on SQLite. NULL is Python's None."""

    impl = TEXT
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the column type."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(JSONB(none_as_null=True))
        return dialect.type_descriptor(TEXT())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Write JSON."""
        if value is None or dialect.name == "postgresql":
            return value
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Read JSON."""
        return json.loads(value) if isinstance(value, str) and dialect.name != "postgresql" else value


#: Auto-increment keys: SQLite only counts up by itself for INTEGER, which holds 64 bits there.
BigKey = BigInteger().with_variant(Integer, "sqlite")


def machine_now(tx: Connection) -> datetime:
    """Return the database's clock, the only one that leases and heartbeats are compared with."""
    if tx.dialect.name == "postgresql":
        # clock_timestamp, not now(): a transaction that waited for a lock must not act on the time it began.
        at: datetime = tx.execute(text("SELECT clock_timestamp()")).scalar_one()
        return at.astimezone(UTC)
    # SQLite before 3.42 has no unixepoch('subsec'); %f gives milliseconds everywhere.
    stamp: str = tx.execute(text("SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')")).scalar_one()
    return parse_iso(stamp + "+00:00")


def write_now(tx: Connection) -> datetime:
    """Return the database's clock, in a transaction that has its id from then on: see ``store.events.advance``."""
    if tx.dialect.name != "postgresql":
        return machine_now(tx)
    at: datetime = tx.execute(text("SELECT clock_timestamp(), pg_current_xact_id()")).one()[0]
    return at.astimezone(UTC)


def running_transactions(tx: Connection) -> list[ColumnElement[int]] | None:
    """Return columns for the id below which no transaction writes any more, and the one above all that have ended.

    None where the database has one writer.
    """
    if tx.dialect.name != "postgresql":
        return None
    ends = ("xmin", "xmax")
    return [literal_column(f"pg_snapshot_{end}(pg_current_snapshot())::text::bigint", BigInteger()) for end in ends]


def take_transaction_id(tx: Connection) -> int:
    """Return the id of a PostgreSQL transaction, which it has from then on: all that were taken before are lower."""
    return tx.execute(text("SELECT pg_current_xact_id()::text::bigint")).scalar_one()


def serialise(tx: Connection, what: str) -> None:
    """Wait until no other transaction works on the same ``what``, and keep others waiting until this one ends.

    For what must not be read and then written by two at once where there is no row to lock. SQLite has one writer.
    """
    if tx.dialect.name == "postgresql":
        tx.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:what, 0))"), {"what": f"carbonq {what}"})


def skip_locked(tx: Connection) -> bool:
    """Say whether ``SELECT ... FOR UPDATE SKIP LOCKED`` exists; SQLite has one writer and does not need it."""
    return tx.dialect.name == "postgresql"


def batches(rows: Sequence[Mapping[str, Any]], columns: int) -> list[Sequence[Mapping[str, Any]]]:
    """Cut rows so that one multi-row statement of ``columns`` columns stays under the parameter limit."""
    size = max(1, MAX_PARAMETERS // max(1, columns))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def insert_columns(
    tx: Connection, table: Table, values: Mapping[str, Sequence[Any]], *, skip_existing: bool = False
) -> None:
    """Insert many rows given by column, all columns equally long, as the driver takes them (bind processors applied).

    Several times faster than an ordinary multi-row insert on either database. On PostgreSQL it is one statement and one
    message: in COPY and in a pipelined executemany the server waits for the client inside a statement, where no timeout
    reaches, and a frozen process would hold its locks for as long as it is frozen. ``skip_existing`` leaves rows alone
    whose key is there.
    """
    quoted = ", ".join(f'"{name}"' for name in values)
    ending = " ON CONFLICT DO NOTHING" if skip_existing else ""
    if tx.dialect.name == "postgresql":
        _insert_arrays(tx, table, values, quoted, ending)
        return
    empty = {name for name, column in values.items() if column.count(None) == len(column)}
    marks = ", ".join("NULL" if name in empty else "?" for name in values)
    rows = list(zip(*(column for name, column in values.items() if name not in empty), strict=True))
    if rows:
        tx.exec_driver_sql(f"INSERT INTO {table.name} ({quoted}) VALUES ({marks}){ending}", rows)


def _insert_arrays(tx: Connection, table: Table, values: Mapping[str, Sequence[Any]], quoted: str, ending: str) -> None:
    """Insert columns into PostgreSQL: one array for each that varies, one plain value for each that does not."""
    count = len(next(iter(values.values())))
    if not count:
        return
    selected: list[str] = []
    given: list[Any] = []
    arrays: list[str] = []
    texts: list[Any] = []
    for name, column in values.items():
        kind = table.c[name].type.compile(dialect=tx.dialect).replace("BIGSERIAL", "BIGINT")
        if _is_constant(column):
            selected.append(f"%s::{kind}")
            given.append(column[0])
        else:
            selected.append(f'u."{name}"')
            arrays.append(f"%s::{kind}[]")
            texts.append(_array(column))
    names = ", ".join(one[2:] for one in selected if one.startswith("u."))
    source = f"unnest({', '.join(arrays)}) AS u ({names})" if arrays else f"generate_series(1, {count})"
    statement = f"INSERT INTO {table.name} ({quoted}) SELECT {', '.join(selected)} FROM {source}{ending}"
    tx.exec_driver_sql(statement, (*given, *texts))


def _is_constant(column: Sequence[Any]) -> bool:
    first = column[0]
    if isinstance(first, Decimal | float):  # equal ones may be written differently: 1.2 and 1.20
        return all(one is first for one in column)
    return list(column).count(first) == len(column)


def _array(column: Sequence[Any]) -> Any:
    first = next(one for one in column if one is not None)
    if isinstance(first, bool) or not isinstance(first, int | Decimal | str | datetime):
        return list(column)
    return array_text(column)


def array_text(column: Sequence[Any]) -> str:
    """Write whole numbers, decimals, texts and times as PostgreSQL reads an array: the driver takes far longer."""
    first = next((one for one in column if one is not None), None)
    if isinstance(first, str):
        return _array_of_texts(column)
    if isinstance(first, datetime):
        written = {id(one): "NULL" if one is None else f'"{one.isoformat()}"' for one in _distinct(column)}
        return "{" + ",".join([written[id(one)] for one in column]) + "}"
    return "{" + ",".join(["NULL" if one is None else str(one) for one in column]) + "}"


def _array_of_texts(column: Sequence[str | None]) -> str:
    if None not in column:
        joined = '","'.join(column)  # pyright: ignore[reportArgumentType, reportCallIssue] - none is None
        if "\\" not in joined and joined.count('"') == 2 * len(column) - 2:  # nothing to escape in any
            return f'{{"{joined}"}}'
    return "{" + ",".join(["NULL" if one is None else _quoted(one) for one in column]) + "}"


def _distinct(column: Sequence[Any]) -> Iterable[Any]:
    """Return each object of a column once, by identity: many share one."""
    return dict(zip(map(id, column), column, strict=True)).values()


def _quoted(text_: str) -> str:
    if "\\" in text_ or '"' in text_:
        text_ = text_.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text_}"'


def insert_new(tx: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows whose keys are new and return how many that were; what another process just stored is left."""
    if not rows:
        return 0
    insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    # Bound on execution and not by .values(): that cannot name a column that is called like its own keyword.
    statement = insert(table).on_conflict_do_nothing().returning(*table.primary_key.columns)
    return sum(len(tx.execute(statement, list(some)).all()) for some in batches(rows, len(table.columns)))


def is_any_of(tx: Connection, column: ColumnElement[Any], values: Sequence[int] | Sequence[str]) -> ColumnElement[bool]:
    """Return ``column IN values`` for any number of values, as one bound parameter."""
    if tx.dialect.name == "postgresql":
        return column == any_(literal(list(values), ARRAY(column.type)))
    return column.in_(select(func.json_each(json.dumps(list(values))).table_valued("value").c.value))


def as_text(tx: Connection, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a time or decimal as the ledger's CSV writes it, and any other column as it is."""
    if not isinstance(column.type, UtcDateTime | ExactDecimal):
        return column
    if tx.dialect.name != "postgresql":
        return type_coerce(column, TEXT())  # stored as such
    if isinstance(column.type, ExactDecimal):
        return cast(column, TEXT())
    return func.to_char(func.timezone("UTC", column), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"', type_=TEXT())


def json_list(tx: Connection, columns: Sequence[ColumnElement[Any]]) -> ColumnElement[str]:
    """Return columns as one JSON list: much faster than one by one where many rows have the same.

    Equal lists mean equal values, whatever the texts hold. Whole numbers are texts on PostgreSQL.
    """
    if tx.dialect.name == "postgresql":
        return cast(func.to_json(array([cast(column, TEXT()) for column in columns])), TEXT())
    return func.json_array(*columns, type_=TEXT())


def stored_text(tx: Connection, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a time or decimal as the text that stands for it, any other column as it is; NULL stays NULL."""
    if not isinstance(column.type, UtcDateTime | ExactDecimal):
        return type_coerce(column, NullType())
    if tx.dialect.name != "postgresql":
        return type_coerce(column, NullType())  # stored as such
    if isinstance(column.type, UtcDateTime):
        return func.to_char(func.timezone("UTC", column), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
    return cast(column, TEXT())


def hold_still(tx: Connection) -> None:
    """Let all reads of a transaction that has not read yet see the same moment; SQLite's do anyhow."""
    if tx.dialect.name == "postgresql":
        tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))


@contextmanager
def unreadable_shown(tx: Connection) -> Generator[None]:
    """Let SQLite's driver hand out text that is not UTF-8, with surrogates in place of what cannot be decoded."""
    if tx.dialect.name == "postgresql":
        yield
        return
    driver: Any = tx.connection.driver_connection
    before = driver.text_factory
    driver.text_factory = _decode
    try:
        yield
    finally:
        driver.text_factory = before


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def exact_sum(tx: Connection, column: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    """Return the columns to select for the exact sum of a decimal column with 15 places; see ``read_exact_sum``.

    SQLite would add decimals as floats, so whole grams and the two halves of the fraction are added as integers.
    """
    if tx.dialect.name == "postgresql":
        return [func.sum(column)]
    digits = type_coerce(column, TEXT())
    sign = case((digits.like("-%"), -1), else_=1)
    fraction = cast(func.substr(digits, func.instr(digits, ".") + 1), Integer)
    whole = cast(digits, Integer)
    return [
        func.sum(whole),
        func.sum(sign * fraction.op("/")(10**6)),  # SQLite's own division of integers: whole
        func.sum(sign * (fraction % 10**6)),
    ]


def read_exact_sum(values: Sequence[Any]) -> Decimal | None:
    """Return what ``exact_sum`` selected as a decimal; None where there was nothing to add."""
    if values[0] is None:
        return None
    if len(values) == 1:
        return Decimal(values[0])
    whole, upper, lower = values
    return Decimal(whole * 10**15 + upper * 10**6 + lower).scaleb(-15, LEDGER_CONTEXT)


def configure(engine: Engine) -> None:
    """Install the per-connection set-up of an engine's dialect."""
    if engine.dialect.name == "postgresql":

        @event.listens_for(engine, "connect")
        def set_timeouts(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
            cursor = connection.cursor()
            cursor.execute(f"SET lock_timeout = {POSTGRES_LOCK_TIMEOUT_MS}")
            cursor.execute(f"SET idle_in_transaction_session_timeout = {POSTGRES_IDLE_TIMEOUT_MS}")
            cursor.close()
            connection.commit()

        return

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.isolation_level = None  # the driver must not begin transactions by itself
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")  # an accepted job survives a power cut
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        # A deferred transaction that reads and then writes fails at once when another writer came between.
        is_write = connection.get_execution_options().get("carbonq_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


def driver_url(url: str) -> str:
    """Name the driver for the database URLs people write: ``postgresql://`` means psycopg 3."""
    parsed = make_url(url)
    if parsed.drivername in {"postgresql", "postgres"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)

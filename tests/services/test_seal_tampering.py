"""Whatever is changed, removed, added or swapped in a sealed ledger is found, and named, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Boolean, Column, Float, Integer, LargeBinary, Table, select, text, update

from carbonq.services.seal import seal
from carbonq.store.database import Database
from carbonq.store.dialect import ExactDecimal, Json, UtcDateTime
from carbonq.store.tables import engine_batches, entries, facts, placements, rates, seal_parts, seals
from tests.services.sealed import as_administrator, fill, findings, forget, keep, restore
from tests.unit.bookings import W0

SEALED = (entries, engine_batches, rates, facts, seals, seal_parts)

#: What of a placement is sealed: what the export shows.
SHOWN = ("plan_id", "region", "window_at", "g_per_kwh", "issued_at", "reason", "signal")

EXAMPLES = settings(
    max_examples=8,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # an example is a check of a whole ledger
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def sealed(database: Database) -> Iterator[Database]:
    fill(database)
    assert findings(database) == []
    keep(database)
    yield database
    forget(database)


def rows_of(database: Database, table: Table) -> list[dict[str, Any]]:
    with database.read() as tx:
        found = [dict(row) for row in tx.execute(select(table)).mappings()]
    if table is rates:  # one that no entry refers to changes no figure
        with database.read() as tx:
            used = {
                one for row in tx.execute(select(entries)).mappings() for name, one in row.items() if "rate_id" in name
            }
        found = [row for row in found if row["rate_id"] in used]
    return found


def key_of(table: Table, row: dict[str, Any]) -> str:
    if table is entries:
        return f"{row['entry_id']}#{row['revision']}"
    if table is engine_batches:
        return f"{row['engine_batch_id']}.{row['part']}"
    return str(row[next(iter(table.primary_key.columns)).name])


def is_named(database: Database, table: Table, *rows: dict[str, Any]) -> bool:
    """Say whether a check names one of the rows; rows of leaves by their seal, or by the lines that they are of."""
    found = findings(database)
    keys = {key_of(table, row) for row in rows}
    if table in {seals, seal_parts}:
        places = {"seals", "seal_parts"}
        lines = {row["engine_batch_id"] for row in rows if "engine_batch_id" in row}
        return any(one.table in places and one.key.partition(".")[0] in keys for one in found) or bool(
            lines & {one.key.rpartition(".")[0].partition(".")[0] for one in found}
        )
    return any(one.table == table.name and one.key in keys for one in found)


def where(table: Table, row: dict[str, Any]) -> Any:
    terms = [column == row[column.name] for column in table.primary_key.columns]
    return terms[0] if len(terms) == 1 else terms[0] & terms[1]


def other(column: Column[Any], value: Any, bit: int) -> Any:
    """Return another value that the column takes: one bit, character, digit or microsecond further."""
    if column.primary_key and isinstance(column.type, Integer):
        return value + 1000 + bit  # not the key of another row
    for kind, change in OTHERS:
        if isinstance(column.type, kind):
            return change(value, bit)
    if not value:
        return "x" if value is None else "y"
    at = bit % len(value)
    return value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]


def flip(value: bytes, bit: int) -> bytes:
    at = bit % len(value)
    return value[:at] + bytes([value[at] ^ (1 << bit % 8)]) + value[at + 1 :]


OTHERS: tuple[tuple[Any, Callable[[Any, int], Any]], ...] = (
    (Boolean, lambda value, _bit: not value),
    (Integer, lambda value, bit: (value or 0) ^ (1 << bit % 30)),
    (Float, lambda value, bit: (value or 0.0) + 2.0 ** -(bit % 40)),
    (ExactDecimal, lambda value, bit: Decimal(value or 0) + Decimal(1).scaleb(-(bit % 16))),
    (UtcDateTime, lambda value, bit: (value or W0) + timedelta(microseconds=1 + bit)),
    (Json, lambda value, _bit: [*(value or []), "x"]),
    (LargeBinary, flip),
)


@EXAMPLES
@given(
    st.sampled_from(SEALED), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 60)), st.booleans()
)
def test_any_column_of_any_row_changed_is_named(
    sealed: Database, table: Table, which: tuple[int, int, int], is_emptied: bool
) -> None:
    row_number, column_number, bit = which
    found = rows_of(sealed, table)
    row = found[row_number % len(found)]
    column = list(table.columns)[column_number % len(table.columns)]
    before = row[column.name]
    after = None if is_emptied and column.nullable and before is not None else other(column, before, bit)
    with as_administrator(sealed) as tx:
        tx.execute(update(table).where(where(table, row)).values({column: after}))
    assert is_named(sealed, table, row, row | {column.name: after}), (table.name, column.name, before, after)
    restore(sealed)


@pytest.mark.parametrize("table", SEALED, ids=lambda table: table.name)
def test_each_column_changed_once_and_each_row_removed_is_named(sealed: Database, table: Table) -> None:
    found = rows_of(sealed, table)
    for number, column in enumerate(table.columns):
        row = found[number % len(found)]
        after = other(column, row[column.name], number)
        with as_administrator(sealed) as tx:
            tx.execute(update(table).where(where(table, row)).values({column: after}))
        assert is_named(sealed, table, row, row | {column.name: after}), column.name
        restore(sealed)
    for row in found[:3]:
        with as_administrator(sealed) as tx:
            tx.execute(table.delete().where(where(table, row)))
        assert is_named(sealed, table, row), row
        restore(sealed)
    assert findings(sealed) == []


@pytest.mark.parametrize("name", SHOWN)
def test_a_placement_is_sealed_with_the_entries_that_ran_under_it(sealed: Database, name: str) -> None:
    (row,) = rows_of(sealed, placements)
    column = placements.c[name]
    with as_administrator(sealed) as tx:
        tx.execute(update(placements).values({column: other(column, row[name], 3)}))
    named = {finding.key for finding in findings(sealed) if finding.table == "entries"}
    with sealed.read() as tx:
        under = tx.execute(select(entries).where(entries.c.placement_id == "plc_1")).mappings()
        assert named == {key_of(entries, dict(row)) for row in under}


@pytest.mark.parametrize("is_noted", [False, True])
def test_an_entry_slipped_into_a_sealed_engine_batch_is_named(sealed: Database, is_noted: bool) -> None:
    row = next(one for one in rows_of(sealed, entries) if one["revision"] == 1)
    added = row | {"entry_id": f"{row['entry_id'].rpartition('.')[0]}.77"}
    with as_administrator(sealed) as tx:
        tx.execute(entries.insert(), added)
        if is_noted:
            values = {"batch": row["engine_batch_id"], "part": row["part"]}
            tx.execute(text("INSERT INTO unsealed (engine_batch_id, part, revision) VALUES (:batch, :part, 1)"), values)
    assert [finding.key for finding in findings(sealed)] == [key_of(entries, added)]
    seal(sealed)  # a seal makes it none the better
    assert [finding.key for finding in findings(sealed)] == [key_of(entries, added)]


def test_what_was_never_booked_is_named(sealed: Database) -> None:
    row = rows_of(sealed, entries)[0]
    for changes in (
        {"revision": 9, "supersedes": f"{row['entry_id']}#8"},
        {"entry_id": "elsewhere.1.0"},
        {"entry_id": "eb_new.1.0", "engine_batch_id": "eb_new"},
    ):
        with as_administrator(sealed) as tx:
            tx.execute(entries.insert(), row | changes)
        assert {finding.table for finding in findings(sealed)} <= {"entries", "engine_batches"}
        assert key_of(entries, row | changes) in {finding.key for finding in findings(sealed)}
        restore(sealed)
    (batch,) = (one for one in rows_of(sealed, engine_batches)[:1])
    with as_administrator(sealed) as tx:
        tx.execute(engine_batches.insert(), batch | {"engine_batch_id": "eb_lone"})
    assert [(finding.table, finding.key) for finding in findings(sealed)] == [
        ("engine_batches", f"eb_lone.{batch['part']}")
    ]


def test_rows_swapped_are_named(sealed: Database) -> None:
    one, two = (
        next(row for row in rows_of(sealed, entries) if row["revision"] == 1 and row["custom_id"] == name)
        for name in ("doc-0", "doc-1")
    )
    with as_administrator(sealed) as tx:
        for row, custom_id in ((one, "doc-swapped"), (two, one["custom_id"]), (one, two["custom_id"])):
            tx.execute(update(entries).where(where(entries, row)).values(custom_id=custom_id))
    assert {finding.key for finding in findings(sealed)} == {key_of(entries, one), key_of(entries, two)}
    restore(sealed)
    with as_administrator(sealed) as tx:
        for before, after in ((1, 99), (2, 1), (99, 2)):
            tx.execute(update(seals).where(seals.c.seal == before).values(seal=after))
    assert {"1", "2"} <= {finding.key for finding in findings(sealed) if finding.table == "seals"}
    restore(sealed)
    with as_administrator(sealed) as tx:
        for before, after in ((0, 99), (1, 0), (99, 1)):
            tx.execute(
                update(seal_parts).where(seal_parts.c.seal == 1, seal_parts.c.number == before).values(number=after)
            )
    assert [finding.key for finding in findings(sealed)] == ["1"]


def test_a_ledger_rewritten_with_its_seals_does_not_have_the_head_that_was_filed(sealed: Database) -> None:
    with sealed.read() as tx:
        filed = tx.execute(select(seals.c.hash).where(seals.c.seal == 1)).scalar_one()
        newest = tx.execute(select(seals.c.hash).where(seals.c.seal == 3)).scalar_one()
    assert findings(sealed, head=filed) == findings(sealed, head=newest) == []
    with as_administrator(sealed) as tx:
        tx.execute(text("UPDATE entries SET tenant = 'nobody' WHERE tenant IS NOT NULL"))
        tx.execute(text("DELETE FROM seal_parts"))
        tx.execute(text("DELETE FROM seals"))
        tx.execute(
            text(
                "INSERT INTO unsealed (engine_batch_id, part, revision) "
                "SELECT DISTINCT engine_batch_id, part, revision FROM entries"
            )
        )
    seal(sealed)
    assert findings(sealed) == []  # nothing inside tells
    for head in (filed, newest):
        (finding,) = findings(sealed, head=head)
        assert (finding.table, finding.key) == ("seals", head)


def test_on_sqlite_text_that_is_no_text_any_more_is_named(sqlite_database: Database) -> None:
    fill(sqlite_database)
    keep(sqlite_database)
    columns = {"entries": "custom_id", "engine_batches": "engine", "rates": "source", "facts": "hardware"}
    for table, column in columns.items():
        for value, mark in ((b"\xe4", "CAST(? AS TEXT)"), (7, "?"), (b"\x00\xff", "?")):
            with as_administrator(sqlite_database) as tx:
                first = f"rowid = (SELECT min(rowid) FROM {table})"
                tx.exec_driver_sql(f"UPDATE {table} SET {column} = {mark} WHERE {first}", (value,))
            assert table in {finding.table for finding in findings(sqlite_database)}
            restore(sqlite_database)

"""The schema on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from carbonq import rooms
from carbonq.errors import ConfigError
from carbonq.store import ledger, schema, tables
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from tests.unit.bookings import book, rate_book


def test_upgrade_is_idempotent_and_reaches_head(database: Database) -> None:
    assert schema.upgrade(database) == schema.head() == schema.current(database)
    schema.check_usable(database)


def test_revisions_are_read_from_the_file_names() -> None:
    script = ScriptDirectory(str(rooms.folder("migrations")))
    assert schema.head() == script.get_current_head()
    for one in script.walk_revisions():
        assert one.path.rpartition("/")[2].startswith(f"{one.revision}_")


def _make_newer(database: Database, floor: str) -> None:
    """What a later version's migration would leave behind."""
    with database.write() as tx:
        tx.execute(text("ALTER TABLE jobs ADD COLUMN of_a_later_version TEXT"))
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        tx.execute(text("UPDATE schema_floor SET revision = :floor"), {"floor": floor})


def test_a_newer_database_that_dropped_this_code_is_refused(database: Database) -> None:
    _make_newer(database, "9999")
    for act in (schema.upgrade, schema.check_usable):
        with pytest.raises(ConfigError, match="newer version"):
            act(database)


def test_a_newer_database_that_only_added_is_worked_on_and_left_alone(database: Database) -> None:
    _make_newer(database, schema.head())
    schema.check_usable(database)
    assert schema.is_newer(database)
    assert schema.upgrade(database) == "9999"
    assert schema.current(database) == "9999"


def test_an_empty_database_must_be_upgraded_first(database_url: str) -> None:
    fresh = Database(database_url)
    sentence = (
        "there is no database at .*carbonq.db; .*CARBONQ_DATABASE_URL" if fresh.is_sqlite else "has no tables yet"
    )
    with pytest.raises(ConfigError, match=f"(?s){sentence}") as error:
        schema.check_usable(fresh)
    assert "carbonq db upgrade" in error.value.message
    assert fresh.is_absent() is fresh.is_sqlite, "looking must make no file"
    fresh.dispose()


def test_ledger_tables_refuse_update_and_delete(database: Database) -> None:
    with database.write() as tx:
        now = machine_now(tx)
        tx.execute(
            tables.facts.insert(),
            {"fact_id": "f", "region": "r", "pue": 1, "pue_source": "s", "hardware": "h", "ownership": "owned"},
        )
    assert now.tzinfo is not None
    for statement in ("UPDATE facts SET region = 'x'", "DELETE FROM facts"):
        with pytest.raises(DBAPIError, match="append-only"), database.write() as tx:
            tx.execute(text(statement))


def test_replace_does_not_go_past_the_triggers(sqlite_database: Database) -> None:
    """SQLite takes the row in the way of a REPLACE without asking the trigger on DELETE."""
    with sqlite_database.write() as tx:
        ledger.insert_booking(tx, book())
    names = ", ".join(f'"{column.name}"' for column in tables.entries.c)
    first = {"rowid": "rowid", "entry_id": "entry_id", "revision": "revision", "energy_uj": "7"}
    others = {"entry_id": "'eb_x.1.0'", "supersedes": "'again'"}
    attempts = (
        f"INSERT OR REPLACE INTO entries ({names}) SELECT {_with(names, first)} FROM entries",
        f"REPLACE INTO entries (rowid, {names}) SELECT rowid, {_with(names, first | others)} FROM entries LIMIT 1",
        "INSERT OR REPLACE INTO facts SELECT fact_id, 'x', pue, pue_source, hardware, ownership, embodied_kg, life_h "
        "FROM facts",
    )
    before = _everything(sqlite_database)
    for statement in attempts:
        with sqlite_database.write() as tx:
            tx.exec_driver_sql(statement)
        assert _everything(sqlite_database) == before, statement


def test_replace_takes_no_revision_by_what_it_supersedes(sqlite_database: Database) -> None:
    booked = book()
    again = booked.entries[0] | {"revision": 2, "supersedes": f"{booked.entries[0]['entry_id']}#1"}
    with sqlite_database.write() as tx:
        ledger.insert_booking(tx, booked)
        tx.execute(tables.entries.insert(), again)
    before = _everything(sqlite_database)
    names = ", ".join(f'"{column.name}"' for column in tables.entries.c)
    chosen = _with(names, {"revision": "3"})
    with sqlite_database.write() as tx:
        tx.exec_driver_sql(f"REPLACE INTO entries ({names}) SELECT {chosen} FROM entries WHERE revision = 2")
    assert _everything(sqlite_database) == before


@pytest.mark.parametrize(
    "statement",
    [
        "REPLACE INTO seals SELECT seal, sealed_at, software_version, 7, entries, root, previous, history, hash, peaks "
        "FROM seals",
        "REPLACE INTO seals SELECT 2, sealed_at, software_version, 7, entries, root, previous, history, hash, peaks "
        "FROM seals",
        "REPLACE INTO seal_parts SELECT seal, number, 'eb_x', part, lines, hashes FROM seal_parts",
        "REPLACE INTO seal_parts (rowid, seal, number, engine_batch_id, part, lines, hashes) "
        "SELECT rowid, seal, 9, engine_batch_id, part, lines, hashes FROM seal_parts LIMIT 1",
    ],
)
def test_replace_takes_no_seal_and_none_of_its_leaves(sqlite_database: Database, statement: str) -> None:
    texts = dict.fromkeys(("software_version", "root", "previous", "history", "hash"), "x")
    with sqlite_database.write() as tx:
        now = machine_now(tx)
        tx.execute(
            tables.seals.insert(), {"seal": 1, "sealed_at": now, "leaves": 1, "entries": 1, "peaks": [], **texts}
        )
        leaf = {"seal": 1, "number": 1, "engine_batch_id": "eb", "part": 1, "lines": "1", "hashes": b"x"}
        tx.execute(tables.seal_parts.insert(), leaf)
    before = _everything(sqlite_database)
    with pytest.raises(DBAPIError, match="append-only"), sqlite_database.write() as tx:
        tx.exec_driver_sql(statement)
    assert _everything(sqlite_database) == before


def _with(names: str, values: dict[str, str]) -> str:
    return ", ".join(values.get(name.strip('"'), name) for name in names.split(", "))


def _everything(database: Database) -> list[object]:
    with database.read() as tx:
        return [tx.execute(table.select().order_by(*table.primary_key)).all() for table in tables.APPEND_ONLY]


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE entries CASCADE",
        "UPDATE entries SET energy_uj = 1",
        "INSERT INTO facts SELECT * FROM facts ON CONFLICT (fact_id) DO UPDATE SET region = 'x'",
        "MERGE INTO facts AS f USING facts AS g ON f.fact_id = g.fact_id WHEN MATCHED THEN UPDATE SET region = 'x'",
        "WITH gone AS (DELETE FROM rates RETURNING rate_id) SELECT count(*) FROM gone",
    ],
)
def test_postgresql_refuses_every_way_to_change_the_ledger(postgresql: Database, statement: str) -> None:
    with postgresql.write() as tx:
        ledger.insert_booking(tx, book(rates=rate_book()))
    before = _everything(postgresql)
    with pytest.raises(DBAPIError, match="append-only"), postgresql.write() as tx:
        tx.execute(text(statement))
    assert _everything(postgresql) == before


def test_an_entry_refers_only_to_what_is_there(database: Database) -> None:
    booked = book(rates=rate_book())
    for column in ("moer_rate_id", "aer_rate_id", "baseline_rate_id", "baseline_fact_id"):
        wrong = replace(booked, entries=[*booked.entries[:-1], booked.entries[-1] | {column: "nowhere"}])
        with pytest.raises(DBAPIError, match=r"FOREIGN KEY|refers to nowhere"), database.write() as tx:
            ledger.insert_booking(tx, wrong)
    with database.write() as tx:
        ledger.insert_booking(tx, booked)


def test_migrations_make_exactly_the_tables_of_the_code(database: Database) -> None:
    with database.read() as tx:
        context = MigrationContext.configure(tx, opts={"compare_type": False})
        found = compare_metadata(context, tables.metadata)
    if not database.is_sqlite:  # there a trigger stands for the foreign keys of entries
        lacking = [one[1].table.name for one in found if one[0] == "add_fk"]
        assert lacking == ["entries"] * 4
        found = [one for one in found if one[0] != "add_fk"]
    assert found == []


def test_downgrade_leaves_nothing(database: Database) -> None:
    with database.write() as tx:
        context = MigrationContext.configure(tx)
        script = ScriptDirectory(str(rooms.folder("migrations"))).get_revision("0001")
        with Operations.context(context):
            script.module.downgrade()
        assert set(inspect(tx).get_table_names()) <= {"alembic_version"}


def test_an_older_database_is_not_read_and_says_why(database: Database) -> None:
    with database.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    with pytest.raises(ConfigError, match=r"at schema 0001 and this carbonq needs \d+: .*not even reading is safe"):
        schema.check_usable(database)

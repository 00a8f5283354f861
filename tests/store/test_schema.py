"""The schema on both databases."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from carbonq import rooms
from carbonq.errors import ConfigError
from carbonq.store import schema, tables
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now


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


def test_migrations_make_exactly_the_tables_of_the_code(database: Database) -> None:
    with database.read() as tx:
        context = MigrationContext.configure(tx, opts={"compare_type": False})
        assert compare_metadata(context, tables.metadata) == []


def test_downgrade_leaves_nothing(database: Database) -> None:
    with database.write() as tx:
        context = MigrationContext.configure(tx)
        script = ScriptDirectory(str(rooms.folder("migrations"))).get_revision("0001")
        with Operations.context(context):
            script.module.downgrade()
        assert set(inspect(tx).get_table_names()) <= {"alembic_version"}

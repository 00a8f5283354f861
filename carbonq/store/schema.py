"""Create and upgrade the schema with Alembic, and refuse a database that is newer than the code."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from carbonq import rooms
from carbonq.errors import ConfigError
from carbonq.store.database import Database


def _config(database: Database) -> Config:
    config = Config()
    config.set_main_option("script_location", str(rooms.folder("migrations")))
    config.attributes["engine"] = database.engine
    return config


def head() -> str:
    """Return the revision this code needs."""
    config = Config()
    config.set_main_option("script_location", str(rooms.folder("migrations")))
    revision = ScriptDirectory.from_config(config).get_current_head()
    assert revision is not None
    return revision


def current(database: Database) -> str | None:
    """Return the database's revision; None for an empty one. Raises StoreUnavailable."""
    with database.read() as tx:
        return MigrationContext.configure(tx).get_current_revision()


def upgrade(database: Database) -> str:
    """Bring the schema to this code's revision and return it; does nothing when it is there already.

    Raises ConfigError when the database is newer than the code, StoreUnavailable when it does not answer.
    """
    check_not_newer(database)
    command.upgrade(_config(database), "head")
    return head()


def check_not_newer(database: Database) -> None:
    """Raise ConfigError when the database carries a revision that this code does not know."""
    revision = current(database)
    if revision is None:
        return
    known = {script.revision for script in ScriptDirectory.from_config(_config(database)).walk_revisions()}
    if revision not in known:
        raise ConfigError(
            f"the database is at schema {revision}, which this carbonq (schema {head()}) does not know: "
            "it was made by a newer version; install that version or point CARBONQ_DATABASE_URL elsewhere"
        )


def require_current(database: Database) -> None:
    """Raise ConfigError unless the database has exactly this code's schema."""
    check_not_newer(database)
    if current(database) != head():
        raise ConfigError("the database's schema is older than the code; run `carbonq db upgrade`")

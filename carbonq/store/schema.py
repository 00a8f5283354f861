"""Create and upgrade the schema with Alembic, and refuse a database that is newer than the code."""

from __future__ import annotations

from sqlalchemy import inspect, text

from carbonq import rooms
from carbonq.errors import ConfigError
from carbonq.store.database import Database, translated


def _revisions() -> list[str]:
    """Return the revisions this code knows, oldest first: each migration's file name begins with its own."""
    return sorted(path.name.partition("_")[0] for path in (rooms.folder("migrations") / "versions").glob("[0-9]*.py"))


def head() -> str:
    """Return the revision this code needs."""
    return _revisions()[-1]


def current(database: Database) -> str | None:
    """Return the database's revision; None for an empty one. Raises StoreUnavailable."""
    with database.read() as tx:
        if not inspect(tx).has_table("alembic_version"):
            return None
        return tx.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def upgrade(database: Database) -> str:
    """Bring the schema to this code's revision and return the one it then has; does nothing when it is there already.

    A newer schema that this code may still run on is left as it is. Raises ConfigError when the database is newer than
    this code can use, StoreUnavailable when it does not answer.
    """
    if is_newer(database):
        check_usable(database)
        return current(database) or head()
    # Here and not above: every process looks at the schema at its start, only this one changes it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(rooms.folder("migrations")))
    config.attributes["engine"] = database.engine
    with translated():
        command.upgrade(config, "head")
    return head()


def is_newer(database: Database) -> bool:
    """Say whether the database carries a revision that this code does not know."""
    revision = current(database)
    return revision is not None and revision not in _revisions()


def check_usable(database: Database) -> None:
    """Raise ConfigError unless this code may run on the database's schema.

    That is its own schema, or a newer one that only added to it: in a rolling upgrade the schema goes first, and the
    processes of the older version work on until they are replaced. ``schema_floor`` says how far back that holds.
    """
    if database.is_absent():
        raise ConfigError(
            f"there is no database at {database.engine.url.database}; `carbonq up` or `carbonq db upgrade` makes it, "
            "and on a host of its own CARBONQ_DATABASE_URL names the installation's"
        )
    revision = current(database)
    if revision == head():
        return
    if revision is None:
        raise ConfigError("the database has no tables yet; run `carbonq db upgrade`")
    if revision in _revisions():
        raise ConfigError(
            f"the database is at schema {revision} and this carbonq needs {head()}: it reads columns that may not be "
            "there yet, so not even reading is safe; run `carbonq db upgrade` first (older processes work on)"
        )
    if floor(database) > head():
        raise ConfigError(
            f"the database is at schema {revision}, which this carbonq (schema {head()}) does not know and cannot use: "
            "it was made by a newer version; install that version or point CARBONQ_DATABASE_URL elsewhere"
        )


def floor(database: Database) -> str:
    """Return the oldest revision whose code may run on the database as it is. Raises StoreUnavailable."""
    with database.read() as tx:
        # Text and not the table: a newer database may have given it more columns.
        return tx.execute(text("SELECT revision FROM schema_floor WHERE floor_id = 1")).scalar_one()

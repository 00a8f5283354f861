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
    """Bring the schema to this code's revision and return it; does nothing when it is there already.

    Raises ConfigError when the database is newer than the code, StoreUnavailable when it does not answer.
    """
    check_not_newer(database)
    # Here and not above: every process looks at the schema at its start, only this one changes it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(rooms.folder("migrations")))
    config.attributes["engine"] = database.engine
    with translated():
        command.upgrade(config, "head")
    return head()


def check_not_newer(database: Database) -> None:
    """Raise ConfigError when the database carries a revision that this code does not know."""
    revision = current(database)
    if revision is not None and revision not in _revisions():
        raise ConfigError(
            f"the database is at schema {revision}, which this carbonq (schema {head()}) does not know: "
            "it was made by a newer version; install that version or point CARBONQ_DATABASE_URL elsewhere"
        )


def require_current(database: Database) -> None:
    """Raise ConfigError unless the database has exactly this code's schema."""
    check_not_newer(database)
    if current(database) != head():
        raise ConfigError("the database's schema is older than the code; run `carbonq db upgrade`")

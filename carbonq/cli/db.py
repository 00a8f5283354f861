"""``carbonq db``: the database's schema and its backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from carbonq.cli.actor import actor
from carbonq.cli.output import AsJson, emit_json, say

app = typer.Typer(no_args_is_help=True, help="The database's schema and its backup.")


@app.command()
def upgrade(as_json: AsJson = False) -> None:
    """Bring the database to this version's schema and the settings' regions; does nothing if it is there already.

    Example: carbonq db upgrade

    Example: CARBONQ_DATABASE_URL=postgresql://user@host/db carbonq db upgrade
    """
    from carbonq import config, wiring
    from carbonq.embedded import address
    from carbonq.services import setup
    from carbonq.store import schema
    from carbonq.store.database import Database

    sources = config.given()
    settings = wiring.settle(sources)
    if settings.database_url is None:
        address.make_folder(settings.data_dir)
    database = Database(settings.resolved_database_url)
    before = schema.current(database)
    if sources.has_regions:
        shared = wiring.make_shared(settings)
        regions = wiring.make_regions(settings)
        _, changed = setup.install(database, configured=regions, shared=shared, actor=actor())
    else:
        _, changed = setup.install(database, configured=None)  # whoever has no regions must not take others' away
    after = schema.current(database)
    database.dispose()
    if as_json:
        emit_json({"from": before, "to": after, "changed": changed})
    else:
        for one in changed:
            say(f"the installation's settings changed: {one}")
        say(f"the database is at schema {after}" + ("" if before == after else f" (was {before or 'empty'})"))


@app.command()
def backup(target: Annotated[Path, typer.Argument(help="New file to write.")], as_json: AsJson = False) -> None:
    """Copy the SQLite database into a new file while work goes on; docs/operations.md says how to back up the blobs.

    Example: carbonq db backup carbonq-2026-12-01.db
    """
    from carbonq import config, wiring
    from carbonq.store import backup as copy

    database = wiring.open_database(config.load())
    size = copy.backup(database, target)
    database.dispose()
    if as_json:
        emit_json({"file": str(target), "bytes": size})
    else:
        say(f"wrote {target}, {size:,} bytes")


@app.command()
def roles(
    prefix: Annotated[str, typer.Option(help="How the names of the roles begin.")] = "carbonq_",
) -> None:
    """Print the SQL that makes PostgreSQL roles with the rights each process needs; safe to run again.

    Example: carbonq db roles | psql postgresql://postgres@host/carbonq
    """
    from carbonq.cli.roles import roles_sql

    typer.echo(roles_sql(prefix), nl=False)

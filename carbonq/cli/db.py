"""``carbonq db``: the schema of the database."""

from __future__ import annotations

import typer

from carbonq.cli.output import AsJson, emit_json, say

app = typer.Typer(no_args_is_help=True, help="The database's schema.")


@app.callback()
def group() -> None:
    """Keep ``db upgrade`` a subcommand although it is the only one."""


@app.command()
def upgrade(as_json: AsJson = False) -> None:
    """Bring the database to this version's schema and the settings' regions; does nothing if it is there already.

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
        _, changed = setup.install(database, configured=wiring.make_regions(settings), shared=shared)
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

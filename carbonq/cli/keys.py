"""``carbonq keys``: API keys, made and revoked directly in the database of the settings."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from carbonq.cli.output import AsJson, emit_json, emit_table, say
from carbonq.errors import NotFound

if TYPE_CHECKING:
    from carbonq.store.database import Database

app = typer.Typer(no_args_is_help=True, help="API keys.")


@contextmanager
def _open() -> Generator[Database]:
    from carbonq import config
    from carbonq.store import schema
    from carbonq.store.database import Database

    database = Database(config.load().resolved_database_url)
    try:
        schema.require_current(database)
        yield database
    finally:
        database.dispose()


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for; shown in lists.")],
    tenant: Annotated[str, typer.Option("--tenant", help="Tenant whose jobs and figures it opens.")] = "default",
    as_json: AsJson = False,
) -> None:
    """Make a key and print it: the only time it can be seen."""
    from carbonq.store import keys

    with _open() as database, database.write() as tx:
        key_id, plaintext = keys.create(tx, tenant, name, False)
    if as_json:
        emit_json({"key_id": key_id, "key": plaintext, "tenant": tenant, "name": name})
    else:
        typer.echo(plaintext)
        say(f"{key_id} of tenant {tenant}; keep it now, it cannot be shown again")


@app.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """List the keys, without their secrets."""
    from carbonq.store import keys
    from carbonq.units import iso

    with _open() as database, database.read() as tx:
        rows = [
            {
                "key_id": key.key_id,
                "tenant": key.tenant,
                "name": key.name,
                "is_local": key.is_local,
                "created_at": iso(key.created_at),
                "revoked_at": iso(key.revoked_at) if key.revoked_at else None,
            }
            for key in keys.page(tx)
        ]
    if as_json:
        emit_json(rows)
    else:
        columns = ("key_id", "tenant", "name", "created_at", "revoked_at")
        emit_table(columns, [[row[column] for column in columns] for row in rows])


@app.command()
def revoke(key_id: Annotated[str, typer.Argument(help="The id that `keys list` shows.")]) -> None:
    """Revoke a key; running APIs refuse it within seconds."""
    from carbonq.store import keys

    with _open() as database, database.write() as tx:
        is_done = keys.revoke(tx, key_id)
    if not is_done:
        raise NotFound(f"no valid key has the id {key_id!r}; `carbonq keys list` shows them")
    say(f"{key_id} is revoked")

"""``carbonq keys``: API keys, made and revoked directly in the database of the settings."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, emit_json, emit_table, say
from carbonq.errors import InvalidRequest, NotFound

app = typer.Typer(no_args_is_help=True, help="API keys.")

_MAX_NAME_CHARS = 255


def check_tenant(name: str) -> None:
    """Raise InvalidRequest unless a tenant can be called so."""
    from carbonq.config import NAME

    if re.fullmatch(NAME, name) is None:
        raise InvalidRequest(f"tenant {name!r} is no name: small letters, digits, - and _, at most 63", param="tenant")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for; shown in lists.")],
    tenant: Annotated[str, typer.Option("--tenant", help="Tenant whose jobs and figures it opens.")] = "default",
    as_json: AsJson = False,
) -> None:
    """Make a key and print it: the only time it can be seen.

    Example: carbonq keys create "nightly batch" --tenant research
    """
    from carbonq.store import keys

    if not name.strip() or not name.isprintable() or len(name) > _MAX_NAME_CHARS:
        raise InvalidRequest(
            f"the key's name must be printable text of 1 to {_MAX_NAME_CHARS} characters", param="name"
        )
    check_tenant(tenant)
    with connect.open_database() as (_, database), database.write() as tx:
        key_id, plaintext = keys.create(tx, tenant, name, False)
    if as_json:
        emit_json({"key_id": key_id, "key": plaintext, "tenant": tenant, "name": name})
    else:
        typer.echo(plaintext)
        say(f"{key_id} of tenant {tenant}; keep it now, it cannot be shown again")


@app.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """List the keys, without their secrets.

    Example: carbonq keys list
    """
    from carbonq.store import keys
    from carbonq.units import iso

    with connect.open_database() as (_, database), database.read() as tx:
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
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id that `keys list` shows.")], as_json: AsJson = False
) -> None:
    """Revoke a key; running APIs refuse it within seconds.

    Example: carbonq keys revoke key_01m8...
    """
    from carbonq.store import keys

    with connect.open_database() as (_, database), database.write() as tx:
        is_done = keys.revoke(tx, key_id)
    if not is_done:
        raise NotFound(f"no valid key has the id {key_id!r}; `carbonq keys list` shows them")
    if as_json:
        emit_json({"key_id": key_id, "is_revoked": True})
    else:
        say(f"{key_id} is revoked")

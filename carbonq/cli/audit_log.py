"""``carbonq audit-log``: who changed keys, limits, holds, settings and figures by hand, and when."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, emit_json, emit_table
from carbonq.errors import InvalidRequest
from carbonq.units import parse_iso

app = typer.Typer(no_args_is_help=True, help="The log of admin actions.")


@app.callback()
def group() -> None:
    """Keep ``audit-log list`` a subcommand although it is the only one."""


@app.command("list")
def list_actions(
    *,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only what concerns this tenant.")] = None,
    action: Annotated[str | None, typer.Option(help="Only these, like key or key.revoked.")] = None,
    since: Annotated[str | None, typer.Option(help="Only from this time on, like 2026-03-01T00:00Z.")] = None,
    after: Annotated[str | None, typer.Option(help="Go on after this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List admin actions, newest first: who, when, what, before and after.

    Example: carbonq audit-log list --action key
    """
    from carbonq.services import admin
    from carbonq.store import admin_log

    last = None if after is None else admin.read_id(after)
    if after is not None and last is None:
        raise InvalidRequest(f"after {after!r} is no id of an action, like log_17", param="after")
    try:
        from_at = None if since is None else parse_iso(since)
    except ValueError as error:
        raise InvalidRequest(f"since {since!r} is no time; write it as 2026-03-01T00:00Z", param="since") from error
    with connect.open_database() as (_, database), database.read() as tx:
        rows = [
            admin.view(one)
            for one in admin_log.page(tx, tenant=tenant, action=action, since=from_at, before_id=last, limit=limit)
        ]
    if as_json:
        emit_json(rows)
        return
    columns = ("recorded_at", "actor", "action", "subject", "tenant", "before", "after")
    emit_table(columns, [[_cell(row[column]) for column in columns] for row in rows])


def _cell(value: Any) -> Any:
    return orjson.dumps(value).decode() if isinstance(value, dict) else value

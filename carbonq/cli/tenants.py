"""``carbonq tenants limit|show``: what a tenant may hold and use, and how much of it it does."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from carbonq.cli import connect
from carbonq.cli.actor import actor
from carbonq.cli.keys import check_tenant
from carbonq.cli.output import AsJson, emit_json, emit_table, say
from carbonq.errors import InvalidRequest

Name = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]

_SAID = "a whole number, `none` for no limit, `default` for the settings'"


def add_to(app: typer.Typer) -> None:
    """Add these commands to ``carbonq tenants``."""
    app.command()(limit)
    app.command()(show)


def limit(
    name: Name,
    *,
    open_jobs: Annotated[str | None, typer.Option(help=f"Jobs not final: {_SAID}.")] = None,
    items_waiting: Annotated[str | None, typer.Option(help="Items of these that have not ended.")] = None,
    bytes_waiting: Annotated[str | None, typer.Option(help="Bytes of their inputs.")] = None,
    tokens_per_day: Annotated[str | None, typer.Option(help="Tokens a grid day (UTC), of jobs and calls.")] = None,
    requests_per_minute: Annotated[str | None, typer.Option(help="Requests a minute, of all its keys.")] = None,
    tokens_per_minute: Annotated[
        str | None, typer.Option(help="Tokens of realtime calls a minute, of all its keys.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set what a tenant may hold and use; what is not named stays. Running APIs know within seconds.

    Example: carbonq tenants limit research --items-waiting 200000 --tokens-per-day none
    """
    from carbonq.services import admin

    given = {
        "open_jobs": open_jobs,
        "items_waiting": items_waiting,
        "bytes_waiting": bytes_waiting,
        "tokens_per_day": tokens_per_day,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    changes = {field: _value(field, text) for field, text in given.items() if text is not None}
    check_tenant(name)
    if not changes:
        raise InvalidRequest("nothing to set; see `carbonq tenants limit --help`")
    with connect.open_database() as (_, database):
        after = admin.limit_tenant(database, name, changes, actor=actor())
    if as_json:
        emit_json({"tenant": name, "limits": after})
    else:
        said = ", ".join(f"{field} {'none' if value is None else f'{value:,}'}" for field, value in after.items())
        say(f"tenant {name}'s own limits: {said or 'none, the settings hold'}")


def show(name: Name, as_json: AsJson = False) -> None:
    """Show a tenant's limits, where each comes from, and how much of it is used.

    Example: carbonq tenants show research
    """
    from carbonq import wiring
    from carbonq.services import admin

    check_tenant(name)
    with connect.open_database() as (settings, database):
        now = connect.clock_of(database).now()
        found = admin.tenant_view(database, name, wiring.make_quota(settings), now)
    if as_json:
        emit_json(found)
        return
    rows: list[list[Any]] = [
        [row["name"], "none" if row["limit"] is None else f"{row['limit']:,}", row["origin"], row["used"]]
        for row in found["limits"]
    ]
    emit_table(("limit", "value", "from", "used"), rows)


def _value(field: str, text: str) -> int | str | None:
    lowered = text.strip().lower()
    if lowered == "none":
        return None
    if lowered == "default":
        return "default"
    try:
        return int(lowered.replace("_", "").replace(",", ""))
    except ValueError as error:
        raise InvalidRequest(f"{field} {text!r} is neither a whole number nor none nor default", param=field) from error

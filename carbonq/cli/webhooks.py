"""``carbonq webhooks``: where events are sent, and what came of it; all through the API."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, Yes, confirm, emit_json, emit_pairs, emit_table, say
from carbonq.errors import ConfigError

if TYPE_CHECKING:
    from carbonq.client import Client

app = typer.Typer(no_args_is_help=True, help="Webhooks: create, list, show, test, rotate, update, delete, deliveries.")

#: How long `test` waits for what comes of it, and how often it looks, in seconds.
_WAIT_S = 30.0
_LOOK_S = 0.3

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The id that `webhooks list` shows.")]
Types = Annotated[
    list[str] | None, typer.Option("--event", help="A type to send (may be repeated); without: the ends of all work.")
]
SecretFile = Annotated[
    str | None,
    typer.Option("--from-file", metavar="FILE", help="A secret of your own (whsec_...), - for stdin; else made."),
]


@app.command()
@connect.remote
def create(
    address: Annotated[str, typer.Argument(metavar="URL", help="Where to send: https://...")],
    name: Annotated[str | None, typer.Option("--name", help="What it is for; its host by default.")] = None,
    event: Types = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Make an endpoint and print its signing secret: the only time it can be seen.

    Example: carbonq webhooks create https://example.com/carbonq --event batch.completed --event batch.failed
    """
    body = _given(url=address, name=name, event_types=event or None, secret=_secret(secret_file))
    with connect.open_client() as client:
        made = client.request("POST", "/v1/webhooks", body)
    _show_secret(made, as_json=as_json)


def _show_secret(made: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(made)
        return
    typer.echo(made["signing_secret"])
    say(f"{made['id']} to {made['url']}; keep the secret now, it cannot be shown again")
    say(f"next: carbonq webhooks test {made['id']}")


@app.command("list")
@connect.remote
def list_webhooks(as_json: AsJson = False) -> None:
    """List the endpoints, newest first.

    Example: carbonq webhooks list
    """
    found: list[dict[str, Any]] = []
    with connect.open_client() as client:
        page: dict[str, Any] = {"has_more": True, "last_id": None}
        while page["has_more"]:
            page = client.request("GET", "/v1/webhooks", after=page["last_id"], limit=100)
            found += page["data"]
    if as_json:
        emit_json(found)
        return
    columns = ("id", "name", "state", "url")
    emit_table(columns, [[one[column] for column in columns] for one in found])
    if not found:
        say("no webhook yet; next: carbonq webhooks create https://...")


@app.command()
@connect.remote
def show(webhook_id: WebhookId, as_json: AsJson = False) -> None:
    """Show one endpoint.

    Example: carbonq webhooks show wh_01m8...
    """
    with connect.open_client() as client:
        _emit(client.request("GET", _path(webhook_id)), as_json=as_json)


@app.command()
@connect.remote
def update(
    webhook_id: WebhookId,
    *,
    address: Annotated[str | None, typer.Option("--to", metavar="URL", help="Another address.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Another name.")] = None,
    event: Types = None,
    state: Annotated[str | None, typer.Option("--state", help="enabled or disabled.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change an endpoint, or enable one that was disabled.

    Example: carbonq webhooks update wh_01m8... --state enabled
    """
    body = _given(url=address, name=name, event_types=event or None, state=state)
    with connect.open_client() as client:
        _emit(client.request("POST", _path(webhook_id), body), as_json=as_json)


@app.command()
@connect.remote
def test(webhook_id: WebhookId, as_json: AsJson = False) -> None:
    """Send a message of no meaning and say what came of it; status 1 if it was not taken.

    Example: carbonq webhooks test wh_01m8...
    """
    with connect.open_client() as client:
        sent = client.request("POST", f"{_path(webhook_id)}/test")
        found = _wait(client, f"{_path(webhook_id)}/deliveries/{sent['id']}")
    if as_json:
        emit_json(found)
    elif found["state"] == "delivered":
        say(f"delivered: it answered {found['last_status']}")
    elif found["attempts"]:
        again = found["next_attempt_at"]
        say(f"not taken: {found['last_error']}; it is {f'sent again at {again}' if again else 'not sent again'}")
    else:
        say(f"not sent within {_WAIT_S:g} s: does a control worker run? `carbonq health` tells")
    if found["state"] != "delivered":
        raise typer.Exit(1)


def _wait(client: Client, path: str) -> dict[str, Any]:
    until = time.monotonic() + _WAIT_S
    while True:
        found = client.request("GET", path)
        if found["attempts"] or time.monotonic() > until:
            return found
        time.sleep(_LOOK_S)


@app.command()
@connect.remote
def rotate(
    webhook_id: WebhookId,
    secret_file: SecretFile = None,
    is_final: Annotated[bool, typer.Option("--now", help="The old secret is void at once, not in a day.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give an endpoint another secret and print it; for a day the old one signs beside it.

    Example: carbonq webhooks rotate wh_01m8...
    """
    body = _given(secret=_secret(secret_file)) | {"keep_old_secret_active_for_24_hours": not is_final}
    with connect.open_client() as client:
        made = client.request("POST", f"{_path(webhook_id)}/rotate_secret", body)
    _show_secret(made, as_json=as_json)


@app.command()
@connect.remote
def delete(webhook_id: WebhookId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete an endpoint with all that was to be sent to it.

    Example: carbonq webhooks delete wh_01m8...
    """
    confirm(f"Delete webhook {webhook_id} and what waits for it?", is_sure=yes)
    with connect.open_client() as client:
        gone = client.request("DELETE", _path(webhook_id))
    if as_json:
        emit_json(gone)
    else:
        say(f"{webhook_id} is deleted")


@app.command()
@connect.remote
def deliveries(
    webhook_id: WebhookId,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="How many, newest first.")] = 20,
    state: Annotated[str | None, typer.Option("--state", help="pending, delivered or failed.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what was sent to an endpoint and what is to be, newest first.

    Example: carbonq webhooks deliveries wh_01m8... --state pending
    """
    with connect.open_client() as client:
        found = client.request("GET", f"{_path(webhook_id)}/deliveries", limit=limit, state=state)["data"]
    if as_json:
        emit_json(found)
        return
    columns = ("id", "event_type", "state", "attempts", "last_status", "next_attempt_at", "last_error")
    emit_table(columns, [[one[column] for column in columns] for one in found])


def _emit(endpoint: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(endpoint)
        return
    shown = endpoint | {"event_types": ", ".join(endpoint["event_types"])}
    names = ("id", "name", "url", "event_types", "state", "disabled_reason", "signing_secret_hint")
    emit_pairs([(name, shown[name]) for name in names])


def _path(webhook_id: str) -> str:
    return f"/v1/webhooks/{quote(webhook_id, safe='')}"


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _secret(file: str | None) -> str | None:
    """Read a secret that must not stand in the list of processes."""
    if file is None:
        return None
    if file == "-":
        return typer.get_text_stream("stdin").readline().strip()
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the secret cannot be read from {file}: {error}") from error

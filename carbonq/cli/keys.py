"""``carbonq keys``: API keys, made, changed, rotated and revoked directly in the database of the settings."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.cli import connect
from carbonq.cli.actor import actor
from carbonq.cli.output import AsJson, Yes, confirm, emit_json, emit_pairs, emit_table, say
from carbonq.errors import InvalidRequest
from carbonq.model import Scope
from carbonq.units import iso, parse_iso

if TYPE_CHECKING:
    from carbonq.store.database import Database
    from carbonq.store.keys import Key

app = typer.Typer(no_args_is_help=True, help="API keys.")

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", re.IGNORECASE)
_SPAN_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}

#: Longest span, in seconds: a hundred years.
_MAX_SPAN_S = 3_155_760_000

KeyId = Annotated[str, typer.Argument(help="The id that `keys list` shows.")]
Scopes = Annotated[
    list[Scope] | None, typer.Option("--scope", help="What it may do; repeat it. Default: submit, read, export.")
]
Expires = Annotated[str | None, typer.Option(help="When it ends: a span such as 90d, a time with its zone, or never.")]
Requests = Annotated[
    str | None, typer.Option("--requests-per-minute", help="Requests a minute; `default`: as the settings say.")
]
Tokens = Annotated[
    str | None,
    typer.Option("--tokens-per-minute", help="Tokens of realtime calls a minute; `default`: as the settings say."),
]
Defaults = Annotated[
    list[str] | None,
    typer.Option("--default", help="FIELD=VALUE of `carbon` where a request says nothing; repeat it. FIELD= unsets."),
]


def check_tenant(name: str) -> None:
    """Raise InvalidRequest unless a tenant can be called so."""
    from carbonq.config import NAME

    if re.fullmatch(NAME, name) is None:
        raise InvalidRequest(f"tenant {name!r} is no name: small letters, digits, - and _, at most 63", param="tenant")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for; shown in lists.")],
    *,
    tenant: Annotated[str, typer.Option("--tenant", help="Tenant whose jobs and figures it opens.")] = "default",
    scope: Scopes = None,
    expires: Expires = None,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    default: Defaults = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it: the only time it can be seen.

    Example: carbonq keys create "nightly batch" --tenant research --scope submit --scope read --expires 90d
    """
    from carbonq.services import keys
    from carbonq.store.keys import USUAL_SCOPES

    check_tenant(tenant)
    with connect.open_database() as (_, database):
        key, plaintext = keys.create(
            database,
            tenant,
            name,
            actor=actor(),
            scopes=frozenset(scope) if scope else USUAL_SCOPES,
            expires_at=_ends_at(database, expires),
            defaults=_defaults(default, {}),
            requests_per_minute=_rate(requests_per_minute, "requests_per_minute"),
            tokens_per_minute=_rate(tokens_per_minute, "tokens_per_minute"),
        )
    _show_secret(key, plaintext, f"{key.key_id} of tenant {tenant}", as_json=as_json)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None, as_json: AsJson = False
) -> None:
    """List the keys, without their secrets.

    Example: carbonq keys list
    """
    from carbonq.store import keys

    with connect.open_database() as (_, database), database.read() as tx:
        rows = [view(key) for key in keys.page(tx, tenant)]
    if as_json:
        emit_json(rows)
        return
    columns = ("key_id", "tenant", "name", "scopes", "created_at", "last_used_at", "expires_at", "revoked_at")
    emit_table(columns, [[_cell(row[column]) for column in columns] for row in rows])


@app.command()
def show(key_id: KeyId, as_json: AsJson = False) -> None:
    """Show a key: scopes, limits, defaults, when it was used last. Never its secret.

    Example: carbonq keys show key_01m8...
    """
    from carbonq.services import keys

    with connect.open_database() as (_, database):
        row = view(keys.get(database, key_id))
    if as_json:
        emit_json(row)
    else:
        emit_pairs([(name, _cell(value)) for name, value in row.items()])


@app.command()
def rotate(
    key_id: KeyId,
    overlap: Annotated[str, typer.Option(help="How long the present secret stays good beside the new one.")] = "24h",
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret and print it; the present one works on until the overlap ends. The id stays.

    Example: carbonq keys rotate key_01m8... --overlap 24h
    """
    from carbonq.services import keys

    span = _span(overlap, "overlap")
    with connect.open_database() as (_, database):
        key, plaintext = keys.rotate(database, key_id, overlap=span, actor=actor())
    until = "ended now" if key.previous_until is None else f"is good until {iso(key.previous_until)}"
    _show_secret(key, plaintext, f"{key_id}: the secret before {until}", as_json=as_json)


@app.command()
def revoke(key_id: KeyId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Revoke a key with all its secrets; running APIs refuse it within seconds.

    Example: carbonq keys revoke key_01m8...
    """
    from carbonq.services import keys

    confirm(f"Revoke {key_id}? Nothing brings it back.", is_sure=yes)
    with connect.open_database() as (_, database):
        keys.revoke(database, key_id, actor=actor())
    if as_json:
        emit_json({"key_id": key_id, "is_revoked": True})
    else:
        say(f"{key_id} is revoked")


@app.command("set")
def set_key(
    key_id: KeyId,
    *,
    name: Annotated[str | None, typer.Option(help="What the key is for.")] = None,
    scope: Scopes = None,
    expires: Expires = None,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    default: Defaults = None,
    as_json: AsJson = False,
) -> None:
    """Change what a key may do, when it ends, its limits and defaults; --scope names all it is to have.

    Example: carbonq keys set key_01m8... --scope read --scope export --expires never --default product_line=search
    """
    from carbonq.services import keys

    with connect.open_database() as (_, database):
        values: dict[str, Any] = {}
        if name is not None:
            values["name"] = name
        if scope:
            values["scopes"] = frozenset(scope)
        if expires is not None:
            values["expires_at"] = _ends_at(database, expires)
        if requests_per_minute is not None:
            values["requests_per_minute"] = _rate(requests_per_minute, "requests_per_minute")
        if tokens_per_minute is not None:
            values["tokens_per_minute"] = _rate(tokens_per_minute, "tokens_per_minute")
        if default:
            values["defaults"] = _defaults(default, keys.get(database, key_id).defaults)
        if not values:
            raise InvalidRequest("nothing to set; see `carbonq keys set --help`")
        row = view(keys.change(database, key_id, values, actor=actor()))
    if as_json:
        emit_json(row)
    else:
        say(f"{key_id} is changed; running APIs know within seconds")


def view(key: Key) -> dict[str, Any]:
    """Return a key as people see it."""
    times = ("created_at", "expires_at", "last_used_at", "previous_until", "revoked_at")
    return {
        "key_id": key.key_id,
        "tenant": key.tenant,
        "name": key.name,
        "is_local": key.is_local,
        "scopes": sorted(key.scopes),
        "defaults": dict(key.defaults),
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        **{name: _time(getattr(key, name)) for name in times},
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else iso(at)


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(str(one) for one in value)
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items()) or None
    return value


def _show_secret(key: Key, plaintext: str, said: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(view(key) | {"key": plaintext})
    else:
        typer.echo(plaintext)
        say(f"{said}; keep it now, it cannot be shown again")


def _span(text: str, param: str) -> timedelta:
    match = _SPAN.fullmatch(text.strip())
    seconds = 0.0 if text.strip() == "0" else None
    if match is not None:
        seconds = float(match[1]) * _SPAN_S[match[2].lower()]
    if seconds is None or seconds > _MAX_SPAN_S:
        raise InvalidRequest(f"{param} {text!r} is no span such as 90d, 24h or 30m", param=param)
    return timedelta(seconds=seconds)


def _ends_at(database: Database, text: str | None) -> datetime | None:
    """Read when a key ends; machine time, by the database's clock."""
    from carbonq.store.dialect import machine_now

    if text is None or text.strip().lower() == "never":
        return None
    if _SPAN.fullmatch(text.strip()):
        with database.read() as tx:
            return machine_now(tx) + _span(text, "expires")
    try:
        return parse_iso(text)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"expires {text!r} is neither a span such as 90d, nor a time such as 2027-01-01T00:00Z, nor never",
            param="expires",
        ) from error


def _rate(text: str | None, param: str) -> int | None:
    if text is None or text.strip().lower() == "default":
        return None
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError as error:
        raise InvalidRequest(f"{param} {text!r} is neither a whole number nor default", param=param) from error


def _defaults(given: list[str] | None, before: Any) -> dict[str, Any]:
    """Lay ``FIELD=VALUE`` over the defaults there are; an empty value takes a field away."""
    found: dict[str, Any] = dict(before)
    for one in given or ():
        name, separator, value = one.partition("=")
        if not separator or not name.strip():
            raise InvalidRequest(f"--default {one!r} is not FIELD=VALUE", param="default")
        found.pop(name.strip(), None)
        if value.strip():
            found[name.strip()] = value.strip()
    return found

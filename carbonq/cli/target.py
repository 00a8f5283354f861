"""``carbonq target``: promises of grams per thousand tokens, through the API, or with ``--tenant`` in the database."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from carbonq.budget import Book
from carbonq.cli import connect
from carbonq.cli.actor import actor
from carbonq.cli.keys import check_tenant
from carbonq.cli.output import AsJson, emit_json, emit_table, say
from carbonq.errors import NotFound

app = typer.Typer(no_args_is_help=True, help="Contract targets, gCO2e per thousand tokens: set, show, remove.")

Json = dict[str, Any]

Model = Annotated[str | None, typer.Option("--model", help="Of this model's work; without: of all models'.")]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Of this tenant, in the database; without: of your key's, through the API."),
]


@app.command("set")
@connect.remote
def set_target(
    *,
    g_per_1k_tokens: Annotated[
        str, typer.Option("--g-per-1k-tokens", metavar="GRAMS", help="The promise, in gCO2e per 1,000 tokens; exact.")
    ],
    model: Model = None,
    tenant: Tenant = None,
    book: Annotated[Book | None, typer.Option("--book", help="Which book it counts; impact unless set before.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set a target, or change the one there is.

    It counts the whole month, in UTC grid time, and is told of before it breaks.

    Example: carbonq target set --g-per-1k-tokens 0.5

    Example: carbonq target set --model wordllama-256 --g-per-1k-tokens 0.02 --tenant acme
    """
    if tenant is None:
        body = {"g_per_1k_tokens": g_per_1k_tokens, "model": model}
        with connect.open_client() as client:
            made = client.request("PUT", "/v1/targets", body if book is None else body | {"book": book.value})
    else:
        made = _set_here(tenant, model, g_per_1k_tokens, book)
    if as_json:
        emit_json(made)
    else:
        say(f"{_named(made['model'])}: at most {made['g_per_1k_tokens']} g per 1,000 tokens, {made['book']} book")
        say("next: carbonq target show (new figures come within a minute)")


@app.command()
@connect.remote
def show(
    *,
    tenant: Tenant = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Those of every tenant, from the database.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the targets: this month's value, where it is going, and whether that keeps the promise.

    The forecast is an estimate, its range that of the cleanest and the dirtiest recent day; --json says how it is made.

    Example: carbonq target show

    Example: carbonq target show --json | jq '.[] | {model, state: .status.state}'
    """
    if tenant is not None and all_tenants:
        raise typer.BadParameter("--tenant names one, --all-tenants means every one; give one of them")
    found = _of_the_api() if tenant is None and not all_tenants else _show_here(tenant)
    if as_json:
        emit_json(found)
        return
    if not found:
        say("no target yet; next: carbonq target set --g-per-1k-tokens GRAMS")
        return
    columns = _COLUMNS if all_tenants else _COLUMNS[1:]
    emit_table(columns, [[_row(one)[column] for column in columns] for one in found])
    say("values are gCO2e per 1,000 tokens; provisional ones may still change, forecasts are estimates")
    for one in found:
        if one["status"]["unknown_entries"]:
            count = one["status"]["unknown_entries"]
            say(f"{_named(one['model'])}: {count:,} entries have no rate yet and are in no sum")
    if idle := [_named(one["model"]) for one in found if _is_idle(one["status"])]:
        say(f"nothing ran this month of {', '.join(idle)}; is each spelt as its model?")


@app.command()
@connect.remote
def remove(*, model: Model = None, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """Remove a target; what ran stays in the ledger.

    Example: carbonq target remove --model wordllama-256
    """
    target_id = _remove_by_api(model) if tenant is None else _remove_here(tenant, model)
    if as_json:
        emit_json({"id": target_id, "object": "target.deleted", "deleted": True})
    else:
        say(f"the target of {_named(model)} is removed")


# --- through the API --------------------------------------------------------------------------------------------


def _of_the_api() -> list[Json]:
    found: list[Json] = []
    page: Json = {"has_more": True, "last_id": None}
    with connect.open_client() as client:
        while page["has_more"]:
            page = client.request("GET", "/v1/targets", after=page["last_id"], limit=1000)
            found += page["data"]
    return found


def _remove_by_api(model: str | None) -> str:
    found = next((one for one in _of_the_api() if one["model"] == model), None)
    if found is None:
        raise NotFound(f"there is no target of {_named(model)}; `carbonq target show` shows yours")
    with connect.open_client() as client:
        client.request("DELETE", f"/v1/targets/{quote(found['id'], safe='')}")
    return found["id"]


# --- in the database --------------------------------------------------------------------------------------------


def _set_here(tenant: str, model: str | None, g_per_1k_tokens: str, book: Book | None) -> Json:
    from carbonq.services import targets, targets_admin

    check_tenant(tenant)
    with connect.open_database() as (_, database):
        clock = connect.clock_of(database)
        made = targets_admin.set_target(
            database, clock, tenant, g_per_1k_tokens=g_per_1k_tokens, model=model, book=book, actor=actor()
        )
        return targets_admin.view(targets.status(database, clock.now(), tenant, made.target_id))


def _show_here(tenant: str | None) -> list[Json]:
    from carbonq.services import targets, targets_admin

    if tenant is not None:
        check_tenant(tenant)
    with connect.open_database() as (_, database):
        now = connect.clock_of(database).now()
        return [targets_admin.view(one) for one in targets.statuses(database, now, tenant)]


def _remove_here(tenant: str, model: str | None) -> str:
    from carbonq.services import targets_admin

    check_tenant(tenant)
    with connect.open_database() as (_, database):
        found = targets_admin.find(database, tenant, model)
        targets_admin.remove(database, tenant, found.target_id, actor=actor())
        return found.target_id


# --- as people read it ------------------------------------------------------------------------------------------

_COLUMNS = (
    *("tenant", "model", "book", "promise", "month", "state", "value", "forecast", "range", "tokens"),
    "provisional",
)


def _row(one: Json) -> Json:
    now = one["status"]
    forecast = now["forecast"] or {"value": None, "low": None, "high": None}
    low, high = _short(forecast["low"]), _short(forecast["high"])
    share = now["provisional_share"]
    return {
        "tenant": one["tenant"],
        "model": one["model"] or "all",
        "book": one["book"],
        "promise": one["g_per_1k_tokens"],
        "month": now["month"],
        "state": now["state"].replace("_", " "),
        "value": _short(now["value"]),
        "forecast": _short(forecast["value"]),
        "range": None if low is None or high is None else f"{low} to {high}",
        "tokens": f"{now['tokens']:,}",
        "provisional": None if share is None else f"{share:.0%}",
    }


def _short(value: str | None) -> str | None:
    """Write grams per thousand tokens to four digits that say something."""
    return None if value is None else f"{float(value):.4g}"


def _is_idle(now: Json) -> bool:
    """Say whether nothing at all counts, as where a model's name is misspelt."""
    return not now["tokens"] and not now["unknown_entries"]


def _named(model: str | None) -> str:
    return "all models" if model is None else f"model {model}"

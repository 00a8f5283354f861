"""``carbonq budget``: caps of grams, how they stand; through the API, or with ``--tenant`` in the database itself."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.budget import ALL, Action, Book, Level
from carbonq.cli import connect
from carbonq.cli.actor import actor
from carbonq.cli.keys import check_tenant
from carbonq.cli.output import AsJson, emit_json, emit_table, say
from carbonq.errors import NotFound

if TYPE_CHECKING:
    from carbonq.client import Budget

app = typer.Typer(no_args_is_help=True, help="Carbon budgets: set, show, remove.")

Json = dict[str, Any]

ProductLine = Annotated[str | None, typer.Option("--product-line", help="The product line, whose budget is a month's.")]
Workload = Annotated[str | None, typer.Option("--workload", help="The workload, whose budget is a day's.")]
Item = Annotated[bool, typer.Option("--item", help="A cap of each item by itself: of all work, or of --workload's.")]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Of this tenant, in the database; without: of your key's, through the API."),
]

#: What becomes of work that does not fit.
_SAID = {
    Action.WARN: "work that does not fit runs, and is told of",
    Action.QUEUE: "work that does not fit waits",
    Action.DOWNGRADE: "work that does not fit goes to the next smaller model where there is one, else waits",
    Action.REJECT: "work that does not fit is refused",
}


@app.command("set")
@connect.remote
def set_budget(
    *,
    cap_g: Annotated[str, typer.Option("--cap-g", metavar="GRAMS", help="The cap, in grams of CO2e; exact.")],
    product_line: ProductLine = None,
    workload: Workload = None,
    item: Item = False,
    tenant: Tenant = None,
    book: Annotated[Book | None, typer.Option("--book", help="Which book it counts; impact unless set before.")] = None,
    action: Annotated[
        Action | None,
        typer.Option("--action", help="What happens to work that does not fit; else as before, warn, of items reject."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set a budget, or change the one there is; what is left out of it stays.

    Months and days are those of UTC, in grid time.

    Example: carbonq budget set --product-line search --cap-g 5000 --action queue

    Example: carbonq budget set --workload nightly --cap-g 120.5 --action reject

    Example: carbonq budget set --item --workload nightly --cap-g 0.002
    """
    level, name = _which(product_line, workload, is_item=item)
    if tenant is None:
        with connect.open_client() as client:
            made = client.set_budget(level=level, name=name, cap_g=cap_g, book=book, action=action).raw
    else:
        made = _set_here(tenant, level, name, cap_g=cap_g, book=book, action=action)
    if as_json:
        emit_json(made)
        return
    said = _SAID[Action(made["action"])]
    say(f"{_label(made)}: {made['cap_g']} gCO2e {_each(made)}, {made['book']} book; {said}")


@app.command()
@connect.remote
def show(
    *,
    level: Annotated[Level | None, typer.Option("--level", help="Only budgets of this level.")] = None,
    tenant: Tenant = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Those of every tenant, from the database.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the budgets: what of each is spent, reserved and left, and how fast it burns.

    Spent is what the ledger has of the period, reserved what accepted work is expected to emit. A burn rate of 1 uses
    the budget up exactly at the end of its period.

    Example: carbonq budget show

    Example: carbonq budget show --level product_line --json | jq '.[] | {name, left: .status.left_g}'
    """
    if tenant is not None and all_tenants:
        raise typer.BadParameter("--tenant names one, --all-tenants means every one; give one of them")
    if tenant is None and not all_tenants:
        with connect.open_client() as client:
            found = [one.raw for one in client.budgets(level=level)]
    else:
        found = _show_here(tenant, level)
    if as_json:
        emit_json(found)
        return
    if not found:
        say("no budget yet; next: carbonq budget set --product-line NAME --cap-g GRAMS")
        return
    columns = _COLUMNS if all_tenants else _COLUMNS[1:]
    emit_table(columns, [[_row(one)[column] for column in columns] for one in found])
    say("grams are gCO2e; provisional ones are in spent and may still change, reserved ones and rates are estimates")
    for one in found:
        if one["status"]["unknown_entries"]:
            count = one["status"]["unknown_entries"]
            say(f"{_label(one)}: {count:,} entries have no rate yet and are in no sum")
        if one["status"]["unknown_reserved"]:
            count = one["status"]["unknown_reserved"]
            say(f"{_label(one)}: of {count:,} chunks or jobs nobody knows yet what they will emit; they are in no sum")
    if idle := [_label(one) for one in found if _is_idle(one["status"])]:
        say(f"nothing ran or waits in this period of {', '.join(idle)}; is each spelt as in its work?")


@app.command()
@connect.remote
def remove(
    *,
    product_line: ProductLine = None,
    workload: Workload = None,
    item: Item = False,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Remove a budget; what waited for it goes on. What was spent stays in the ledger.

    Example: carbonq budget remove --product-line search
    """
    level, name = _which(product_line, workload, is_item=item)
    if tenant is None:
        with connect.open_client() as client:
            found = _of(client.budgets(level=level), level, name)
            client.remove_budget(found.id)
            budget_id = found.id
    else:
        budget_id = _remove_here(tenant, level, name)
    if as_json:
        emit_json({"id": budget_id, "object": "budget.deleted", "deleted": True})
    else:
        say(f"the budget of {_named(level, name)} is removed")


def _which(product_line: str | None, workload: str | None, *, is_item: bool) -> tuple[Level, str]:
    if product_line is not None:
        if workload is not None or is_item:
            raise typer.BadParameter("--product-line goes with neither --workload nor --item")
        return Level.PRODUCT_LINE, product_line
    if is_item:
        return Level.ITEM, ALL if workload is None else workload
    if workload is None:
        raise typer.BadParameter("say whose: --product-line NAME, --workload NAME, or --item [--workload NAME]")
    return Level.WORKLOAD, workload


def _of(budgets: list[Budget], level: Level, name: str) -> Budget:
    found = next((one for one in budgets if one.name == name), None)
    if found is None:
        raise NotFound(f"there is no budget of {_named(level, name)}; `carbonq budget show` shows yours")
    return found


# --- in the database --------------------------------------------------------------------------------------------


def _set_here(tenant: str, level: Level, name: str, *, cap_g: str, book: Book | None, action: Action | None) -> Json:
    from carbonq.services import budgets_admin

    check_tenant(tenant)
    with connect.open_database() as (_, database):
        clock = connect.clock_of(database)
        made = budgets_admin.set_budget(
            database, clock, tenant, level=level, name=name, cap_g=cap_g, book=book, action=action, actor=actor()
        )
        return budgets_admin.view(budgets_admin.status(database, clock.now(), tenant, made.budget_id))


def _show_here(tenant: str | None, level: Level | None) -> list[Json]:
    from carbonq.services import budgets_admin

    if tenant is not None:
        check_tenant(tenant)
    with connect.open_database() as (_, database):
        now = connect.clock_of(database).now()
        return [budgets_admin.view(one) for one in budgets_admin.statuses(database, now, tenant, level)]


def _remove_here(tenant: str, level: Level, name: str) -> str:
    from carbonq.services import budgets_admin

    check_tenant(tenant)
    with connect.open_database() as (_, database):
        found = budgets_admin.find(database, tenant, level, name)
        budgets_admin.remove(database, tenant, found.budget_id, actor=actor())
        return found.budget_id


# --- as people read it ------------------------------------------------------------------------------------------

_COLUMNS = (
    "tenant",
    "level",
    "name",
    "period",
    "book",
    "cap g",
    "spent g",
    "provisional g",
    "reserved g",
    "left g",
    "burn rate",
    "exhausted at",
    "action",
    "waiting chunks",
)


def _row(one: Json) -> Json:
    now = one["status"]
    return {
        "tenant": one["tenant"],
        "level": one["level"],
        "name": one["name"],
        "period": _period(one),
        "book": one["book"],
        "cap g": _exact(one["cap_g"]),
        "spent g": _exact(now["spent_g"]),
        "provisional g": _exact(now["provisional_g"]),
        "reserved g": _exact(now["reserved_g"]),
        "left g": _exact(now["left_g"]),
        "burn rate": None if now["burn_rate"] is None else f"{now['burn_rate']:.2f}",
        "exhausted at": now["exhausted_at"] and f"{now['exhausted_at'][:16]}Z",
        "action": one["action"],
        "waiting chunks": now["waiting_chunks"],
    }


def _is_idle(now: Json) -> bool:
    """Say whether nothing at all counts in a budget, as where its name is misspelt; an item's counts nothing anyhow."""
    grams = (now["spent_g"], now["reserved_g"])
    counts = (now["unknown_entries"], now["unknown_reserved"], now["waiting_chunks"])
    return None not in grams and not any(map(Decimal, grams)) and not any(counts)


def _exact(grams: str | None) -> str | None:
    """Write grams with all digits that say something."""
    return grams.rstrip("0").rstrip(".") if grams is not None and "." in grams else grams


def _period(one: Json) -> str:
    started_at = one["status"]["started_at"]
    if started_at is None:
        return "each item"
    return started_at[:7] if one["period"] == "month" else started_at[:10]


def _label(one: Json) -> str:
    return _named(Level(one["level"]), one["name"])


def _named(level: Level, name: str) -> str:
    if level is Level.ITEM:
        return "items of all work" if name == ALL else f"items of workload {name}"
    return f"{level.value.replace('_', ' ')} {name}"


def _each(one: Json) -> str:
    return "each" if one["period"] == "item" else f"a {one['period']}"

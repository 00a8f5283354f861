"""``pause``, ``resume`` and ``drain`` of ``carbonq regions|tenants|models``, done in the database of the settings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated

import typer

from carbonq.cli import connect
from carbonq.cli import tenants as own_limits
from carbonq.cli.actor import actor, login
from carbonq.cli.keys import check_tenant
from carbonq.cli.output import AsJson, emit_json, emit_table, say
from carbonq.model import HeldKind, RegionState

if TYPE_CHECKING:
    from carbonq.config import Settings

Known = Callable[["Settings"], Collection[str]]

Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept with the events and shown to clients.")]
By = Annotated[str | None, typer.Option("--by", help="Who does it; your login name by default.")]

_RUNNING = "what runs goes back at its next engine batch"
_SAID = {
    (HeldKind.REGION, RegionState.PAUSED): f"nothing starts there, {_RUNNING}",
    (HeldKind.REGION, RegionState.DRAINING): "what runs there ends, nothing else starts",
    (HeldKind.TENANT, RegionState.PAUSED): f"its jobs wait, {_RUNNING}; new jobs are taken and wait too",
    (HeldKind.TENANT, RegionState.DRAINING): "its jobs go on to their end, new ones are refused",
    (HeldKind.MODEL, RegionState.PAUSED): f"its jobs wait, {_RUNNING}; new jobs are taken and wait too",
    (HeldKind.MODEL, RegionState.DRAINING): "its jobs go on to their end, new ones are refused",
}

tenants = typer.Typer(no_args_is_help=True, help="Tenants: list, pause, resume, drain.")


def add_to(app: typer.Typer, kind: HeldKind, known: Known | None = None) -> None:
    """Give a group of commands ``pause``, ``resume`` and ``drain``; ``known`` returns the names there are."""
    name_of = Annotated[str, typer.Argument(metavar=kind.value.upper(), help=f"The {kind.value}'s name.")]

    def add(verb: str, state: RegionState, text: str) -> None:
        def command(name: str, reason: Reason = None, by: By = None, as_json: AsJson = False) -> None:
            _set(kind, name, state, known=known, reason=reason, by=by, as_json=as_json)

        command.__annotations__["name"] = name_of
        # A paragraph of its own for the example, as in all other commands.
        command.__doc__ = f"{text}\n\nExample: carbonq {kind.value}s {verb} NAME --reason 'new cards'\n"
        app.command(verb)(command)

    for verb, state in (("pause", RegionState.PAUSED), ("drain", RegionState.DRAINING)):
        said = _SAID[kind, state]
        add(verb, state, f"{verb.capitalize()} a {kind.value}: {said}.")
    add("resume", RegionState.ACTIVE, f"Let a {kind.value} go on.")


def _set(
    kind: HeldKind,
    name: str,
    state: RegionState,
    *,
    known: Known | None,
    reason: str | None,
    by: str | None,
    as_json: bool,
) -> None:
    from carbonq.services import hold
    from carbonq.store import holds

    if kind is HeldKind.TENANT:
        check_tenant(name)
    with connect.open_database() as (settings, database):
        before = hold.set_state(
            database,
            connect.clock_of(database),
            kind,
            name,
            state,
            reason=reason,
            acted_by=by or login(),
            actor=actor(),
            known=None if known is None else known(settings),
        )
        with database.read() as tx:
            is_in_use = kind is not HeldKind.TENANT or holds.is_in_use(tx, name)
    if as_json:
        emit_json({"kind": kind.value, "name": name, "state": state.value, "before": before.value, "reason": reason})
    else:
        said = _SAID.get((kind, state), "it goes on")
        say(f"{kind.value} {name} is {state.value} (it was {before.value}): {said}")
        if not is_in_use:
            say(f"tenant {name} has no key and no open job now; `carbonq tenants list` shows those that have")


@tenants.command("list")
def list_tenants(as_json: AsJson = False) -> None:
    """List the tenants that have jobs, a key or a pause, with what is open of theirs.

    Example: carbonq tenants list
    """
    from carbonq.store import holds

    with connect.open_database() as (_, database), database.read() as tx:
        rows = holds.tenants(tx)
    if as_json:
        emit_json(rows)
    else:
        columns = ("tenant", "state", "open_jobs", "open_items", "reason")
        emit_table(columns, [[row[column] for column in columns] for row in rows])


def model_names(settings: Settings) -> Collection[str]:
    """Return the names of all models, the built-in ones too."""
    from carbonq import wiring

    return wiring.make_models(settings)


add_to(tenants, HeldKind.TENANT)
own_limits.add_to(tenants)

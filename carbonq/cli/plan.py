"""``carbonq plan``: where and when the waiting work is going to run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from carbonq.cli import connect, output
from carbonq.cli.output import AsJson, emit_json, emit_table, say

app = typer.Typer(no_args_is_help=True, help="The plan in force.")

#: Chunks listed below the map without being asked for.
_FEW = 12

_COLUMNS = ("id", "state", "model", "region", "window_at", "forecast_g_per_kwh", "forecast_signal", "reason")


@app.callback()
def group() -> None:
    """Keep ``plan show`` a subcommand although it is the only one."""


@app.command()
@connect.remote
def show(
    hours: Annotated[float, typer.Option("--hours", min=0.1, max=168, help="How far ahead the map goes.")] = 24,
    is_list: Annotated[bool, typer.Option("--list", help="Only the chunks, one a line, without the map.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the plan in force: a map of rates by region and window with your chunks on it, and how good it is.

    The map fits the terminal (COLUMNS). Few chunks are listed below it; all of them with --list.

    Example: carbonq plan show --hours 12
    """
    with connect.open_client() as client:
        plan = client.plan(hours=None if is_list and not as_json else hours)
    if as_json:
        emit_json(plan)
        return
    chunks = plan["chunks"]
    if not is_list:
        _map(plan)
        typer.echo("")
    if is_list:
        emit_table(_COLUMNS, [[chunk[column] for column in _COLUMNS] for chunk in chunks])
    elif 0 < len(chunks) <= _FEW:
        emit_table(("chunk", "state", "region", "window", "g/kWh", "reason"), [_short(chunk) for chunk in chunks])
    elif chunks:
        more = "at least " if plan["has_more"] else ""
        say(f"{more}{len(chunks):,} chunks; --list shows each, `carbonq jobs why JOB` says why it is there")
    if is_list and plan["has_more"]:
        say(f"these are the next {len(chunks):,}; there are more")
    _quality(plan["plan"])


def _short(chunk: dict[str, Any]) -> list[object]:
    at = chunk["window_at"]
    window = None if at is None else f"{datetime.fromisoformat(at):%a %H:%M}Z"
    return [chunk["id"], chunk["state"], chunk["region"], window, chunk["forecast_g_per_kwh"], chunk["reason"]]


def _map(plan: dict[str, Any]) -> None:
    from carbonq.cli import heatmap

    console = output.console()
    console.print(heatmap.render(plan, console))


def _quality(latest: dict[str, Any] | None) -> None:
    if latest is None:
        say("nothing has been planned yet")
        return
    if latest["max_gap_to_optimum_pct"] is not None:
        say(f"the plan of {latest['created_at']} is at most {latest['max_gap_to_optimum_pct']} % above the optimum")
    if latest["is_overlay"]:
        say("no carbon signal: work runs in the nearest region by its deadline until there is one")
    elif latest["note"]:
        say(f"note: {latest['note']}")

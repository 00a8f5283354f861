"""``carbonq plan``: where and when the waiting work is going to run."""

from __future__ import annotations

import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, emit_json, emit_table, say

app = typer.Typer(no_args_is_help=True, help="The plan in force.")


@app.callback()
def group() -> None:
    """Keep ``plan show`` a subcommand although it is the only one."""


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show the plan in force: each waiting chunk with its region, window, forecast and reason.

    Example: carbonq plan show
    """
    with connect.open_client() as client:
        plan = client.plan()
    if as_json:
        emit_json(plan)
        return
    columns = ("id", "state", "model", "region", "window_at", "forecast_g_per_kwh", "forecast_signal", "reason")
    emit_table(columns, [[chunk[column] for column in columns] for chunk in plan["chunks"]])
    latest = plan["plan"] or {}
    if latest.get("max_gap_to_optimum_pct") is not None:
        say(f"the plan of {latest['created_at']} is at most {latest['max_gap_to_optimum_pct']} % above the optimum")
    if latest.get("is_overlay"):
        say("no carbon signal: work runs in the nearest region by its deadline until there is one")

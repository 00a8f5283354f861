"""``carbonq regions``: the places that run work."""

from __future__ import annotations

import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, emit_json, emit_table

app = typer.Typer(no_args_is_help=True, help="Regions.")


@app.callback()
def group() -> None:
    """Keep ``regions list`` a subcommand although it is the only one."""


@app.command("list")
def list_regions(as_json: AsJson = False) -> None:
    """List the regions with their state, slots and present MOER.

    Example: carbonq regions list
    """
    with connect.open_client() as client:
        regions = client.regions()
    if as_json:
        emit_json(regions)
        return
    columns = ("name", "zone", "state", "is_healthy", "slots", "pue", "moer")
    rows = [
        [(region["moer"] or {}).get("g_per_kwh") if column == "moer" else region.get(column) for column in columns]
        for region in regions
    ]
    emit_table(("region", "zone", "state", "healthy", "slots", "pue", "MOER g/kWh"), rows)

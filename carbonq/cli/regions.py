"""``carbonq regions``: the places that run work."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, emit_json, emit_table

_WORKER_COLUMNS = ("region", "host", "pid", "version", "clock offset s", "settings", "GPUs")

app = typer.Typer(no_args_is_help=True, help="Regions.")


@app.callback()
def group() -> None:
    """Keep ``regions list`` a subcommand although it is the only one."""


@app.command("list")
def list_regions(
    workers: Annotated[
        bool, typer.Option("--workers", help="List their workers: host, version, clock and whether settings agree.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the regions with their state, slots, present MOER and AER, or their workers.

    Example: carbonq regions list --workers
    """
    with connect.open_client() as client:
        regions = client.regions()
    if as_json:
        emit_json(regions)
        return
    if workers:
        emit_table(_WORKER_COLUMNS, [_worker(region, one) for region in regions for one in region["workers"]])
        return
    columns = ("name", "zone", "state", "is_healthy", "slots", "pue")
    rows = [
        [region.get(column) for column in columns]
        + [(region[signal] or {}).get("g_per_kwh") for signal in ("moer", "aer")]
        for region in regions
    ]
    emit_table(("region", "zone", "state", "healthy", "slots", "pue", "MOER g/kWh", "AER g/kWh"), rows)


def _worker(region: dict[str, Any], worker: dict[str, Any]) -> list[object]:
    offset_s = worker["clock_offset_s"]
    agrees = {True: "agree", False: "differ: restart it", None: None}[worker["agrees"]]
    return [
        region["name"],
        worker["host"],
        worker["pid"],
        worker["software_version"],
        None if offset_s is None else f"{offset_s:+.3f}",
        agrees,
        len(worker["gpus"]),
    ]

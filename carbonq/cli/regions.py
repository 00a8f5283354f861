"""``carbonq regions``: the places that run work."""

from __future__ import annotations

from datetime import datetime
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
@connect.remote
def list_regions(
    workers: Annotated[
        bool, typer.Option("--workers", help="List their workers: host, version, clock and whether settings agree.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the regions with their state, slots, coming maintenance, present MOER and AER, or their workers.

    Example: carbonq regions list --workers
    """
    with connect.open_client() as client:
        regions = [region.raw for region in client.regions()]
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
        + [_maintenance(region["maintenance"])]
        for region in regions
    ]
    emit_table(("region", "zone", "state", "healthy", "slots", "pue", "MOER g/kWh", "AER g/kWh", "maintenance"), rows)


def _maintenance(spans: list[dict[str, Any]]) -> str | None:
    """Say when fewer slots are offered, next span first; None where none is known."""
    said = [
        f"{_minute(one['start_at'])} to {_minute(one['end_at'])}: {one['slots']} slot{'s' if one['slots'] != 1 else ''}"
        for one in spans
    ]
    return "; ".join(said) or None


def _minute(at: str) -> str:
    return f"{datetime.fromisoformat(at):%d %b %H:%MZ}"


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

"""``carbonq config``: the settings in force, where each comes from, what they mean, and the installation's."""

from __future__ import annotations

from typing import Any

import orjson
import typer

from carbonq.cli.actor import actor
from carbonq.cli.output import AsJson, emit_json, emit_table, say

app = typer.Typer(no_args_is_help=True, help="The settings.")


@app.command()
def show(as_json: AsJson = False) -> None:
    """Print every setting, its value and its origin; secrets are masked.

    Example: carbonq config show
    """
    from carbonq import config, wiring
    from carbonq.embedded import grid_check
    from carbonq.errors import Unavailable

    sources = config.given()
    try:
        shared = wiring.stored_settings(sources)
    except Unavailable as error:
        say(f"without the installation's settings: {error.message}")
        shared = None
    reading = sources.read(shared)
    rows: list[dict[str, Any]] = [
        {"setting": config.dotted(path), "value": config.masked(path, value), "origin": reading.origin(path)}
        for path, value in config.leaves(reading.settings)
    ]
    if as_json:
        emit_json(rows)
        return
    emit_table(("setting", "origin", "value"), [(row["setting"], row["origin"], _text(row["value"])) for row in rows])
    for finding in grid_check.lacking(reading.settings):
        say(finding.finding)


@app.command()
def docs() -> None:
    """Print the reference of all settings, as Markdown: docs/settings.md is made of it.

    Example: carbonq config docs > docs/settings.md
    """
    from carbonq.config import describe

    typer.echo(describe.document(), nl=False)


@app.command()
def push(as_json: AsJson = False) -> None:
    """Make this host's regions, zones, models and limits the installation's, for all hosts; says what changed.

    Processes that run go on with what they started with: restart them. `carbonq db upgrade` and `carbonq up` do the
    same on their way.

    Example: carbonq config push
    """
    from carbonq import config, wiring
    from carbonq.errors import ConfigError

    sources = config.given()
    if not sources.has_regions:
        raise ConfigError("this host has no [regions], so there is nothing to push")
    changed = wiring.push(sources.read().settings, actor=actor())
    if as_json:
        emit_json({"changed": changed})
    else:
        say("; ".join(changed) if changed else "nothing changed")


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value, default=str).decode()

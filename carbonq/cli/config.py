"""``carbonq config``: the settings in force and where each comes from."""

from __future__ import annotations

from typing import Any

import orjson
import typer

from carbonq.cli.output import AsJson, emit_json, emit_table

app = typer.Typer(no_args_is_help=True, help="The settings.")

_MASK = "********"


@app.callback()
def group() -> None:
    """Keep ``config show`` a subcommand although it is the only one."""


@app.command()
def show(as_json: AsJson = False) -> None:
    """Print every setting, its value and its origin; secrets are masked.

    Example: carbonq config show
    """
    from pydantic import SecretStr

    from carbonq import config

    settings = config.load()
    values: dict[str, Any] = settings.model_dump(mode="json")
    rows: list[dict[str, Any]] = []
    for name in type(settings).model_fields:
        value = values[name]
        if isinstance(getattr(settings, name), SecretStr):
            value = _MASK
        rows.append({"setting": name, "value": value, "origin": config.origin(name)})
    if as_json:
        emit_json(rows)
        return
    emit_table(("setting", "origin", "value"), [(row["setting"], row["origin"], _text(row["value"])) for row in rows])


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(_without_none(value)).decode()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value

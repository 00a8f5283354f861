"""``carbonq quote``: what a job would cause now, by its deadline, and over deadlines and regions. Nothing is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.cli import complete, connect
from carbonq.cli.inputs import first_line, format_of, opened, watched
from carbonq.cli.output import AsJson, bar, emit_json, emit_pairs, emit_table, say
from carbonq.model import Endpoint

if TYPE_CHECKING:
    from carbonq.client import Client

#: The models of ``submit embeddings`` and ``submit summarize`` where none is named.
_DEFAULT_MODELS = {Endpoint.EMBEDDINGS: "wordllama-256", Endpoint.CHAT: "smollm2-135m-instruct"}

#: Single regions shown beside home and all; ``--json`` has the others.
_MOST_COLUMNS = 4


class Kind(StrEnum):
    """What is done with the documents of INPUT."""

    EMBEDDINGS = "embeddings"
    SUMMARIZE = "summarize"


_ENDPOINTS = {Kind.EMBEDDINGS: Endpoint.EMBEDDINGS, Kind.SUMMARIZE: Endpoint.CHAT}


@connect.remote
def quote(
    source: Annotated[str | None, typer.Argument(metavar="[INPUT]", help="File to read; - is stdin.")] = None,
    *,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="Finished by: 6h, 90m, 2d, or an ISO time with its zone.")
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option("--region", help="Only this region (may be repeated).", autocompletion=complete.regions),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model; unset: the input's own, else the kind's.", autocompletion=complete.models),
    ] = None,
    kind: Annotated[
        Kind | None, typer.Option("--kind", help="What to do with documents; unset: what the model does.")
    ] = None,
    items: Annotated[int | None, typer.Option("--items", min=1, help="Instead of INPUT: how many items.")] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="With --items: tokens of all items, prompt and completion.")
    ] = None,
    fmt: Annotated[str, typer.Option("--format", help="auto, jsonl, csv or text (one document a line).")] = "auto",
    column: Annotated[str | None, typer.Option("--column", help="CSV: the column that holds the text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a job would cause: at once at home, by a deadline, and over deadlines and regions. Stores nothing.

    INPUT is what `submit` takes: documents, CSV, text, or OpenAI batch lines; or give --items and --tokens.

    Example: carbonq quote articles.jsonl --kind summarize --deadline 6h

    Example: carbonq quote --items 20000 --tokens 9000000 --model smollm2-135m-instruct
    """
    if (source is None) == (items is None):
        raise typer.BadParameter("give either INPUT, or --items and --tokens")
    if (items is None) != (tokens is None):
        raise typer.BadParameter("--items and --tokens go together")
    with connect.open_client() as client:
        regions = region or None
        if source is None:
            endpoint, named = _endpoint(client, kind, model)
            found = client.quote(
                items=items, tokens=tokens, endpoint=endpoint, model=named, deadline=deadline, regions=regions
            ).raw
        else:
            with opened(source) as given, bar("sending", total=given.size, is_bytes=True) as advance:
                lines, endpoint, named = _lines(
                    client, given.lines, (kind, model), fmt=format_of(fmt, source), column=column
                )
                found = client.quote(
                    watched(lines, given, advance), endpoint=endpoint, model=named, deadline=deadline, regions=regions
                ).raw
    if as_json:
        emit_json(found)
    else:
        show(found)
        say("next: carbonq submit with the same input and deadline")


def _lines(
    client: Client, given: Iterator[bytes], wish: tuple[Kind | None, str | None], *, fmt: str, column: str | None
) -> tuple[Iterable[bytes], str, str]:
    """Return INPUT as OpenAI lines with its endpoint and model: batch lines as they are, documents turned into them."""
    from carbonq import jsonl

    kind, model = wish
    first, _, rest = first_line(given)
    url, own = _batch_line(first)
    if url is not None and kind is None:
        return rest, url, model or own or _DEFAULT_MODELS.get(Endpoint(url), "")
    endpoint, named = _endpoint(client, kind, model)
    made = jsonl.to_openai_lines(rest, fmt=fmt, column=column, endpoint=Endpoint(endpoint), model=named)
    return made, endpoint, named


def _batch_line(first: bytes) -> tuple[str | None, str | None]:
    """Return url and model if a line is one of an OpenAI batch."""
    from carbonq import jsonl
    from carbonq.errors import InvalidRequest

    try:
        facts = jsonl.parse_line(first.removeprefix(b"\xef\xbb\xbf").strip(), 1)
    except InvalidRequest:
        return None, None
    return (facts.url, facts.model) if facts.url in list(Endpoint) else (None, None)


def _endpoint(client: Client, kind: Kind | None, model: str | None) -> tuple[str, str]:
    if kind is not None:
        endpoint = _ENDPOINTS[kind]
        return endpoint.value, model or _DEFAULT_MODELS[endpoint]
    if model is None:
        return Endpoint.EMBEDDINGS.value, _DEFAULT_MODELS[Endpoint.EMBEDDINGS]
    known = {one["id"]: one["endpoint"] for one in client.models()}
    # A model that is not known is named by the API, with those that are.
    return known.get(model, Endpoint.EMBEDDINGS.value), model


def show(found: dict[str, Any]) -> None:
    """Print a quote: the facts, then deadlines by region sets, each with its saving against the baseline."""
    base, asked = found["baseline"], found["asked"]
    chunks = found["chunks"]
    pairs: list[tuple[str, object]] = [
        (
            "work",
            f"{found['items']:,} items, about {found['est_tokens']:,} tokens, {chunks:,} chunk{'s'[: chunks != 1]} "
            f"of {found['model']}",
        ),
        ("energy", _energy(found["regions"])),
    ]
    if base is not None:
        pairs.append(
            (
                "baseline",
                f"{_grams(base['gco2e'], base['spread_gco2e'])} at home in {base['region']}, first come first served, "
                f"done by {_time(base['finish_at'], found)}",
            )
        )
    if asked is not None:
        pairs += _asked(asked, found)
    emit_pairs(pairs)
    if found["curve"]:
        typer.echo("")
        _table(found)
    typer.echo("")
    kind = "marginal (MOER)" if found["signal"] == "moer" else "average (AER), for there is no marginal source"
    until = found["known_until_at"]
    typer.echo(
        f"gCO2e by {kind} rates, PUE included; rates are known until {_time(until, found) if until else 'never'}. "
        "% is against the baseline at the same energy."
    )
    if any(one["spread_gco2e"] is not None for one in found["curve"]):
        typer.echo("± is at most one standard error of the rates: as if all of them erred together.")
    elif until:
        typer.echo("No ±: how far off such forecasts are has not been learned yet.")
    for note in found["notes"]:
        say(f"note: {note}")


def _energy(regions: Sequence[dict[str, Any]]) -> str:
    from carbonq import readable

    parts: list[str] = []
    for key in dict.fromkeys((one["hardware"], one["energy_wh"], one["is_learned"]) for one in regions):
        hardware, energy_wh, is_learned = key
        names = ", ".join(one["region"] for one in regions if one["hardware"] == hardware)
        how = "learned" if is_learned else "a starting value, nothing ran there yet"
        parts.append(f"{readable.energy(energy_wh * 3.6e9)} on {hardware} in {names} ({how})")
    return "; ".join(parts) or "unknown"


def _asked(asked: dict[str, Any], found: dict[str, Any]) -> list[tuple[str, object]]:
    where = ", ".join(
        f"{name} ({count:,})" if len(asked["placed"]) > 1 else name for name, count in asked["placed"].items()
    )
    done = f", done by {_time(asked['finish_at'], found)}" if asked["finish_at"] else ""
    pairs: list[tuple[str, object]] = [
        (
            f"by {_time(asked['deadline_at'], found)}",
            f"{_grams(asked['gco2e'], asked['spread_gco2e'])} in {where}{done}"
            if where
            else "no room in any region, as far as can be seen ahead",
        )
    ]
    if asked["saved_gco2e"] is not None:
        share, saved = asked["saved_pct"], asked["saved_gco2e"]
        percent = "" if share is None else f" ({abs(share):g} %)"
        amount = f"{_grams(abs(saved), asked['saved_spread_gco2e'])}{percent} {'less' if saved > 0 else 'more'} than"
        against = f"the baseline's {_grams(asked['baseline_gco2e'], None)}"
        # The baseline's queue starts at once, back to back; a plan leaves accepted work where it is.
        dearer = "none: " if saved < 0 else ""
        why = ", which would run at once: later rates are higher, or room is left only there" if saved < 0 else ""
        pairs.append(("saving", f"{dearer}{amount} {against}{why}" if saved else f"none: it is {against}"))
    if asked["weighted_price_g"]:
        price = _grams(asked["weighted_price_g"], None).removesuffix("CO2e")
        pairs.append(("price", f"weighs as much as {price} of carbon; it decides with the rates and is no carbon"))
    if asked["is_met"]:
        pairs.append(("deadline", "can be met beside what is accepted already"))
    else:
        late = f"{asked['late_chunks'] + asked['unplaced_chunks']:,} of {found['chunks']:,} chunks would be late"
        if asked["is_met_by_moving"]:
            pairs.append(("deadline", f"{late} beside what is accepted already, unless that makes room, as plans do"))
        else:
            pairs.append(("deadline", f"CANNOT be met: {late}; {asked['shortage']}"))
    return pairs


def _table(found: dict[str, Any]) -> None:
    names: list[str] = list(dict.fromkeys(one["set"] for one in found["curve"]))
    home = found["baseline"]["region"] if found["baseline"] else ""
    singles = [name for name in names if name not in {"home", "all"}]
    shown = [name for name in names if name in {"home", "all"} or name in singles[:_MOST_COLUMNS]]
    heads: dict[str, str] = {"home": f"home ({home})", "all": "all regions"}
    rows: list[list[str]] = []
    for after_s in dict.fromkeys(one["after_s"] for one in found["curve"]):
        points = {one["set"]: one for one in found["curve"] if one["after_s"] == after_s}
        at = next(iter(points.values()))["deadline_at"]
        label = "as early as can be" if after_s is None else f"{after_s / 3600:g} h, {_time(at, found)}"
        rows.append([label, *(_cell(points[name]) for name in shown)])
    emit_table(("finished within", *(heads.get(name, name) for name in shown)), rows)
    if len(singles) > _MOST_COLUMNS:
        typer.echo(f"{len(singles) - _MOST_COLUMNS} more regions with --json")


def _cell(point: dict[str, Any]) -> str:
    if point["unplaced_chunks"]:
        return "no room"
    if point["late_chunks"] and point["after_s"] is not None:
        return "too late"
    if point["gco2e"] is None:
        return "no rate"
    share = point["saved_pct"]
    # A minus sign as long as the plus, so that columns stay in line.
    percent = "" if share is None else f" {'−' if share > 0 else '+' if share < 0 else '±'}{abs(share):.0f} %"
    return _grams(point["gco2e"], point["spread_gco2e"]).removesuffix("CO2e") + percent


def _grams(value: float | None, spread: float | None) -> str:
    from carbonq import readable

    if value is None:
        return "unknown"
    text = readable.grams(value)
    if spread is None:
        return text
    number, unit = text.split()
    # In the unit of the value, so that the two can be compared at a glance.
    scale = {"ng": 1e-9, "µg": 1e-6, "mg": 1e-3, "g": 1.0, "kg": 1e3, "t": 1e6}[unit.removesuffix("CO2e")]
    return f"{number} ± {spread / scale:.2g} {unit}"


def _time(text: str, found: dict[str, Any]) -> str:
    """Write a time to the minute, with its day if that is not today."""
    at, now = datetime.fromisoformat(text), datetime.fromisoformat(found["clock"]["now"])
    return f"{at:%H:%MZ}" if at.date() == now.date() else f"{at:%a %d %b %H:%MZ}"

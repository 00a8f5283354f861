"""``carbonq forecast``: what grid sources foretell, what the planner makes of it, and rates from files."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Generator, Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, bar, emit_json, emit_pairs, emit_table, say

app = typer.Typer(no_args_is_help=True, help="Forecasts: show, fetch, import.")

_BARS = "▁▂▃▄▅▆▇█"

#: Widest sparkline, in characters.
_WIDTH = 72


class Kind(StrEnum):
    """The two signals by their everyday names."""

    MARGINAL = "marginal"
    AVERAGE = "average"


_CODES = {Kind.MARGINAL: "moer", Kind.AVERAGE: "aer"}
_KINDS = {"moer": "marginal", "aer": "average"}

Zone = Annotated[str | None, typer.Argument(help="Grid zone; all zones if left out.")]
SignalKind = Annotated[Kind | None, typer.Option("--signal", help="By default what the installation decides by.")]


@app.command()
@connect.remote
def show(
    zone: Zone = None,
    signal: SignalKind = None,
    horizon: Annotated[str, typer.Option(help="How far to look ahead, e.g. 6h or 2d; at most 7d.")] = "24h",
    as_json: AsJson = False,
) -> None:
    """Show the source's forecast as issued beside the outlook that plans are made with, its spread and its basis.

    Example: carbonq forecast show SGIP_CAISO_PGE --horizon 6h
    """
    hours = _hours(horizon)
    code = None if signal is None else _CODES[signal]
    with connect.open_client() as client:
        zones = [zone] if zone else list(dict.fromkeys(region.zone for region in client.regions()))
        found: list[dict[str, Any]] = []
        for name in zones:
            outlook = client.outlook(name, signal=code, hours=hours)
            found.append({"outlook": outlook, "forecast": client.forecasts(name, signal=outlook["signal"])})
    if as_json:
        emit_json(found)
    elif zone:
        _show_zone(found[0]["forecast"], found[0]["outlook"])
    else:
        columns = ("zone", "signal", "source", "issued", "now g/kWh", f"next {horizon}", "min", "max")
        emit_table(columns, [_row(one["forecast"], one["outlook"]) for one in found])


def _row(forecast: dict[str, Any], outlook: dict[str, Any]) -> Sequence[object]:
    values = _numbers(outlook["values"])
    known = [value for value in values if value is not None]
    return (
        outlook["zone"],
        _KINDS[outlook["signal"]],
        forecast["source"],
        _minute(forecast["issued_at"]),
        outlook["values"][0],
        _sparkline(values, 36),
        min(known, default=None),
        max(known, default=None),
    )


def _show_zone(forecast: dict[str, Any], outlook: dict[str, Any]) -> None:
    values = _numbers(outlook["values"])
    emit_pairs(
        [
            ("zone", outlook["zone"]),
            ("signal", f"{_KINDS[outlook['signal']]} ({outlook['signal']}), {outlook['unit']}"),
            ("source", forecast["source"] or "none"),
            ("issued", _minute(forecast["issued_at"])),
            ("outlook", _sparkline(values, _WIDTH)),
        ]
    )
    issued = _by_window(forecast)
    start, step = _at(outlook["start_at"]), timedelta(seconds=outlook["step_s"])
    # Up to three hours window by window, then what holds at each half hour.
    every = 1 if len(values) <= 36 else 6
    rows: list[Sequence[object]] = []
    for place in range(0, len(values), every):
        at = start + place * step
        spread = outlook["spread"][place]
        rows.append(
            (
                _minute(at.isoformat()),
                issued(at),
                outlook["values"][place],
                None if spread is None else f"± {spread}",
                outlook["basis"][place],
            )
        )
    emit_table(("time (UTC)", "forecast", "outlook", "spread", "basis"), rows)
    if outlook["is_down"]:
        say("nothing fresh is known of this zone; work runs without it, by its deadline")
    for state in forecast["sources"]:
        if state["is_stale"] and state["failures"]:
            say(f"{state['source']} left {state['failures']} questions in a row unanswered; see `carbonq doctor`")


def _by_window(forecast: dict[str, Any]) -> Any:
    start, step = _at(forecast["start_at"]), timedelta(seconds=forecast["step_s"])
    values = forecast["values"]

    def of(at: datetime) -> str | None:
        place = (at - start) // step
        return values[place] if 0 <= place < len(values) else None

    return of


def _numbers(values: Iterable[str | None]) -> list[float | None]:
    return [None if value is None else float(value) for value in values]


def _sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw values in at most ``width`` characters, each the mean of its share; a dot where nothing is known."""
    size = max(1, -(-len(values) // width))
    shares = [[one for one in values[i : i + size] if one is not None] for i in range(0, len(values), size)]
    means = [sum(share) / len(share) if share else None for share in shares]
    known = [mean for mean in means if mean is not None]
    if not known:
        return "·" * len(means)
    low, span = min(known), max(known) - min(known)
    top = len(_BARS) - 1
    return "".join(
        "·" if mean is None else _BARS[round((mean - low) / span * top) if span else top // 2] for mean in means
    )


@app.command()
def fetch(zone: Zone = None, as_json: AsJson = False) -> None:
    """Ask the sources now, store what they say, and print what came or why nothing did; exit 1 if none answered.

    Fallbacks are asked only where the sources before them have nothing fresh.

    Example: carbonq forecast fetch SGIP_CAISO_PGE
    """
    from carbonq.errors import NotFound
    from carbonq.services.refresh import DEADLINE_S, Refresher
    from carbonq.sourcing import make_sources

    with connect.open_database() as (settings, database):
        clock = connect.clock_of(database)
        sources = make_sources(settings, clock)
        zones = sorted({name for name, _ in sources})
        if zone is not None and zone not in zones:
            raise NotFound(f"no region uses a zone {zone!r} with a source; known zones: {', '.join(zones) or 'none'}")
        deepest = max((len(given) for given in sources.values()), default=1)
        refresher = Refresher(
            database, sources, clock, max_stale_s=settings.max_stale_s, patience_s=DEADLINE_S * deepest + 5
        )
        outcomes = refresher.run(zones=None if zone is None else [zone], is_forced=True)
        for given in sources.values():
            for source in given:
                source.close()
    rows = [
        {
            "zone": one.zone,
            "signal": one.signal.value,
            "source": one.source,
            "result": "fresh" if one.is_fresh else "stale" if one.is_answered else "failed",
            "forecasts": one.forecasts,
            "observations": one.observations,
            "error": one.error,
        }
        for one in outcomes
    ]
    if as_json:
        emit_json(rows)
    else:
        columns = ("zone", "signal", "source", "result", "forecasts", "observations", "error")
        emit_table(columns, [[row[column] for column in columns] for row in rows])
    if not any(one.is_answered for one in outcomes):
        raise typer.Exit(1)


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="CSV file, also .gz; - reads standard input.")],
    *,
    zone: Annotated[str, typer.Option(help="Grid zone that the values are of.")],
    signal: Annotated[Kind, typer.Option(help="Which book they belong to; never both.")],
    source: Annotated[str, typer.Option(help="Name that entries give as their source.")],
    unit: Annotated[str, typer.Option(help="Unit of the values, e.g. g/kWh or lbs_co2_per_mwh.")],
    gas: Annotated[str | None, typer.Option(help="co2 or co2e; by default as the unit says, else co2.")] = None,
    estimated: Annotated[bool, typer.Option(help="The values are estimates: provisional for ever.")] = False,
    settles: Annotated[bool, typer.Option(help="Observations are final and may settle entries.")] = True,
    as_json: AsJson = False,
) -> None:
    """Store rates from a CSV: observations (time_utc,value) or forecasts as issued (issued_at,time_utc,value).

    Importing a file again stores nothing new.

    Example: carbonq forecast import 2025.csv --zone DE --signal average --source archive --unit g/kWh
    """
    from carbonq.model import Signal
    from carbonq.services.imports import Imported, Label, import_rates

    if gas not in {None, "co2", "co2e"}:
        raise typer.BadParameter(f"gas is {gas!r}; it may be co2 or co2e", param_hint="--gas")
    _check_name(source)
    label = Label(zone, Signal(_CODES[signal]), source, unit, gas=gas, is_estimated=estimated, may_settle=settles)
    with connect.open_database() as (settings, database):
        if zone not in settings.zones:
            known = ", ".join(sorted(settings.zones)) or "none"
            say(f"no zone {zone!r} is configured, so nothing uses these rates until one is; known zones: {known}")
        now = connect.clock_of(database).now()
        with _opened(file) as text, bar(f"importing {file.name}", total=None) as report:
            done: Imported = import_rates(database, text, label, now=now, report=report)
    if as_json:
        names = ("lines", "missing", "observations", "forecasts")
        emit_json({name: getattr(done, name) for name in names} | {"zone": zone, "source": source})
    else:
        emit_pairs(
            [
                ("lines", done.lines),
                ("without a value", done.missing),
                ("new observations", done.observations),
                ("new forecasts", done.forecasts),
            ]
        )


@contextlib.contextmanager
def _opened(file: Path) -> Generator[Iterable[str]]:
    import gzip

    from carbonq.errors import InvalidRequest

    try:
        if str(file) == "-":
            yield io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", newline="")
        elif file.suffix == ".gz":
            with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
                yield text
        else:
            with file.open(encoding="utf-8", newline="") as text:
                yield text
    except (OSError, EOFError) as error:
        raise InvalidRequest(f"cannot read {file}: {error}") from error


def _check_name(source: str) -> None:
    if not source.isprintable() or not source.strip() or len(source) > 100:
        raise typer.BadParameter("a source's name has 1 to 100 printable characters", param_hint="--source")


def _hours(text: str) -> float:
    from carbonq.errors import InvalidRequest

    number, unit = text[:-1], text[-1:]
    factors = {"m": 1 / 60, "h": 1.0, "d": 24.0}
    if unit not in factors or not number.replace(".", "", 1).isdigit() or not 0 < float(number) * factors[unit] <= 168:
        raise InvalidRequest(f"--horizon is {text!r}; write it as 90m, 6h or 2d, at most 7d", param="horizon")
    return float(number) * factors[unit]


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _minute(text: str | None) -> str | None:
    return None if text is None else f"{_at(text):%Y-%m-%d %H:%M}Z"

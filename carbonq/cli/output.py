"""How the command line speaks: data on stdout, messages on stderr, bars only where a person looks on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Annotated, Any

import orjson
import typer

from carbonq.units import UJ_PER_KWH

#: The option every command with data has.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

#: (upper limit, divisor, unit) of masses in grams and energies in joules.
_GRAMS = ((1e-6, 1e-9, "ng"), (1e-3, 1e-6, "µg"), (1.0, 1e-3, "mg"), (1e3, 1.0, "g"), (1e6, 1e3, "kg"))
_JOULES = ((1e-3, 1e-6, "µJ"), (1.0, 1e-3, "mJ"), (3600.0, 1.0, "J"), (3.6e6, 3600.0, "Wh"))


def say(message: str) -> None:
    """Tell the person something; never data."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def emit_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(
        orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n"
    )


def emit_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns; an empty cell is ``-``."""
    cells = [list(columns), *[["-" if cell in {None, ""} else str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def emit_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Print ``name  value`` lines; unknown values are left out."""
    known = [(name, value) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        sys.stdout.write(f"{name.ljust(width)}  {value}\n")


def is_watched() -> bool:
    """Say whether a person looks at stderr, so that bars make sense."""
    return sys.stderr.isatty()


def grams(value: Decimal | float | str | None) -> str:
    """Write a mass of CO2e with three digits and a fitting unit; unknown stays unknown."""
    return "unknown" if value is None else _scaled(float(value), _GRAMS, "t", 1e6) + "CO2e"


def energy(uj: int | float | None) -> str:
    """Write an energy given in microjoules with three digits and a fitting unit."""
    return "unknown" if uj is None else _scaled(uj / 1e6, _JOULES, "kWh", UJ_PER_KWH / 1e6)


def _scaled(value: float, steps: Sequence[tuple[float, float, str]], last: str, divisor: float) -> str:
    for limit, step, unit in steps:
        if abs(value) < limit:
            return f"{value / step:.3g} {unit}"
    return f"{value / divisor:,.3g} {last}"


def span(seconds: float) -> str:
    """Write a duration: ``0.8 s``, ``42 s``, ``3 min 20 s``, ``5 h 12 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def bar(label: str, *, total: int | None, is_bytes: bool = False) -> Generator[Callable[[int], None]]:
    """Show a progress bar on stderr if a person looks on; yields a function that takes the amount done so far."""
    if not is_watched():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    amount = DownloadColumn() if is_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)

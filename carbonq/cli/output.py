"""How the command line speaks: data on stdout, messages on stderr, bars only where a person looks on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

if TYPE_CHECKING:
    from rich.console import Console

#: The option every command with data has.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

#: The option of commands whose effect cannot be taken back.
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether you mean it.")]


@dataclass(frozen=True, slots=True)
class _Manner:
    is_quiet: bool = False
    is_colourless: bool = False


_manner: ContextVar[_Manner] = ContextVar("manner", default=_Manner())  # noqa: B039 (it cannot be changed)


@contextmanager
def speaking(*, is_quiet: bool = False, is_colourless: bool = False) -> Generator[None]:
    """Speak so while the context lasts, and as before where False."""
    before = _manner.get()
    token = _manner.set(_Manner(before.is_quiet or is_quiet, before.is_colourless or is_colourless))
    try:
        yield
    finally:
        _manner.reset(token)


def say(message: str) -> None:
    """Tell the person something, unless --quiet; never data."""
    if not _manner.get().is_quiet:
        complain(message)


def complain(message: str) -> None:
    """Tell the person what went wrong, also with --quiet."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def emit_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(
        orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n"
    )
    sys.stdout.flush()  # a command may go on for long after it


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


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask before what cannot be taken back; a script has nobody to ask, and means it. Ends the command at a no."""
    if not is_sure and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)


def console(*, is_stderr: bool = False) -> Console:
    """Return a rich console of stdout or stderr, with colours only where they are wanted and can be seen."""
    from rich.console import Console

    file = sys.stderr if is_stderr else sys.stdout
    return Console(file=file, no_color=_manner.get().is_colourless or None, highlight=False, soft_wrap=True)


def is_watched() -> bool:
    """Say whether a person looks at stderr, so that bars make sense."""
    return sys.stderr.isatty() and not _manner.get().is_quiet


@contextmanager
def bar(label: str, *, total: int | None, is_bytes: bool = False) -> Generator[Callable[[int], None]]:
    """Show a progress bar on stderr if a person looks on; yields a function that takes the amount done so far."""
    if not is_watched():
        yield lambda _done: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    amount = DownloadColumn() if is_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
    with Progress(*columns, console=console(is_stderr=True)) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)

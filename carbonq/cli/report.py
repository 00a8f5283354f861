"""``carbonq report``: a month of the ledger to file, from the database itself or, with --url, from the API."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson
from carbonq.clock import ClockKind
from carbonq.errors import InvalidRequest
from carbonq.render.formats import Format
from carbonq.units import parse_iso

if TYPE_CHECKING:
    from carbonq.statement import Columns

#: The month that runs now, by grid time.
RUNNING = "running"

#: Largest statement of a provider that is read, in bytes.
_STATEMENT_BYTES = 64 * 1024 * 1024


@connect.remote
def report(
    *,
    month: Annotated[
        str | None, typer.Option(help="Which month, like 2026-11; the running one by default (grid time).")
    ] = None,
    fmt: Annotated[
        Format | None, typer.Option("--format", help="How it is written; by default as the file is called, else html.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's work; else of all.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="The file to write, .html, .pdf, .json or .csv; - is stdout.")
    ] = None,
    section: Annotated[
        str | None, typer.Option(help="With csv: this part alone, as a table, e.g. product_lines or inventory.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="The ledger as it was at this time, e.g. when a report was filed.")
    ] = None,
    clock: Annotated[ClockKind | None, typer.Option(help="Only entries of this clock.")] = None,
    months_back: Annotated[
        int, typer.Option("--months-back", min=0, max=11, help="Earlier months that efficiency is compared with.")
    ] = 1,
    statement: Annotated[
        str | None,
        typer.Option("--provider-statement", metavar="FILE.csv", help="A cloud provider's statement to compare with."),
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option("--provider-region", metavar="THEIRS=OURS", help="Which region of ours is theirs (repeat)."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--provider-column", metavar="FIELD=NAME", help="What their column for a field is called (repeat)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report a month: actual grams against budgets, efficiency, regions, saving, both books, and how good all is.

    Without --output it goes to stdout where that is no terminal; JSON and CSV go there anyhow. A PDF needs
    carbonq[report]. With --url, or CARBONQ_API_URL and no database here, it is the API's: of your key's tenant.

    Example: carbonq report --month 2026-11 --format pdf -o november.pdf

    Example: carbonq report --month 2026-11 --format csv --section inventory > inventory.csv
    """
    from carbonq.cli import results
    from carbonq.render import formats

    chosen = _format(fmt, output, as_json=as_json)
    formats.check(chosen, section)
    target = _target(output, chosen)
    if target != "-":
        results.check_writable(target)
    as_of_at = _time(as_of)
    if connect.is_elsewhere():
        _refuse_here_only({"--tenant": tenant, "--provider-statement": statement})
        with connect.open_client() as client:
            made = client.report(
                month or RUNNING,
                format=chosen.value,
                section=section,
                as_of=as_of_at,
                clock=clock and clock.value,
                months_back=months_back,
            )
        results.write([made], target)
        return
    pieces = _made(
        month,
        chosen,
        section,
        tenant=tenant,
        as_of=as_of_at,
        clock=clock,
        months_back=months_back,
        statement=None if statement is None else _lines(statement),
        columns=_columns(region or [], column or []),
    )
    results.write(pieces, target)


def _made(month: str | None, fmt: Format, section: str | None, **how: Any) -> Iterator[bytes]:
    """Make a report of the database of the settings. Raises InvalidRequest, ConfigError, StoreUnavailable."""
    from carbonq.render import formats
    from carbonq.services import report as reports

    with connect.open_database() as (settings, database):
        now = connect.clock_of(database).now()
        made = reports.make(
            database,
            f"{now:%Y-%m}" if month in {None, RUNNING} else str(month),
            now=now,
            settle_after_s=settings.settle_after_s,
            max_stale_s=settings.max_stale_s,
            **how,
        )
    return formats.write(made, fmt, section)


def _format(fmt: Format | None, output: str | None, *, as_json: bool) -> Format:
    """Return the format that was asked for, or that the file's name asks for. Raises InvalidRequest."""
    suffix = "" if output is None or output == "-" else Path(output).suffix.lstrip(".").lower()
    asked = fmt or (Format.JSON if as_json else None)
    if fmt is not None and as_json and fmt is not Format.JSON:
        raise InvalidRequest(f"--json and --format {fmt} ask for two formats; give one", param="format")
    if asked is not None:
        return asked
    if suffix in set(Format):
        return Format(suffix)
    if suffix:
        raise InvalidRequest(f"{output} says no format; add --format, one of {', '.join(Format)}", param="format")
    return Format.HTML


def _target(output: str | None, fmt: Format) -> str:
    """Return where to write; what a terminal cannot show does not go to one. Raises InvalidRequest."""
    if output is not None and output != "-":
        return output
    if sys.stdout.isatty() and fmt in {Format.HTML, Format.PDF}:
        raise InvalidRequest(f"a terminal cannot show {fmt}; name a file: -o report.{fmt}", param="output")
    return "-"


def _refuse_here_only(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"{name} goes with a database; over HTTP a report is of the tenant of your key")


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_iso(text)
    except ValueError as error:
        raise InvalidRequest(f"--as-of is {text!r}, no time; write it as 2026-12-04T09:00Z ({error})") from error


def _lines(file: str) -> list[str]:
    """Return the lines of a provider's statement; - is stdin. Raises InvalidRequest."""
    try:
        raw = sys.stdin.buffer.read(_STATEMENT_BYTES + 1) if file == "-" else _read(Path(file))
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror}", param="provider-statement") from error
    if len(raw) > _STATEMENT_BYTES:
        raise InvalidRequest(
            f"{file} is larger than {_STATEMENT_BYTES:,} bytes: leave the other months out", param="provider-statement"
        )
    try:
        # By its own line ends alone: a quoted cell may hold other letters that str.splitlines would cut at.
        return list(io.StringIO(raw.decode("utf-8-sig"), newline=""))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8 text; save it as UTF-8", param="provider-statement") from error


def _read(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(_STATEMENT_BYTES + 1)


def _columns(regions: Sequence[str], columns: Sequence[str]) -> Columns:
    """Return how a statement names things. Raises InvalidRequest."""
    from carbonq.statement import FIELDS, Columns, read_region_map

    names: dict[str, str] = {}
    for text in columns:
        field, separator, name = text.partition("=")
        if not separator or not name or field not in FIELDS:
            known = ", ".join(FIELDS)
            raise InvalidRequest(f"{text!r} names no column: write FIELD=NAME, FIELD one of {known}", param="column")
        names[field] = name
    return Columns(names=names, regions=read_region_map(regions))

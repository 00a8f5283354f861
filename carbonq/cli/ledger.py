"""``carbonq ledger``: the CSV for the auditor, its check, sums, and settlement; works on the database itself."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, emit_json, emit_pairs, emit_table, say
from carbonq.clock import ClockKind
from carbonq.readable import energy, grams

if TYPE_CHECKING:
    from carbonq.store.database import Database

app = typer.Typer(no_args_is_help=True, help="The ledger: export it, check an export, sum it up, settle it.")

Job = Annotated[str | None, typer.Option("--job", help="Only the entries of this job.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only the entries of this tenant.")]


def _check_job(database: Database, job: str | None) -> None:
    """Raise NotFound for a job that never was: an empty export would look like work without emissions."""
    from carbonq.store import exports, jobs

    if job is None or any(exports.pages(database, exports.Selection(job_id=job))):
        return
    with database.read() as tx:
        jobs.get(tx, job)  # a job without entries yet


@app.command("export")
def export_ledger(
    output: Annotated[str, typer.Option("--output", "-o", help="The CSV file to write; - is stdout.")] = "-",
    job: Job = None,
    tenant: Tenant = None,
    all_revisions: Annotated[
        bool, typer.Option("--all-revisions", help="Earlier revisions too, not only the current one of each entry.")
    ] = False,
) -> None:
    """Write the ledger as CSV: one line an entry, with every input of its figures.

    Example: carbonq ledger export -o ledger.csv && carbonq ledger verify ledger.csv
    """
    from carbonq import export
    from carbonq.cli import results
    from carbonq.store import exports

    selection = exports.Selection(tenant=tenant, job_id=job, all_revisions=all_revisions)
    with connect.open_database() as (_, database):
        _check_job(database, job)
        results.write(export.write_csv(exports.pages(database, selection)), output)


@app.command()
def verify(
    file: Annotated[str, typer.Argument(help="An exported CSV file; - is stdin.")], as_json: AsJson = False
) -> None:
    """Recompute every line of an export and check every whole engine batch; needs no database.

    Exit status 0: consistent. 1: some lines are wrong, each is named. 2: the file is no ledger export.

    Example: carbonq ledger verify ledger.csv
    """
    import io

    from carbonq import verify as checker

    try:
        standard_input = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="") if file == "-" else None
        report = checker.check(standard_input or file)
    except (checker.NotALedger, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        say(f"carbonq: {file}: {reason}")
        raise typer.Exit(2) from error
    if as_json:
        emit_json(asdict(report) | {"is_consistent": report.is_consistent})
    else:
        for problem in report.problems:
            sys.stdout.write(f"line {problem.line}: {problem.entry_id}: {problem.what}\n")
        say(report.summary())
    if not report.is_consistent:
        raise typer.Exit(1)


@app.command()
def summary(
    *,
    job: Job = None,
    tenant: Tenant = None,
    product_line: Annotated[str | None, typer.Option(help="Only this product line.")] = None,
    workload: Annotated[str | None, typer.Option(help="Only this workload.")] = None,
    clock: Annotated[ClockKind | None, typer.Option(help="Only entries of this clock.")] = None,
    as_json: AsJson = False,
) -> None:
    """Sum the current entries up: measured apart from estimated, provisional from settled, impact from inventory.

    Example: carbonq ledger summary --job job_01jd...
    """
    from carbonq.services import summary as sums

    with connect.open_database() as (_, database):
        _check_job(database, job)
        document = sums.summarize(
            database, tenant=tenant, job_id=job, product_line=product_line, workload=workload, clock=clock
        )
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    if not document["entries"]:
        say("the ledger has no such entries")
        return
    clock = document["clock"]
    emit_pairs(
        [
            ("entries", f"{document['entries']:,}"),
            ("clock", clock if clock == "real" else f"{clock}: grid time did not run with the wall clock"),
            ("tokens", f"{document['prompt_tokens']:,} in, {document['completion_tokens']:,} out"),
        ]
    )
    _section("energy, by kind and how it is known", ("kind", "quality", "entries", "energy"), document["energy"])
    _section("impact book (marginal: MOER x energy)", ("kind", "status", "entries", "emission"), document["impact"])
    _section(
        "inventory book (average: AER x energy; never added to the impact book)",
        ("kind", "status", "entries", "inventory"),
        document["inventory"],
    )
    _section(
        "saving against running at once at home, on the same energy (transfer is left out where unknown)",
        ("status", "quality", "entries", "energy", "baseline", "emission", "saved"),
        document["saving"],
    )


#: Heading of a column -> the field it shows and how.
_COLUMNS = {
    "entries": ("entries", "compared_entries"),
    "energy": ("energy_uj", "compared_energy_uj"),
    "emission": ("emission_g", "compared_emission_g"),
    "inventory": ("inventory_g",),
    "baseline": ("baseline_g",),
    "saved": ("saved_g",),
}


def _section(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    sys.stdout.write(f"\n{title}\n")
    emit_table(columns, [[_cell(column, row) for column in columns] for row in rows])


def _cell(column: str, row: dict[str, Any]) -> str:
    fields = [name for name in _COLUMNS.get(column, (column,)) if name in row]
    value = row[fields[0]]
    if column == "energy":
        return energy(value)
    if column in {"emission", "inventory", "baseline", "saved"}:
        return grams(value)
    return str(value)


@app.command()
def settle(as_json: AsJson = False) -> None:
    """Append a settled revision to each entry whose observed rate has come; safe to run at any time.

    Example: carbonq ledger settle
    """
    from carbonq.errors import ConfigError
    from carbonq.services.settle import settle as settle_ledger
    from carbonq.store import clocks

    with connect.open_database() as (settings, database):
        with database.read() as tx:
            clock = clocks.get(tx)
        if clock is None:
            raise ConfigError("this installation was never started, so there is nothing to settle; run `carbonq up`")
        total = 0
        while count := settle_ledger(database, clock.now(), settle_after_s=settings.settle_after_s):
            total += count
    if as_json:
        emit_json({"revisions": total})
    else:
        say(f"{total:,} entries settled" if total else "nothing to settle")

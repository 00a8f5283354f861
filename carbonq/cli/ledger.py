"""``carbonq ledger``: the CSV for the auditor, its check, sums, and settlement; works on the database itself."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from carbonq.cli import connect, ledger_history, ledger_seals
from carbonq.cli.output import AsJson, complain, emit_json, say
from carbonq.clock import ClockKind
from carbonq.errors import InvalidRequest
from carbonq.model import EntryKind, RateStatus
from carbonq.units import parse_iso

if TYPE_CHECKING:
    from carbonq.client.shared import LedgerSelection
    from carbonq.store.database import Database

app = typer.Typer(no_args_is_help=True, help="The ledger: export it, check an export, sum it up, settle it.")

Job = Annotated[str | None, typer.Option("--job", help="Only the entries of this job.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only the entries of this tenant.")]
Region = Annotated[str | None, typer.Option("--region", help="Only the entries of this region.")]
From = Annotated[str | None, typer.Option("--from", help="Only windows from this time on, e.g. 2026-03-01T00:00Z.")]
To = Annotated[str | None, typer.Option("--to", help="Only windows before this time.")]
AsOf = Annotated[str | None, typer.Option(help="The ledger as it was at this time, e.g. when a report was filed.")]


def _check_job(database: Database, job: str | None) -> None:
    """Raise NotFound for a job that never was: an empty export would look like work without emissions."""
    from carbonq.store import exports, jobs

    if job is None:
        return
    with database.read() as tx:
        if not exports.is_any(tx, exports.Selection(job_id=job)):
            jobs.get(tx, job)  # a job without entries yet


def _time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_iso(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} is {text!r}, no time; write it as 2026-03-01T00:00Z ({error})") from error


@app.command("export")
@connect.remote
def export_ledger(
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The file to write, .csv, .csv.gz or .parquet; - is CSV on stdout.")
    ] = "-",
    job: Job = None,
    tenant: Tenant = None,
    region: Region = None,
    kind: Annotated[EntryKind | None, typer.Option(help="Only entries of this kind.")] = None,
    status: Annotated[RateStatus | None, typer.Option(help="Only entries whose marginal rate is so final.")] = None,
    start: From = None,
    end: To = None,
    as_of: AsOf = None,
    all_revisions: Annotated[
        bool, typer.Option("--all-revisions", help="Earlier revisions too, not only the current one of each entry.")
    ] = False,
    after: Annotated[
        str | None, typer.Option(help="Go on after this line: ENTRY_ID, or ENTRY_ID#REVISION with --all-revisions.")
    ] = None,
    header: Annotated[bool, typer.Option(help="Write the header; not wanted where a file is continued.")] = True,
) -> None:
    """Write the ledger: one line an entry, with every input of its figures.

    The same selection as of the same time gives the same bytes. With --url, or CARBONQ_API_URL and no database here,
    it is the API that writes: the entries of the key's tenant; a connection that breaks is made again and goes on.

    Example: carbonq ledger export -o ledger.csv && carbonq ledger verify ledger.csv

    Example: carbonq ledger export --url https://carbonq.example --from 2026-03-01T00:00Z -o march.csv.gz
    """
    from carbonq.cli import results
    from carbonq.services import export
    from carbonq.store import exports

    if connect.is_elsewhere():
        if tenant is not None:
            raise typer.BadParameter("--tenant goes with a database; over HTTP it is the tenant of your key")
        _export_from_api(
            output,
            {
                "job_id": job,
                "region": region,
                "kind": kind and kind.value,
                "status": status and status.value,
                "start_at": _time(start, "--from"),
                "end_at": _time(end, "--to"),
                "as_of": _time(as_of, "--as-of"),
                "revisions": "all" if all_revisions else "current",
                "after": after,
                "header": "present" if header else "absent",
            },
        )
        return

    selection = exports.Selection(
        tenant=tenant,
        job_id=job,
        all_revisions=all_revisions,
        region=region,
        kind=kind and kind.value,
        status=status and status.value,
        start_at=_time(start, "--from"),
        end_at=_time(end, "--to"),
        as_of=_time(as_of, "--as-of"),
        after=after,
    )
    with connect.open_database() as (_, database):
        _check_job(database, job)
        results.write(export.stream(database, selection, export.Format.of(output), has_header=header), output)


def _export_from_api(output: str, selection: LedgerSelection) -> None:
    from carbonq.cli import results

    with connect.open_client() as client:
        if output == "-":
            results.write(client.ledger_csv(**selection), output)
            return
        results.check_writable(output)
        client.export_ledger(output, **selection)
    say(f"wrote {output}")


@app.command()
def verify(
    file: Annotated[str | None, typer.Argument(help="An exported CSV file (.csv or .csv.gz); - is stdin.")] = None,
    *,
    db: Annotated[bool, typer.Option("--db", help="Check the database itself against its seals.")] = False,
    head: Annotated[str | None, typer.Option(help="With --db: the hash of a seal that was filed elsewhere.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every line of an export and check every whole engine batch; needs no database.

    With --db it checks the database: every line and seal against the chain, and then every line recomputed.

    Exit status 0: consistent. 1: some lines are wrong, each is named. 2: the file is no ledger export.

    Example: carbonq ledger verify ledger.csv
    """
    import io

    if db == (file is not None) or (head is not None and not db):
        raise InvalidRequest("name an exported file, or say --db (and with it --head HASH)", param="file")
    if file is None:
        ledger_seals.verify_database(head, as_json=as_json)
        return

    from carbonq import verify as checker

    try:
        standard_input = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="") if file == "-" else None
        report = checker.check(standard_input or file)
    except (checker.NotALedger, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        complain(f"carbonq: {file}: {reason}")
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
    region: Region = None,
    clock: Annotated[ClockKind | None, typer.Option(help="Only entries of this clock.")] = None,
    start: From = None,
    end: To = None,
    as_of: AsOf = None,
    by: Annotated[
        str | None,
        typer.Option(help="Sums for each of these too: tenant, product_line, workload, model, region, day, month."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sum the current entries up: measured apart from estimated, provisional from settled, impact from inventory.

    Example: carbonq ledger summary --from 2026-03-01T00:00Z --to 2026-04-01T00:00Z --by tenant,model
    """
    from carbonq.cli import ledger_sums
    from carbonq.services import export
    from carbonq.services import summary as sums
    from carbonq.store.exports import Selection
    from carbonq.store.figures import Scope

    scope = Scope(
        tenant=tenant,
        job_id=job,
        product_line=product_line,
        workload=workload,
        region=region,
        clock=clock,
        start_at=_time(start, "--from"),
        end_at=_time(end, "--to"),
        as_of=_time(as_of, "--as-of"),
    )
    with connect.open_database() as (_, database):
        _check_job(database, job)
        export.check(
            database,
            Selection(region=region, start_at=scope.start_at, end_at=scope.end_at, as_of=scope.as_of),
        )
        document = sums.summarize(database, scope, [] if by is None else [name.strip() for name in by.split(",")])
    if as_json:
        emit_json(document)
    else:
        ledger_sums.show(document)


app.command("seal")(ledger_seals.seal)
app.command("proof")(ledger_seals.proof)
ledger_history.add_to(app)

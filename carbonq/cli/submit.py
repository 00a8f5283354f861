"""``carbonq submit``: send a file as a job, and wait for its results if asked to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.cli import complete, connect, results
from carbonq.cli.inputs import Given, first_line, format_of, opened, watched
from carbonq.cli.output import AsJson, bar, emit_json, say
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint

if TYPE_CHECKING:
    from carbonq.client import Client
    from carbonq.client.calls import Terms

app = typer.Typer(no_args_is_help=True, help="Submit a job: embeddings, summaries, or a file of OpenAI batch lines.")

Input = Annotated[str, typer.Argument(metavar="INPUT", help="File to read; - is stdin.")]
Deadline = Annotated[str, typer.Option("--deadline", help="Finished by: 6h, 90m, 2d, or an ISO time with its zone.")]
Regions = Annotated[
    list[str] | None,
    typer.Option("--region", help="Only this region (may be repeated).", autocompletion=complete.regions),
]
MaxCarbon = Annotated[str | None, typer.Option("--max-carbon-g", metavar="G", help="Carbon cap in gCO2e.")]
ProductLine = Annotated[str | None, typer.Option("--product-line", metavar="P", help="For budgets and reports.")]
Workload = Annotated[str | None, typer.Option("--workload", metavar="W", help="For budgets and reports.")]
LatePolicy = Annotated[str | None, typer.Option("--late", help="After the deadline: finish_late or expire.")]
Downgrade = Annotated[
    bool | None,
    typer.Option("--downgrade/--no-downgrade", help="Whether a smaller model may run it; unset: as the settings say."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done; exit status 1 if anything of it failed.")]
Output = Annotated[str | None, typer.Option("-o", "--output", metavar="OUT", help="Write the results (waits).")]
Metadata = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=TEXT", help="A note of your own (may be repeated).")
]
Once = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="NAME", help="Submitted again under this name, it is the same job."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Store nothing; print what the job would cause, as `quote`.")]
Format = Annotated[str, typer.Option("--format", help="auto, jsonl, csv or text (one document a line).")]
Column = Annotated[str | None, typer.Option("--column", help="CSV: the column that holds the text.")]


@dataclass(frozen=True, slots=True)
class _Ask:
    """What all three commands ask of the API and do afterwards."""

    deadline: str
    regions: list[str] | None
    max_carbon_g: str | None
    product_line: str | None
    workload: str | None
    late_policy: str | None
    downgrade: bool | None
    metadata: list[str] | None
    idempotency_key: str | None
    is_waiting: bool
    output: str | None
    is_dry: bool
    as_json: bool

    def terms(self, endpoint: str) -> Terms:
        """Return what the API is told beside items, model and deadline."""
        return {
            "endpoint": endpoint,
            "regions": self.regions or None,
            "max_carbon_g": self.max_carbon_g,
            "product_line": self.product_line,
            "workload": self.workload,
            "late_policy": self.late_policy,
            "downgrade": self.downgrade,
            "metadata": dict(_pair(one) for one in self.metadata or ()),
        }


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f"{text!r} is not KEY=TEXT", param_hint="--metadata")
    return name, value


@app.command()
@connect.remote
def embeddings(
    source: Input,
    *,
    deadline: Deadline,
    model: Annotated[
        str, typer.Option("--model", help="Embeddings model.", autocompletion=complete.models)
    ] = "wordllama-256",
    fmt: Format = "auto",
    column: Column = None,
    region: Regions = None,
    max_carbon_g: MaxCarbon = None,
    product_line: ProductLine = None,
    workload: Workload = None,
    late: LatePolicy = None,
    downgrade: Downgrade = None,
    metadata: Metadata = None,
    idempotency_key: Once = None,
    wait: Wait = False,
    output: Output = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Embed the documents of INPUT: {"id", "text"} or OpenAI lines, CSV with --column, or plain text lines.

    Example: carbonq submit embeddings docs.jsonl --deadline 6h --wait -o out.jsonl

    Example: carbonq submit embeddings docs.csv --column body --deadline 6h --dry-run
    """
    ask = _Ask(
        deadline,
        region,
        max_carbon_g,
        product_line,
        workload,
        late,
        downgrade,
        metadata,
        idempotency_key,
        wait,
        output,
        dry_run,
        as_json,
    )
    _submit_documents(source, Endpoint.EMBEDDINGS, model, ask, fmt=fmt, column=column)


@app.command()
@connect.remote
def summarize(
    source: Input,
    *,
    deadline: Deadline,
    model: Annotated[
        str, typer.Option("--model", help="Chat model.", autocompletion=complete.models)
    ] = "smollm2-135m-instruct",
    fmt: Format = "auto",
    column: Column = None,
    region: Regions = None,
    max_carbon_g: MaxCarbon = None,
    product_line: ProductLine = None,
    workload: Workload = None,
    late: LatePolicy = None,
    downgrade: Downgrade = None,
    metadata: Metadata = None,
    idempotency_key: Once = None,
    wait: Wait = False,
    output: Output = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Summarise the documents of INPUT; the formats are those of `submit embeddings`.

    Example: carbonq submit summarize articles.csv --column body --deadline 8h --wait -o summaries.jsonl
    """
    ask = _Ask(
        deadline,
        region,
        max_carbon_g,
        product_line,
        workload,
        late,
        downgrade,
        metadata,
        idempotency_key,
        wait,
        output,
        dry_run,
        as_json,
    )
    _submit_documents(source, Endpoint.CHAT, model, ask, fmt=fmt, column=column)


@app.command()
@connect.remote
def file(
    source: Input,
    *,
    deadline: Deadline,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model; unset: the one the first line names.", autocompletion=complete.models),
    ] = None,
    region: Regions = None,
    max_carbon_g: MaxCarbon = None,
    product_line: ProductLine = None,
    workload: Workload = None,
    late: LatePolicy = None,
    downgrade: Downgrade = None,
    metadata: Metadata = None,
    idempotency_key: Once = None,
    wait: Wait = False,
    output: Output = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Submit a file of OpenAI batch lines ({"custom_id", "method", "url", "body"}) as it is.

    Example: carbonq submit file batch.jsonl --deadline 24h
    """
    ask = _Ask(
        deadline,
        region,
        max_carbon_g,
        product_line,
        workload,
        late,
        downgrade,
        metadata,
        idempotency_key,
        wait,
        output,
        dry_run,
        as_json,
    )
    from carbonq import jsonl

    _check_output(source, ask)
    with opened(source) as given:
        first, number, rest = first_line(given.lines)
        facts = jsonl.parse_line(first.removeprefix(b"\xef\xbb\xbf").strip(), number)
        url, named = facts.url, model or facts.model
        if url is None or named is None:
            raise InvalidRequest("the first line must name its url and body.model, or give --model", line=number)
        _submit(rest, url, named, given, ask)


def _submit_documents(source: str, endpoint: Endpoint, model: str, ask: _Ask, *, fmt: str, column: str | None) -> None:
    from carbonq import jsonl

    _check_output(source, ask)
    with opened(source) as given:
        made = jsonl.to_openai_lines(
            given.lines, fmt=format_of(fmt, source), column=column, endpoint=endpoint, model=model
        )
        _submit(made, endpoint.value, model, given, ask)


def _submit(lines: Iterable[bytes], endpoint: str, model: str, given: Given, ask: _Ask) -> None:
    with connect.open_client() as client:
        with bar("sending", total=given.size, is_bytes=True) as advance:
            sent = watched(lines, given, advance)
            if ask.is_dry:
                found = client.quote(sent, model=model, deadline=ask.deadline, **ask.terms(endpoint)).raw
            else:
                found = client.submit(
                    sent,
                    model=model,
                    deadline=ask.deadline,
                    idempotency_key=ask.idempotency_key,
                    **ask.terms(endpoint),
                ).raw
        if ask.is_dry:
            _show_quote(found, ask)
        else:
            _follow(client, found, ask)


def _show_quote(found: dict[str, Any], ask: _Ask) -> None:
    from carbonq.cli import quote

    if ask.as_json:
        emit_json(found)
        return
    quote.show(found)
    say("nothing was stored; next: the same without --dry-run")


def _follow(client: Client, job: dict[str, Any], ask: _Ask) -> None:
    total = job["progress"]["total"]
    say(f"{job['id']}: {total:,} item{'s'[: total != 1]}, to be finished by {job['deadline_at']}")
    if job.get("infeasible"):
        say(job["infeasible"])
    if ask.is_waiting or ask.output is not None:
        job = results.wait(client, job)
    if ask.as_json:
        emit_json(job)
    elif not (ask.is_waiting or ask.output):
        typer.echo(job["id"])
        say(f"next: carbonq jobs watch {job['id']}, then carbonq jobs results {job['id']} -o out.jsonl")
    if ask.is_waiting or ask.output is not None:
        results.deliver(client, job, ask.output)


def _check_output(source: str, ask: _Ask) -> None:
    """Refuse before anything is sent what could not be written when the job is done. Raises InvalidRequest."""
    if ask.output is None:
        return
    if ask.output == "-":
        if ask.as_json:
            raise typer.BadParameter("--json and -o - would both write to stdout; give -o a file")
        return
    results.check_writable(ask.output)
    if source != "-" and Path(ask.output).exists() and Path(source).exists() and Path(ask.output).samefile(source):
        raise InvalidRequest(f"cannot write {ask.output}: it is the input; give -o another file")

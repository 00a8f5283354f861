"""``carbonq submit``: send a file as a job, and wait for its results if asked to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from carbonq.cli import connect, results
from carbonq.cli.inputs import Given, first_line, format_of, opened, watched
from carbonq.cli.output import AsJson, bar, emit_json, say
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint

app = typer.Typer(no_args_is_help=True, help="Submit a job: embeddings, summaries, or a file of OpenAI batch lines.")

Input = Annotated[str, typer.Argument(metavar="INPUT", help="File to read; - is stdin.")]
Deadline = Annotated[str, typer.Option("--deadline", help="Finished by: 6h, 90m, 2d, or an ISO time with its zone.")]
Regions = Annotated[list[str] | None, typer.Option("--region", help="Only this region (may be repeated).")]
MaxCarbon = Annotated[str | None, typer.Option("--max-carbon-g", metavar="G", help="Carbon cap in gCO2e.")]
ProductLine = Annotated[str | None, typer.Option("--product-line", metavar="P", help="For budgets and reports.")]
Workload = Annotated[str | None, typer.Option("--workload", metavar="W", help="For budgets and reports.")]
LatePolicy = Annotated[str | None, typer.Option("--late", help="After the deadline: finish_late or expire.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done; exit status 1 if anything of it failed.")]
Output = Annotated[str | None, typer.Option("-o", "--output", metavar="OUT", help="Write the results (waits).")]
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
    is_waiting: bool
    output: str | None
    as_json: bool


@app.command()
def embeddings(
    source: Input,
    *,
    deadline: Deadline,
    model: Annotated[str, typer.Option("--model", help="Embeddings model.")] = "wordllama-256",
    fmt: Format = "auto",
    column: Column = None,
    region: Regions = None,
    max_carbon_g: MaxCarbon = None,
    product_line: ProductLine = None,
    workload: Workload = None,
    late: LatePolicy = None,
    wait: Wait = False,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Embed the documents of INPUT: {"id", "text"} or OpenAI lines, CSV with --column, or plain text lines.

    Example: carbonq submit embeddings docs.jsonl --deadline 6h --wait -o out.jsonl
    """
    ask = _Ask(deadline, region, max_carbon_g, product_line, workload, late, wait, output, as_json)
    _submit_documents(source, Endpoint.EMBEDDINGS, model, ask, fmt=fmt, column=column)


@app.command()
def summarize(
    source: Input,
    *,
    deadline: Deadline,
    model: Annotated[str, typer.Option("--model", help="Chat model.")] = "smollm2-135m-instruct",
    fmt: Format = "auto",
    column: Column = None,
    region: Regions = None,
    max_carbon_g: MaxCarbon = None,
    product_line: ProductLine = None,
    workload: Workload = None,
    late: LatePolicy = None,
    wait: Wait = False,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Summarise the documents of INPUT; the formats are those of `submit embeddings`.

    Example: carbonq submit summarize articles.csv --column body --deadline 8h --wait -o summaries.jsonl
    """
    ask = _Ask(deadline, region, max_carbon_g, product_line, workload, late, wait, output, as_json)
    _submit_documents(source, Endpoint.CHAT, model, ask, fmt=fmt, column=column)


@app.command()
def file(
    source: Input,
    *,
    deadline: Deadline,
    model: Annotated[str | None, typer.Option("--model", help="Model; unset: the one the first line names.")] = None,
    region: Regions = None,
    max_carbon_g: MaxCarbon = None,
    product_line: ProductLine = None,
    workload: Workload = None,
    late: LatePolicy = None,
    wait: Wait = False,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Submit a file of OpenAI batch lines ({"custom_id", "method", "url", "body"}) as it is.

    Example: carbonq submit file batch.jsonl --deadline 24h
    """
    ask = _Ask(deadline, region, max_carbon_g, product_line, workload, late, wait, output, as_json)
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
            job = client.submit(
                watched(lines, given, advance),
                endpoint=endpoint,
                model=model,
                deadline=ask.deadline,
                regions=ask.regions or (),
                max_carbon_g=ask.max_carbon_g,
                product_line=ask.product_line,
                workload=ask.workload,
                late_policy=ask.late_policy,
            ).raw
        say(f"{job['id']}: {job['progress']['total']:,} items, to be finished by {job['deadline_at']}")
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

"""``carbonq jobs``: look at jobs, follow, cancel and fetch them."""

from __future__ import annotations

import shutil
import textwrap
from typing import Annotated, Any

import typer

from carbonq.cli import complete, connect, results
from carbonq.cli.output import AsJson, Yes, confirm, emit_json, emit_pairs, emit_table, say
from carbonq.model import JobState

app = typer.Typer(no_args_is_help=True, help="Jobs: list, show, watch, cancel, results, why.")

JobId = Annotated[
    str, typer.Argument(metavar="JOB", help="The id that `submit` printed.", autocompletion=complete.job_ids)
]


@app.command("list")
@connect.remote
def list_jobs(
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, newest first.")] = 20,
    is_all: Annotated[bool, typer.Option("--all", help="All of them, however many.")] = False,
    state: Annotated[list[JobState] | None, typer.Option("--state", help="Only these (may be repeated).")] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first.

    Example: carbonq jobs list --limit 50

    Example: carbonq jobs list --state running --state waiting
    """
    states = [one.value for one in state or ()]
    with connect.open_client() as client:
        jobs = [job.raw for job in client.jobs(limit=None if is_all else limit, states=states)]
    if as_json:
        emit_json(jobs)
        return
    columns = ("id", "state", "model", "ended", "total", "created_at", "deadline_at")
    emit_table(columns, [[_cell(job, column) for column in columns] for job in jobs])
    if not jobs:
        say("no such job" if states else "no job yet; next: carbonq submit embeddings docs.jsonl --deadline 6h")
    elif not is_all and len(jobs) == limit:
        say(f"the newest {limit}; --all lists all")


def _cell(job: dict[str, Any], column: str) -> object:
    if column in {"ended", "total"}:
        return job["progress"][column]
    return _seconds(job[column]) if column.endswith("_at") else job[column]


def _seconds(time: str) -> str:
    """Shorten a time to whole seconds."""
    return time.partition(".")[0] + "Z" if "." in time else time


@app.command()
@connect.remote
def show(job_id: JobId, as_json: AsJson = False) -> None:
    """Show one job: progress, placement, energy and carbon.

    Example: carbonq jobs show job_01m8...
    """
    with connect.open_client() as client:
        job = client.job(job_id).raw
    if as_json:
        emit_json(job)
        return
    names = ("id", "state", "phase", "model", "regions", "created_at", "deadline_at", "started_at", "finished_at")
    counts = [(name, value) for name, value in job["progress"].items() if value]
    smaller = [(f"downgraded: {reason}", count) for reason, count in (job.get("downgraded") or {}).items()]
    emit_pairs([*((name, job.get(name)) for name in names), *counts, *smaller])
    for line in results.summary(job)[1:]:
        typer.echo(line)


@app.command()
@connect.remote
def watch(job_id: JobId, as_json: AsJson = False) -> None:
    """Follow a job until it is done; exit status 1 if anything of it failed.

    Example: carbonq jobs watch job_01m8...
    """
    with connect.open_client() as client:
        job = results.wait(client, client.job(job_id).raw)
        if as_json:
            emit_json(job)
        results.deliver(client, job, None)


@app.command()
@connect.remote
def cancel(job_id: JobId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Cancel what of a job has not run yet; what has run keeps its results.

    On a terminal it asks before, unless --yes is given.

    Example: carbonq jobs cancel job_01m8... --yes
    """
    confirm(f"Cancel what of {job_id} has not run yet?", is_sure=yes)
    with connect.open_client() as client:
        job = client.cancel(job_id).raw
    if as_json:
        emit_json(job)
    else:
        say(f"{job_id}: {job['state']}" + (", cancelling" if job["is_cancel_requested"] else ""))
        say(f"next: carbonq jobs show {job_id}")


@app.command("results")
@connect.remote
def fetch(
    job_id: JobId,
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="File to write; - is stdout.")] = "-",
    errors: Annotated[bool, typer.Option("--errors", help="The lines of failed items instead.")] = False,
) -> None:
    """Write a finished job's results: OpenAI batch output lines, in the order they were done.

    A file appears whole or not at all; where the last call was cut off, this one goes on.

    Example: carbonq jobs results job_01m8... -o out.jsonl

    Example: carbonq jobs results job_01m8... | jq -r .custom_id
    """
    with connect.open_client() as client:
        results.fetch(client, job_id, output, errors=errors)


@app.command()
@connect.remote
def why(
    job_id: JobId,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Groups of chunks told of, nearest window first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Say where and when the chunks of a job run, and why there: what was cleaner and passed over, and the runner-up.

    Chunks alike are told of together. `/v1/jobs/JOB/chunks` has a line for each.

    Example: carbonq jobs why job_01m8...
    """
    with connect.open_client() as client:
        found = client.why(job_id, limit=min(limit, 100)).raw
        while found["has_more"] and len(found["data"]) < limit:
            left = min(limit - len(found["data"]), 100)
            page = client.why(job_id, after=found["last_id"], limit=left).raw
            found |= {"data": [*found["data"], *page["data"]], "last_id": page["last_id"], "has_more": page["has_more"]}
    if as_json:
        emit_json(found)
        return
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    typer.echo(textwrap.fill(found["summary"], width))
    for one in found["data"]:
        typer.echo("")
        for number, sentence in enumerate(one["sentences"]):
            typer.echo(textwrap.fill(sentence, width, initial_indent="  " if number else "", subsequent_indent="  "))
    if found["has_more"]:
        say(f"{len(found['data'])} groups; there are more: --limit {limit * 5}")

"""The command ``carbonq``: data on stdout, messages on stderr, exit status 0, 1 (one sentence says why) or 2 (usage).

Commands live one noun to a file; each imports what it needs when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from carbonq import __version__
from carbonq.cli import (
    audit,
    audit_log,
    bench,
    budget,
    config,
    connect,
    db,
    demo,
    doctor,
    forecast,
    health,
    holds,
    jobs,
    keys,
    ledger,
    measured,
    models,
    output,
    plan,
    quote,
    regions,
    replay,
    report,
    shared,
    submit,
    target,
    top,
    up,
    webhooks,
    worker,
)
from carbonq.errors import CarbonqError, Infeasible, InvalidRequest, Unavailable
from carbonq.model import HeldKind

app = typer.Typer(
    name="carbonq",
    help="A carbon-aware job queue for batch AI inference, with a ledger anyone can recompute.\n\n"
    "Example: carbonq demo\n\nExample: carbonq up\n\n"
    "Example: carbonq submit embeddings docs.jsonl --deadline 6h --wait -o out.jsonl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


#: Errors of files that are the machine's to mend, not defects: full, read-only or forbidden.
_MACHINE_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
    quiet: shared.Quiet = False,
    no_color: shared.NoColor = False,
    url: shared.Url = None,
) -> None:
    """Hold the options that belong to no command; those of all commands may stand before them too."""
    ctx.with_resource(output.speaking(is_quiet=quiet, is_colourless=no_color))
    ctx.with_resource(connect.talking_to(url))


app.command("demo")(demo.demo)
app.command("up")(up.up)
app.add_typer(submit.app, name="submit")
app.command("quote")(quote.quote)
app.command("top")(top.top)
app.add_typer(jobs.app, name="jobs")
measured.add_to(plan.app)
app.add_typer(plan.app, name="plan")
app.add_typer(forecast.app, name="forecast")
holds.add_to(regions.app, HeldKind.REGION)
app.add_typer(regions.app, name="regions")
holds.add_to(models.app, HeldKind.MODEL, known=holds.model_names)
app.add_typer(models.app, name="models")
app.add_typer(holds.tenants, name="tenants")
app.add_typer(ledger.app, name="ledger")
app.command("report")(report.report)
app.command("audit")(audit.audit)
app.add_typer(budget.app, name="budget")
app.add_typer(target.app, name="target")
app.add_typer(keys.app, name="keys")
app.add_typer(audit_log.app, name="audit-log")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(db.app, name="db")
app.add_typer(config.app, name="config")
app.add_typer(replay.app, name="replay")
app.add_typer(bench.app, name="bench")
app.command("doctor")(doctor.doctor)
app.command("health")(health.health)
app.command("worker")(worker.worker)
app.command("process")(worker.process)

shared.give_to(app)


def sentence(error: CarbonqError) -> str:
    """Return what is told about an error: its sentence, the field or line if it does not name it, and the way out."""
    text = error.message
    if isinstance(error, InvalidRequest):
        if error.line is not None and f"line {error.line}" not in text:
            text = f"line {error.line}: {text}"
        if error.param and error.param not in text:
            text = f"{text} (field: {error.param})"
    if isinstance(error, Infeasible) and error.best not in text:
        text = f"{text.rstrip('.')}; {error.best}"
    if isinstance(error, Unavailable) and error.request_id and error.request_id not in text:
        text = f"{text} (request {error.request_id})"
    return text


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except CarbonqError as error:
        sys.stderr.write(f"carbonq: {sentence(error)}\n")
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output went away (`carbonq ... | head`); the interpreter must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in _MACHINE_TROUBLE:
            raise
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"carbonq: {where}{error.strerror}; `carbonq doctor` looks the machine over\n")
        sys.exit(1)
    except UnicodeEncodeError:
        wrong = next((text for text in sys.argv if _is_broken(text)), None)
        if wrong is None:
            raise
        sys.stderr.write(f"carbonq: {wrong!a} is no text in UTF-8\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _is_broken(text: str) -> bool:
    """Say whether an argument has bytes that are no UTF-8: they are good in the name of a file, and nowhere else."""
    return any("\udc80" <= letter <= "\udcff" for letter in text)

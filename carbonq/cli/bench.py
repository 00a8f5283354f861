"""``carbonq bench``: measure this machine beside a yardstick in the same run; figures as JSON on stdout."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from carbonq.cli.output import emit_json, say

app = typer.Typer(help="Measure this machine beside a yardstick in the same run.", no_args_is_help=True)


def _in_scratch(measure: Callable[[Path], dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory(prefix="carbonq-bench-") as folder:
        emit_json(measure(Path(folder)))


@app.command("run")
def run(
    items: Annotated[int, typer.Option(min=1, max=50_000, help="Documents to embed.")] = 20_000,
    words: Annotated[int, typer.Option(min=1, help="Words in a document.")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs; the median pair is reported.")] = 3,
) -> None:
    """Items per second end to end beside the engine in a plain loop.

    Example: carbonq bench run --items 20000
    """
    from carbonq.bench.run import bench

    _in_scratch(lambda folder: bench(folder, items=items, words=words, rounds=rounds, report=say))


@app.command("realtime")
def realtime(
    calls: Annotated[int, typer.Option(min=1, help="Requests to make, one after another.")] = 500,
) -> None:
    """Milliseconds a realtime call costs over its engine call.

    Example: carbonq bench realtime --calls 500
    """
    from carbonq.bench.realtime import bench

    _in_scratch(lambda folder: bench(folder, calls=calls, report=say))

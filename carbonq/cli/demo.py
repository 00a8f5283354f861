"""``carbonq demo``: the main job end to end, on this machine, in three minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from carbonq.cli.output import AsJson, emit_json

_FOLDER = Path(".carbonq-demo")


def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where it keeps database, logs, results and CSV.")] = _FOLDER,
    as_json: AsJson = False,
) -> None:
    """Run two real jobs in clean windows of a recorded grid, on the whole stack, and check the ledger; 1 if it fails.

    Needs no GPU, no network and no configuration; settings of your own play no part in it.

    Example: carbonq demo --folder /tmp/carbonq-demo
    """
    from carbonq.demo import run

    outcome = run.run(folder, is_quiet=as_json)
    if as_json:
        emit_json(outcome.as_json())
    if not outcome.is_met:
        raise typer.Exit(1)

"""``carbonq doctor``: is this machine ready, and if not, what to do about it."""

from __future__ import annotations

import typer

from carbonq.cli.output import AsJson, emit_json, emit_table, say


def doctor(as_json: AsJson = False) -> None:
    """Check Python, settings, broker, ports, database, models, meters, grid sources and disk; exit 1 if one fails.

    Example: carbonq doctor
    """
    from carbonq import config
    from carbonq.embedded import checkup

    findings = checkup.run(config.load())
    if as_json:
        emit_json([{"check": one.check, "state": one.state.value, "finding": one.finding} for one in findings])
    else:
        emit_table(("state", "check", "finding"), [(one.state.value, one.check, one.finding) for one in findings])
    failed = [one.check for one in findings if one.state is checkup.State.FAIL]
    if failed:
        say(f"not ready: {', '.join(failed)}")
        raise typer.Exit(1)

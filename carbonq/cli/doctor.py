"""``carbonq doctor``: is this machine ready, and if not, what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from carbonq.cli.output import AsJson, complain, emit_json, emit_table, say

if TYPE_CHECKING:
    from carbonq.config import Settings, Sources


def doctor(
    region: Annotated[
        str | None, typer.Option("--region", help="Check what a host needs that runs a worker of this region.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, broker, database, settings, clock, blobs, models, meters, grid and disk; exit 1 if one fails.

    Example: carbonq doctor --region norcal
    """
    from carbonq import config
    from carbonq.embedded import checkup

    sources = config.given()
    findings = checkup.run(_settings(sources, region), region=region, sources=sources)
    if as_json:
        emit_json([{"check": one.check, "state": one.state.value, "finding": one.finding} for one in findings])
    else:
        emit_table(("state", "check", "finding"), [(one.state.value, one.check, one.finding) for one in findings])
    failed = [one.check for one in findings if one.state is checkup.State.FAIL]
    if failed:
        complain(f"not ready: {', '.join(dict.fromkeys(failed))}")
        raise typer.Exit(1)


def _settings(sources: Sources, region: str | None) -> Settings:
    """Return the settings, with those of the installation's database where it answers.

    Without regions where a worker's host knows of none: those of the demo would hide that a database is missing.
    """
    from carbonq import wiring
    from carbonq.embedded import finding
    from carbonq.errors import Unavailable

    try:
        shared = finding.within(finding.PATIENCE_S, lambda: wiring.stored_settings(sources))()
    except Unavailable as error:
        say(f"without the installation's settings: {error.message}")
        if not sources.has_regions:
            return sources.basics()
        shared = None
    if region is not None and shared is None and not sources.has_regions:
        return sources.basics()
    return sources.read(shared).settings

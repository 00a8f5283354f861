"""``carbonq plan observed`` and ``plan holdout``: what planning would save, and what it measurably saves."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from carbonq.cli import connect
from carbonq.cli.output import AsJson, emit_json, emit_pairs, emit_table, say
from carbonq.errors import InvalidRequest

_Tenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's work.")]
_Since = Annotated[
    str | None,
    typer.Option("--since", help="Only what ran in windows from this time on (ISO 8601 with Z or an offset)."),
]
_Until = Annotated[str | None, typer.Option("--until", help="Only what ran before this time.")]
_Clock = Annotated[
    str | None, typer.Option("--clock", help="real, accelerated or simulated, where entries ran on several.")
]


def add_to(app: typer.Typer) -> None:
    """Add the two commands to a group."""
    app.command()(observed)
    app.command()(holdout)


def observed(
    tenant: _Tenant = None,
    since: _Since = None,
    until: _Until = None,
    clock: _Clock = None,
    as_json: AsJson = False,
) -> None:
    """Show what would have been saved on work that is only observed (observe_only, observe_tenants).

    Emission is what it caused where it ran at once; realised is the same energy where carbonq would have run it.

    Example: carbonq plan observed --since 2026-11-01T00:00Z
    """
    from carbonq.services import measured

    with connect.open_database() as (settings, database):
        document = measured.observed(
            database,
            connect.clock_of(database).now(),
            settle_after_s=settings.settle_after_s,
            max_stale_s=settings.max_stale_s,
            tenant=tenant,
            start=_time(since, "since"),
            end=_time(until, "until"),
            clock=clock,
        )
    if as_json:
        emit_json(document)
        return
    if not document["chunks"]:
        say("no observed work has run yet; observe_only and observe_tenants say whose is observed")
    names = ("status", "chunks", "energy", "baseline g", "emission g", "planned g", "realised g", "saved g", "saved %")
    emit_table(names, [_observed_row(one) for one in document["saving"]])
    left = document["not_compared"]
    if left["chunks"]:
        say(f"{left['chunks']} chunks are not compared: a rate is missing, or only one side is settled yet")
    if document["shadows_to_come"]:
        say(f"{document['shadows_to_come']} shadows are still to come")


def _observed_row(one: dict[str, Any]) -> list[object]:
    from carbonq.readable import energy, grams

    figures = [one[name] for name in ("baseline_g", "emission_g", "planned_g", "realised_g", "saved_g")]
    return [one["status"], one["chunks"], energy(one["energy_uj"]), *map(grams, figures), one["saved_pct"]]


def holdout(
    tenant: _Tenant = None,
    since: _Since = None,
    until: _Until = None,
    clock: _Clock = None,
    as_json: AsJson = False,
) -> None:
    """Show the measured saving of planned jobs against those held out (holdout_share), with its 95 % interval.

    In grams for each kWh of IT energy, and for 1,000 tokens, which counts unlike hardware too.

    Example: carbonq plan holdout --json
    """
    from carbonq.services import measured

    with connect.open_database() as (_, database):
        document = measured.holdout(
            database, tenant=tenant, start=_time(since, "since"), end=_time(until, "until"), clock=clock
        )
    if as_json:
        emit_json(document)
        return
    if not document["comparisons"]:
        say("no job was held out yet, or none has run; holdout_share says how many are")
    for one in document["comparisons"]:
        emit_pairs([(one["status"], f"{one['planned_jobs']:,} planned jobs, {one['held_out_jobs']:,} held out")])
        rows = [
            [
                title,
                *(_figure(one[name][field]) for field in ("planned_g", "held_out_g", "saved_pct")),
                _span(one[name]),
            ]
            for name, title in (("per_kwh", "g per kWh"), ("per_1000_tokens", "g per 1,000 tokens"))
        ]
        emit_table(("", "planned", "held out", "saved %", "95 % interval"), rows)


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"


def _span(figures: dict[str, Any]) -> str | None:
    low, high = figures["low_pct"], figures["high_pct"]
    return None if low is None else f"{low} to {high}"


def _time(text: str | None, option: str) -> datetime | None:
    from carbonq.units import parse_iso

    if text is None:
        return None
    try:
        return parse_iso(text)
    except ValueError as error:
        raise InvalidRequest(f"--{option}: {error}", param=option) from error

"""``carbonq ledger settle|restate|history|restatements``: what became of figures, and who made them anew."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carbonq.cli import connect
from carbonq.cli.actor import actor
from carbonq.cli.output import AsJson, Yes, confirm, emit_json, emit_pairs, emit_table, say
from carbonq.errors import ConfigError, InvalidRequest
from carbonq.model import Signal
from carbonq.units import parse_iso

if TYPE_CHECKING:
    from carbonq.clock import GridClock
    from carbonq.config import Settings
    from carbonq.store.database import Database

From = Annotated[str | None, typer.Option("--from", help="Windows from this time on, like 2026-10-01T00:00Z.")]
To = Annotated[str | None, typer.Option("--to", help="Windows before this time.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to ``carbonq ledger``."""
    for command in (settle, restate, history, restatements):
        app.command()(command)


@contextmanager
def _opened() -> Generator[tuple[Settings, Database, GridClock]]:
    from carbonq.store import clocks

    with connect.open_database() as (settings, database):
        with database.read() as tx:
            clock = clocks.get(tx)
        if clock is None:
            raise ConfigError("this installation was never started, so there is nothing to settle; run `carbonq up`")
        yield settings, database, clock


def _time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_iso(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} is {text!r}, which is no time: {error}", param=option.lstrip("-")) from error


def settle(
    *,
    report: Annotated[
        bool, typer.Option("--report", help="Also say how far provisional rates were from settled ones.")
    ] = False,
    from_: From = None,
    to: To = None,
    as_json: AsJson = False,
) -> None:
    """Append a settled revision to each entry whose observed rate has come; safe to run at any time.

    Also restates what sources corrected since. --from and --to are for the report.

    Example: carbonq ledger settle --report
    """
    from carbonq.services import accuracy, admin
    from carbonq.services import restate as restating
    from carbonq.services import settle as settling
    from carbonq.store.admin_log import Action

    start_at, end_at = _time(from_, "--from"), _time(to, "--to")
    with _opened() as (settings, database, clock):
        admin.note(database, Action(actor(), "ledger.settled", "ledger"))
        settled = restated = 0
        while count := settling.settle(
            database,
            clock.now(),
            settle_after_s=settings.settle_after_s,
            give_up_after_s=settling.seconds(settings.settle_within_days),
        ):
            settled += count
        while count := restating.restate_corrected(database, clock.now(), settle_after_s=settings.settle_after_s):
            restated += count
        found = accuracy.report(database, start_at=start_at, end_at=end_at) if report else []
    if as_json:
        emit_json({"revisions": settled, "restated": restated, **({"accuracy": found} if report else {})})
        return
    say(f"{settled:,} entries settled" if settled else "nothing to settle")
    if restated:
        say(f"{restated:,} entries restated, because their sources corrected what they had said")
    if found:
        columns = ("book", "signal", "zone", "lead", "entries", "mean g/kWh", "MAE g/kWh", "p50", "p95")
        emit_table(columns, [_accuracy(one) for one in found])
    elif report:
        say("nothing provisional has settled there yet")


def _accuracy(one: dict[str, Any]) -> list[object]:
    relative = [None if one[name] is None else f"{one[name]:.1%}" for name in ("p50_relative", "p95_relative")]
    figures = [f"{one['mean_g_per_kwh']:+.2f}", f"{one['mae_g_per_kwh']:.2f}"]
    return [one["book"], one["signal"], one["zone"], one["lead"], f"{one['entries']:,}", *figures, *relative]


def restate(
    *,
    from_: Annotated[str, typer.Option("--from", help="Rates of windows from this time on.")],
    to: Annotated[str, typer.Option("--to", help="Rates of windows before this time.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept with the entries for good.")],
    zone: Annotated[str | None, typer.Option(help="Only rates of this grid zone.")] = None,
    signal: Annotated[Signal | None, typer.Option(help="Only marginal (moer) or average (aer) rates.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Append a restated revision to each entry whose final rate is another one by now; old figures stay visible.

    Example: carbonq ledger restate --from 2026-01-01T00:00Z --to 2026-04-01T00:00Z --reason "model of 2026-03-01"
    """
    from carbonq.services import restate as restating

    start_at, end_at = _time(from_, "--from"), _time(to, "--to")
    assert start_at is not None
    assert end_at is not None
    confirm("Append revisions? They stay for good; --dry-run shows them.", is_sure=yes or dry_run)
    with _opened() as (settings, database, clock):
        done = restating.restate(
            database,
            restating.Scope(start_at, end_at, signal, zone),
            reason=reason,
            now=clock.now(),
            settle_after_s=settings.settle_after_s,
            recorded_by=getpass.getuser(),
            actor=actor(),
            is_dry_run=dry_run,
        )
    if as_json:
        sums = {name: {"before": before, "after": after} for name, (before, after) in done.sums.items()}
        emit_json(
            {"restatement_id": done.restatement_id, "revisions": done.revisions}
            | ({"sums": sums, "is_dry_run": True} if dry_run else {})
        )
        return
    if not done.revisions:
        say("nothing to restate: all entries there have the rates that are final now")
    elif dry_run:
        say(f"{done.revisions:,} entries would be restated")
        emit_table(("column", "before", "after"), [[name, *values] for name, values in done.sums.items()])
    else:
        say(f"{done.revisions:,} entries restated: {done.restatement_id}")


def history(
    *,
    entry: Annotated[str | None, typer.Argument(help="An entry's id.")] = None,
    month: Annotated[str | None, typer.Option(help="Later changes to this month instead, like 2026-10.")] = None,
    since: Annotated[
        str | None, typer.Option(help="What was recorded after this time: when a report was filed.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's entries.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show all revisions of an entry, or what was recorded later of a closed month; nothing is ever overwritten.

    Example: carbonq ledger history eb_01jd....1.0, or carbonq ledger history --month 2026-10 --since 2026-11-05T00:00Z
    """
    from carbonq.services import history as revisions

    at = _time(since, "--since")
    if (entry is None) == (at is None):
        raise InvalidRequest("name an entry, or a time with --since (and a month with --month)", param="since")
    if entry is not None and month is not None:
        raise InvalidRequest("--month goes with --since and not with an entry", param="month")
    with connect.open_database() as (_, database):
        if entry is not None:
            _show(revisions.of_entry(database, entry, tenant=tenant), as_json=as_json)
            return
        assert at is not None
        found = revisions.later_changes(database, since=at, month=month, tenant=tenant)
    if as_json:
        emit_json({"since": since, "month": month, "changes": found})
    elif found:
        names = ("month", "kind", "quality", "reason", "revisions", "energy_uj", "emission_g", "inventory_g", "saved_g")
        emit_table(names, [[one[name] for name in names] for one in found])
    else:
        say("nothing was recorded of that time since")


def _show(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(document)
        return
    for one in document["revisions"]:
        restatement = one["restatement"]
        emit_pairs(
            [
                ("revision", one["revision"]),
                ("reason", one["reason"]),
                ("recorded", f"{one['recorded_at']} by {one['recorded_by']}"),
                ("restatement", restatement and f"{restatement['id']}: {restatement['reason']}"),
                *((f"  {name}", f"{_cell(old)} -> {_cell(new)}") for name, (old, new) in one["changed"].items()),
            ]
        )
        sys.stdout.write("\n")


def _cell(text: str | None) -> str:
    return "(empty)" if text is None else text


def restatements(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List who restated entries, when and why.

    Example: carbonq ledger restatements
    """
    from carbonq.services import history as revisions
    from carbonq.store import restatements as rows

    with connect.open_database() as (_, database), database.read() as tx:
        found = [revisions.view(one) | {"revisions": count} for one, count in rows.newest(tx, limit=limit)]
    if as_json:
        emit_json(found)
    elif found:
        names = ("id", "recorded_at", "recorded_by", "revisions", "signal", "zone", "start_at", "end_at", "reason")
        emit_table(names, [[one[name] for name in names] for one in found])
    else:
        say("nothing was restated yet")

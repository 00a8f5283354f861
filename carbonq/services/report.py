"""Make the report of a month: one pass over its entries, and what must be asked beside.

All figures are the ledger's as it was at one machine time, of windows of the month in UTC grid time, of one clock.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from carbonq import __version__
from carbonq.errors import InvalidRequest
from carbonq.model import Region, Treatment
from carbonq.report import Report, figures, method, nearest, spending
from carbonq.report.document import EfficiencyRow, Head, Recompute, Saving
from carbonq.report.gather import Gathered, Known, references
from carbonq.report.sums import Cell, Sums
from carbonq.services import report_beside as beside
from carbonq.services.export import COMMIT_WITHIN
from carbonq.services.history import month_span
from carbonq.statement import Columns
from carbonq.store import budgets as budget_rows
from carbonq.store import ledger, report_figures
from carbonq.store import regions as region_rows
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now
from carbonq.store.report_figures import Span
from carbonq.units import iso, window_of

#: Months before the report's that efficiency is told of at most; each costs a pass over its items.
MAX_MONTHS_BACK = 11

#: Sums that are held until what they refer to is looked up: one query a kind for them all.
CELLS_AT_ONCE = 5_000


def make(
    db: Database,
    month: str,
    *,
    now: datetime,
    tenant: str | None = None,
    clock: str | None = None,
    as_of: datetime | None = None,
    months_back: int = 1,
    statement: Sequence[str] | None = None,
    columns: Columns | None = None,
    settle_after_s: float = 0.0,
    max_stale_s: float = 7200.0,
) -> Report:
    """Return the report of a month ``2026-11`` at grid time ``now``; ``tenant`` None: of all, with the overhead.

    ``as_of`` is machine time: the ledger as it was then, by default as it is. ``statement`` are the lines of a cloud
    provider's CSV, ``columns`` how it names things. One pass over the month's entries, and one over the items of each
    of ``months_back`` months before; memory follows regions x hours and days x workloads, not the entries.

    Raises InvalidRequest for a month that is none or has not begun, an ``as_of`` that may still change, entries of
    several clocks where ``clock`` does not choose, and a statement that cannot be read or is given with a tenant;
    StoreUnavailable.
    """
    start_at, end_at = month_span(month)
    if start_at > now:
        raise InvalidRequest(f"{month} has not begun: it is {iso(now)} (grid time)", param="month")
    if not 0 <= months_back <= MAX_MONTHS_BACK:
        raise InvalidRequest(f"months_back is {months_back}, not from 0 to {MAX_MONTHS_BACK}", param="months_back")
    stated = beside.read_statement(statement, month, columns, tenant)
    with db.read() as tx:
        machine = machine_now(tx)
        if as_of is not None and as_of > machine - COMMIT_WITHIN:
            raise InvalidRequest(
                f"the ledger as of {iso(as_of)} may still change: give a time of at least {COMMIT_WITHIN.seconds} s "
                f"ago, so not after {iso(machine - COMMIT_WITHIN)}",
                param="as_of",
            )
        span = _of_one_clock(tx, Span(start_at, end_at, clock, machine if as_of is None else as_of), tenant)
        configured = region_rows.load_all(tx, worker_alive_s=0)
        gathered = _gather(tx, span, tenant, configured)
        earlier = _earlier(tx, span, tenant, months_back)
        budgets = budget_rows.list_(tx, tenant)
        by_name = {one.name: one for one in configured}
        lookup = beside.observed_rates(
            tx, gathered, by_name, now, settle_after_s=settle_after_s, max_stale_s=max_stale_s
        )
        forecast = beside.forecast(tx, span, tenant)
        targets = beside.targets(tx, gathered, start_at, now, tenant)
        downgrades = beside.downgrades(tx, span, tenant)
        treatments = report_figures.treatments(tx)
    totals = figures.totals(gathered)
    savings, coverage = figures.savings(gathered)
    regions = figures.regions(gathered, by_name)
    months = [figures.efficiency(month, _by_model(gathered)), *earlier]
    head = Head(
        month=month,
        start_at=start_at,
        end_at=end_at,
        tenant=tenant,
        clock=span.clock if gathered.alike else None,
        generated_at=machine,
        as_of=span.as_of,
        is_fixed=as_of is not None,
        is_over=now >= end_at,
        made_by=__version__,
        software_versions=tuple(sorted(gathered.software_versions)),
        methods=tuple(sorted(gathered.methods)),
    )
    return Report(
        head=head,
        totals=totals,
        product_lines=spending.product_lines(gathered.product_lines.items(), budgets),
        workloads=spending.workloads(gathered.workloads.items(), budgets),
        months=tuple(rows[0] for rows in months),
        models=tuple(row for rows in months for row in rows[1:]),
        days=figures.days(gathered),
        regions=regions,
        switches=figures.switches(gathered),
        inventory=figures.inventory(gathered),
        saving=Saving(
            words=method.SAVING_WORDS,
            avoidable_words=nearest.WORDS,
            rows=savings,
            coverage=coverage,
            avoidable=nearest.compare(gathered.arrived.items(), configured, lookup, totals.item_energy_uj),
            holdout=beside.holdout(db, span, tenant) if Treatment.HELD_OUT in treatments else (),
            observed=beside.observed(db, span, tenant, now, settle_after_s=settle_after_s, max_stale_s=max_stale_s)
            if Treatment.OBSERVED in treatments
            else (),
        ),
        kinds=figures.kinds(gathered),
        sci=beside.sci_of(gathered),
        forecast=forecast,
        downgrades=downgrades,
        targets=targets,
        statement=None if stated is None else beside.compare(stated, gathered, regions),
        method=method.statement(head, totals, gathered),
        recompute=_recompute(head),
    )


def _of_one_clock(tx: Tx, span: Span, tenant: str | None) -> Span:
    """Return the span with the one clock that its entries ran on. Raises InvalidRequest where they ran on several."""
    if span.clock is not None:
        return span
    found = report_figures.clocks(tx, span, tenant)
    if len(found) > 1:
        counts = ", ".join(f"{clock} ({count})" for clock, count in sorted(found.items()))
        raise InvalidRequest(
            f"these entries ran on different clocks and are not added up: {counts}; choose one", param="clock"
        )
    return replace(span, clock=next(iter(found), None))


def _gather(tx: Tx, span: Span, tenant: str | None, configured: Sequence[Region]) -> Gathered:
    """Add the span's hours up; what their entries refer to is looked up for many at a time."""
    gathered = Gathered(tenant)
    held: list[tuple[datetime, list[Cell]]] = []
    count = 0
    for hour_at, cells in report_figures.hours(tx, span, tenant):
        held.append((hour_at, cells))
        count += len(cells)
        if count >= CELLS_AT_ONCE:
            _add(tx, gathered, held, configured)
            held, count = [], 0
    _add(tx, gathered, held, configured)
    if tenant is not None:
        for region, energy_uj in report_figures.attributed(tx, span).items():
            gathered.attribute(region, energy_uj)
    return gathered


def _add(tx: Tx, gathered: Gathered, held: Sequence[tuple[datetime, list[Cell]]], configured: Sequence[Region]) -> None:
    ids = references([cell for _, cells in held for cell in cells])
    arrivals = report_figures.arrivals(tx, ids["jobs"])
    known = Known(
        facts=report_figures.facts_of(tx, ids["facts"]),
        rates=ledger.rates_of(tx, ids["rates"]),
        reasons=report_figures.reasons(tx, ids["placements"]),
        arrived={
            job_id: (region.name, window_of(arrival.created_at))
            for job_id, arrival in arrivals.items()
            if (region := nearest.nearest(configured, arrival.model, arrival.regions)) is not None
        },
    )
    for hour_at, cells in held:
        gathered.add(hour_at, cells, known)


def _by_model(gathered: Gathered) -> Iterator[tuple[str | None, str, str, Sums]]:
    for (_, model, statuses), sums in gathered.models.items():
        yield model, statuses.moer, statuses.aer, sums


def _earlier(tx: Tx, span: Span, tenant: str | None, months_back: int) -> list[tuple[EfficiencyRow, ...]]:
    """Return the efficiency of the months before, the last one first; those in which nothing ran are left out."""
    found: list[tuple[EfficiencyRow, ...]] = []
    end_at = span.start_at
    for _ in range(months_back):
        start_at = (end_at - timedelta(days=1)).replace(day=1)
        sums = report_figures.by_model(tx, replace(span, start_at=start_at, end_at=end_at), tenant)
        if sums:
            found.append(figures.efficiency(f"{start_at:%Y-%m}", sums))
        end_at = start_at
    return found


def _recompute(head: Head) -> Recompute:
    start, end, as_of = iso(head.start_at), iso(head.end_at), iso(head.as_of)
    tenant = "" if head.tenant is None else f" --tenant {shlex.quote(head.tenant)}"
    name = f"ledger-{head.month}.csv"
    clock = "" if head.clock is None else f", over the lines whose clock is {head.clock}"
    wait = "" if head.is_fixed else " The export can be had two minutes after the report was made."
    return Recompute(
        command=f"carbonq ledger export --from {start} --to {end} --as-of {as_of}{tenant} -o {name}",
        query=None if head.tenant is None else f"/v1/ledger.csv?from={start}&to={end}&as_of={as_of}",
        check=f"carbonq ledger verify {name}",
        note=f"The check recomputes each line; the totals are the sums of its columns by kind{clock}.{wait}",
    )

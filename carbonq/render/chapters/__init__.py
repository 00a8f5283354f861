"""What stands in a report, chapter by chapter, for people. Pure: a ``Report`` in, a ``Sheet`` out."""

from __future__ import annotations

from calendar import month_name

from carbonq.render import figures
from carbonq.render.chapters import efficiency, method, places, quality, savings, spending, summary
from carbonq.render.sheet import Sheet
from carbonq.report import Report

__all__ = ["sheet_of"]


def sheet_of(report: Report) -> Sheet:
    """Return all chapters; one that has nothing to say is left out, one that must be there says so."""
    head = report.head
    year, month = head.month.split("-")
    whose = "All tenants" if head.tenant is None else f"Tenant {head.tenant}"
    made = (
        summary.chapter,
        spending.budgets,
        spending.days,
        efficiency.chapter,
        places.regions,
        places.inventory,
        savings.chapter,
        spending.targets,
        quality.chapter,
        method.statement,
        method.chapter,
    )
    found = [one(report) for one in made]
    return Sheet(
        f"Carbon report, {month_name[int(month)]} {year}",
        whose,
        _facts(report),
        tuple(one for one in found if one is not None and one.blocks),
    )


def _facts(report: Report) -> tuple[tuple[str, str], ...]:
    head = report.head
    clock = head.clock or "nothing ran"
    return (
        ("Windows", f"{figures.time(head.start_at)} up to, not including, {figures.time(head.end_at)}"),
        ("The ledger as of", figures.time(head.as_of) + ("" if head.is_fixed else " (may still change)")),
        ("Made", f"{figures.time(head.generated_at)} by carbonq {head.made_by}"),
        ("Clock", clock if clock in {"real", "nothing ran"} else f"{clock}: grid time did not run with the wall clock"),
        ("Methods of the ledger", ", ".join(head.methods) or figures.NONE),
        ("Software of the entries", ", ".join(head.software_versions) or figures.NONE),
    )

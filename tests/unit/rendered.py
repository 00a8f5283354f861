"""Reports that are hard to show: of nothing, of very much, and with names that mean harm."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from carbonq.report import Report
from carbonq.report.document import Grams
from tests.unit.reports import NOTHING, example

#: Names that somebody may give a product line.
HOSTILE = (
    '<script>alert("x")</script>',
    '"><img src=x onerror=alert(1)>',
    "</style></svg></title><b>out</b>",
    "{{ 7 * 7 }}{% raw %}",
    '=HYPERLINK("http://evil.example")',
    "\u202etxt.exe",
    "zero\u200bwidth\x00\x1b[31m",
    "検索プロダクトライン",
    "поиск · αναζήτηση · ćwikła",
    "🍃 leaf 👩\u200d🔬",
    "W" * 255,
    "ü" * 255,
    "many words in a name that goes on and on " * 6,
    "",
)

ZERO = Grams(Decimal(0), Decimal(0), Decimal(0), Decimal(0), 0)


def empty() -> Report:
    """A month in which nothing ran."""
    made = example()
    totals: dict[str, Any] = dict.fromkeys(
        ("items", "prompt_tokens", "completion_tokens", "entries", "overhead_entries", "item_energy_uj"), 0
    )
    shares = dict.fromkeys(("provisional_share", "inventory_provisional_share", "measured_share"))
    books = dict.fromkeys(("impact", "impact_overhead", "inventory", "inventory_overhead"), NOTHING)
    nothing: dict[str, Any] = dict.fromkeys(("energy", "impact_rows", "inventory_rows"), ())
    sections: dict[str, Any] = dict.fromkeys(
        (
            *("product_lines", "workloads", "months", "models", "days", "regions", "switches", "inventory", "kinds"),
            *("forecast", "downgrades", "targets"),
        ),
        (),
    )
    return replace(
        made,
        head=replace(made.head, clock=None, methods=(), software_versions=()),
        totals=replace(
            made.totals, **totals, **shares, **books, **nothing, overhead_energy_uj=0, embodied_g=None, transfer_g=None
        ),
        saving=replace(made.saving, rows=(), coverage=None, avoidable=(), holdout=(), observed=()),
        sci=replace(made.sci, rows=(), unknown=(), kwh_per_million_tokens=None),
        statement=None,
        **sections,
    )


def named(*names: str) -> Report:
    """A month whose product lines, workloads, models, regions and tenant have these names."""
    made = example()
    line, workload, region, model = made.product_lines[0], made.workloads[0], made.regions[0], made.models[0]
    return replace(
        made,
        head=replace(made.head, tenant=names[0]),
        product_lines=tuple(replace(line, name=name, tenant=name) for name in names),
        workloads=tuple(replace(workload, name=name) for name in names),
        models=tuple(replace(model, model=name) for name in names),
        regions=tuple(replace(region, region=name) for name in names),
    )


def crowded(lines: int = 200) -> Report:
    """A month of many product lines and workloads, the later the smaller, down to what a column has no digit for."""
    made = example()
    line, workload = made.product_lines[0], made.workloads[0]

    def of(number: int) -> Grams:
        known = Decimal(1000) / Decimal(2) ** number
        return Grams(known, Decimal(0), known, Decimal(0), number % 3)

    return replace(
        made,
        product_lines=tuple(replace(line, name=f"line {n:03}", impact=of(n), inventory=of(n)) for n in range(lines)),
        workloads=tuple(replace(workload, name=f"workload {n:03}", impact=of(n)) for n in range(lines)),
    )


def unrated() -> Report:
    """A month none of whose entries has a rate."""
    made, none = example(), replace(NOTHING, unknown_entries=2_000)
    both = {"impact": none, "inventory": none}
    return replace(
        made,
        totals=replace(made.totals, **both, impact_overhead=none, inventory_overhead=none, embodied_g=None),
        product_lines=tuple(replace(row, **both, used_share=None, spent_g=None) for row in made.product_lines),
        workloads=tuple(replace(row, **both, worst_day=None, worst_day_g=None) for row in made.workloads),
        months=tuple(
            replace(row, **both, impact_g_per_1000_tokens=None, inventory_g_per_1000_tokens=None) for row in made.months
        ),
        days=tuple(replace(row, **both, baseline_g=None, saved_g=None) for row in made.days),
        regions=tuple(replace(row, **both, mean_moer_g_per_kwh=None, mean_aer_g_per_kwh=None) for row in made.regions),
        saving=replace(made.saving, rows=(), coverage=0.0, avoidable=()),
    )


def estimated() -> Report:
    """A month of which nothing was measured."""
    made = example()
    return replace(
        made,
        totals=replace(made.totals, measured_share=0.0),
        regions=tuple(replace(row, qualities=(("estimated", row.energy_uj),)) for row in made.regions),
    )


#: All of them by name.
HARD = {
    "empty": empty(),
    "crowded": crowded(),
    "unrated": unrated(),
    "estimated": estimated(),
    "hostile": named(*HOSTILE),
}

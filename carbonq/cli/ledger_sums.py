"""Sums of the ledger as a person reads them."""

from __future__ import annotations

import sys
from typing import Any

from carbonq.cli.output import emit_pairs, emit_table, say
from carbonq.readable import energy, grams

Json = dict[str, Any]


def show(document: Json) -> None:
    """Print a summary; each group by itself."""
    if not document["entries"] + document["overhead_entries"]:
        say("the ledger has no such entries")
        return
    clock = document["clock"]
    emit_pairs(
        [
            ("entries", f"{document['entries']:,} of items, {document['overhead_entries']:,} of overhead"),
            ("clock", clock if clock == "real" else f"{clock}: grid time did not run with the wall clock"),
            ("tokens", f"{document['prompt_tokens']:,} in, {document['completion_tokens']:,} out"),
        ]
    )
    _section("energy, by kind and how it is known", ("kind", "quality", "entries", "energy"), document["energy"])
    _section("impact book (marginal: MOER x energy)", ("kind", "status", "entries", "emission"), document["impact"])
    _section(
        "inventory book (average: AER x energy; never added to the impact book)",
        ("kind", "status", "entries", "inventory"),
        document["inventory"],
    )
    _section(
        "saving against running at once at home, on the same energy (transfer is left out where unknown)",
        ("status", "quality", "entries", "energy", "baseline", "emission", "saved"),
        document["saving"],
    )
    _smaller(document["smaller_models"])
    _scores(document["sci"])
    if "groups" in document:
        _groups(document["by"], document["groups"])


def _smaller(rows: list[Json]) -> None:
    if not rows:
        return
    title = "smaller models, beside what was asked for: an estimate by learned energies, in no other saving"
    sys.stdout.write(f"\n{title}\n")
    columns = ("asked for", "ran", "why", "items", "emission", "compared", "asked for would emit", "saved", "unknown")
    emit_table(
        columns,
        [
            (
                *(row["requested_model"], row["model"], row["reason"], f"{row['items']:,}"),
                *(grams(row[name]) for name in ("emission_g", "compared_g", "requested_g", "saved_g")),
                f"{row['unknown_items']:,}",
            )
            for row in rows
        ],
    )


def _scores(sci: Json) -> None:
    """Print the SCI of both books; what keeps one from being given stands below."""
    rows = [
        (
            book,
            name.replace("_", " "),
            grams(sci[book][name]["per_item_g"]),
            grams(sci[book][name]["per_million_tokens_g"]),
            grams(sci[book][name]["per_job_g"]),
        )
        for book in ("impact", "inventory")
        for name in ("direct", "with_overhead")
    ]
    title = "SCI, (E x I + M) / R (ISO/IEC 21031); the books are never added"
    sys.stdout.write(f"\n{title}\n")
    emit_table(("book", "energy counted", "per item", "per million tokens", "per job"), rows)
    lacking = ", ".join(f"{count:,} without {name}" for name, count in sci["unknown"].items() if count)
    if lacking:
        say(f"entries that keep a score from being given: {lacking}")


def _groups(by: list[str], groups: list[Json]) -> None:
    sys.stdout.write(f"\nby {', '.join(by)}\n")
    columns = (*by, "items", "energy", "how known", "emission", "status", "inventory", "saved", "SCI per item")
    rows = [
        (
            *(group[name] for name in by),
            f"{group['items']:,}",
            energy(group["energy_uj"]),
            ", ".join(group["energy_quality"]),
            grams(group["emission_g"]),
            ", ".join(group["emission_status"]),
            grams(group["inventory_g"]),
            grams(group["saved_g"]),
            grams(group["sci"]["impact"]["with_overhead"]["per_item_g"]),
        )
        for group in groups
        if group["items"]
    ]
    emit_table(columns, rows)
    say("energy, emission and inventory are those of items; SCI: impact book, with overhead")


#: Heading of a column -> the field it shows and how.
_COLUMNS = {
    "entries": ("entries", "compared_entries"),
    "energy": ("energy_uj", "compared_energy_uj"),
    "emission": ("emission_g", "compared_emission_g"),
    "inventory": ("inventory_g",),
    "baseline": ("baseline_g",),
    "saved": ("saved_g",),
}


def _section(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    sys.stdout.write(f"\n{title}\n")
    emit_table(columns, [[_cell(column, row) for column in columns] for row in rows])


def _cell(column: str, row: dict[str, Any]) -> str:
    fields = [name for name in _COLUMNS.get(column, (column,)) if name in row]
    value = row[fields[0]]
    if column == "energy":
        return energy(value)
    if column in {"emission", "inventory", "baseline", "saved"}:
        return grams(value)
    return str(value)

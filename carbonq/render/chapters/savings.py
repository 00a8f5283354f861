"""What carbonq saved, beside the baseline it is measured by, and what smaller models saved, apart. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from carbonq.render import figures, plots
from carbonq.render.plots import Bar, Segment
from carbonq.render.sheet import Block, Cell, Chapter, Column, Table, Words, count, energy, grams, name, table, text
from carbonq.render.sheet import chapter as made
from carbonq.render.svg import Drawing, Key
from carbonq.report import Report
from carbonq.report.document import Avoidable, DowngradeRow, HoldoutRow, ObservedRow, SavingRow

_KEYS = (
    Key("baseline", "baseline"),
    Key("impact", "emission"),
    Key("saved", "saved"),
    Key("lost", "more than the baseline"),
)


def chapter(report: Report) -> Chapter | None:
    """Return the saving and what it is compared with."""
    saving = report.saving
    blocks: list[Block | None] = [
        Words(saving.words),
        _drawing(saving.rows),
        _table(saving.rows, saving.coverage),
        *_avoidable(saving.avoidable, saving.avoidable_words),
        _holdout(saving.holdout),
        _observed(saving.observed),
        _downgrades(report.downgrades),
    ]
    if not saving.rows:
        blocks.insert(1, Words("No entry can be compared with a baseline, so nothing is claimed.", is_notice=True))
    return made("saving", "Saving beside its baseline (impact book)", blocks)


def _named(row: SavingRow) -> str:
    return f"{row.status}, {row.quality.replace('_', ' ')}"


def _drawing(rows: Sequence[SavingRow]) -> Drawing | None:
    """Draw three bars for each group of entries alike: its baseline, its emission and what lies between."""
    unit = figures.grams_of([value for row in rows for value in (row.baseline_g, row.emission_g)])
    bars: list[Bar] = []
    for row in rows:
        saved = float(row.saved_g)
        parts = (
            (_named(row), "baseline", row.baseline_g, row.baseline_g),
            ("emission", "impact", row.emission_g, row.emission_g),
            (
                "saved" if saved >= 0 else "more than that",
                "saved" if saved >= 0 else "lost",
                abs(row.saved_g),
                row.saved_g,
            ),
        )
        bars += [
            Bar(what, (Segment(kind, float(size)),), f"{what}: {unit.say(value)}", label=unit.say(value))
            for what, kind, size, value in parts
        ]
    alt = "Bars of baseline, emission and saving, for entries alike in status and quality: " + "; ".join(
        f"{_named(row)}: baseline {unit.say(row.baseline_g)}, emission {unit.say(row.emission_g)}, "
        f"saved {unit.say(row.saved_g)}"
        for row in rows
    )
    is_lost = any(row.saved_g < 0 for row in rows)
    keys = _KEYS if is_lost else _KEYS[:3]
    return plots.bars("Saving beside its baseline, impact book", alt + ".", bars, unit, keys=keys)


def _table(rows: Sequence[SavingRow], coverage: float | None) -> Table | None:
    unit = figures.grams_of([value for row in rows for value in (row.baseline_g, row.emission_g)])
    energies = figures.energy_of([row.energy_uj for row in rows])
    columns = (
        text("Status", 1.0),
        text("Quality", 0.9),
        text("Method", 0.7),
        Column("Entries", weight=0.8),
        Column(f"Energy, {energies.name}", weight=0.9),
        Column(f"Baseline, {unit.name}"),
        Column(f"Emission, {unit.name}"),
        Column(f"Transfer, {unit.name}"),
        Column(f"Saved, {unit.name}"),
    )
    cells = [
        (
            name(row.status),
            Cell(row.quality.replace("_", " ")),
            Cell(row.method),
            count(row.entries),
            energy(energies, row.energy_uj),
            grams(unit, row.baseline_g),
            grams(unit, row.emission_g),
            grams(unit, row.transfer_g),
            grams(unit, row.saved_g, below=_part(row)),
        )
        for row in rows
    ]
    note = (
        f"Compared: {figures.share(coverage)} of the items' energy. Saved = baseline - emission - transfer; transfer "
        "is deducted where it is known only. Rows of different status, quality or method are not added up here."
    )
    return table("Saving of entries alike in status, quality and method", columns, cells, note)


def _part(row: SavingRow) -> str:
    return f"{figures.share(float(row.saved_g / row.baseline_g))} of it" if row.baseline_g else ""


def _avoidable(rows: Sequence[Avoidable], words: str) -> list[Block | None]:
    unit = figures.grams_of([value for row in rows for value in (row.emission_g, row.nearest_g)])
    energies = figures.energy_of([row.energy_uj for row in rows])
    columns = (
        text("Status"),
        Column(f"Energy, {energies.name}"),
        Column("Of the items' energy"),
        Column(f"Emission, {unit.name}"),
        Column(f"Nearest region at once, {unit.name}", weight=1.4),
        Column(f"Avoided, {unit.name}"),
    )
    cells = [
        (
            name(row.status),
            energy(energies, row.energy_uj),
            Cell(figures.share(row.coverage)),
            grams(unit, row.emission_g),
            grams(unit, row.nearest_g),
            grams(unit, row.avoided_g, below="avoidable" if row.avoided_g < 0 else ""),
        )
        for row in rows
    ]
    found = table("Avoidable carbon: beside running at once in the nearest region", columns, cells)
    return [] if found is None else [found, Words(words, title="How avoidable carbon is told")]


def _holdout(rows: Sequence[HoldoutRow]) -> Table | None:
    columns = (
        text("Status", 0.9),
        text("Unit", 0.9),
        Column("Planned jobs"),
        Column("Held out"),
        Column("Planned, g a unit"),
        Column("Held out, g a unit"),
        Column("Saved"),
        Column("95 % interval", weight=1.2),
    )
    cells = [
        (
            name(row.status),
            Cell(row.unit.replace("_", " ")),
            count(row.planned_jobs),
            count(row.held_out_jobs),
            Cell(figures.number(row.planned_g)),
            Cell(figures.number(row.held_out_g)),
            Cell(figures.per_cent(row.saved_pct)),
            Cell(f"{figures.per_cent(row.low_pct)} to {figures.per_cent(row.high_pct)}"),
        )
        for row in rows
    ]
    return table("Measured by a holdout: jobs run at once by chance, beside planned ones", columns, cells)


def _observed(rows: Sequence[ObservedRow]) -> Table | None:
    unit = figures.grams_of([value for row in rows for value in (row.emission_g, row.baseline_g)])
    columns = (
        text("Status"),
        Column("Chunks"),
        Column(f"Emission, {unit.name}"),
        Column(f"Baseline, {unit.name}"),
        Column(f"As carbonq would have run it, {unit.name}", weight=1.5),
        Column(f"Would have saved, {unit.name}", weight=1.2),
        Column("Of the baseline"),
    )
    cells = [
        (
            name(row.status),
            count(row.chunks),
            grams(unit, row.emission_g),
            grams(unit, row.baseline_g),
            grams(unit, row.realised_g),
            grams(unit, row.saved_g),
            Cell(figures.per_cent(row.saved_pct)),
        )
        for row in rows
    ]
    return table("Work that was only observed, and what carbonq would have done", columns, cells)


def _downgrades(rows: Sequence[DowngradeRow]) -> Table | None:
    unit = figures.grams_of([value for row in rows for value in (row.emission_g, row.requested_g)])
    columns = (
        text("Asked for"),
        text("Ran on"),
        text("Why", 1.0),
        text("Status", 1.0),
        Column("Items"),
        Column(f"Emission, {unit.name}"),
        Column(f"Of it compared, {unit.name}"),
        Column(f"The one asked for (estimate), {unit.name}", weight=1.3),
        Column(f"Saved (estimate), {unit.name}"),
    )
    cells = [
        (
            name(row.requested_model),
            Cell(row.model, is_name=True),
            Cell((row.reason or figures.UNKNOWN).replace("_", " ")),
            Cell(", ".join(row.statuses) or figures.UNKNOWN),
            count(row.items, f"{figures.several(row.unknown_items, 'item')} unknown" if row.unknown_items else ""),
            grams(unit, row.emission_g),
            grams(unit, row.compared_g),
            grams(unit, row.requested_g),
            grams(unit, row.estimated_saved_g),
        )
        for row in rows
    ]
    note = "What smaller models saved is estimated from what the larger ones took, and is in no other saving."
    return table("Smaller models than asked for (estimated, apart from the saving above)", columns, cells, note)

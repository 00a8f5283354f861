"""Sums of the ledger for the month's report: one pass over a month's entries, an hour at a time, exactly added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, func, literal_column, or_, select

from carbonq.booking import Fact
from carbonq.model import EntryKind, Treatment
from carbonq.report.sums import Cell, Sums
from carbonq.store import compute, ledger
from carbonq.store.database import Tx
from carbonq.store.dialect import exact_sum, is_any_of, read_exact_sum
from carbonq.store.tables import engine_batches, entries, facts, jobs, placements, shadows

#: What one query covers: its groups are sorted in memory, and nothing of the month is held but sums.
STEP = timedelta(hours=1)

#: The same where fewer things are told apart.
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Span:
    """Which entries: windows from ``start_at`` up to, not including, ``end_at``, of one clock.

    ``as_of`` is machine time: the entries as they were then.
    """

    start_at: datetime
    end_at: datetime
    clock: str | None
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a job came (grid time), the model it runs on and the regions it allows (None: all)."""

    created_at: datetime
    model: str
    regions: tuple[str, ...] | None


_KEYS: tuple[ColumnElement[Any], ...] = (
    *(engine_batches.c[name] for name in ("region", "fact_id", "model", "quality", "software_version")),
    *(engine_batches.c[name] for name in ("gpu_meter", "cpu_meter", "dram_meter")),
    *(entries.c[name] for name in ("tenant", "product_line", "workload", "job_id", "kind", "method", "moer_status")),
    *(entries.c[name] for name in ("aer_status", "moer_rate_id", "aer_rate_id", "baseline_region", "placement_id")),
)

_GRAMS = ("emission_g", "inventory_g", "embodied_g", "transfer_g", "baseline_g", "saved_g")

_IS_SAME = and_(engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part)


def clocks(tx: Tx, span: Span, tenant: str | None) -> dict[str, int]:
    """Count the entries of the span by clock; a tenant's alone where one is named. One look at each engine batch.

    With one clock alone the entries are not looked at and all of the installation's parts of engine batches count.
    """
    of_span = (engine_batches.c.window_at >= span.start_at, engine_batches.c.window_at < span.end_at)
    by_clock = select(engine_batches.c.clock, func.count()).where(*of_span).group_by(engine_batches.c.clock)
    found = {row[0]: int(row[1]) for row in tx.execute(by_clock)}
    if len(found) < 2:
        return found
    terms = [*of_span, ledger.is_current(as_of=span.as_of), entries.c.recorded_at <= span.as_of]
    terms += [] if tenant is None else [entries.c.tenant == tenant]
    counted = (
        select(engine_batches.c.clock, func.count())
        .select_from(engine_batches.join(entries, _IS_SAME))
        .where(*terms)
        .group_by(engine_batches.c.clock)
    )
    return {row[0]: int(row[1]) for row in tx.execute(counted)}


def hours(tx: Tx, span: Span, tenant: str | None) -> Iterator[tuple[datetime, list[Cell]]]:
    """Stream the span's sums by hour of the window; hours without entries are left out. One pass over the entries.

    With ``tenant``, its own and all overhead: what others wasted is in the pool that a tenant's score shares.
    """
    is_saving = case((entries.c.saved_g.is_not(None), 1), else_=0)
    keys = (*_KEYS, is_saving)
    # Made once: for the hours of a month SQLAlchemy would take longer than the database.
    terms = _terms(span)
    terms += [] if tenant is None else [or_(entries.c.tenant == tenant, entries.c.kind != EntryKind.ITEM.value)]
    statement = _statement(tx, keys, _GRAMS, terms)
    count, at = len(_KEYS), span.start_at
    while at < span.end_at:
        rows = tx.execute(statement, {"start_at": at, "end_at": min(at + STEP, span.end_at)})
        found = [Cell._make((*row[:count], bool(row[count]), _sums(row, len(keys), _GRAMS))) for row in rows]
        if found:
            yield at, found
        at += STEP


def attributed(tx: Tx, span: Span) -> dict[str, int]:
    """Return the energy of all tenants' items by region, in uJ.

    First revisions say it: later ones have the same energy, and looking for the current ones would take many times as
    long.
    """
    statement = (
        select(engine_batches.c.region, func.coalesce(func.sum(entries.c.energy_uj), 0))
        .select_from(engine_batches.join(entries, _IS_SAME))
        .where(*_terms(span, is_first=True), entries.c.kind == EntryKind.ITEM.value)
        .group_by(engine_batches.c.region)
    )
    rows = tx.execute(statement, {"start_at": span.start_at, "end_at": span.end_at})
    return {row[0]: int(row[1]) for row in rows}


def by_model(tx: Tx, span: Span, tenant: str | None) -> list[tuple[str | None, str, str, Sums]]:
    """Return the sums of items by the model they ran on, marginal and average status; no savings, no other carbon."""
    keys = (engine_batches.c.model, entries.c.moer_status, entries.c.aer_status)
    terms = [*_terms(span), entries.c.kind == EntryKind.ITEM.value]
    terms += [] if tenant is None else [compute.unindexed(tx, entries.c.tenant) == tenant]
    names = ("emission_g", "inventory_g")
    statement = _statement(tx, keys, names, terms)
    found: dict[tuple[str | None, str, str], Sums] = {}
    at = span.start_at
    while at < span.end_at:
        for row in tx.execute(statement, {"start_at": at, "end_at": min(at + DAY, span.end_at)}):
            values: list[Any] = list(row)
            key = (values[0], values[1], values[2])
            found[key] = found.get(key, Sums()).plus(_sums(values, len(keys), names))
        at += DAY
    return [(*key, sums) for key, sums in found.items()]


def facts_of(tx: Tx, wanted: Iterable[str]) -> dict[str, Fact]:
    """Return stored facts by id."""
    rows = tx.execute(select(facts).where(is_any_of(tx, facts.c.fact_id, sorted(set(wanted))))).mappings()
    return {row["fact_id"]: Fact(**{str(k): v for k, v in row.items() if k != "fact_id"}) for row in rows}


def arrivals(tx: Tx, job_ids: Iterable[str]) -> dict[str, Arrival]:
    """Return what is known of jobs; one that is not kept any more is left out."""
    columns = (jobs.c.job_id, jobs.c.created_at, jobs.c.model, jobs.c.regions)
    rows = tx.execute(select(*columns).where(is_any_of(tx, jobs.c.job_id, sorted(set(job_ids)))))
    return {
        row.job_id: Arrival(row.created_at, row.model, None if row.regions is None else tuple(row.regions))
        for row in rows
    }


def reasons(tx: Tx, placement_ids: Iterable[str]) -> dict[str, str]:
    """Return why placements were made."""
    wanted = is_any_of(tx, placements.c.placement_id, sorted(set(placement_ids)))
    return {row[0]: row[1] for row in tx.execute(select(placements.c.placement_id, placements.c.reason).where(wanted))}


def treatments(tx: Tx) -> set[Treatment]:
    """Say whether any job was ever held out, and any chunk observed: most installations have neither."""
    held_out = select(jobs.c.job_id).where(jobs.c.treatment == Treatment.HELD_OUT.value).limit(1)
    watched = select(shadows.c.chunk_id).limit(1)
    asked = ((Treatment.HELD_OUT, held_out), (Treatment.OBSERVED, watched))
    return {treatment for treatment, statement in asked if tx.execute(statement).first() is not None}


def _terms(span: Span, *, is_first: bool = False) -> list[ColumnElement[bool]]:
    """Return the conditions on current (or first) revisions; the windows' ``start_at`` and ``end_at`` come later."""
    kind = engine_batches.c.window_at.type
    terms = [
        engine_batches.c.window_at >= bindparam("start_at", type_=kind),  # the same as the entry's, and indexed
        engine_batches.c.window_at < bindparam("end_at", type_=kind),
        entries.c.recorded_at <= span.as_of,
        entries.c.revision == 1 if is_first else ledger.is_current(as_of=span.as_of),
    ]
    return terms if span.clock is None else [*terms, engine_batches.c.clock == span.clock]


def _statement(
    tx: Tx, keys: tuple[ColumnElement[Any], ...], grams: tuple[str, ...], terms: list[ColumnElement[bool]]
) -> Select[Any]:
    tokens = entries.c.prompt_tokens + entries.c.completion_tokens
    is_item_once = and_(entries.c.kind == EntryKind.ITEM.value, entries.c.part == 1)

    def where_known(column: str, value: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.coalesce(func.sum(case((entries.c[column].is_not(None), value), else_=0)), 0)

    counts = (
        func.count(),
        func.coalesce(func.sum(case((is_item_once, 1), else_=0)), 0),
        *(
            func.count() - func.count(entries.c[name])
            for name in ("energy_uj", "emission_g", "inventory_g", "embodied_g", "transfer_g")
        ),
        *(func.coalesce(func.sum(entries.c[name]), 0) for name in ("prompt_tokens", "completion_tokens")),
        where_known("emission_g", case((is_item_once, 1), else_=0)),
        where_known("emission_g", tokens),
        where_known("inventory_g", tokens),
        where_known("energy_uj", tokens),
        func.coalesce(func.sum(entries.c.energy_uj), 0),
    )
    sums = [part for name in grams for part in exact_sum(tx, entries.c[name])]
    return (
        select(*keys, *counts, *sums)
        .select_from(engine_batches.join(entries, _IS_SAME))
        .where(*terms)
        # By position: the expressions hold bound values, which PostgreSQL would not take for the same.
        .group_by(*(literal_column(str(number)) for number in range(1, len(keys) + 1)))
    )


#: Counts that stand before the grams.
_COUNTS = Sums._fields.index("emission")


def _sums(row: Sequence[Any], first: int, grams: tuple[str, ...]) -> Sums:
    counts = [int(value) for value in row[first : first + _COUNTS]]  # PostgreSQL sums bigint to numeric
    values = row[first + _COUNTS :]
    width = len(values) // len(grams)
    parts = [_quanta(read_exact_sum(values[at : at + width])) for at in range(0, len(values), width)]
    return Sums(*counts, *parts)


def _quanta(value: Decimal | None) -> int:
    if value is None:
        return 0
    num, den = value.as_integer_ratio()
    return num * 10**15 // den  # exact: the ledger's grams have 15 places

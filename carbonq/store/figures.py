"""Add the ledger up, exactly: sums of entries by everything that must not be summed across, and by what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, case, cast, func, literal_column, select

from carbonq.model import EntryKind
from carbonq.store.database import Tx
from carbonq.store.dialect import as_text, exact_sum, read_exact_sum
from carbonq.store.ledger import is_current
from carbonq.store.tables import engine_batches, entries, facts, jobs

#: What sums may be taken by, beside what always stands apart. Days and months are those of the window, UTC.
DIMENSIONS: tuple[str, ...] = ("tenant", "product_line", "workload", "model", "region", "day", "month")


@dataclass(frozen=True, slots=True)
class Scope:
    """Which entries to add up; None means no restriction.

    ``start_at`` (included) and ``end_at`` (not included) bound the window, a grid time; ``as_of`` is machine time: the
    entries as they were then.
    """

    tenant: str | None = None
    job_id: str | None = None
    batch_id: str | None = None
    product_line: str | None = None
    workload: str | None = None
    region: str | None = None
    clock: str | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Sums of entries alike in clock, kind, quality, method, statuses and in whether they have a saving.

    ``by`` holds the dimensions asked for, in their order. Energies in uJ, carbon in grams; None where no entry of the
    group has the figure. ``unmetered``, ``unrated``, ``unrated_aer`` and ``no_embodied`` count entries without energy,
    emission, inventory or embodied carbon, whose part is therefore not in the sums. ``items`` counts each item once,
    whatever windows it ran in.
    """

    by: tuple[str | None, ...]
    clock: str
    kind: str
    quality: str
    method: str
    moer_status: str
    aer_status: str
    has_saving: bool
    entries: int
    items: int
    unmetered: int
    unrated: int
    unrated_aer: int
    no_embodied: int
    prompt_tokens: int
    completion_tokens: int
    energy_uj: int
    emission_g: Decimal | None
    inventory_g: Decimal | None
    embodied_g: Decimal | None
    transfer_g: Decimal | None
    baseline_g: Decimal | None
    saved_g: Decimal | None


@dataclass(frozen=True, slots=True)
class Smaller:
    """Sums of items' entries that ran on a smaller model than was asked for, alike in all that is named first.

    ``downgraded`` says why. Energies in uJ, grams of the impact book; ``unrated`` counts items without an emission.
    """

    clock: str
    requested_model: str
    model: str
    downgraded: str
    hardware: str
    moer_status: str
    items: int
    tokens: int
    energy_uj: int
    unrated: int
    emission_g: Decimal | None


_COUNTS: tuple[str, ...] = (
    *("entries", "items", "unmetered", "unrated", "unrated_aer", "no_embodied", "prompt_tokens"),
    *("completion_tokens", "energy_uj"),
)
_NAMES: tuple[str, ...] = (
    *("clock", "kind", "quality", "method", "moer_status", "aer_status", "has_saving"),
    *_COUNTS,
)
_GRAMS: tuple[str, ...] = ("emission_g", "inventory_g", "embodied_g", "transfer_g", "baseline_g", "saved_g")


def groups(tx: Tx, scope: Scope, by: Sequence[str] = ()) -> list[Group]:
    """Return the sums of the entries in scope, by some of ``DIMENSIONS``. One pass over them."""
    has_saving = case((entries.c.saved_g.is_not(None), 1), else_=0)
    keys = (
        *(_dimension(tx, name).label(f"by_{name}") for name in by),
        engine_batches.c.clock,
        entries.c.kind,
        engine_batches.c.quality,
        entries.c.method,
        entries.c.moer_status,
        entries.c.aer_status,
        has_saving.label("has_saving"),
    )
    is_item_once = and_(entries.c.kind == EntryKind.ITEM.value, entries.c.part == 1)
    sums = [exact_sum(tx, entries.c[name]) for name in _GRAMS]
    statement = (
        select(
            *keys,
            func.count(),
            func.coalesce(func.sum(case((is_item_once, 1), else_=0)), 0),
            *(
                func.count() - func.count(entries.c[name])
                for name in ("energy_uj", "emission_g", "inventory_g", "embodied_g")
            ),
            *(
                func.coalesce(func.sum(entries.c[name]), 0)
                for name in ("prompt_tokens", "completion_tokens", "energy_uj")
            ),
            *(part for parts in sums for part in parts),
        )
        .select_from(entries.join(engine_batches, _is_same()))
        .where(*_terms(scope))
        # By position: the expressions hold bound values, which PostgreSQL would not take for the same.
        .group_by(*(literal_column(str(number)) for number in range(1, len(keys) + 1)))
    )
    found: list[Group] = []
    for row in tx.execute(statement):
        values = list(row)
        dimensions, values = tuple(values[: len(by)]), values[len(by) :]
        named: dict[str, Any] = dict(zip(_NAMES, values, strict=False))
        at = len(_NAMES)
        for name, parts in zip(_GRAMS, sums, strict=True):
            named[name] = read_exact_sum(values[at : at + len(parts)])
            at += len(parts)
        for name in _COUNTS:
            named[name] = int(named[name])  # PostgreSQL sums bigint to numeric
        named["has_saving"] = bool(named["has_saving"])
        found.append(Group(by=dimensions, **named))
    return sorted(found, key=_order)


def smaller(tx: Tx, scope: Scope) -> list[Smaller]:
    """Return the sums of what ran on smaller models. Reads these entries alone, by an index of their own."""
    keys = (
        engine_batches.c.clock,
        entries.c.requested_model,
        engine_batches.c.model,
        engine_batches.c.downgraded,
        facts.c.hardware,
        entries.c.moer_status,
    )
    grams = exact_sum(tx, entries.c.emission_g)
    statement = (
        select(
            *keys,
            func.sum(case((entries.c.part == 1, 1), else_=0)),
            func.sum(entries.c.prompt_tokens + entries.c.completion_tokens),
            func.coalesce(func.sum(entries.c.energy_uj), 0),
            func.sum(case((and_(entries.c.part == 1, entries.c.emission_g.is_(None)), 1), else_=0)),
            *grams,
        )
        .select_from(entries.join(engine_batches, _is_same()).join(facts, facts.c.fact_id == engine_batches.c.fact_id))
        .where(*_terms(scope), engine_batches.c.downgraded.is_not(None), entries.c.kind == EntryKind.ITEM.value)
        .group_by(*keys)
        .order_by(*keys)
    )
    found: list[Smaller] = []
    names = list(Smaller.__dataclass_fields__)[:-1]
    for row in tx.execute(statement):
        values: dict[str, Any] = dict(zip(names, row, strict=False))
        for name in ("items", "tokens", "energy_uj", "unrated"):
            values[name] = int(values[name])  # PostgreSQL sums bigint to numeric
        found.append(Smaller(**values, emission_g=read_exact_sum(list(row[len(names) :]))))
    return found


def jobs_by(tx: Tx, scope: Scope, by: Sequence[str] = ()) -> dict[tuple[str | None, ...], int]:
    """Count the jobs that items in scope belong to, by dimensions; a job may count in several."""
    keys = [_dimension(tx, name).label(f"by_{name}") for name in by]
    statement = (
        select(*keys, func.count(entries.c.job_id.distinct()))
        .select_from(entries.join(engine_batches, _is_same()))
        .where(*_terms(scope), entries.c.kind == EntryKind.ITEM.value)
        .group_by(*(literal_column(str(number)) for number in range(1, len(keys) + 1)))
    )
    return {tuple(row[:-1]): row[-1] for row in tx.execute(statement)}


def _order(group: Group) -> tuple[object, ...]:
    by = tuple((value is None, value or "") for value in group.by)
    return (*by, group.clock, group.kind, group.quality, group.method, group.moer_status, group.aer_status)


def _is_same() -> ColumnElement[bool]:
    return and_(engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part)


def _dimension(tx: Tx, name: str) -> ColumnElement[Any]:
    if name in ("day", "month"):
        # 2026-03-02 or 2026-03
        return func.substr(cast(as_text(tx, entries.c.window_at), Text), 1, 10 if name == "day" else 7)
    return (engine_batches if name in ("model", "region") else entries).c[name]


def _terms(scope: Scope) -> list[ColumnElement[bool]]:
    wanted = {
        entries.c.tenant: scope.tenant,
        entries.c.job_id: scope.job_id,
        entries.c.product_line: scope.product_line,
        entries.c.workload: scope.workload,
        engine_batches.c.region: scope.region,
        engine_batches.c.clock: scope.clock,
    }
    terms: list[ColumnElement[bool]] = [is_current(as_of=scope.as_of)]
    terms += [column == value for column, value in wanted.items() if value is not None]
    if scope.batch_id is not None:
        terms.append(entries.c.job_id.in_(select(jobs.c.job_id).where(jobs.c.batch_id == scope.batch_id)))
    if scope.start_at is not None:
        terms.append(engine_batches.c.window_at >= scope.start_at)  # the same as the entry's, and indexed
    if scope.end_at is not None:
        terms.append(engine_batches.c.window_at < scope.end_at)
    if scope.as_of is not None:
        terms.append(entries.c.recorded_at <= scope.as_of)
    return terms

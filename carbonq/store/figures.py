"""Add the ledger up, exactly: sums of current entries by everything that must not be summed across."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select

from carbonq.store.database import Tx
from carbonq.store.dialect import exact_sum, read_exact_sum
from carbonq.store.ledger import is_current
from carbonq.store.tables import engine_batches, entries


@dataclass(frozen=True, slots=True)
class Group:
    """Sums of entries alike in clock, kind, quality and statuses; ``has_saving``: emission and baseline compare.

    Energies in uJ, carbon in grams; None where no entry of the group has the figure. ``unmetered`` and ``unrated``
    count entries without energy or emission, whose part is therefore not in the sums.
    """

    clock: str
    kind: str
    quality: str
    moer_status: str
    aer_status: str
    has_saving: bool
    entries: int
    unmetered: int
    unrated: int
    prompt_tokens: int
    completion_tokens: int
    energy_uj: int
    emission_g: Decimal | None
    inventory_g: Decimal | None
    embodied_g: Decimal | None
    transfer_g: Decimal | None
    baseline_g: Decimal | None
    saved_g: Decimal | None


_COUNTS: tuple[str, ...] = ("entries", "unmetered", "unrated", "prompt_tokens", "completion_tokens", "energy_uj")
_NAMES: tuple[str, ...] = ("clock", "kind", "quality", "moer_status", "aer_status", "has_saving", *_COUNTS)
_GRAMS: tuple[str, ...] = ("emission_g", "inventory_g", "embodied_g", "transfer_g", "baseline_g", "saved_g")


def groups(
    tx: Tx,
    *,
    tenant: str | None = None,
    job_id: str | None = None,
    product_line: str | None = None,
    workload: str | None = None,
    clock: str | None = None,
) -> list[Group]:
    """Return the sums of the current entries selected; None means no restriction."""
    has_saving = case((entries.c.saved_g.is_not(None), 1), else_=0)
    keys = (
        engine_batches.c.clock,
        entries.c.kind,
        engine_batches.c.quality,
        entries.c.moer_status,
        entries.c.aer_status,
        has_saving.label("has_saving"),
    )
    is_same = and_(
        engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part
    )
    wanted = {
        entries.c.tenant: tenant,
        entries.c.job_id: job_id,
        entries.c.product_line: product_line,
        entries.c.workload: workload,
        engine_batches.c.clock: clock,
    }
    terms: list[ColumnElement[bool]] = [is_current()]
    terms += [column == value for column, value in wanted.items() if value is not None]
    sums = [exact_sum(tx, entries.c[name]) for name in _GRAMS]
    statement = (
        select(
            *keys,
            func.count(),
            (func.count() - func.count(entries.c.energy_uj)),
            (func.count() - func.count(entries.c.emission_g)),
            func.coalesce(func.sum(entries.c.prompt_tokens), 0),
            func.coalesce(func.sum(entries.c.completion_tokens), 0),
            func.coalesce(func.sum(entries.c.energy_uj), 0),
            *(part for parts in sums for part in parts),
        )
        .select_from(entries.join(engine_batches, is_same))
        .where(*terms)
        .group_by(*keys)
    )
    found: list[Group] = []
    for row in tx.execute(statement):
        values = list(row)
        named: dict[str, Any] = dict(zip(_NAMES, values, strict=False))
        at = len(_NAMES)
        for name, parts in zip(_GRAMS, sums, strict=True):
            named[name] = read_exact_sum(values[at : at + len(parts)])
            at += len(parts)
        for name in _COUNTS:
            named[name] = int(named[name])  # PostgreSQL sums bigint to numeric
        named["has_saving"] = bool(named["has_saving"])
        found.append(Group(**named))
    return sorted(found, key=lambda group: (group.clock, group.kind, group.quality, group.moer_status))

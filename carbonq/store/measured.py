"""Sums of the ledger by treatment: what observed chunks caused, and planned jobs beside held-out ones. Grid times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select

from carbonq.model import EntryKind, Treatment
from carbonq.store.database import Tx
from carbonq.store.dialect import exact_sum, read_exact_sum
from carbonq.store.ledger import is_current
from carbonq.store.tables import engine_batches, entries, jobs, shadows

_SAME_BATCH = and_(
    engine_batches.c.engine_batch_id == entries.c.engine_batch_id, engine_batches.c.part == entries.c.part
)


@dataclass(frozen=True, slots=True)
class ObservedSum:
    """What a chunk's items caused where it ran at once, and where its shadow was; sums of entries alike in status.

    ``emission_g`` and ``baseline_g`` are None where no entry has them; ``unrated`` and ``without_baseline`` count the
    entries that lack one.
    """

    chunk_id: str
    clock: str
    moer_status: str
    region: str
    window_at: datetime
    duration_s: float
    g_per_kwh: Decimal | None
    signal: str
    entries: int
    unrated: int
    without_baseline: int
    energy_uj: int
    emission_g: Decimal | None
    baseline_g: Decimal | None


@dataclass(frozen=True, slots=True)
class JobSum:
    """What the items of one job took and caused, as far as their entries are alike in status."""

    job_id: str
    clock: str
    treatment: str
    moer_status: str
    entries: int
    unrated: int
    unmetered: int
    tokens: int
    energy_uj: int
    emission_g: Decimal | None


def observed(
    tx: Tx, *, tenant: str | None = None, start: datetime | None = None, end: datetime | None = None
) -> list[ObservedSum]:
    """Return the sums of chunks that have a shadow; ``start`` and ``end`` bound the windows they ran in."""
    keys = (
        entries.c.chunk_id,
        engine_batches.c.clock,
        entries.c.moer_status,
        shadows.c.region,
        shadows.c.window_at,
        shadows.c.duration_s,
        shadows.c.g_per_kwh,
        shadows.c.signal,
    )
    emission, baseline = exact_sum(tx, entries.c.emission_g), exact_sum(tx, entries.c.baseline_g)
    statement = (
        select(
            *keys,
            func.count(),
            func.count() - func.count(entries.c.emission_g),
            func.count() - func.count(entries.c.baseline_g),
            func.coalesce(func.sum(entries.c.energy_uj), 0),
            *emission,
            *baseline,
        )
        .select_from(entries.join(shadows, shadows.c.chunk_id == entries.c.chunk_id).join(engine_batches, _SAME_BATCH))
        .where(*_wanted(tenant, start, end))
        .group_by(*keys)
    )
    found: list[ObservedSum] = []
    for row in tx.execute(statement):
        values: list[Any] = list(row)
        sums = values[12:]
        found.append(
            ObservedSum(
                *values[:11],
                energy_uj=int(values[11]),  # PostgreSQL sums bigint to numeric
                emission_g=read_exact_sum(sums[: len(emission)]),
                baseline_g=read_exact_sum(sums[len(emission) :]),
            )
        )
    return sorted(found, key=lambda one: (one.window_at, one.chunk_id, one.moer_status))


def waiting_shadows(tx: Tx, now: datetime) -> int:
    """Count the shadows whose window has not come."""
    return tx.execute(select(func.count()).select_from(shadows).where(shadows.c.window_at > now)).scalar_one()


def by_job(
    tx: Tx, *, tenant: str | None = None, start: datetime | None = None, end: datetime | None = None
) -> list[JobSum]:
    """Return the sums of planned and held-out jobs that were made since the first held-out one.

    Earlier ones ran in other hours, and there is nothing to compare them with.
    """
    first = select(func.min(jobs.c.created_at)).where(jobs.c.treatment == Treatment.HELD_OUT.value).scalar_subquery()
    keys = (entries.c.job_id, engine_batches.c.clock, jobs.c.treatment, entries.c.moer_status)
    emission = exact_sum(tx, entries.c.emission_g)
    statement = (
        select(
            *keys,
            func.count(),
            func.count() - func.count(entries.c.emission_g),
            func.count() - func.count(entries.c.energy_uj),
            func.coalesce(func.sum(entries.c.prompt_tokens + entries.c.completion_tokens), 0),
            func.coalesce(func.sum(entries.c.energy_uj), 0),
            *emission,
        )
        .select_from(entries.join(jobs, jobs.c.job_id == entries.c.job_id).join(engine_batches, _SAME_BATCH))
        .where(*_wanted(tenant, start, end), jobs.c.created_at >= first)
        .where(jobs.c.treatment.in_((Treatment.PLANNED.value, Treatment.HELD_OUT.value)))
        .group_by(*keys)
    )
    found: list[JobSum] = []
    for row in tx.execute(statement.order_by(*keys)):
        values: list[Any] = list(row)
        found.append(
            JobSum(*values[:7], tokens=int(values[7]), energy_uj=int(values[8]), emission_g=read_exact_sum(values[9:]))
        )
    return found


def _wanted(tenant: str | None, start: datetime | None, end: datetime | None) -> list[ColumnElement[bool]]:
    terms: list[ColumnElement[bool]] = [is_current(), entries.c.kind == EntryKind.ITEM.value]
    if tenant is not None:
        terms.append(entries.c.tenant == tenant)
    if start is not None:
        terms.append(entries.c.window_at >= start)
    if end is not None:
        terms.append(entries.c.window_at < end)
    return terms

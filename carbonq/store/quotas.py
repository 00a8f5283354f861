"""What tenants may hold and what they hold: own limits, counts of open work, tokens by grid day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, exists, func, insert, select, update

from carbonq.model import ItemState, Usage
from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now, serialise
from carbonq.store.tables import items, jobs, quota_counts, quotas, token_days

_NEVER_RAN = (ItemState.EXPIRED.value, ItemState.CANCELLED.value)


def own_limits(tx: Tx, tenant: str) -> dict[str, int | None]:
    """Return what was set for a tenant; a name that is absent is at its default, None is no limit."""
    found = tx.execute(select(quotas.c.limits).where(quotas.c.tenant == tenant)).scalar_one_or_none()
    return dict(found or {})


def all_limits(tx: Tx) -> dict[str, Mapping[str, int | None]]:
    """Return what was set, by tenant."""
    return {tenant: limits for tenant, limits in tx.execute(select(quotas.c.tenant, quotas.c.limits))}


def put_limits(tx: Tx, tenant: str, limits: Mapping[str, int | None]) -> None:
    """Set a tenant's own limits in place of those before; none at all forgets it."""
    tx.execute(delete(quotas).where(quotas.c.tenant == tenant))
    if limits:
        tx.execute(insert(quotas).values(tenant=tenant, limits=dict(limits), updated_at=machine_now(tx)))


def lock(tx: Tx, tenant: str) -> None:
    """Keep others from counting for the same tenant until the transaction ends."""
    serialise(tx, f"quota {tenant}")


def counted(tx: Tx, tenant: str) -> tuple[Usage, datetime] | None:
    """Return the kept count and when the jobs themselves were counted (grid time); None where nobody has counted."""
    row = tx.execute(select(quota_counts).where(quota_counts.c.tenant == tenant)).one_or_none()
    return None if row is None else (Usage(row.open_jobs, row.items, row.input_bytes), row.counted_at)


def count_open(tx: Tx, tenant: str) -> Usage:
    """Count what is open of a tenant now: jobs, items that have not ended, and bytes of their inputs."""
    ended = jobs.c.items_succeeded + jobs.c.items_failed + jobs.c.items_expired + jobs.c.items_cancelled
    statement = select(
        func.count(),
        func.coalesce(func.sum(jobs.c.items_total - ended), 0),
        func.coalesce(func.sum(jobs.c.input_bytes), 0),
    ).where(jobs.c.tenant == tenant, jobs.c.finished_at.is_(None))
    row = tx.execute(statement).one()
    return Usage(*(int(value) for value in row))


def keep_count(tx: Tx, tenant: str, usage: Usage, counted_at: datetime) -> None:
    """Keep a count of what is open; the caller holds ``lock``."""
    values: dict[str, Any] = {
        "open_jobs": usage.open_jobs,
        "items": usage.items,
        "input_bytes": usage.input_bytes,
        "counted_at": counted_at,
    }
    done = tx.execute(update(quota_counts).where(quota_counts.c.tenant == tenant).values(**values))
    if not done.rowcount:
        tx.execute(insert(quota_counts).values(tenant=tenant, **values))


def begin_anew(tx: Tx, tenant: str) -> None:
    """Forget what was counted under other limits, of which some may have been off meanwhile; the caller holds ``lock``.

    What is open is counted again at the next reservation, the newest day's tokens from its jobs here: those of realtime
    calls that were not counted are lost, those that were stay.
    """
    tx.execute(delete(quota_counts).where(quota_counts.c.tenant == tenant))
    newest = select(token_days).where(token_days.c.tenant == tenant).order_by(token_days.c.day.desc()).limit(1)
    row = tx.execute(newest).one_or_none()
    if row is not None:
        lost = count_tokens(tx, tenant, datetime.fromisoformat(row.day).replace(tzinfo=UTC)) - row.tokens
        if lost > 0:
            add_tokens(tx, tenant, row.day, lost)


def tokens_of(tx: Tx, tenant: str, day: str) -> int | None:
    """Return a tenant's tokens of a day; None where nobody counts them."""
    statement = select(token_days.c.tokens).where(token_days.c.tenant == tenant, token_days.c.day == day)
    return tx.execute(statement).scalar_one_or_none()


def tokens_by_tenant(tx: Tx, day: str) -> dict[str, int]:
    """Return the tokens of a day by tenant."""
    rows = tx.execute(select(token_days.c.tenant, token_days.c.tokens).where(token_days.c.day == day))
    return {tenant: tokens for tenant, tokens in rows}


def count_tokens(tx: Tx, tenant: str, start_at: datetime) -> int:
    """Count the tokens of jobs that came within the day from ``start_at``, without items that ended before they ran."""
    came = (
        jobs.c.tenant == tenant,
        jobs.c.created_at >= start_at,
        jobs.c.created_at < start_at + timedelta(days=1),
    )
    taken = tx.execute(select(func.coalesce(func.sum(jobs.c.est_tokens), 0)).where(*came)).scalar_one()
    unrun = (
        select(func.coalesce(func.sum(items.c.est_tokens), 0))
        .join_from(jobs, items, items.c.job_id == jobs.c.job_id)
        .where(*came, jobs.c.finished_at.is_not(None), items.c.state.in_(_NEVER_RAN))
    )
    return int(taken) - int(tx.execute(unrun).scalar_one())


def unrun_tokens(tx: Tx, job_id: str) -> int:
    """Return the estimated tokens of a job's items that ended before they ran."""
    statement = select(func.coalesce(func.sum(items.c.est_tokens), 0)).where(
        items.c.job_id == job_id, items.c.state.in_(_NEVER_RAN)
    )
    return int(tx.execute(statement).scalar_one())


def add_tokens(tx: Tx, tenant: str, day: str, tokens: int) -> bool:
    """Add to a day's tokens (or take off); False where nobody counts that day."""
    statement = (
        update(token_days)
        .where(token_days.c.tenant == tenant, token_days.c.day == day)
        .values(tokens=token_days.c.tokens + tokens)
    )
    return tx.execute(statement).rowcount > 0


def begin_day(tx: Tx, tenant: str, day: str, tokens: int) -> None:
    """Begin to count a tenant's day; the caller holds ``lock``."""
    tx.execute(insert(token_days).values(tenant=tenant, day=day, tokens=tokens))


def has_days(tx: Tx, *, before: str) -> bool:
    """Say whether tokens of a day before this one are kept."""
    return bool(tx.execute(select(exists().where(token_days.c.day < before))).scalar_one())


def forget_days(tx: Tx, *, before: str) -> int:
    """Remove the tokens of days before this one; return how many rows."""
    return tx.execute(delete(token_days).where(token_days.c.day < before)).rowcount

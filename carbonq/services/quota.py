"""Reserve what a tenant may hold, when a job is stored; refuse what is beyond, with the figures and the way out.

What waits is counted from open jobs themselves, so that every final state gives it back. The kept count only saves
counting each time: submits add to it, nothing takes off, and it is made anew where a limit would be passed, and once a
minute. Tokens count by grid day, as the ledger's windows do; those of items that never ran are taken off when their job
is final.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from carbonq.errors import QuotaExceeded
from carbonq.model import Job, Quota, Usage
from carbonq.store import quotas
from carbonq.store.database import Tx

#: What a caller is told to wait where open work must end first and nobody knows when, in machine seconds.
RETRY_S = 60.0

#: How long counts of tokens are kept: longer than a job may take, which gives back when it is final.
DAYS_KEPT = timedelta(days=60)

#: How old a kept count may be, in grid time: what was stored while no limit was in force is in none.
_COUNT_KEPT = timedelta(seconds=60)

#: No limit at all.
UNLIMITED = Quota()

#: The names of all limits.
NAMES = tuple(field.name for field in fields(Quota))


def limits_of(tx: Tx, tenant: str, defaults: Quota) -> Quota:
    """Return the limits in force for a tenant: its own over the defaults."""
    return merged(defaults, quotas.own_limits(tx, tenant))


def merged(defaults: Quota, own: Mapping[str, int | None]) -> Quota:
    """Lay a tenant's own limits over the defaults; names that this version does not know count for nothing."""
    known: dict[str, Any] = {name: value for name, value in own.items() if name in NAMES}
    return replace(defaults, **known) if known else defaults


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a tenant wants to add, and what holds for it."""

    tenant: str
    usage: Usage
    tokens: int
    now: datetime
    limits: Quota
    factor: float

    @property
    def is_counted(self) -> bool:
        return any(limit is not None for _, limit, _ in _bounds(self.limits, self.usage))


def reserve(
    tx: Tx,
    tenant: str,
    *,
    items: int,
    input_bytes: int,
    tokens: int,
    now: datetime,
    limits: Quota,
    factor: float = 1.0,
    jobs: int = 1,
) -> None:
    """Count a new job in, before its row is stored in this transaction; ``now`` is grid time, ``factor`` its speed.

    Several ``jobs`` of a tenant that one transaction stores are counted in one call, with their sums: what is not
    stored yet is in no count. Two callers at once cannot pass a limit together. Asks the database nothing where there
    is no limit. Raises QuotaExceeded before anything is written, so that other jobs of the transaction live on.
    """
    asked = _Asked(tenant, Usage(jobs, items, input_bytes), tokens, now, limits, factor)
    if not asked.is_counted and limits.tokens_per_day is None:
        return
    _refuse_the_impossible(asked)
    quotas.lock(tx, tenant)
    held, counted_at = _held(tx, asked)
    used = _day(tx, asked)
    if asked.is_counted:
        quotas.keep_count(tx, tenant, held.plus(asked.usage), counted_at)
    if used is not None and not quotas.add_tokens(tx, tenant, day_of(now), tokens):
        quotas.begin_day(tx, tenant, day_of(now), used + tokens)


def check(
    tx: Tx,
    tenant: str,
    *,
    items: int,
    input_bytes: int,
    tokens: int,
    now: datetime,
    limits: Quota,
    factor: float = 1.0,
    jobs: int = 1,
) -> None:
    """Refuse what ``reserve`` would refuse now, and keep nothing: for work that is stored later."""
    asked = _Asked(tenant, Usage(jobs, items, input_bytes), tokens, now, limits, factor)
    _refuse_the_impossible(asked)
    _held(tx, asked)
    _day(tx, asked)


def _bounds(limits: Quota, usage: Usage) -> tuple[tuple[str, int | None, int], ...]:
    """Return what is counted of open work: its name, the limit, and how much there is."""
    return (
        ("open jobs", limits.open_jobs, usage.open_jobs),
        ("items waiting", limits.items_waiting, usage.items),
        ("bytes waiting", limits.bytes_waiting, usage.input_bytes),
    )


def _refuse_the_impossible(asked: _Asked) -> None:
    day = ("tokens a day", asked.limits.tokens_per_day, asked.tokens)
    for name, limit, value in (*_bounds(asked.limits, asked.usage), day):
        if limit is not None and value > limit:
            raise QuotaExceeded(
                f"this has {value:,} {name} and tenant {asked.tenant!r} may have {limit:,} in all: split it, or have "
                "the limit raised (`carbonq tenants limit`)",
                code="token_limit_exceeded" if name == "tokens a day" else None,
            )


def _held(tx: Tx, asked: _Asked) -> tuple[Usage, datetime]:
    """Return what is held and when that was counted, if there is room beside it. Raises QuotaExceeded."""
    if not asked.is_counted:
        return Usage(), asked.now
    tenant, limits = asked.tenant, asked.limits
    held, counted_at = quotas.counted(tx, tenant) or (Usage(), datetime.min.replace(tzinfo=UTC))
    is_fresh = timedelta() <= asked.now - counted_at < _COUNT_KEPT
    if not is_fresh or _passed(limits, held.plus(asked.usage)) is not None:
        # The kept count knows nothing of what has ended since.
        held, counted_at = quotas.count_open(tx, tenant), asked.now
    passed = _passed(limits, held.plus(asked.usage))
    if passed is None:
        return held, counted_at
    name, limit = passed
    has = {one: value for one, _, value in _bounds(limits, held)}[name]
    more = {one: value for one, _, value in _bounds(limits, asked.usage)}[name]
    raise QuotaExceeded(
        f"tenant {tenant!r} has {has:,} {name} and this would add {more:,}; its limit is {limit:,}: wait until some of "
        "its jobs have ended, cancel some, or have the limit raised (`carbonq tenants limit`)",
        retry_after_s=RETRY_S,
    )


def _passed(limits: Quota, usage: Usage) -> tuple[str, int] | None:
    for name, limit, value in _bounds(limits, usage):
        if limit is not None and value > limit:
            return name, limit
    return None


def _day(tx: Tx, asked: _Asked) -> int | None:
    """Return the day's tokens so far, where these fit beside them; None where nobody counts. Raises QuotaExceeded."""
    now, limit = asked.now, asked.limits.tokens_per_day
    if limit is None:
        return None
    used = quotas.tokens_of(tx, asked.tenant, day_of(now))
    if used is None:
        used = quotas.count_tokens(tx, asked.tenant, start_of(day_of(now)))
    if used + asked.tokens > limit:
        raise tokens_refusal(asked.tenant, used, asked.tokens, limit, now=now, factor=asked.factor)
    return used


def tokens_refusal(tenant: str, used: int, tokens: int, limit: int, *, now: datetime, factor: float) -> QuotaExceeded:
    """Return the refusal of tokens beyond a day's limit: it ends with the grid day."""
    more = f"this would add about {tokens:,}; " if tokens else ""
    today = start_of(day_of(now))
    tomorrow = today + timedelta(days=1)
    return QuotaExceeded(
        f"tenant {tenant!r} has used {used:,} tokens since {today:%Y-%m-%dT%H:%MZ} and {more}its limit is "
        f"{limit:,} a day: come back after {tomorrow:%Y-%m-%dT%H:%MZ}, or have the limit raised "
        "(`carbonq tenants limit`)",
        code="token_limit_exceeded",
        retry_after_s=(tomorrow - now).total_seconds() / factor,
    )


def release(tx: Tx, job: Job) -> None:
    """Undo the reservation of a job that was not stored after all: its request had come before."""
    quotas.add_tokens(tx, job.tenant, day_of(job.created_at), -job.est_tokens)


def give_back(tx: Tx, job: Job) -> None:
    """Take the tokens of items that never ran off the day their job came, in the transaction that makes it final."""
    if job.items_cancelled or job.items_expired:
        quotas.add_tokens(tx, job.tenant, day_of(job.created_at), -quotas.unrun_tokens(tx, job.job_id))


def add_realtime(tx: Tx, tenant: str, tokens: int, day: str) -> None:
    """Add tokens of realtime calls to a grid day."""
    if quotas.add_tokens(tx, tenant, day, tokens):
        return
    quotas.lock(tx, tenant)
    if not quotas.add_tokens(tx, tenant, day, tokens):  # nobody else began the day meanwhile
        quotas.begin_day(tx, tenant, day, quotas.count_tokens(tx, tenant, start_of(day)) + tokens)


def day_of(at: datetime) -> str:
    """Return the UTC day of a grid time, like ``2026-03-02``."""
    return at.astimezone(UTC).date().isoformat()


def start_of(day: str) -> datetime:
    """Return the grid time at which a day begins."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC)

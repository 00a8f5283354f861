"""Say how contract targets stand, and keep what that needs: sums by hour of what ran, a count of accepted work.

A look reads the kept sums of a month, one row for each day, tenant and model in which something ran: however many
entries there are, at most 38 rows a tenant and model. A tick sums up the hours that entries came into since, newest
first and a bounded number at a time: one pass over the entries of each of these hours, one over the hours of its day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

from carbonq import target
from carbonq.budget import Book
from carbonq.clock import Clock
from carbonq.events import TARGET_AT_RISK, TARGET_BROKEN, TARGET_RESTORED
from carbonq.services import targets_admin
from carbonq.store import events, target_ahead, target_hours, targets
from carbonq.store.database import Database, Tx
from carbonq.store.events import NewEvent
from carbonq.store.target_ahead import Accepted
from carbonq.store.target_hours import HOUR, Hour
from carbonq.store.targets import Told
from carbonq.target import Ahead, Day, Month, Ran, Target, TargetState, TargetStatus, month_of, recent_since
from carbonq.units import from_quanta, quanta

#: Hours summed up before they are stored together, and how often in one tick.
HOURS = 12
ROUNDS = 8

#: What is told of each state.
_ALARMS = {TargetState.AT_RISK: TARGET_AT_RISK, TargetState.BROKEN: TARGET_BROKEN}

_ByDay = Mapping[datetime, Mapping[Book, Ran]]

Kept = TypeVar("Kept")


def statuses(db: Database, now: datetime, tenant: str | None = None) -> list[TargetStatus]:
    """Return the targets of a tenant (None: of all) as they stand in the month of a grid time, by tenant and model.

    Of all entries that the last tick saw. Raises StoreUnavailable.
    """
    with db.read() as tx:
        return of_month(tx, targets.every(tx, tenant), month_of(now), now, tenant)


def status(db: Database, now: datetime, tenant: str, target_id: str) -> TargetStatus:
    """Return one target of a tenant as it stands at a grid time. Raises NotFound, StoreUnavailable."""
    with db.read() as tx:
        return of_month(tx, [targets.get(tx, target_id, tenant)], month_of(now), now, tenant)[0]


def of_month(
    tx: Tx, wanted: Sequence[Target], month: Month, now: datetime, tenant: str | None = None
) -> list[TargetStatus]:
    """Return how targets stand in a month, at a grid time in it or after it; ``tenant``: all of them are its."""
    if not wanted:
        return []
    is_over = now >= month.end_at
    since = month.start_at if is_over else min(month.start_at, recent_since(now))
    found = target_hours.by_day(tx, since, min(month.end_at, now + HOUR), tenant=tenant)
    accepted = {} if is_over else target_ahead.kept(tx, tenant)
    ran, ahead = _by_tenant(found), _by_tenant(accepted)
    return [_status(one, month, now, ran.get(one.tenant, {}), ahead.get(one.tenant, {})) for one in wanted]


def _by_tenant(found: Mapping[tuple[str, str], Kept]) -> dict[str, dict[str, Kept]]:
    """Return what is kept of each tenant by model."""
    by_tenant: dict[str, dict[str, Kept]] = {}
    for (tenant, model), kept in found.items():
        by_tenant.setdefault(tenant, {})[model] = kept
    return by_tenant


def _status(
    one: Target,
    month: Month,
    now: datetime,
    found: Mapping[str, _ByDay],
    accepted: Mapping[str, Accepted],
) -> TargetStatus:
    """Return how a target stands; ``found`` and ``accepted`` are its tenant's, by model."""
    mine = [by_day for model, by_day in found.items() if one.model in (None, model)]
    days: dict[datetime, list[Ran]] = {}
    for by_day in mine:
        for at, ran in by_day.items():
            days.setdefault(at, []).append(ran[one.book])
    summed = {at: _sum(parts) for at, parts in days.items()}
    ahead = [held.by_book[one.book] for model, held in accepted.items() if one.model in (None, model)]
    return target.judge(
        one,
        month,
        _sum(ran for at, ran in summed.items() if at >= month.start_at),
        now=now,
        ahead=Ahead(
            sum(part.tokens for part in ahead),
            sum(part.priced_tokens for part in ahead),
            _grams(part.grams for part in ahead),
        ),
        days=[Day(at, ran) for at, ran in sorted(summed.items()) if at >= recent_since(now)],
    )


def tick(db: Database, clock: Clock) -> int:
    """Sum up what changed, count accepted work, and tell what is due; return how many events. Raises StoreUnavailable.

    Idempotent; safe beside another one. Costs one look where there is no target.
    """
    now = clock.now()
    with db.read() as tx:
        tenants = targets.tenants(tx)
        has_marks = target_hours.has_marks(tx)
    if not tenants:
        if has_marks:
            with db.write() as tx:
                target_hours.drop_unwanted(tx)
        return 0
    if has_marks:
        sum_up(db, clock)
    _count(db, tenants, month_of(now))
    _retire(db, now)
    return tell(db, now)


def sum_up(db: Database, clock: Clock, *, rounds: int = ROUNDS) -> int:
    """Sum up a tick's worth of the hours that entries came into, newest first; return how many.

    One that is overtaken by another leaves its hours to it. Raises StoreUnavailable.
    """
    done, oldest = 0, _kept_since(clock.now())
    for _ in range(rounds):
        with db.write() as tx:
            marks = target_hours.take(tx, hours=HOURS)
        if not marks:
            break
        found: dict[datetime, list[Hour]] = {}
        with db.read() as tx:
            tenants = targets.tenants(tx)
            for at in sorted({mark.hour_at for mark in marks}):
                found[at] = target_hours.sums(tx, at, tenants, clock.kind) if at >= oldest else []
        with db.write() as tx:
            if target_hours.finish(tx, marks, found):
                done += len(found)
    return done


def _count(db: Database, tenants: Sequence[str], month: Month) -> None:
    with db.read() as tx:
        counted = target_ahead.count(tx, tenants, before=month.end_at)
        is_same = target_ahead.kept(tx) == counted
    if not is_same:
        with db.write() as tx:
            target_ahead.keep(tx, counted)


def _retire(db: Database, now: datetime) -> None:
    """Forget the hours and alarms of months before the last one: the ledger keeps all of it."""
    before = _kept_since(now)
    with db.read() as tx:
        if not target_hours.has_any(tx, before=before):
            return
    with db.write() as tx:
        target_hours.forget(tx, before=before)
        targets.forget_alarms(tx, before=before)


def tell(db: Database, now: datetime) -> int:
    """Store the events that are due of this month and the last one, and return how many. Raises StoreUnavailable.

    Each kind once for a target and month; a change of the target arms them again. Two at once tell nothing twice.
    """
    with db.read() as tx:
        wanted = targets.every(tx)
        found = _of_both(tx, wanted, now)
        told = targets.told(tx, [one.target_id for one in wanted])
    if not _due_of(found, told):
        return 0
    with db.write() as tx:
        targets.lock_alarms(tx)
        there = {one.target_id for one in targets.every(tx)}
        told = targets.told(tx, sorted(there))
        due = _due_of([one for one in found if one.target.target_id in there], told)
        targets.note(tx, [Told(one.target.target_id, one.month.start_at, kind, now) for one, kind in due])
        events.append_many(tx, [NewEvent(kind, now, one.target.tenant, data=_said(one)) for one, kind in due])
    return len(due)


def _kept_since(now: datetime) -> datetime:
    """Return when the last month began."""
    return month_of(month_of(now).start_at - timedelta(days=1)).start_at


def _of_both(tx: Tx, wanted: Sequence[Target], now: datetime) -> list[TargetStatus]:
    """Return targets in this month and in the last one, of those that were promised like that before it was over."""
    month, last = month_of(now), month_of(_kept_since(now))
    earlier = [one for one in wanted if one.updated_at < last.end_at]
    return of_month(tx, wanted, month, now) + of_month(tx, earlier, last, now)


def _due_of(found: Iterable[TargetStatus], told: Sequence[Told]) -> list[tuple[TargetStatus, str]]:
    known: dict[tuple[str, datetime], dict[str, Told]] = {}
    for one in told:
        known.setdefault((one.target_id, one.month_at), {})[one.kind] = one
    pairs = ((one, known.get((one.target.target_id, one.month.start_at), {})) for one in found)
    return [(one, kind) for one, mine in pairs if (kind := due(one, mine)) is not None]


def due(status: TargetStatus, told: Mapping[str, Told]) -> str | None:
    """Return what a target is to tell of its month now; ``told`` is what it told of that month, by kind. Pure."""
    kind = _ALARMS.get(status.state)
    if kind is None and status.state is not TargetState.UNKNOWN and _was_alarmed(told):
        kind = TARGET_RESTORED
    last = None if kind is None else told.get(kind)
    return None if last is not None and last.at >= status.target.updated_at else kind


def _was_alarmed(told: Mapping[str, Told]) -> bool:
    """Say whether the last word was an alarm."""
    restored = told.get(TARGET_RESTORED)
    alarms = [one for kind in _ALARMS.values() if (one := told.get(kind)) is not None]
    return any(restored is None or restored.at < one.at for one in alarms)


def _said(status: TargetStatus) -> dict[str, Any]:
    """Return an event's data: the target as it stands, and whose it is only by the event."""
    left_out = {"object", "tenant", "created_at", "updated_at"}
    return {name: value for name, value in targets_admin.view(status).items() if name not in left_out}


def _sum(parts: Iterable[Ran]) -> Ran:
    ran = list(parts)
    return Ran(
        sum(one.tokens for one in ran),
        _grams(one.grams for one in ran),
        _grams(one.provisional_g for one in ran),
        sum(one.unknown_entries for one in ran),
        sum(one.unknown_tokens for one in ran),
    )


def _grams(parts: Iterable[Decimal]) -> Decimal:
    # Not sum(): the default context would round to 28 digits.
    total = sum((Fraction(one) for one in parts), Fraction(0))
    return from_quanta(quanta(total.numerator, total.denominator))

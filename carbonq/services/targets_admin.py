"""A tenant's contract targets: set, removed, and as people see them. Each change has its line in the admin log."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from carbonq import ids, terms
from carbonq.budget import Book
from carbonq.clock import Clock
from carbonq.errors import Conflict, InvalidRequest, NotFound
from carbonq.store import admin_log, target_hours, targets
from carbonq.store.admin_log import Action
from carbonq.store.database import Database
from carbonq.store.target_hours import HOUR
from carbonq.target import Forecast, Target, TargetStatus, month_of, recent_since
from carbonq.units import GRAM_QUANTUM, iso, plain

#: Targets of one tenant at most: all of them are looked at by every tick.
MAX_TARGETS = 1_000

#: Largest promise, in grams per thousand tokens: a tonne.
MAX_G_PER_1K_TOKENS = Decimal(10**6)

#: What may be written for all models.
ALL = "*"


def set_target(
    db: Database,
    clock: Clock,
    tenant: str,
    *,
    g_per_1k_tokens: Decimal | float | str,
    model: str | None = None,
    book: Book | None = None,
    actor: str,
) -> Target:
    """Set the tenant's target of a model (None: of all models), or change the one there is; a book not given stays.

    A target that is set again as it stands is not changed. Raises InvalidRequest naming the field, Conflict where the
    tenant has as many as it may, StoreUnavailable.
    """
    promise, name = _promise(g_per_1k_tokens), _model(model)
    now = clock.now()
    with db.write() as tx:
        targets.lock(tx, tenant)
        before = targets.find(tx, tenant, name)
        if before is None:
            if targets.count(tx, tenant) >= MAX_TARGETS:
                raise Conflict(
                    f"this tenant has {MAX_TARGETS:,} targets, as many as it may; remove one of them",
                    code="too_many_targets",
                )
            made = Target(ids.new("tgt"), tenant, name, book or Book.IMPACT, promise, now, now)
        else:
            made = replace(before, book=book or before.book, g_per_1k_tokens=promise)
            if made == before:
                return before
            made = replace(made, updated_at=now)
        targets.put(tx, made)
        if before is None:  # nobody summed up this tenant's hours before
            target_hours.mark(tx, _hours(now))
        was = None if before is None else _logged(before)
        admin_log.append(tx, Action(actor, "target.set", made.target_id, tenant, before=was, after=_logged(made)))
        return made


def remove(db: Database, tenant: str, target_id: str, *, actor: str) -> Target:
    """Remove a target and return what it was. Raises NotFound, StoreUnavailable."""
    with db.write() as tx:
        targets.lock(tx, tenant)
        before = targets.get(tx, target_id, tenant)
        targets.remove(tx, target_id)
        admin_log.append(tx, Action(actor, "target.removed", target_id, tenant, before=_logged(before)))
        return before


def find(db: Database, tenant: str, model: str | None) -> Target:
    """Return the tenant's target of a model (None: of all models). Raises NotFound, StoreUnavailable."""
    with db.read() as tx:
        found = targets.find(tx, tenant, _model(model))
    if found is None:
        what = "for all models" if model is None else f"for model {model[:100]!r}"
        raise NotFound(f"there is no target {what}; `carbonq target show` shows yours")
    return found


def view(found: TargetStatus) -> dict[str, Any]:
    """Return a target as people see it: grams exact as text; null where it cannot be told."""
    one = found.target
    return {
        "id": one.target_id,
        "object": "target",
        "tenant": one.tenant,
        "model": one.model,
        "book": one.book.value,
        "g_per_1k_tokens": plain(one.g_per_1k_tokens),
        "status": {
            "month": found.month.name,
            "started_at": iso(found.month.start_at),
            "ends_at": iso(found.month.end_at),
            "state": found.state.value,
            "value": _decimal(found.value),
            "grams": plain(found.ran.grams),
            "tokens": found.ran.tokens,
            "provisional_share": _rounded(found.provisional_share),
            "unknown_entries": found.ran.unknown_entries,
            "unknown_tokens": found.ran.unknown_tokens,
            "forecast": None if found.forecast is None else _forecast(found.forecast),
        },
        "created_at": iso(one.created_at),
        "updated_at": iso(one.updated_at),
    }


def _forecast(found: Forecast) -> dict[str, Any]:
    return {
        "value": plain(found.g_per_1k_tokens),
        "low": _decimal(found.low),
        "high": _decimal(found.high),
        "ran_tokens": found.ran_tokens,
        "accepted_tokens": found.accepted_tokens,
        "further_tokens": found.further_tokens,
        "method": found.method,
    }


def _hours(now: datetime) -> list[datetime]:
    """Return the hours that a status at this grid time is made of."""
    first = min(month_of(now).start_at, recent_since(now))
    return [first + number * HOUR for number in range((now - first) // timedelta(hours=1) + 1)]


def _promise(given: Decimal | float | str) -> Decimal:
    """Return a promise that the ledger's decimals can be held against. Raises InvalidRequest."""
    try:
        # By way of text: 0.1 as a float is not the 0.1 that was written.
        promise = Decimal(str(given).strip())
    except InvalidOperation:
        promise = Decimal("NaN")
    if isinstance(given, bool) or not promise.is_finite() or not 0 < promise <= MAX_G_PER_1K_TOKENS:
        raise InvalidRequest(
            f"g_per_1k_tokens {str(given)[:50]!r} is no number of grams per thousand tokens above 0 and at most "
            f"{MAX_G_PER_1K_TOKENS:,}",
            param="g_per_1k_tokens",
        )
    if promise % GRAM_QUANTUM:
        raise InvalidRequest(
            "g_per_1k_tokens has more than 15 decimals, which is all that the ledger counts", param="g_per_1k_tokens"
        )
    return promise


def _model(name: str | None) -> str | None:
    label = terms.label(name, param="model")
    return None if label == ALL else label


def _logged(one: Target) -> dict[str, Any]:
    return {"model": one.model, "book": one.book.value, "g_per_1k_tokens": plain(one.g_per_1k_tokens)}


def _decimal(value: Decimal | None) -> str | None:
    return None if value is None else plain(value)


def _rounded(value: float | None) -> float | None:
    """Write a share as far as it means something."""
    return None if value is None else round(value, 4)

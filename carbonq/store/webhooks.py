"""Rows of ``webhooks`` and ``webhook_deliveries``: endpoints, and what is sent to them. All times are machine times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, literal, or_, select, update

from carbonq.errors import InvalidRequest, NotFound
from carbonq.store.database import Tx
from carbonq.store.dialect import UtcDateTime, insert_new, is_any_of, machine_now
from carbonq.store.tables import events, webhook_cursor, webhook_deliveries, webhooks
from carbonq.units import iso, parse_iso

ENABLED, DISABLED = "enabled", "disabled"
PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a tenant's events go. ``old_secrets`` sign beside ``secret`` until their time is over."""

    webhook_id: str
    tenant: str
    name: str
    url: str
    event_types: Sequence[str]
    secret: str
    old_secrets: Sequence[tuple[str, datetime]]
    state: str
    disabled_reason: str | None
    since_event_id: int
    failing_since: datetime | None
    not_before: datetime | None
    machine_created_at: datetime
    machine_updated_at: datetime

    def secrets(self, now: datetime) -> list[str]:
        """Return the secrets that sign now, newest first."""
        return [self.secret, *(secret for secret, until in self.old_secrets if until > now)]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one endpoint. ``message_id`` and ``body`` are the same at every attempt."""

    delivery_id: int
    webhook_id: str
    message_id: str
    type: str
    body: str
    state: str
    attempts: int
    next_at: datetime | None
    last_at: datetime | None
    last_status: int | None
    last_error: str | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class Due:
    """A message to be sent now; ``now`` is when that was found."""

    endpoint: Endpoint
    delivery: Delivery
    now: datetime


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A message that an endpoint is to get."""

    webhook_id: str
    message_id: str
    type: str
    body: str


_ENDPOINT = tuple(webhooks.c[name] for name in Endpoint.__dataclass_fields__)
_DELIVERY = tuple(webhook_deliveries.c[name] for name in Delivery.__dataclass_fields__)


def _endpoint(row: Mapping[Any, Any]) -> Endpoint:
    values = dict(row)
    values["old_secrets"] = [(secret, parse_iso(until)) for secret, until in values["old_secrets"]]
    return Endpoint(**values)


# --- endpoints ------------------------------------------------------------------------------------------------


def create(
    tx: Tx, webhook_id: str, tenant: str, *, name: str, url: str, event_types: Sequence[str], secret: str
) -> Endpoint:
    """Store a new endpoint, which gets what happens from now on."""
    now = machine_now(tx)
    newest = tx.execute(select(func.max(events.c.event_id))).scalar_one()
    tx.execute(
        insert(webhooks),
        {
            "webhook_id": webhook_id,
            "tenant": tenant,
            "name": name,
            "url": url,
            "event_types": list(event_types),
            "secret": secret,
            "old_secrets": [],
            "state": ENABLED,
            "since_event_id": newest or 0,
            "token": 0,
            "machine_created_at": now,
            "machine_updated_at": now,
        },
    )
    return get(tx, webhook_id, tenant)


def count(tx: Tx, tenant: str) -> int:
    """Return how many endpoints a tenant has."""
    return tx.execute(select(func.count()).where(webhooks.c.tenant == tenant)).scalar_one()


def find(tx: Tx, webhook_id: str, tenant: str) -> Endpoint | None:
    """Return a tenant's endpoint; None where it has none of that id."""
    statement = select(*_ENDPOINT).where(webhooks.c.webhook_id == webhook_id, webhooks.c.tenant == tenant)
    row = tx.execute(statement).mappings().one_or_none()
    return None if row is None else _endpoint(row)


def get(tx: Tx, webhook_id: str, tenant: str) -> Endpoint:
    """Return a tenant's endpoint. Raises NotFound, also for another tenant's."""
    found = find(tx, webhook_id, tenant)
    if found is None:
        raise NotFound(f"there is no webhook {webhook_id!r}; `carbonq webhooks list` shows yours")
    return found


def page(tx: Tx, tenant: str, *, after: str | None = None, limit: int = 20) -> list[Endpoint]:
    """Return a tenant's endpoints, newest first, beginning after the one called ``after``.

    Raises InvalidRequest for an ``after`` that is none of the tenant's.
    """
    statement = select(*_ENDPOINT).where(webhooks.c.tenant == tenant).order_by(webhooks.c.webhook_id.desc())
    if after is not None:
        if find(tx, after, tenant) is None:
            raise InvalidRequest(
                f"after: there is no webhook {after!r}; pass the last id of the page before", param="after"
            )
        statement = statement.where(webhooks.c.webhook_id < after)
    return [_endpoint(row) for row in tx.execute(statement.limit(limit)).mappings()]


def change(
    tx: Tx,
    webhook_id: str,
    *,
    name: str | None = None,
    url: str | None = None,
    event_types: Sequence[str] | None = None,
    is_enabled: bool | None = None,
) -> None:
    """Change what is given of an endpoint; one that is enabled begins with a clean record."""
    values: dict[str, Any] = {"name": name, "url": url}
    values["event_types"] = None if event_types is None else list(event_types)
    values = {key: value for key, value in values.items() if value is not None}
    if is_enabled is not None:
        values |= {"state": ENABLED if is_enabled else DISABLED, "disabled_reason": None}
        values |= {"failing_since": None, "not_before": None}
    tx.execute(
        update(webhooks).where(webhooks.c.webhook_id == webhook_id).values(**values, machine_updated_at=machine_now(tx))
    )


def disable(tx: Tx, webhook_id: str, reason: str) -> bool:
    """Send an endpoint nothing more, for a reason; False where it was disabled before. What is pending stays so."""
    statement = (
        update(webhooks)
        .where(webhooks.c.webhook_id == webhook_id, webhooks.c.state == ENABLED)
        .values(state=DISABLED, disabled_reason=reason, machine_updated_at=machine_now(tx))
    )
    return tx.execute(statement).rowcount == 1


def set_secret(tx: Tx, endpoint: Endpoint, secret: str, *, keep: timedelta, most: int) -> None:
    """Give an endpoint a new secret; the old ones sign beside it for their time, ``most`` of them."""
    now = machine_now(tx)
    old = [(endpoint.secret, now + keep), *endpoint.old_secrets] if keep else []
    kept = [[one, iso(until)] for one, until in old if until > now][:most]
    tx.execute(
        update(webhooks)
        .where(webhooks.c.webhook_id == endpoint.webhook_id)
        .values(secret=secret, old_secrets=kept, machine_updated_at=now)
    )


def remove(tx: Tx, webhook_id: str) -> None:
    """Delete an endpoint and all that was or would have been sent to it."""
    tx.execute(delete(webhook_deliveries).where(webhook_deliveries.c.webhook_id == webhook_id))
    tx.execute(delete(webhooks).where(webhooks.c.webhook_id == webhook_id))


# --- what is sent ---------------------------------------------------------------------------------------------


def routed_up_to(tx: Tx) -> int | None:
    """Return up to which event all were looked at for endpoints; None before the first time."""
    return tx.execute(select(webhook_cursor.c.event_id)).scalar_one_or_none()


def advance(tx: Tx, before: int | None, event_id: int) -> bool:
    """Note that events up to ``event_id`` were looked at; False where another process was faster."""
    if before is None:
        return insert_new(tx, webhook_cursor, [{"cursor_id": 1, "event_id": event_id}]) == 1
    moved = update(webhook_cursor).where(webhook_cursor.c.event_id == before).values(event_id=event_id)
    return tx.execute(moved).rowcount == 1


def earliest(tx: Tx) -> int | None:
    """Return after which event the oldest endpoint that is enabled begins; None where there is no endpoint."""
    return tx.execute(select(func.min(webhooks.c.since_event_id)).where(webhooks.c.state == ENABLED)).scalar_one()


def enabled(tx: Tx, tenants: Sequence[str]) -> list[Endpoint]:
    """Return all endpoints that events of these tenants go to."""
    statement = select(*_ENDPOINT).where(webhooks.c.state == ENABLED, is_any_of(tx, webhooks.c.tenant, tenants))
    return [_endpoint(row) for row in tx.execute(statement).mappings()]


def add(tx: Tx, new: Sequence[NewDelivery]) -> int:
    """Store messages to be sent now; one that its endpoint has already is left as it is. Return how many were new."""
    now = machine_now(tx)
    values = [
        {
            "webhook_id": one.webhook_id,
            "message_id": one.message_id,
            "type": one.type,
            "body": one.body,
            "state": PENDING,
            "attempts": 0,
            "next_at": now,
            "recorded_at": now,
        }
        for one in new
    ]
    return insert_new(tx, webhook_deliveries, values)


def _is_due(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        webhook_deliveries.c.state == PENDING,
        webhook_deliveries.c.next_at <= now,
        webhooks.c.webhook_id == webhook_deliveries.c.webhook_id,
        webhooks.c.state == ENABLED,
        or_(webhooks.c.not_before.is_(None), webhooks.c.not_before <= now),
    )


def waiting(tx: Tx) -> list[tuple[str, str]]:
    """Return the endpoints to which something is to be sent now and nobody does: (tenant, webhook_id), in no order."""
    now = machine_now(tx)
    is_free = or_(webhooks.c.busy_until.is_(None), webhooks.c.busy_until < now)
    has_due = exists().where(*_is_due(now)).correlate(webhooks)
    statement = select(webhooks.c.tenant, webhooks.c.webhook_id).where(is_free, has_due)
    return [(row.tenant, row.webhook_id) for row in tx.execute(statement)]


def take(tx: Tx, webhook_id: str, *, lease_s: float) -> int | None:
    """Take the right to send to an endpoint for so long; None where another one has it. Returns the fencing token."""
    now = machine_now(tx)
    statement = (
        update(webhooks)
        .where(webhooks.c.webhook_id == webhook_id, or_(webhooks.c.busy_until.is_(None), webhooks.c.busy_until < now))
        .values(busy_until=now + timedelta(seconds=lease_s), token=webhooks.c.token + 1)
        .returning(webhooks.c.token)
    )
    return tx.execute(statement).scalar_one_or_none()


def next_due(tx: Tx, webhook_id: str, token: int, *, lease_s: float) -> Due | None:
    """Return the oldest message that is due and renew the right to send it; None where there is none, or no right."""
    now = machine_now(tx)
    is_mine = and_(webhooks.c.webhook_id == webhook_id, webhooks.c.token == token)
    until = now + timedelta(seconds=lease_s)
    if tx.execute(update(webhooks).where(is_mine).values(busy_until=until)).rowcount != 1:
        return None
    statement = select(*_DELIVERY).where(webhooks.c.webhook_id == webhook_id, *_is_due(now))
    row = tx.execute(statement.order_by(webhook_deliveries.c.delivery_id).limit(1)).mappings().one_or_none()
    if row is None:
        return None
    found = tx.execute(select(*_ENDPOINT).where(is_mine)).mappings().one()
    return Due(_endpoint(found), Delivery(**row), now)


def release(tx: Tx, webhook_id: str, token: int) -> None:
    """Give back the right to send to an endpoint."""
    is_mine = and_(webhooks.c.webhook_id == webhook_id, webhooks.c.token == token)
    tx.execute(update(webhooks).where(is_mine).values(busy_until=None))


def record(
    tx: Tx,
    delivery: Delivery,
    *,
    status: int | None,
    error: str | None,
    again_s: float | None,
    pause_s: float,
) -> None:
    """Store what came of an attempt: ``again_s`` later the next one, None: no more (delivered where ``error`` is None).

    ``pause_s`` above 0 keeps everything from the endpoint for so long.
    """
    now = machine_now(tx)
    is_accepted = error is None
    final = DELIVERED if is_accepted else FAILED
    tx.execute(
        update(webhook_deliveries)
        .where(webhook_deliveries.c.delivery_id == delivery.delivery_id, webhook_deliveries.c.state == PENDING)
        .values(
            state=final if again_s is None else PENDING,
            attempts=webhook_deliveries.c.attempts + 1,
            next_at=None if again_s is None else now + timedelta(seconds=again_s),
            last_at=now,
            last_status=status,
            last_error=error,
        )
    )
    since = func.coalesce(webhooks.c.failing_since, literal(now, UtcDateTime))
    values: dict[str, Any] = {"failing_since": None if is_accepted else since}
    if pause_s > 0:
        values["not_before"] = now + timedelta(seconds=pause_s)
    changed = update(webhooks).where(webhooks.c.webhook_id == delivery.webhook_id)
    if is_accepted:
        changed = changed.where(webhooks.c.failing_since.is_not(None))
    tx.execute(changed.values(**values))


def deliveries(
    tx: Tx, webhook_id: str, *, after: int | None = None, limit: int = 20, state: str | None = None
) -> list[Delivery]:
    """Return an endpoint's messages, newest first, beginning after the one numbered ``after``."""
    statement = select(*_DELIVERY).where(webhook_deliveries.c.webhook_id == webhook_id)
    if after is not None:
        statement = statement.where(webhook_deliveries.c.delivery_id < after)
    if state is not None:
        statement = statement.where(webhook_deliveries.c.state == state)
    ordered = statement.order_by(webhook_deliveries.c.delivery_id.desc()).limit(limit)
    return [Delivery(**row) for row in tx.execute(ordered).mappings()]


def delivery_of(tx: Tx, webhook_id: str, message_id: str) -> Delivery | None:
    """Return an endpoint's message by its id; None where there is none."""
    statement = select(*_DELIVERY).where(
        webhook_deliveries.c.webhook_id == webhook_id, webhook_deliveries.c.message_id == message_id
    )
    row = tx.execute(statement).mappings().one_or_none()
    return None if row is None else Delivery(**row)


def backlog(tx: Tx) -> tuple[int, float]:
    """Return how many messages to enabled endpoints are pending, and for how many seconds the oldest has been."""
    statement = select(func.count(), func.min(webhook_deliveries.c.recorded_at)).where(
        webhook_deliveries.c.state == PENDING,
        webhooks.c.webhook_id == webhook_deliveries.c.webhook_id,
        webhooks.c.state == ENABLED,
    )
    waiting_count, oldest = tx.execute(statement).one()
    return waiting_count, 0.0 if oldest is None else (machine_now(tx) - oldest).total_seconds()

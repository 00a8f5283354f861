"""/v1/webhooks: where a tenant's events are sent, and what came of it. ``openai_webhooks.py`` has OpenAI's own paths.

A secret is shown once, when it is made. Looking needs the scope ``read``, changing ``admin``: what is sent leaves the
house.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

import anyio.to_thread
from fastapi import APIRouter, Query, Request

from carbonq import events
from carbonq.api import views
from carbonq.api.auth import Caller, needs
from carbonq.api.body import object_of, read_bytes, read_object
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.openapi import JSON, Content, gives, operation
from carbonq.api.shapes.webhooks import (
    DeletedWebhookEndpoint,
    NewWebhook,
    SecretChange,
    WebhookChange,
    WebhookDelivery,
    WebhookDeliveryPage,
    WebhookEndpoint,
    WebhookEndpointPage,
    WebhookEndpointWithSecret,
    WebhookTest,
)
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import Scope
from carbonq.services import webhooks as services
from carbonq.store import webhooks
from carbonq.store.webhooks import Delivery, Endpoint
from carbonq.units import iso

router = APIRouter()

#: Largest body of these routes, in bytes.
_MAX_BODY_BYTES = 64 * 1024

_WAY_OUT = "an endpoint needs no more than its url, name, event_types and secret"

#: Who may look, and who may change.
READ = [needs(Scope.READ)]
ADMIN = [needs(Scope.ADMIN)]

Json = dict[str, Any]

#: What is sent, with examples.
NEW = {JSON: Content(NewWebhook, {"url": "https://example.com/carbonq", "event_types": ["job.completed"]})}
CHANGE = {JSON: Content(WebhookChange, {"state": "enabled"})}
SECRET = {JSON: Content(SecretChange, {"keep_old_secret_active_for_24_hours": True})}
_TEST = {JSON: Content(WebhookTest, {"event_type": "batch.completed"})}


@router.post(
    "/v1/webhooks",
    dependencies=ADMIN,
    **operation(
        "create_webhook",
        "events",
        answers={200: gives(WebhookEndpointWithSecret)},
        errors=("too_many_webhooks",),
        body=NEW,
    ),
)
async def create_webhook(request: Request, api: ApiDep, caller: CallerDep) -> Json:
    """Make an endpoint, which gets what happens from now on; its secret is shown this once."""
    values = await read_object(request, _MAX_BODY_BYTES, way_out=_WAY_OUT)
    _only(values, "url", "name", "event_types", "secret")
    url = _text(values, "url")
    if url is None:
        raise InvalidRequest("url is missing: where the events are to go", param="url")
    made = await anyio.to_thread.run_sync(
        lambda: services.create(
            api.db,
            caller.tenant,
            url=url,
            name=_text(values, "name"),
            event_types=_texts(values, "event_types"),
            secret=_text(values, "secret"),
            may_be_private=api.limits.webhooks_may_be_private,
            actor=_actor(caller),
        )
    )
    return _view(made) | {"signing_secret": made.secret}


@router.get(
    "/v1/webhooks",
    dependencies=READ,
    **operation("list_webhooks", "events", answers={200: gives(WebhookEndpointPage)}),
)
def list_webhooks(
    api: ApiDep, caller: CallerDep, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> Json:
    """List your endpoints, newest first."""
    with api.db.read() as tx:
        found = webhooks.page(tx, caller.tenant, after=after, limit=limit + 1)
    return views.page_view([_view(one) for one in found[:limit]], has_more=len(found) > limit)


@router.get(
    "/v1/webhooks/{webhook_id}",
    dependencies=READ,
    **operation("get_webhook", "events", answers={200: gives(WebhookEndpoint)}, errors=("not_found",)),
)
def get_webhook(webhook_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Return an endpoint, without its secret."""
    with api.db.read() as tx:
        return _view(webhooks.get(tx, webhook_id, caller.tenant))


@router.post(
    "/v1/webhooks/{webhook_id}",
    dependencies=ADMIN,
    **operation("update_webhook", "events", answers={200: gives(WebhookEndpoint)}, errors=("not_found",), body=CHANGE),
)
async def update_webhook(request: Request, webhook_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Change an endpoint. One that is enabled again gets what was pending, and what happens from now on."""
    values = await read_object(request, _MAX_BODY_BYTES, way_out=_WAY_OUT)
    _only(values, "url", "name", "event_types", "state")
    state = _text(values, "state")
    if state not in {None, webhooks.ENABLED, webhooks.DISABLED}:
        raise InvalidRequest(f"state must be enabled or disabled; got {state!r}", param="state")
    changed = await anyio.to_thread.run_sync(
        lambda: services.change(
            api.db,
            caller.tenant,
            webhook_id,
            url=_text(values, "url"),
            name=_text(values, "name"),
            event_types=_texts(values, "event_types"),
            is_enabled=None if state is None else state == webhooks.ENABLED,
            may_be_private=api.limits.webhooks_may_be_private,
            actor=_actor(caller),
        )
    )
    return _view(changed)


@router.delete(
    "/v1/webhooks/{webhook_id}",
    dependencies=ADMIN,
    **operation("delete_webhook", "events", answers={200: gives(DeletedWebhookEndpoint)}, errors=("not_found",)),
)
def delete_webhook(webhook_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Delete an endpoint with all that was to be sent to it."""
    services.delete(api.db, caller.tenant, webhook_id, actor=_actor(caller))
    return {"id": webhook_id, "object": "webhook_endpoint.deleted", "deleted": True}


@router.post(
    "/v1/webhooks/{webhook_id}/rotate_secret",
    dependencies=ADMIN,
    **operation(
        "rotate_webhook_secret",
        "events",
        answers={200: gives(WebhookEndpointWithSecret)},
        errors=("not_found",),
        body=SECRET,
        is_body_required=False,
    ),
)
async def rotate_secret(request: Request, webhook_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Give an endpoint another secret, shown this once; for a day the old one signs beside it."""
    return await rotate(request, webhook_id, api, caller, keeps_old=True)


async def rotate(request: Request, webhook_id: str, api: Api, caller: Caller, *, keeps_old: bool) -> Json:
    """Rotate as the body says; ``keeps_old`` where it says nothing."""
    values = await _optional_object(request)
    _only(values, "secret", "keep_old_secret_active_for_24_hours")
    keep_old = values.get("keep_old_secret_active_for_24_hours", keeps_old)
    if not isinstance(keep_old, bool):
        name = "keep_old_secret_active_for_24_hours"
        raise InvalidRequest(f"{name} must be true or false", param=name)
    changed = await anyio.to_thread.run_sync(
        lambda: services.rotate(
            api.db,
            caller.tenant,
            webhook_id,
            secret=_text(values, "secret"),
            keep_old=keep_old,
            actor=_actor(caller),
        )
    )
    return _view(changed) | {"signing_secret": changed.secret}


@router.post(
    "/v1/webhooks/{webhook_id}/test",
    dependencies=ADMIN,
    **operation(
        "send_webhook_test",
        "events",
        answers={202: gives(WebhookDelivery)},
        errors=("not_found", "webhook_disabled"),
        body=_TEST,
        is_body_required=False,
    ),
    status_code=202,
)
async def send_test(request: Request, webhook_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Send a message of no meaning, like any other; ask for its delivery to see what came of it."""
    values = await _optional_object(request)
    _only(values, "event_type")
    kind = _text(values, "event_type") or events.TEST
    made = await anyio.to_thread.run_sync(
        lambda: services.send_test(api.db, api.clock, caller.tenant, webhook_id, event_type=kind)
    )
    api.nudger.nudge("deliver")
    return _delivery_view(made)


@router.get(
    "/v1/webhooks/{webhook_id}/deliveries",
    dependencies=READ,
    **operation("list_webhook_deliveries", "events", answers={200: gives(WebhookDeliveryPage)}, errors=("not_found",)),
)
def list_deliveries(
    webhook_id: str,
    api: ApiDep,
    caller: CallerDep,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    state: str | None = None,
) -> Json:
    """List what was sent to an endpoint and what is to be, newest first; of one ``state`` where that is given."""
    states = (webhooks.PENDING, webhooks.DELIVERED, webhooks.FAILED)
    if state is not None and state not in states:
        raise InvalidRequest(f"state must be one of {', '.join(states)}; got {state[:50]!r}", param="state")
    with api.db.read() as tx:
        webhooks.get(tx, webhook_id, caller.tenant)
        last = None if after is None else webhooks.delivery_of(tx, webhook_id, after)
        if after is not None and last is None:
            raise InvalidRequest(
                f"after: there is no delivery {after[:100]!r}; pass the last id of the page before", param="after"
            )
        number = None if last is None else last.delivery_id
        found = webhooks.deliveries(tx, webhook_id, after=number, limit=limit + 1, state=state)
    return views.page_view([_delivery_view(one) for one in found[:limit]], has_more=len(found) > limit)


@router.get(
    "/v1/webhooks/{webhook_id}/deliveries/{message_id}",
    dependencies=READ,
    **operation("get_webhook_delivery", "events", answers={200: gives(WebhookDelivery)}, errors=("not_found",)),
)
def get_delivery(webhook_id: str, message_id: str, api: ApiDep, caller: CallerDep) -> Json:
    """Return what came of one message."""
    with api.db.read() as tx:
        webhooks.get(tx, webhook_id, caller.tenant)
        found = webhooks.delivery_of(tx, webhook_id, message_id)
    if found is None:
        raise NotFound(f"webhook {webhook_id} has no delivery {message_id[:100]!r}")
    return _delivery_view(found)


def _view(endpoint: Endpoint) -> Json:
    since = endpoint.failing_since
    return {
        "id": endpoint.webhook_id,
        "object": "webhook_endpoint",
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": list(endpoint.event_types),
        "state": endpoint.state,
        "disabled_reason": endpoint.disabled_reason,
        "failing_since": None if since is None else int(since.timestamp()),
        "signing_secret_hint": f"whsec_...{endpoint.secret[-5:]}",
        "created_at": int(endpoint.machine_created_at.timestamp()),
        "updated_at": int(endpoint.machine_updated_at.timestamp()),
    }


def _delivery_view(delivery: Delivery) -> Json:
    return {
        "id": delivery.message_id,
        "object": "webhook_delivery",
        "webhook_id": delivery.webhook_id,
        "event_type": delivery.type,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "next_attempt_at": None if delivery.next_at is None else iso(delivery.next_at),
        "last_attempt_at": None if delivery.last_at is None else iso(delivery.last_at),
        "last_status": delivery.last_status,
        "last_error": delivery.last_error,
        "created_at": iso(delivery.recorded_at),
    }


def _actor(caller: Caller) -> str:
    return caller.api_key_id or "settings"


async def _optional_object(request: Request) -> Json:
    raw = await read_bytes(request, _MAX_BODY_BYTES, way_out=_WAY_OUT)
    return object_of(raw) if raw.strip() else {}


def _only(values: Mapping[str, Any], *known: str) -> None:
    for name in values:
        if name not in known:
            raise InvalidRequest(
                f"there is no field {name[:100]!r} here; there are {', '.join(known)}", param=name[:100]
            )


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a text", param=name)
    return value


def _texts(values: Mapping[str, Any], name: str) -> list[str] | None:
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(one, str) for one in cast("list[object]", value)):
        raise InvalidRequest(f"{name} must be a list of texts", param=name)
    return cast("list[str]", value)

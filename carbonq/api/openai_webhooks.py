"""/v1/webhook_endpoints: webhooks under OpenAI's own paths, for ``client.webhooks`` of the official SDK."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from carbonq.api import webhooks
from carbonq.api.context import ApiDep, CallerDep
from carbonq.api.openapi import gives, operation
from carbonq.api.shapes.webhooks import (
    DeletedWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointPage,
    WebhookEndpointWithSecret,
)

router = APIRouter(prefix="/v1/webhook_endpoints")

_SHOWN = {200: gives(WebhookEndpoint)}
_SECRET_SHOWN = {200: gives(WebhookEndpointWithSecret)}
_PAGE = {200: gives(WebhookEndpointPage)}
_GONE = {200: gives(DeletedWebhookEndpoint)}
_NONE = ("not_found",)

router.post(
    "",
    dependencies=webhooks.ADMIN,
    **operation(
        "create_webhook_endpoint",
        "openai",
        answers=_SECRET_SHOWN,
        errors=("too_many_webhooks",),
        body=webhooks.NEW,
    ),
)(webhooks.create_webhook)
router.get("", dependencies=webhooks.READ, **operation("list_webhook_endpoints", "openai", answers=_PAGE))(
    webhooks.list_webhooks
)
router.get(
    "/{webhook_id}",
    dependencies=webhooks.READ,
    **operation("get_webhook_endpoint", "openai", answers=_SHOWN, errors=_NONE),
)(webhooks.get_webhook)
router.post(
    "/{webhook_id}",
    dependencies=webhooks.ADMIN,
    **operation("update_webhook_endpoint", "openai", answers=_SHOWN, errors=_NONE, body=webhooks.CHANGE),
)(webhooks.update_webhook)
router.delete(
    "/{webhook_id}",
    dependencies=webhooks.ADMIN,
    **operation("delete_webhook_endpoint", "openai", answers=_GONE, errors=_NONE),
)(webhooks.delete_webhook)


@router.post(
    "/{webhook_id}/rotate_secret",
    dependencies=webhooks.ADMIN,
    **operation(
        "rotate_webhook_endpoint_secret",
        "openai",
        answers=_SECRET_SHOWN,
        errors=_NONE,
        body=webhooks.SECRET,
        is_body_required=False,
    ),
)
async def rotate_endpoint_secret(request: Request, webhook_id: str, api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """Give an endpoint another secret; the old one is void at once unless you ask for the day, as OpenAI has it."""
    return await webhooks.rotate(request, webhook_id, api, caller, keeps_old=False)

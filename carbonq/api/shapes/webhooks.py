"""The shapes of webhooks: endpoints as OpenAI's API has them, with a state, and what was sent to them."""

from __future__ import annotations

from typing import Annotated, Literal

from carbonq.api.shapes.words import OUT, Count, Page, Shape, Text, Time, Unix, eg

WebhookId = Annotated[str, eg("wh_0190c2a17b0e7c3e9f005f6d")]
MessageId = Annotated[str, eg("evt_0193a8f3c1d2000000000011", says="the header `webhook-id`, the same every time")]
Url = Annotated[str, eg("https://example.com/carbonq")]
Types = Annotated[list[str], eg(["batch.completed", "job.completed"])]
Secret = Annotated[str, eg("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYq=", says="shown this once")]


class WebhookEndpoint(Shape):
    """Where a tenant's events are sent."""

    id: WebhookId
    object: Literal["webhook_endpoint"]
    name: Text
    url: Url
    event_types: Types
    state: Annotated[Literal["enabled", "disabled"], eg("enabled")]
    disabled_reason: Annotated[str | None, eg(None)]
    failing_since: Annotated[int | None, eg(None, says="since when it has taken nothing; seconds since 1970, UTC")]
    signing_secret_hint: Annotated[str, eg("whsec_...GKYq=")]
    created_at: Unix
    updated_at: Unix


class WebhookEndpointWithSecret(WebhookEndpoint):
    """An endpoint with its new secret, which is shown this once."""

    signing_secret: Secret


class WebhookEndpointPage(Page):
    """A tenant's endpoints, newest first."""

    data: list[WebhookEndpoint]


class DeletedWebhookEndpoint(Shape):
    """What is left of an endpoint."""

    id: WebhookId
    object: Literal["webhook_endpoint.deleted"]
    deleted: Literal[True]


class NewWebhook(Shape):
    """An endpoint to be made; without ``event_types`` it gets the ends of jobs and batches."""

    url: Url
    name: Text = OUT
    event_types: Types = OUT
    secret: Secret = OUT


class WebhookChange(Shape):
    """What is to change of an endpoint; what is left out stays."""

    url: Url = OUT
    name: Text = OUT
    event_types: Types = OUT
    state: Annotated[Literal["enabled", "disabled"], eg("enabled")] = OUT


class SecretChange(Shape):
    """Another secret: given, or made where it is left out."""

    secret: Secret = OUT
    keep_old_secret_active_for_24_hours: Annotated[bool, eg(True)] = OUT


class WebhookTest(Shape):
    """What a test sends."""

    event_type: Annotated[str, eg("batch.completed")] = OUT


class WebhookDelivery(Shape):
    """One message to one endpoint, and what came of it so far."""

    id: MessageId
    object: Literal["webhook_delivery"]
    webhook_id: WebhookId
    event_type: Annotated[str, eg("job.completed")]
    state: Annotated[Literal["pending", "delivered", "failed"], eg("delivered")]
    attempts: Count
    next_attempt_at: Annotated[Time | None, eg(None)]
    last_attempt_at: Time | None
    last_status: Annotated[int | None, eg(200, says="of the answer; null where there was none")]
    last_error: Annotated[str | None, eg(None)]
    created_at: Time


class WebhookDeliveryPage(Page):
    """An endpoint's messages, newest first."""

    data: list[WebhookDelivery]

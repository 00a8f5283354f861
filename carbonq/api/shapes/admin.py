"""The shapes of what administrators see."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from carbonq.api.shapes.words import Page, Shape, Text, Time, eg


class AdminAction(Shape):
    """Something that somebody did to keys, limits and the like, without secrets."""

    id: Annotated[str, eg("log_17")]
    object: Literal["admin_action"]
    recorded_at: Time
    actor: Annotated[str, eg("anna@host", says="a key's id, or who gave the command where")]
    action: Annotated[str, eg("key.revoked")]
    subject: Annotated[str, eg("key_0190c2a17b0e7c3e9f005f6d", says="what it was done to")]
    tenant: Text | None
    before: Annotated[dict[str, Any] | None, eg({"scopes": ["read", "submit"]})]
    after: Annotated[dict[str, Any] | None, eg({"scopes": ["read"]})]


class AdminActionPage(Page):
    """Admin actions, newest first."""

    data: list[AdminAction]

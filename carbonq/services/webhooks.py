"""A tenant's webhook endpoints: made, changed, given new secrets, tested, deleted."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import orjson

from carbonq import events, ids
from carbonq.clock import Clock
from carbonq.errors import Conflict, InvalidRequest, NotFound
from carbonq.store import admin_log, webhooks
from carbonq.store.admin_log import Action
from carbonq.store.database import Database
from carbonq.store.dialect import serialise
from carbonq.store.webhooks import Delivery, Endpoint, NewDelivery
from carbonq.webhooks.guard import trouble

#: Endpoints of one tenant at most: each event is sent to all of them.
MAX_ENDPOINTS = 20

#: Longest URL and name of an endpoint, in characters.
MAX_URL_CHARS = 2048
MAX_NAME_CHARS = 255

#: How long a secret goes on signing beside the one that replaced it, and how many do at most.
SECRET_KEPT = timedelta(hours=24)
MAX_OLD_SECRETS = 4

#: What a secret may hold, in bytes (Standard Webhooks), and what ours hold.
SECRET_BYTES = (24, 64)
_OWN_SECRET_BYTES = 32

_PREFIX = "whsec_"


def create(
    db: Database,
    tenant: str,
    *,
    url: str,
    name: str | None,
    event_types: Sequence[str] | None,
    secret: str | None,
    may_be_private: bool,
    actor: str,
) -> Endpoint:
    """Make an endpoint that gets what happens from now on; without a ``secret`` one is made.

    Raises InvalidRequest naming the field, Conflict where the tenant has as many as it may, StoreUnavailable.
    """
    checked = check_url(url, may_be_private=may_be_private)
    types = events.DEFAULT_DELIVERED if event_types is None else check_types(event_types)
    given = new_secret() if secret is None else check_secret(secret)
    label = (urlsplit(checked).hostname or "") if name is None else check_name(name)
    with db.write() as tx:
        serialise(tx, f"webhooks of {tenant}")
        if webhooks.count(tx, tenant) >= MAX_ENDPOINTS:
            raise Conflict(
                f"this tenant has {MAX_ENDPOINTS} webhooks, as many as it may; delete one of them",
                code="too_many_webhooks",
            )
        made = webhooks.create(tx, ids.new("wh"), tenant, name=label, url=checked, event_types=types, secret=given)
        admin_log.append(tx, Action(actor, "webhook.created", made.webhook_id, tenant, after=_logged(made)))
        return made


def change(
    db: Database,
    tenant: str,
    webhook_id: str,
    *,
    url: str | None = None,
    name: str | None = None,
    event_types: Sequence[str] | None = None,
    is_enabled: bool | None = None,
    may_be_private: bool,
    actor: str,
) -> Endpoint:
    """Change what is given of an endpoint and return it. Raises NotFound, InvalidRequest, StoreUnavailable."""
    with db.write() as tx:
        before = webhooks.get(tx, webhook_id, tenant)
        if url is None and name is None and event_types is None and is_enabled is None:
            raise InvalidRequest("nothing to change was given; there are url, name, event_types and state")
        webhooks.change(
            tx,
            webhook_id,
            url=None if url is None else check_url(url, may_be_private=may_be_private),
            name=None if name is None else check_name(name),
            event_types=None if event_types is None else check_types(event_types),
            is_enabled=is_enabled,
        )
        after = webhooks.get(tx, webhook_id, tenant)
        was, said = _logged(before), _logged(after)
        admin_log.append(tx, Action(actor, "webhook.changed", webhook_id, tenant, before=was, after=said))
        return after


def rotate(db: Database, tenant: str, webhook_id: str, *, secret: str | None, keep_old: bool, actor: str) -> Endpoint:
    """Give an endpoint another secret; the old one signs beside it for a day if ``keep_old``.

    Raises NotFound, InvalidRequest, StoreUnavailable.
    """
    given = new_secret() if secret is None else check_secret(secret)
    with db.write() as tx:
        endpoint = webhooks.get(tx, webhook_id, tenant)
        webhooks.set_secret(tx, endpoint, given, keep=SECRET_KEPT if keep_old else timedelta(0), most=MAX_OLD_SECRETS)
        said = {"old_secret": "signs for a day" if keep_old else "is void"}
        admin_log.append(tx, Action(actor, "webhook.rotated", webhook_id, tenant, after=said))
        return webhooks.get(tx, webhook_id, tenant)


def delete(db: Database, tenant: str, webhook_id: str, *, actor: str) -> None:
    """Delete an endpoint with its deliveries. Raises NotFound, StoreUnavailable."""
    with db.write() as tx:
        before = webhooks.get(tx, webhook_id, tenant)
        admin_log.append(tx, Action(actor, "webhook.deleted", webhook_id, tenant, before=_logged(before)))
        webhooks.remove(tx, webhook_id)


def send_test(db: Database, clock: Clock, tenant: str, webhook_id: str, *, event_type: str = events.TEST) -> Delivery:
    """Store a message of no meaning for an endpoint, sent like any other; return its delivery.

    Raises NotFound, Conflict where the endpoint is disabled, InvalidRequest for a type there is not.
    """
    if event_type != events.TEST:
        check_types([event_type])
    message_id = ids.new("evt")
    family = event_type.partition(".")[0]
    body = events.message(message_id, clock.now(), event_type, {"id": f"{family}_test", "is_test": True})
    with db.write() as tx:
        endpoint = webhooks.get(tx, webhook_id, tenant)
        if endpoint.state == webhooks.DISABLED:
            raise Conflict(
                f"webhook {webhook_id} is disabled ({endpoint.disabled_reason or 'on request'}); enable it first",
                code="webhook_disabled",
            )
        webhooks.add(tx, [NewDelivery(webhook_id, message_id, event_type, orjson.dumps(body).decode())])
        found = webhooks.delivery_of(tx, webhook_id, message_id)
        if found is None:
            raise NotFound(f"webhook {webhook_id} was deleted meanwhile")
        return found


def _logged(endpoint: Endpoint) -> dict[str, Any]:
    """Return what the log says of an endpoint: no secret, and no query, which may hold one."""
    url = urlsplit(endpoint.url)._replace(query="").geturl()
    types = list(endpoint.event_types)
    return {"name": endpoint.name, "url": url, "event_types": types, "state": endpoint.state}


def check_url(url: str, *, may_be_private: bool) -> str:
    """Return a URL that events may be sent to; its name's addresses are checked whenever something is sent.

    Raises InvalidRequest saying what is wrong.
    """

    def wrong(why: str) -> InvalidRequest:
        return InvalidRequest(f"url {why}", param="url")

    if len(url) > MAX_URL_CHARS:
        raise wrong(f"has {len(url):,} characters; {MAX_URL_CHARS:,} are allowed")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise wrong("holds characters that no URL has; write them as %XX, and a name by its xn-- form")
    try:
        parts = urlsplit(url)
        port_is_odd = parts.port == 0
    except ValueError as error:
        raise wrong(f"cannot be read: {error}") from error
    host = parts.hostname or ""
    if parts.scheme not in {"https", "http"} or not host or port_is_odd:
        raise wrong("must be like https://example.com/path")
    if parts.username is not None or parts.password is not None:
        raise wrong("holds a user or password; the signature shows who sends")
    if parts.fragment:
        raise wrong("holds a fragment (#), which is never sent")
    if parts.scheme == "http" and not may_be_private:
        raise wrong("must begin with https://")
    try:
        why = trouble(ip_address(host), may_be_private=may_be_private)
    except ValueError:  # a name: looked up when something is sent
        is_local = host == "localhost" or host.endswith(".localhost")
        why = "it is this machine's own name" if is_local and not may_be_private else None
    if why is not None:
        raise wrong(f"cannot go to {host}: {why}")
    return url


def check_types(given: Sequence[str]) -> list[str]:
    """Return event types, each once. Raises InvalidRequest for an unknown one or none at all."""
    if not given:
        raise InvalidRequest("event_types must name at least one type", param="event_types")
    unknown = sorted({one for one in given if one not in events.DELIVERABLE})
    if unknown:
        raise InvalidRequest(
            f"event_types: there is no {unknown[0]!r} to send; there are {', '.join(sorted(events.DELIVERABLE))}",
            param="event_types",
        )
    return sorted(set(given))


def check_name(name: str) -> str:
    """Return an endpoint's name. Raises InvalidRequest."""
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME_CHARS:
        raise InvalidRequest(f"name must be printable text of 1 to {MAX_NAME_CHARS} characters", param="name")
    return name


def new_secret() -> str:
    """Return a fresh secret."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_OWN_SECRET_BYTES)).decode()


def check_secret(secret: str) -> str:
    """Return a secret that was given. Raises InvalidRequest, without showing it."""
    low, high = SECRET_BYTES
    try:
        held = base64.b64decode(secret.removeprefix(_PREFIX), validate=True) if secret.startswith(_PREFIX) else b""
    except (binascii.Error, ValueError):
        held = b""
    if not low <= len(held) <= high:
        raise InvalidRequest(
            f"secret must be {_PREFIX} and then the base64 of {low} to {high} random bytes; leave it out and one is "
            "made",
            param="secret",
        )
    return secret

"""Make, change, rotate and revoke API keys; each leaves its line in the log of admin actions, without the secret."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from carbonq import terms
from carbonq.errors import Conflict, InvalidRequest, NotFound
from carbonq.model import Scope
from carbonq.store import admin_log, keys
from carbonq.store.admin_log import Action
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now
from carbonq.store.keys import Key
from carbonq.terms import Carrier
from carbonq.units import iso

#: Longest name of a key, in characters.
MAX_NAME_CHARS = 255

#: Longest time that two secrets of a key may be good together.
MAX_OVERLAP = timedelta(days=31)

#: Largest rate, a minute: what a database's whole number holds, with room to add.
MAX_RATE = 10**15

#: What may be changed of a key.
_CHANGEABLE = ("name", "expires_at", "scopes", "defaults", "requests_per_minute", "tokens_per_minute")


def create(
    db: Database,
    tenant: str,
    name: str,
    *,
    actor: str,
    scopes: frozenset[Scope] = keys.USUAL_SCOPES,
    expires_at: datetime | None = None,
    defaults: Mapping[str, Any] | None = None,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> tuple[Key, str]:
    """Store a fresh key and return it with its plaintext, which is shown once and stored nowhere.

    Raises InvalidRequest naming the field, StoreUnavailable.
    """
    rates = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    _check(name, scopes, {**rates, "defaults": defaults})
    with db.write() as tx:
        _check_expiry(tx, expires_at)
        key_id, plaintext = keys.create(
            tx,
            tenant,
            name,
            False,
            expires_at=expires_at,
            scopes=scopes,
            defaults=defaults,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
        )
        key = _get(tx, key_id)
        admin_log.append(tx, Action(actor, "key.created", key_id, tenant, after=_logged(key)))
    return key, plaintext


def get(db: Database, key_id: str) -> Key:
    """Return a key, valid or not. Raises NotFound, StoreUnavailable."""
    with db.read() as tx:
        return _get(tx, key_id)


def rotate(db: Database, key_id: str, *, overlap: timedelta, actor: str) -> tuple[Key, str]:
    """Give a key a new secret and return both; the present one stays good for ``overlap`` of machine time, 0: ends now.

    Raises NotFound, Conflict for a key that is revoked or expired or has an earlier secret that is still good,
    InvalidRequest, StoreUnavailable.
    """
    if not timedelta() <= overlap <= MAX_OVERLAP:
        raise InvalidRequest(f"overlap {overlap} is not between 0 and {MAX_OVERLAP.days} days", param="overlap")
    plaintext = keys.make_secret()
    with db.write() as tx:
        now = machine_now(tx)
        before = _get(tx, key_id, is_locked=True)
        _check_valid(before, now)
        if overlap and before.previous_until is not None and before.previous_until > now:
            raise Conflict(
                f"{key_id} was rotated before and its earlier secret is good until {iso(before.previous_until)}; wait "
                "for that, or rotate with --overlap 0, which ends both secrets there are now"
            )
        keys.replace_secret(tx, key_id, plaintext, previous_until=now + overlap if overlap else None)
        after = _get(tx, key_id)
        said = {"previous_until": None if after.previous_until is None else iso(after.previous_until)}
        admin_log.append(tx, Action(actor, "key.rotated", key_id, after.tenant, after=said))
    return after, plaintext


def revoke(db: Database, key_id: str, *, actor: str) -> Key:
    """End a key with all its secrets. Raises NotFound (also for one that was revoked before), StoreUnavailable."""
    with db.write() as tx:
        if not keys.revoke(tx, key_id):
            raise NotFound(f"no valid key has the id {key_id!r}; `carbonq keys list` shows them")
        key = _get(tx, key_id)
        admin_log.append(tx, Action(actor, "key.revoked", key_id, key.tenant, before=_logged(key)))
    return key


def change(db: Database, key_id: str, values: Mapping[str, Any], *, actor: str) -> Key:
    """Set what is given of a key: name, expires_at, scopes, defaults, requests_per_minute, tokens_per_minute.

    Raises NotFound, Conflict for a revoked key, InvalidRequest naming the field, StoreUnavailable.
    """
    unknown = set(values) - set(_CHANGEABLE)
    assert not unknown, unknown
    with db.write() as tx:
        before = _get(tx, key_id, is_locked=True)
        if before.revoked_at is not None:
            raise Conflict(f"{key_id} was revoked at {iso(before.revoked_at)}; make a new key")
        _check(values.get("name", before.name), values.get("scopes", before.scopes), values)
        if "expires_at" in values:
            _check_expiry(tx, values["expires_at"])
        keys.change(tx, key_id, values)
        after = _get(tx, key_id)
        old, new = _logged(before), _logged(after)
        changed = [name for name in old if old[name] != new[name]]
        if changed:
            done = Action(
                actor,
                "key.changed",
                key_id,
                after.tenant,
                before={name: old[name] for name in changed},
                after={name: new[name] for name in changed},
            )
            admin_log.append(tx, done)
    return after


def _get(tx: Tx, key_id: str, *, is_locked: bool = False) -> Key:
    key = keys.find(tx, key_id, is_locked=is_locked)
    if key is None:
        raise NotFound(f"there is no key {key_id!r}; `carbonq keys list` shows them")
    return key


def _check(name: str, scopes: frozenset[Scope], given: Mapping[str, Any]) -> None:
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME_CHARS:
        raise InvalidRequest(f"the key's name must be printable text of 1 to {MAX_NAME_CHARS} characters", param="name")
    if not scopes:
        raise InvalidRequest(f"a key needs a scope: {', '.join(Scope)}", param="scope")
    for field in ("requests_per_minute", "tokens_per_minute"):
        value = given.get(field)
        if value is not None and not 1 <= value <= MAX_RATE:
            raise InvalidRequest(f"{field} {value} is not between 1 and {MAX_RATE:,}", param=field)
    # Spans count from each request, so that now is as good as any time to see whether one is meant.
    terms.read([Carrier(given.get("defaults") or {}, "default {}".format)], now=datetime.now(UTC))


def _check_expiry(tx: Tx, expires_at: datetime | None) -> None:
    now = machine_now(tx)
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest(f"expires {iso(expires_at)} is in the past; it is {iso(now)}", param="expires")


def _check_valid(key: Key, now: datetime) -> None:
    if key.revoked_at is not None:
        raise Conflict(f"{key.key_id} was revoked at {iso(key.revoked_at)}; make a new key")
    if key.expires_at is not None and key.expires_at <= now:
        raise Conflict(
            f"{key.key_id} expired at {iso(key.expires_at)}; `carbonq keys set --expires` gives it another end first"
        )


def _logged(key: Key) -> dict[str, Any]:
    return {
        "name": key.name,
        "expires_at": None if key.expires_at is None else iso(key.expires_at),
        "scopes": sorted(key.scopes),
        "defaults": dict(key.defaults),
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
    }

"""API keys: made, found by hash, listed, rotated, revoked. Only SHA-256s of secrets are stored; machine times.

A key has one secret, and for a stated time after a rotation the one before it too. Its id stays the same.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, exists, or_, select, update

from carbonq import ids
from carbonq.model import Scope
from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.tables import api_keys

#: How a key begins, so that people and secret scanners can tell one; 32 random bytes follow. Older ones begin with cq-.
PREFIX = "cq_"

#: What a key may do where nothing else was said, and what keys from before there were scopes may.
USUAL_SCOPES = frozenset({Scope.SUBMIT, Scope.READ, Scope.EXPORT})

ALL_SCOPES = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class Key:
    """A stored key, without its secret. ``is_local``: made by the embedded stack for this machine only.

    ``good_until``: when the secret that it was found by ends (None: never). ``previous_until``: the one before ends.
    """

    key_id: str
    tenant: str
    name: str
    is_local: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    scopes: frozenset[Scope] = USUAL_SCOPES
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    last_used_at: datetime | None = None
    previous_until: datetime | None = None
    good_until: datetime | None = None


def hash_key(plaintext: str) -> str:
    """Return the hex SHA-256 of a whole key; a fast hash is safe because keys are 256 random bits, not passwords."""
    return hashlib.sha256(plaintext.encode()).hexdigest()


def make_secret() -> str:
    """Return a fresh plaintext key."""
    return PREFIX + secrets.token_urlsafe(32)


def create(
    tx: Tx,
    tenant: str,
    name: str,
    is_local: bool,
    *,
    expires_at: datetime | None = None,
    scopes: frozenset[Scope] | None = None,
    defaults: Mapping[str, Any] | None = None,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> tuple[str, str]:
    """Store a fresh key and return its id and its plaintext, which exists nowhere else from then on.

    Without ``scopes`` a local key may do all, any other the usual.
    """
    key_id, plaintext = ids.new("key"), make_secret()
    allowed = scopes or (ALL_SCOPES if is_local else USUAL_SCOPES)
    tx.execute(
        api_keys.insert(),
        {
            "key_id": key_id,
            "tenant": tenant,
            "name": name,
            "key_hash": hash_key(plaintext),
            "is_local": is_local,
            "created_at": machine_now(tx),
            "expires_at": expires_at,
            "revoked_at": None,
            "scopes": sorted(allowed),
            "defaults": dict(defaults) if defaults else None,
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
        },
    )
    return key_id, plaintext


def find_by_hash(tx: Tx, sha: str) -> Key | None:
    """Return the valid key whose present or previous secret has this hash; None if unknown, expired or revoked."""
    now = machine_now(tx)
    is_meant = or_(api_keys.c.key_hash == sha, and_(api_keys.c.previous_hash == sha, api_keys.c.previous_until > now))
    row = tx.execute(select(api_keys).where(is_meant, *_valid(now))).one_or_none()
    return None if row is None else _key(row, is_previous=row.key_hash != sha)


def all_valid(tx: Tx) -> dict[str, Key]:
    """Return every valid key by the hash of each valid secret, for a verifier that must not ask at each call."""
    now = machine_now(tx)
    found: dict[str, Key] = {}
    for row in tx.execute(select(api_keys).where(*_valid(now))):
        found[row.key_hash] = _key(row)
        if row.previous_hash is not None and row.previous_until > now:
            found[row.previous_hash] = _key(row, is_previous=True)
    return found


def has_shared(tx: Tx) -> bool:
    """Say whether a valid key exists that is not this machine's local one."""
    wanted = (api_keys.c.is_local.is_(False), *_valid(machine_now(tx)))
    return bool(tx.execute(select(exists().where(*wanted))).scalar_one())


def page(tx: Tx, tenant: str | None = None) -> Sequence[Key]:
    """Return the keys of a tenant (None: of all), valid or not, oldest first."""
    query = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.key_id)
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    return [_key(row) for row in tx.execute(query)]


def find(tx: Tx, key_id: str, *, is_locked: bool = False) -> Key | None:
    """Return a key by its id, valid or not; ``is_locked`` keeps others from changing it until the transaction ends."""
    statement = select(api_keys).where(api_keys.c.key_id == key_id)
    row = tx.execute(statement.with_for_update() if is_locked else statement).one_or_none()
    return None if row is None else _key(row)


def revoke(tx: Tx, key_id: str) -> bool:
    """Revoke a key with all its secrets; False when there is none of that id or it was revoked before."""
    done = tx.execute(
        update(api_keys)
        .where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=machine_now(tx))
    )
    return done.rowcount > 0


def replace_secret(tx: Tx, key_id: str, plaintext: str, *, previous_until: datetime | None) -> bool:
    """Give a key another secret; the present one stays good until ``previous_until``, or ends now where that is None.

    Any one before that ends now. False when there is no such key or it was revoked.
    """
    previous = None if previous_until is None else api_keys.c.key_hash
    done = tx.execute(
        update(api_keys)
        .where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
        .values(previous_hash=previous, previous_until=previous_until, key_hash=hash_key(plaintext))
    )
    return done.rowcount > 0


def change(tx: Tx, key_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of a key: ``name``, ``expires_at``, ``scopes``, ``defaults``, and its rates."""
    given = dict(values)
    if "scopes" in given:
        given["scopes"] = sorted(given["scopes"])
    if "defaults" in given:
        given["defaults"] = dict(given["defaults"]) or None
    tx.execute(update(api_keys).where(api_keys.c.key_id == key_id).values(**given))


def mark_used(tx: Tx, used_at: Mapping[str, datetime]) -> None:
    """Note when keys were used last; a later time that is noted already stays."""
    for key_id, at in sorted(used_at.items()):
        is_newer = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < at)
        tx.execute(update(api_keys).where(api_keys.c.key_id == key_id, is_newer).values(last_used_at=at))


def _valid(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        api_keys.c.revoked_at.is_(None),
        or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now),
    )


def _key(row: Row[tuple[object, ...]], *, is_previous: bool = False) -> Key:
    scopes = (ALL_SCOPES if row.is_local else USUAL_SCOPES) if row.scopes is None else _known(row.scopes)
    ends = [row.expires_at, row.previous_until] if is_previous else [row.expires_at]
    return Key(
        key_id=row.key_id,
        tenant=row.tenant,
        name=row.name,
        is_local=row.is_local,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        scopes=scopes,
        defaults=row.defaults or {},
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        last_used_at=row.last_used_at,
        previous_until=row.previous_until,
        good_until=min((at for at in ends if at is not None), default=None),
    )


def _known(names: Sequence[str]) -> frozenset[Scope]:
    """Leave out what only a newer version knows: an older one must not grant it."""
    return frozenset(Scope(name) for name in names if name in list(Scope))

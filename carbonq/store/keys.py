"""API keys: made, found by hash, listed, revoked. Only the SHA-256 of a key is stored; all times are machine times."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Row, exists, or_, select

from carbonq import ids
from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.tables import api_keys

#: How a key begins, so that people and secret scanners can tell one; 32 random bytes follow.
PREFIX = "cq-"


@dataclass(frozen=True, slots=True)
class Key:
    """A stored key, without its secret. ``is_local``: made by the embedded stack for this machine only."""

    key_id: str
    tenant: str
    name: str
    is_local: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


def hash_key(plaintext: str) -> str:
    """Return the hex SHA-256 of a whole key; a fast hash is safe because keys are 256 random bits, not passwords."""
    return hashlib.sha256(plaintext.encode()).hexdigest()


def create(tx: Tx, tenant: str, name: str, is_local: bool, *, expires_at: datetime | None = None) -> tuple[str, str]:
    """Store a fresh key and return its id and its plaintext, which exists nowhere else from then on."""
    key_id, plaintext = ids.new("key"), PREFIX + secrets.token_urlsafe(32)
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
        },
    )
    return key_id, plaintext


def find_by_hash(tx: Tx, sha: str) -> Key | None:
    """Return the valid key with this hash; None when it is unknown, expired or revoked."""
    row = tx.execute(select(api_keys).where(api_keys.c.key_hash == sha, *_valid(tx))).one_or_none()
    return None if row is None else _key(row)


def all_valid(tx: Tx) -> dict[str, Key]:
    """Return every valid key by its hash, for a verifier that must not ask the database at each call."""
    rows = tx.execute(select(api_keys).where(*_valid(tx)))
    return {row.key_hash: _key(row) for row in rows}


def has_shared(tx: Tx) -> bool:
    """Say whether a valid key exists that is not this machine's local one."""
    found = tx.execute(select(exists().where(api_keys.c.is_local.is_(False), *_valid(tx)))).scalar_one()
    return bool(found)


def page(tx: Tx, tenant: str | None = None) -> Sequence[Key]:
    """Return the keys of a tenant (None: of all), valid or not, oldest first."""
    query = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.key_id)
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    return [_key(row) for row in tx.execute(query)]


def revoke(tx: Tx, key_id: str) -> bool:
    """Revoke a key; False when there is none of that id or it was revoked before."""
    done = tx.execute(
        api_keys.update()
        .where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=machine_now(tx))
    )
    return done.rowcount > 0


def _valid(tx: Tx) -> tuple[ColumnElement[bool], ...]:
    return (
        api_keys.c.revoked_at.is_(None),
        or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > machine_now(tx)),
    )


def _key(row: Row[tuple[object, ...]]) -> Key:
    return Key(
        key_id=row.key_id,
        tenant=row.tenant,
        name=row.name,
        is_local=row.is_local,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )

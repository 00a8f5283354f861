"""Sessions of the dashboard and one-time links to it: only SHA-256s of their tokens are stored. Machine times.

A session names the secret that it was begun with, not what that may do: whose it is and its scopes are looked up in the
ring of keys at each request, so a session dies with its key, and a change of scopes counts at once.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from sqlalchemy import delete, select

from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.tables import sessions

#: How long a session lasts, and how long a one-time link is good, in seconds.
SESSION_S = 12 * 3600.0
LINK_S = 15 * 60.0

_SESSION, _LINK = "session", "link"


def begin(tx: Tx, key_hash: str) -> str:
    """Store a session of the key with this hash and return its token; sessions and links that are over go away."""
    tx.execute(delete(sessions).where(sessions.c.expires_at <= machine_now(tx)))
    return _add(tx, _SESSION, key_hash, SESSION_S)


def make_link(tx: Tx, key_hash: str) -> str:
    """Store a one-time link for the key with this hash and return its token."""
    return _add(tx, _LINK, key_hash, LINK_S)


def key_of(tx: Tx, token: str) -> str | None:
    """Return the hash of a session's key; None for one that is unknown or over."""
    return tx.execute(
        select(sessions.c.key_hash).where(
            sessions.c.token_hash == _hash(token), sessions.c.kind == _SESSION, sessions.c.expires_at > machine_now(tx)
        )
    ).scalar_one_or_none()


def take_link(tx: Tx, token: str) -> str | None:
    """Use a one-time link up and return the hash of its key; None for one that is unknown, used or over."""
    return tx.execute(
        delete(sessions)
        .where(sessions.c.token_hash == _hash(token), sessions.c.kind == _LINK, sessions.c.expires_at > machine_now(tx))
        .returning(sessions.c.key_hash)
    ).scalar_one_or_none()


def end(tx: Tx, token: str) -> None:
    """End a session; nothing happens where it is over."""
    tx.execute(delete(sessions).where(sessions.c.token_hash == _hash(token)))


def _add(tx: Tx, kind: str, key_hash: str, good_for_s: float) -> str:
    token, now = secrets.token_urlsafe(32), machine_now(tx)
    tx.execute(
        sessions.insert(),
        {
            "token_hash": _hash(token),
            "kind": kind,
            "key_hash": key_hash,
            "created_at": now,
            "expires_at": now + timedelta(seconds=good_for_s),
        },
    )
    return token


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()

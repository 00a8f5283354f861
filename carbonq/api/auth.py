"""Who is calling: Bearer keys, verified from memory; the database is asked only for a key not seen before."""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import anyio.to_thread
from fastapi import Request

from carbonq.errors import ConfigError, NotAuthenticated
from carbonq.store import keys
from carbonq.store.database import Database

logger = logging.getLogger(__name__)

#: How long an unknown key is remembered as unknown, in seconds: a wrong key must not cost a query at each call.
_UNKNOWN_S = 2.0

#: How many unknown keys are remembered at most.
_UNKNOWN_MAX = 1024


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant behind a request, and the key it came with (None: the key of the settings, which has no row)."""

    tenant: str
    api_key_id: str | None


class KeyRing:
    """All valid keys in memory, by hash. ``refresh`` rereads them, so a revocation counts within one refresh.

    While the database is away the keys known so far stay good: realtime calls must not depend on it.
    """

    def __init__(self, db: Database, *, settings_key: str | None, settings_tenant: str) -> None:
        """Hold the key of the settings at once; the stored ones come with the first ``refresh``."""
        self._db = db
        self._fixed: dict[str, Caller] = {}
        if settings_key is not None:
            self._fixed[keys.hash_key(settings_key)] = Caller(settings_tenant, None)
        self._stored: Mapping[str, Caller] = {}
        self._unknown: dict[str, float] = {}
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Reread all valid keys. Raises StoreUnavailable."""
        with self._db.read() as tx:
            stored = {sha: Caller(key.tenant, key.key_id) for sha, key in keys.all_valid(tx).items()}
        with self._lock:
            self._stored = stored

    def known(self, sha: str) -> Caller | None:
        """Return the caller of a key's hash from memory alone."""
        # A stored row of the same key wins over the settings: it has an id for the ledger.
        return self._stored.get(sha) or self._fixed.get(sha)

    def find(self, sha: str) -> Caller | None:
        """Return the caller of a key's hash, asking the database for one not seen before. Raises StoreUnavailable."""
        with self._lock:
            if time.monotonic() < self._unknown.get(sha, 0.0):
                return None
        with self._db.read() as tx:
            key = keys.find_by_hash(tx, sha)
        with self._lock:
            if key is None:
                if len(self._unknown) >= _UNKNOWN_MAX:
                    self._unknown.clear()
                self._unknown[sha] = time.monotonic() + _UNKNOWN_S
                return None
            caller = Caller(key.tenant, key.key_id)
            self._stored = {**self._stored, sha: caller}
            return caller


async def caller_of(request: Request) -> Caller:
    """Return who sends a request (a FastAPI dependency of every /v1 route). Raises NotAuthenticated."""
    scheme, _, plaintext = request.headers.get("authorization", "").partition(" ")
    plaintext = plaintext.strip()
    if scheme.lower() != "bearer" or not plaintext:
        raise NotAuthenticated(
            "no API key was sent; send `Authorization: Bearer KEY` (`carbonq keys create` makes a key)",
            code="missing_api_key",
        )
    ring: KeyRing = request.app.state.api.keyring
    sha = keys.hash_key(plaintext)
    caller = ring.known(sha) or await anyio.to_thread.run_sync(ring.find, sha)
    if caller is None:
        raise NotAuthenticated("this API key is wrong, expired or revoked")
    return caller


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address; a name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, has_shared_key: bool) -> None:
    """Raise ConfigError when others could reach the API but no key was made for them."""
    if not is_loopback(host) and not has_shared_key:
        raise ConfigError(
            f"the API would listen on {host}, which other machines can reach, but there is no API key beside this "
            "machine's local one; make one with `carbonq keys create`, set CARBONQ_API_KEY, or bind 127.0.0.1"
        )

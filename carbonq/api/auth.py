"""Who is calling and what it may do: Bearer keys, verified from memory; the database is asked for a new key only."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Depends, Request

from carbonq.errors import ConfigError, Forbidden, NotAuthenticated, Unavailable
from carbonq.model import Scope
from carbonq.store import keys
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.keys import Key

logger = logging.getLogger(__name__)

#: How long an unknown key is remembered as unknown, in seconds: a wrong key must not cost a query at each call.
_UNKNOWN_S = 2.0

#: How many unknown keys are remembered at most.
_UNKNOWN_MAX = 1024

#: How many keys that are not known here the database is asked about in a second at most: a flood of made-up keys must
#: not take its connections. A key that was just made is known after the next refresh anyhow.
_ASKED_A_SECOND = 20

#: By so many hex digits of its hash a key is looked up; the rest is compared in constant time.
_LOOKED_UP = 16

#: What the dependencies that ``needs`` made ask for.
_SCOPES_OF: dict[Callable[..., Any], tuple[Scope, ...]] = {}


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant behind a request, the key it came with (None: that of the settings, which has no row), its scopes.

    ``defaults``: the key's own fields of ``carbon``. The rates are the key's own; None: those of the settings.
    """

    tenant: str
    api_key_id: str | None
    scopes: frozenset[Scope] = keys.USUAL_SCOPES
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """A secret's hash, whose it is, and until when it is good by this host's monotonic clock."""

    sha: str
    caller: Caller
    until: float = inf


class KeyRing:
    """All valid keys in memory, by hash. ``refresh`` rereads them, so a revocation counts within one refresh.

    While the database is away the keys known so far stay good until they expire: realtime calls must not depend on it.
    """

    def __init__(
        self,
        db: Database,
        *,
        settings_key: str | None,
        settings_tenant: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold the key of the settings at once; the stored ones come with the first ``refresh``."""
        self._db = db
        self._monotonic = monotonic
        self._fixed: dict[str, _Known] = {}
        if settings_key is not None:
            sha = keys.hash_key(settings_key)
            self._fixed[sha[:_LOOKED_UP]] = _Known(sha, Caller(settings_tenant, None))
        self._stored: Mapping[str, _Known] = {}
        self._unknown: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._asked: tuple[int, int] = (0, 0)  # in which second, how often
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Reread all valid keys. Raises StoreUnavailable."""
        with self._db.read() as tx:
            found = keys.all_valid(tx)
            now = machine_now(tx)
        stored = {sha[:_LOOKED_UP]: self._known(sha, key, now) for sha, key in found.items()}
        with self._lock:
            self._stored = stored

    def known(self, sha: str) -> Caller | None:
        """Return the caller of a key's hash from memory alone."""
        # A stored row of the same key wins over the settings: it has an id for the ledger.
        for among in (self._stored, self._fixed):
            one = among.get(sha[:_LOOKED_UP])
            if one is not None and hmac.compare_digest(one.sha, sha) and self._monotonic() < one.until:
                return one.caller
        return None

    def find(self, sha: str) -> Caller | None:
        """Return the caller of a key's hash, asking the database for one not seen before.

        Raises StoreUnavailable, and Unavailable where too many unknown keys were asked about just now.
        """
        with self._lock:
            if self._monotonic() < self._unknown.get(sha, 0.0):
                return None
            second = int(self._monotonic())
            count = self._asked[1] + 1 if self._asked[0] == second else 1
            self._asked = (second, count)
        if count > _ASKED_A_SECOND:
            raise Unavailable(
                "too many unknown API keys are tried at the moment; a key that was just made is known in 2 s",
                code="too_many_unknown_keys",
                retry_after_s=2.0,
            )
        with self._db.read() as tx:
            key = keys.find_by_hash(tx, sha)
            now = machine_now(tx)
        with self._lock:
            if key is None:
                if len(self._unknown) >= _UNKNOWN_MAX:
                    self._unknown.clear()
                self._unknown[sha] = self._monotonic() + _UNKNOWN_S
                return None
            found = self._known(sha, key, now)
            self._stored = {**self._stored, sha[:_LOOKED_UP]: found}
            return found.caller

    def note_use(self, caller: Caller) -> None:
        """Remember that a key was used now; ``write_uses`` stores it."""
        if caller.api_key_id is not None:
            self._used[caller.api_key_id] = self._monotonic()

    def write_uses(self) -> None:
        """Store when keys were used last, all in one transaction. Raises StoreUnavailable; what is not stored stays."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            with self._db.write() as tx:
                now, here = machine_now(tx), self._monotonic()
                keys.mark_used(tx, {key_id: now - timedelta(seconds=here - at) for key_id, at in used.items()})
        except BaseException:
            self._used = used | self._used
            raise

    def _known(self, sha: str, key: Key, now: datetime) -> _Known:
        caller = Caller(
            key.tenant, key.key_id, key.scopes, key.defaults, key.requests_per_minute, key.tokens_per_minute
        )
        # By the monotonic clock: neither a host's wrong clock nor a database that is away prolongs a key.
        left_s = inf if key.good_until is None else (key.good_until - now).total_seconds()
        return _Known(sha, caller, self._monotonic() + left_s)


async def caller_of(request: Request) -> Caller:
    """Return who sends a request (a FastAPI dependency of every /v1 route). Raises NotAuthenticated, QuotaExceeded."""
    scheme, _, plaintext = request.headers.get("authorization", "").partition(" ")
    plaintext = plaintext.strip()
    if scheme.lower() != "bearer" or not plaintext:
        raise NotAuthenticated(
            "no API key was sent; send `Authorization: Bearer KEY` (`carbonq keys create` makes a key)",
            code="missing_api_key",
        )
    api = request.app.state.api
    ring: KeyRing = api.keyring
    sha = keys.hash_key(plaintext)
    caller = ring.known(sha) or await anyio.to_thread.run_sync(ring.find, sha)
    if caller is None:
        raise NotAuthenticated("this API key is wrong, expired or revoked")
    ring.note_use(caller)
    await api.rate_limits.take(request, caller)
    request.state.caller = caller
    return caller


def needs(*scopes: Scope) -> Any:
    """Return the dependency that lets only keys with one of these scopes pass; every /v1 route carries one.

    Put it on a route or a router: ``dependencies=[needs(Scope.READ)]``.
    """

    async def check(caller: Annotated[Caller, Depends(caller_of)]) -> None:
        check_scopes(caller, scopes)

    _SCOPES_OF[check] = scopes
    return Depends(check)


def scopes_of(check: Callable[..., Any] | None) -> tuple[Scope, ...] | None:
    """Return the scopes that a dependency asks for; None for any other dependency."""
    return None if check is None else _SCOPES_OF.get(check)


def check_scopes(caller: Caller, scopes: Sequence[Scope]) -> None:
    """Raise Forbidden unless the caller's key has one of these scopes."""
    if caller.scopes.isdisjoint(scopes):
        wanted = f"the scope {scopes[0]}" if len(scopes) == 1 else f"one of the scopes {', '.join(scopes)}"
        raise Forbidden(
            f"this needs {wanted}, and the API key has {', '.join(sorted(caller.scopes)) or 'none'}; an operator gives "
            f"it with `carbonq keys set {caller.api_key_id or 'KEY_ID'} --scope ...`",
            scopes=scopes,
        )


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

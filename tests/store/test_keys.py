"""API keys on both databases."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select

from carbonq.store import keys
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import api_keys


def test_a_key_is_found_by_its_hash_and_its_secret_is_not_stored(database: Database) -> None:
    with database.write() as tx:
        key_id, plaintext = keys.create(tx, "acme", "ci", False)
    with database.read() as tx:
        found = keys.find_by_hash(tx, keys.hash_key(plaintext))
        stored = repr(tx.execute(select(api_keys)).all())
    assert found is not None
    assert (found.key_id, found.tenant, found.is_local) == (key_id, "acme", False)
    assert plaintext.startswith(keys.PREFIX) and plaintext not in stored


def test_unknown_expired_and_revoked_keys_are_not_found(database: Database) -> None:
    with database.write() as tx:
        past = machine_now(tx) - timedelta(seconds=1)
        _, expired = keys.create(tx, "acme", "old", False, expires_at=past)
        revoked_id, revoked = keys.create(tx, "acme", "leaked", False)
        assert keys.revoke(tx, revoked_id)
        assert not keys.revoke(tx, revoked_id)
        assert not keys.revoke(tx, "key_none")
    with database.read() as tx:
        for plaintext in (expired, revoked, "cq-unknown"):
            assert keys.find_by_hash(tx, keys.hash_key(plaintext)) is None
        assert keys.all_valid(tx) == {}
        assert len(keys.page(tx, "acme")) == 2


def test_a_local_key_is_not_a_shared_one(database: Database) -> None:
    with database.write() as tx:
        _, local = keys.create(tx, "default", "local", True)
        assert not keys.has_shared(tx)
        keys.create(tx, "acme", "ci", False)
    with database.read() as tx:
        assert keys.has_shared(tx)
        assert keys.all_valid(tx)[keys.hash_key(local)].is_local
        assert [key.tenant for key in keys.page(tx)] == ["default", "acme"]

"""Keys over their lives: what is made, changed, rotated and revoked, and what the log of admin actions keeps of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from carbonq.errors import Conflict, InvalidRequest, NotFound
from carbonq.model import Scope
from carbonq.services import admin, keys
from carbonq.store import admin_log
from carbonq.store import keys as rows
from carbonq.store.admin_log import Logged
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now

DAY = timedelta(days=1)
BY = "anna@host"


def logged(database: Database, **only: str) -> list[Logged]:
    with database.read() as tx:
        return admin_log.page(tx, **only)  # type: ignore[arg-type]


def is_good(database: Database, plaintext: str) -> bool:
    with database.read() as tx:
        found = rows.find_by_hash(tx, rows.hash_key(plaintext))
        assert (found is not None) == (rows.hash_key(plaintext) in rows.all_valid(tx))
    return found is not None


def test_a_key_keeps_what_it_was_given(database: Database) -> None:
    with database.read() as tx:
        expires_at = machine_now(tx) + DAY
    key, plaintext = keys.create(
        database,
        "acme",
        "ci",
        actor=BY,
        scopes=frozenset({Scope.READ}),
        expires_at=expires_at,
        defaults={"product_line": "search"},
        requests_per_minute=60,
        tokens_per_minute=9000,
    )
    assert plaintext.startswith("cq_") and is_good(database, plaintext)
    assert keys.get(database, key.key_id) == key
    assert (key.scopes, key.defaults) == ({Scope.READ}, {"product_line": "search"})
    assert (key.requests_per_minute, key.tokens_per_minute, key.expires_at) == (60, 9000, expires_at)
    (made,) = logged(database)
    assert (made.actor, made.action, made.subject, made.tenant) == (BY, "key.created", key.key_id, "acme")
    assert made.after is not None and made.after["scopes"] == ["read"]


def test_both_secrets_are_good_until_the_overlap_ends(database: Database) -> None:
    key, first = keys.create(database, "acme", "ci", actor=BY)
    rotated, second = keys.rotate(database, key.key_id, overlap=DAY, actor=BY)
    assert rotated.key_id == key.key_id and rotated.previous_until is not None
    assert is_good(database, first) and is_good(database, second)
    with database.read() as tx:
        known = rows.all_valid(tx)
        assert known[rows.hash_key(first)].good_until == rotated.previous_until
        assert known[rows.hash_key(second)].good_until is None
    with pytest.raises(Conflict, match="earlier secret is good until"):
        keys.rotate(database, key.key_id, overlap=DAY, actor=BY)
    with database.write() as tx:  # a day later
        tx.execute(text("UPDATE api_keys SET previous_until = created_at"))
    assert not is_good(database, first) and is_good(database, second)
    _, third = keys.rotate(database, key.key_id, overlap=DAY, actor=BY)
    assert is_good(database, second) and is_good(database, third)
    _, last = keys.rotate(database, key.key_id, overlap=timedelta(), actor=BY)
    assert [is_good(database, one) for one in (first, second, third, last)] == [False, False, False, True]
    everything = repr(logged(database))
    assert all(secret not in everything for secret in (first, second, third, last))
    assert all(rows.hash_key(secret) not in everything for secret in (first, second, third, last))


def test_a_key_that_ends_ends_with_both_secrets(database: Database) -> None:
    key, first = keys.create(database, "acme", "ci", actor=BY)
    _, second = keys.rotate(database, key.key_id, overlap=DAY, actor=BY)
    with database.read() as tx:
        soon = machine_now(tx) + timedelta(hours=1)
    keys.change(database, key.key_id, {"expires_at": soon}, actor=BY)
    with database.read() as tx:
        assert {one.good_until for one in rows.all_valid(tx).values()} == {soon}
    keys.revoke(database, key.key_id, actor=BY)
    assert not is_good(database, first) and not is_good(database, second)
    for act in (
        lambda: keys.rotate(database, key.key_id, overlap=DAY, actor=BY),
        lambda: keys.change(database, key.key_id, {"name": "x"}, actor=BY),
    ):
        with pytest.raises(Conflict, match="was revoked"):
            act()
    with pytest.raises(NotFound):
        keys.revoke(database, key.key_id, actor=BY)
    assert [one.action for one in logged(database, action="key")] == [
        "key.revoked", "key.changed", "key.rotated", "key.created",
    ]  # fmt: skip


def test_a_change_is_logged_before_and_after(sqlite_database: Database) -> None:
    key, _ = keys.create(sqlite_database, "acme", "ci", actor=BY)
    keys.change(sqlite_database, key.key_id, {"scopes": frozenset({Scope.READ}), "name": "ci"}, actor=BY)
    newest = logged(sqlite_database)[0]
    assert newest.before == {"scopes": ["export", "read", "submit"]}
    assert newest.after == {"scopes": ["read"]}
    keys.change(sqlite_database, key.key_id, {"name": "ci"}, actor=BY)
    assert logged(sqlite_database)[0] == newest  # nothing changed, nothing to log


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"scopes": frozenset()}, "scope"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": 10**15 + 1}, "tokens_per_minute"),
        ({"defaults": {"colour": "blue"}}, "default colour"),
        ({"defaults": {"deadline": "soon"}}, "default deadline"),
    ],
)
def test_what_no_key_can_be(sqlite_database: Database, values: dict[str, object], param: str) -> None:
    key, _ = keys.create(sqlite_database, "acme", "x" * 255, actor=BY, tokens_per_minute=10**15)
    with pytest.raises(InvalidRequest) as error:
        keys.change(sqlite_database, key.key_id, values, actor=BY)
    assert error.value.param == param
    assert keys.get(sqlite_database, key.key_id) == key
    with pytest.raises(InvalidRequest, match="in the past"):
        keys.create(sqlite_database, "acme", "x", actor=BY, expires_at=key.created_at)
    with pytest.raises(InvalidRequest, match="between 0 and 31 days"):
        keys.rotate(sqlite_database, key.key_id, overlap=timedelta(days=31, seconds=1), actor=BY)


def test_the_log_only_grows(database: Database) -> None:
    keys.create(database, "acme", "ci", actor=BY)
    admin.limit_tenant(database, "rival", {"open_jobs": 3}, actor=BY)
    assert [one.action for one in logged(database, tenant="rival")] == ["tenant.limited"]
    before = logged(database)
    statements = ["UPDATE admin_log SET actor = 'x'", "DELETE FROM admin_log"]
    columns = "log_id, recorded_at, actor, action, subject"
    if database.is_sqlite:
        statements.append(
            f"REPLACE INTO admin_log ({columns}) SELECT log_id, recorded_at, 'x', 'y', 'z' FROM admin_log"
        )
    else:
        statements.append("TRUNCATE admin_log")
    for statement in statements:
        with pytest.raises(DBAPIError, match="append-only"), database.write() as tx:
            tx.execute(text(statement))
    assert logged(database) == before


def test_an_act_that_fails_leaves_no_line(sqlite_database: Database) -> None:
    key, _ = keys.create(sqlite_database, "acme", "ci", actor=BY)
    with sqlite_database.write() as tx:
        tx.execute(
            text("CREATE TRIGGER no BEFORE INSERT ON admin_log BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
        )
    with pytest.raises(DBAPIError):
        keys.revoke(sqlite_database, key.key_id, actor=BY)
    assert keys.get(sqlite_database, key.key_id).revoked_at is None  # and no act without its line

"""Keys, limits of tenants and the log of admin actions from the command line, on a real database."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from carbonq.cli import connect, main
from carbonq.cli.actor import actor
from carbonq.clock import ClockKind, GridClock
from carbonq.errors import InvalidRequest
from carbonq.store import clocks
from tests.store.rows import T0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> None:
    shutil.copy(sqlite_template, tmp_path / "carbonq.db")
    monkeypatch.setenv("CARBONQ_DATABASE_URL", f"sqlite:///{tmp_path / 'carbonq.db'}")
    with connect.open_database() as (_, database), database.write() as tx:
        clocks.ensure(tx, GridClock(T0, T0, 1.0, ClockKind.REAL))


def call(*words: str) -> Any:
    done = CliRunner().invoke(main.app, [*words, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


def test_a_key_from_its_making_to_its_end() -> None:
    made = call(
        "keys", "create", "ci", "--tenant", "acme", "--scope", "read", "--expires", "90d",
        "--requests-per-minute", "1_000", "--default", "product_line=search", "--default", "regions=fr,se",
    )  # fmt: skip
    key_id, secret = made["key_id"], made.pop("key")
    assert secret.startswith("cq_")
    assert call("keys", "show", key_id) == made == call("keys", "list", "--tenant", "acme")[0]
    assert (made["scopes"], made["requests_per_minute"], made["last_used_at"]) == (["read"], 1000, None)
    assert made["defaults"] == {"product_line": "search", "regions": "fr,se"}
    changed = call(
        "keys", "set", key_id, "--scope", "read", "--scope", "admin", "--expires", "never",
        "--requests-per-minute", "default", "--default", "regions=", "--default", "workload=nightly",
    )  # fmt: skip
    assert (changed["scopes"], changed["expires_at"]) == (["admin", "read"], None)
    assert changed["requests_per_minute"] is None
    assert changed["defaults"] == {"product_line": "search", "workload": "nightly"}
    rotated = call("keys", "rotate", key_id, "--overlap", "2h")
    assert rotated["key_id"] == key_id and rotated["key"] != secret and rotated["previous_until"] is not None
    assert call("keys", "revoke", key_id) == {"key_id": key_id, "is_revoked": True}
    log = call("audit-log", "list", "--action", "key")
    assert [one["action"] for one in log] == ["key.revoked", "key.rotated", "key.changed", "key.created"]
    assert {(one["actor"], one["subject"], one["tenant"]) for one in log} == {(actor(), key_id, "acme")}
    assert re.fullmatch(r".+@.+", actor())
    assert secret not in json.dumps(log) and rotated["key"] not in json.dumps(log)


def test_only_the_command_that_makes_a_secret_shows_it() -> None:
    run = CliRunner()
    made = run.invoke(main.app, ["keys", "create", "ci"], catch_exceptions=False)
    secret = made.stdout.strip()
    assert secret.startswith("cq_") and secret not in made.stderr
    key_id = call("keys", "list")[0]["key_id"]
    for words in (["list"], ["show", key_id], ["set", key_id, "--name", "x"], ["revoke", key_id]):
        said = run.invoke(main.app, ["keys", *words], catch_exceptions=False)
        assert secret not in said.output, words


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--expires", "soon"], "neither a span such as 90d, nor a time"),
        (["--expires", "2020-01-01T00:00Z"], "is in the past"),
        (["--requests-per-minute", "many"], "neither a whole number nor default"),
        (["--requests-per-minute", "0"], "not between 1 and"),
        (["--default", "regions"], "is not FIELD=VALUE"),
        (["--default", "region=fr"], "did you mean 'regions'"),
    ],
)
def test_what_no_key_can_have_is_said(words: list[str], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        CliRunner().invoke(main.app, ["keys", "create", "ci", *words], catch_exceptions=False)
    assert call("keys", "list") == [] == call("audit-log", "list")


def test_limits_of_a_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARBONQ_QUOTA_OPEN_JOBS", "7")
    set_ = call("tenants", "limit", "acme", "--items-waiting", "200_000", "--tokens-per-day", "none")
    assert set_ == {"tenant": "acme", "limits": {"items_waiting": 200_000, "tokens_per_day": None}}
    shown = {row["name"]: row for row in call("tenants", "show", "acme")["limits"]}
    assert shown["items_waiting"] == {"name": "items_waiting", "limit": 200_000, "origin": "own", "used": 0}
    assert shown["tokens_per_day"] == {"name": "tokens_per_day", "limit": None, "origin": "own", "used": None}
    assert shown["open_jobs"] == {"name": "open_jobs", "limit": 7, "origin": "settings", "used": 0}
    call("tenants", "limit", "acme", "--items-waiting", "default")
    newest = call("audit-log", "list", "--tenant", "acme")[0]
    assert (newest["action"], newest["before"]) == ("tenant.limited", set_["limits"])
    assert newest["after"] == {"tokens_per_day": None}
    for words in (["--items-waiting", "-1"], ["--items-waiting", "some"], ["--open-jobs", str(10**15 + 1)], []):
        with pytest.raises(InvalidRequest):
            CliRunner().invoke(main.app, ["tenants", "limit", "acme", *words], catch_exceptions=False)


def test_what_operators_hold_is_logged_and_the_log_is_paged() -> None:
    call("tenants", "pause", "acme", "--reason", "unpaid", "--by", "anna")
    call("models", "drain", "wordllama-256")
    call("tenants", "resume", "acme")
    log = call("audit-log", "list")
    assert [(one["action"], one["subject"], one["tenant"]) for one in log] == [
        ("tenant.resumed", "acme", "acme"),
        ("model.draining", "wordllama-256", None),
        ("tenant.paused", "acme", "acme"),
    ]
    assert log[2]["before"] == {"state": "active"}
    assert log[2]["after"] == {"state": "paused", "reason": "unpaid", "by": "anna"}
    assert log[2]["actor"] == actor()
    first = call("audit-log", "list", "--limit", "1")
    assert first == log[:1]
    assert call("audit-log", "list", "--after", first[0]["id"]) == log[1:]
    assert call("audit-log", "list", "--since", "2999-01-01T00:00Z") == []
    assert call("audit-log", "list", "--action", "tenant.paused") == log[2:]

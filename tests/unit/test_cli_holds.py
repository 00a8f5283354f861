"""Pause, drain and resume from the command line, on a real database."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from carbonq.cli import connect, main
from carbonq.clock import ClockKind, GridClock
from carbonq.errors import InvalidRequest, NotFound
from carbonq.store import clocks, regions
from tests.services.running import REGION
from tests.store.rows import T0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> None:
    shutil.copy(sqlite_template, tmp_path / "carbonq.db")
    monkeypatch.setenv("CARBONQ_DATABASE_URL", f"sqlite:///{tmp_path / 'carbonq.db'}")
    with connect.open_database() as (_, database), database.write() as tx:
        clocks.ensure(tx, GridClock(T0, T0, 1.0, ClockKind.REAL))
        regions.sync(tx, [REGION])


def call(*words: str) -> dict[str, str]:
    done = CliRunner().invoke(main.app, [*words, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("group", "name"), [("regions", "fr"), ("tenants", "default"), ("models", "wordllama-256")])
def test_what_is_paused_drains_and_goes_on(group: str, name: str) -> None:
    states = [call(group, verb, name, "--reason", "why not") for verb in ("pause", "drain", "resume")]
    assert [(one["before"], one["state"]) for one in states] == [
        ("active", "paused"),
        ("paused", "draining"),
        ("draining", "active"),
    ]


def test_tenants_are_listed_with_what_holds_them() -> None:
    call("tenants", "pause", "acme", "--reason", "unpaid")
    call("keys", "create", "mine", "--tenant", "beta")
    run = CliRunner().invoke(main.app, ["tenants", "list", "--json"], catch_exceptions=False)
    rows = {row["tenant"]: row for row in json.loads(run.stdout)}
    assert rows["acme"] == {"tenant": "acme", "state": "paused", "open_jobs": 0, "open_items": 0, "reason": "unpaid"}
    assert rows["beta"]["state"] == "active"


@pytest.mark.parametrize(("group", "known"), [("regions", "fr"), ("models", "smollm2-135m-instruct")])
def test_what_is_not_there_is_refused_with_the_names_there_are(group: str, known: str) -> None:
    with pytest.raises(NotFound, match=f"there is no {group[:-1]} 'gpt-9'; known: {known}"):
        CliRunner().invoke(main.app, [group, "pause", "gpt-9"], catch_exceptions=False)


@pytest.mark.parametrize("name", ["", "Acme", "a\nb", "\udcff", "x" * 64])
def test_what_no_tenant_can_be_called_is_not_paused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is no name: small letters"):
        CliRunner().invoke(main.app, ["tenants", "pause", name], catch_exceptions=False)


def test_a_tenant_nobody_knows_is_paused_and_said_to_be_unknown() -> None:
    call("keys", "create", "mine", "--tenant", "beta")
    for name, is_said in (("beta", False), ("betta", True)):
        run = CliRunner().invoke(main.app, ["tenants", "pause", name], catch_exceptions=False)
        assert ("has no key and no open job" in run.output) is is_said

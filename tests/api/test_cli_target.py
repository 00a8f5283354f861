"""``carbonq target`` against a real API, and in the database of the settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from carbonq.cli import main
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import Scope
from carbonq.services import targets
from carbonq.store import admin_log, keys
from tests.api.harness import Harness
from tests.api.test_budgets import run_clock
from tests.api.test_ledger import book

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def settings(harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with harness.db.write() as tx:
        _, key = keys.create(tx, "acme", "ops", False, scopes=frozenset(Scope))
    run_clock(harness)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", key)
    monkeypatch.setenv("CARBONQ_DATABASE_URL", f"sqlite:///{tmp_path / 'api.db'}")


def run(*words: str) -> Result:
    return CliRunner().invoke(main.app, ["target", *words])


def shown(*words: str) -> Any:
    found = run("show", "--json", *words)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_a_target_from_beginning_to_end(harness: Harness) -> None:
    assert "no target yet" in run("show").stderr
    made = run("set", "--g-per-1k-tokens", "1000.50")
    assert made.exit_code == 0 and made.stdout == ""
    assert made.stderr.startswith("all models: at most 1000.50 g per 1,000 tokens, impact book\n")
    book(harness, "eb_1", tenant="acme")
    targets.tick(harness.db, harness.clock)
    (found,) = shown()
    now = found["status"]
    header, row = (line.split("  ") for line in run("show").stdout.splitlines())
    cells = dict(zip([one.strip() for one in header if one], [one.strip() for one in row if one], strict=True))
    assert cells["model"] == "all" and cells["state"] == "on track" and cells["promise"] == "1000.50"
    assert float(cells["value"]) == pytest.approx(float(now["value"]), rel=1e-3)
    assert (cells["range"], cells["tokens"], cells["provisional"]) == ("-", f"{now['tokens']:,}", "100%")
    assert "forecasts are estimates" in run("show").stderr
    gone = json.loads(run("remove", "--json").stdout)
    assert gone == {"id": found["id"], "object": "target.deleted", "deleted": True}
    assert isinstance(run("remove").exception, NotFound)


def test_entries_without_a_rate_are_told(harness: Harness) -> None:
    run("set", "--g-per-1k-tokens", "1", "--book", "inventory", "--model", "wordllama-256")
    book(harness, "eb_1", tenant="acme")
    targets.tick(harness.db, harness.clock)
    said = run("show").stderr
    assert "model wordllama-256: 3 entries have no rate yet" in said and "nothing ran" not in said
    run("set", "--g-per-1k-tokens", "1", "--model", "wordlama-256")
    assert "nothing ran this month of model wordlama-256; is each spelt as its model?" in run("show").stderr


def test_what_is_wrong_is_named() -> None:
    for grams in ("0", "-1", "5,000", "x", ""):
        done = run("set", f"--g-per-1k-tokens={grams}")
        assert isinstance(done.exception, InvalidRequest) and done.exception.param == "g_per_1k_tokens", grams
    assert run("set").exit_code == 2, "the promise is missing"
    assert run("set", "--g-per-1k-tokens", "1", "--book", "both").exit_code == 2
    assert run("show", "--tenant", "acme", "--all-tenants").exit_code == 2


def test_an_operator_sets_any_tenants_in_the_database(harness: Harness) -> None:
    assert run("set", "--tenant", "rival", "--model", "a", "--g-per-1k-tokens", "3").exit_code == 0
    assert shown() == [], "the key's tenant has none"
    run("set", "--g-per-1k-tokens", "4")
    assert [(one["tenant"], one["g_per_1k_tokens"]) for one in shown("--all-tenants")] == [
        ("acme", "4"),
        ("rival", "3"),
    ]
    assert run("show", "--all-tenants").stdout.startswith("tenant")
    with harness.db.read() as tx:
        (logged,) = admin_log.page(tx, tenant="rival", action="target")
    assert "@" in logged.actor and logged.action == "target.set"
    assert run("remove", "--tenant", "rival", "--model", "a").exit_code == 0
    assert isinstance(run("remove", "--tenant", "rival", "--model", "a").exception, NotFound)
    assert isinstance(run("show", "--tenant", "No Name").exception, InvalidRequest)

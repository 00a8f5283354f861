"""``carbonq budget`` against a real API, and in the database of the settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from carbonq.cli import main, top_frame
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import Scope
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
    return CliRunner().invoke(main.app, ["budget", *words])


def shown(*words: str) -> Any:
    found = run("show", "--json", *words)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_a_budget_from_beginning_to_end(harness: Harness) -> None:
    assert "no budget yet" in run("show").stderr
    made = run("set", "--product-line", "=search", "--cap-g", "5000.50", "--action", "queue")
    assert made.exit_code == 0 and made.stdout == ""
    assert made.stderr == "product line =search: 5000.50 gCO2e a month, impact book; work that does not fit waits\n"
    again = json.loads(run("set", "--product-line", "=search", "--cap-g", "0.01", "--json").stdout)
    assert (again["cap_g"], again["action"]) == ("0.01", "queue")
    assert "nothing ran or waits in this period of product line =search;" in run("show").stderr
    book(harness, "eb_1", tenant="acme")
    assert "nothing ran" not in run("show").stderr
    (found,) = shown()
    header, row = (line.split() for line in run("show").stdout.splitlines())
    now = found["status"]
    assert header[:4] == ["level", "name", "period", "book"]
    assert row[:4] == ["product_line", "=search", now["started_at"][:7], "impact"]
    assert row[4:6] == ["0.01", now["spent_g"].rstrip("0")], "every digit"
    assert row[-2:] == ["queue", "0"]
    assert "grams are gCO2e" in run("show").stderr
    run("set", "--product-line", "=search", "--cap-g", "0.01", "--book", "inventory")
    unknown = run("show").stderr
    assert "3 entries have no rate yet and are in no sum" in unknown and "nothing ran" not in unknown
    gone = json.loads(run("remove", "--product-line", "=search", "--json").stdout)
    assert gone == {"id": found["id"], "object": "budget.deleted", "deleted": True}
    assert isinstance(run("remove", "--product-line", "=search").exception, NotFound)


def test_levels(harness: Harness) -> None:
    for words in (("--workload", "nightly"), ("--item",), ("--item", "--workload", "nightly")):
        assert run("set", *words, "--cap-g", "1").exit_code == 0
    assert [(one["level"], one["name"]) for one in shown()] == [
        ("item", "*"),
        ("item", "nightly"),
        ("workload", "nightly"),
    ]
    assert [one["level"] for one in shown("--level", "workload")] == ["workload"]
    assert run("show", "--level", "item").stdout.count("each item") == 2
    assert run("set", "--item", "--cap-g", "1").stderr.startswith("items of all work: 1 gCO2e each, impact book")
    assert run("remove", "--item").exit_code == 0
    assert [one["name"] for one in shown("--level", "item")] == ["nightly"]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--product-line", "a", "--workload", "b"),
        ("--product-line", "a", "--item"),
    ],
)
def test_whose_it_is_must_be_said_once(words: tuple[str, ...]) -> None:
    for command in (("set", "--cap-g", "1"), ("remove",)):
        done = run(*command, *words)
        assert done.exit_code == 2 and "--product-line" in done.stderr


def test_what_is_wrong_is_named() -> None:
    for cap in ("0", "-1", "5,000", "x", "1e99", ""):
        done = run("set", "--workload", "w", f"--cap-g={cap}")
        assert isinstance(done.exception, InvalidRequest) and done.exception.param == "cap_g", cap
    assert run("set", "--workload", "w").exit_code == 2, "the cap is missing"
    assert run("set", "--workload", "w", "--cap-g", "1", "--book", "both").exit_code == 2
    assert isinstance(run("set", "--workload", "", "--cap-g", "1").exception, InvalidRequest)
    assert run("show", "--tenant", "acme", "--all-tenants").exit_code == 2


def test_an_operator_sets_any_tenants_in_the_database(harness: Harness) -> None:
    made = run("set", "--tenant", "rival", "--workload", "nightly", "--cap-g", "3", "--action", "reject")
    assert made.exit_code == 0, made.output
    assert "work that does not fit is refused" in made.stderr
    assert shown() == [], "the key's tenant has none"
    (found,) = shown("--tenant", "rival")
    assert (found["tenant"], found["cap_g"], found["action"]) == ("rival", "3", "reject")
    run("set", "--workload", "nightly", "--cap-g", "4")
    assert [(one["tenant"], one["cap_g"]) for one in shown("--all-tenants")] == [("acme", "4"), ("rival", "3")]
    assert run("show", "--all-tenants").stdout.splitlines()[0].startswith("tenant")
    with harness.db.read() as tx:
        (logged,) = admin_log.page(tx, tenant="rival", action="budget", limit=5)
    assert "@" in logged.actor and logged.action == "budget.set"
    assert run("remove", "--tenant", "rival", "--workload", "nightly").exit_code == 0
    assert isinstance(run("remove", "--tenant", "rival", "--workload", "nightly").exception, NotFound)
    assert isinstance(run("show", "--tenant", "No Name").exception, InvalidRequest)
    assert [one["tenant"] for one in shown("--all-tenants")] == ["acme"]


def test_top_shows_them_in_one_line(harness: Harness) -> None:
    def top() -> str:
        done = CliRunner().invoke(main.app, ["top", "--once"], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "budgets" not in top()
    run("set", "--item", "--cap-g", "1")
    assert "budgets" not in top(), "what each item has by itself is nothing to watch"
    run("set", "--product-line", "=search", "--cap-g", "0.00001")
    book(harness, "eb_1", tenant="acme")
    for number in range(5):
        run("set", "--workload", f"w{number}", "--cap-g", "1000")
    (line,) = (line for line in top().splitlines() if line.startswith("budgets"))
    assert "=search" in line and "% of 10 µgCO2e a month, burn " in line and line.rstrip().endswith("and 2 more")
    assert line.index("=search") < line.index("w0 0% of 1 kgCO2e a day"), "the most used first"
    frame = json.loads(CliRunner().invoke(main.app, ["top", "--json"]).stdout)
    assert [one["name"] for one in frame["budgets"]] == ["=search", *(f"w{number}" for number in range(5))]
    full = frame["budgets"][0]
    assert full["used_share"] > 1
    assert "12 wait" in str(top_frame.render({**frame, "budgets": [{**full, "waiting_chunks": 12}]}).renderables[2])

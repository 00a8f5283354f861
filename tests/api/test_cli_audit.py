"""``carbonq audit`` over HTTP and on the database, and ``GET /v1/audit/{month}``: a tenant's own month only."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from carbonq import verify
from carbonq.cli import main
from carbonq.errors import InvalidRequest, NotFound
from carbonq.services.seal import seal
from tests.api.harness import Harness
from tests.api.test_ledger import book

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def entries(harness: Harness) -> None:
    for tenant in ("acme", "rival"):
        book(harness, f"eb_{tenant}", tenant=tenant)
    seal(harness.db)


@pytest.fixture
def month(harness: Harness) -> str:
    return f"{harness.clock.now():%Y-%m}"


def run(*words: str) -> Result:
    return CliRunner().invoke(main.app, ["audit", *words])


def check(text: str) -> verify.Audit:
    return verify.check_audit(io.StringIO(text))


def test_the_route_gives_the_callers_month(http: httpx.Client, month: str) -> None:
    answer = http.get(f"/v1/audit/{month}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-disposition"] == f'attachment; filename="audit-{month}.json"'
    found = check(answer.text)
    assert (found.problems, found.tenant, found.entries, found.sealed) == ([], "acme", 3, 3)
    assert "rival" not in answer.text
    head = answer.json()["head_hash"]
    assert http.get(f"/v1/audit/{month}", params={"head": head}).status_code == 200


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("2020-01", {}, 404),
        ("January", {}, 400),
        ("2026-13", {}, 400),
        ("{month}", {"head": "0" * 64}, 404),
        ("{month}", {"head": "0" * 63 + "x"}, 400),
        ("{month}", {"head": "x"}, 400),
        ("{month}", {"api_key_id": "key_none"}, 404),
        ("{month}", {"tenant": "rival"}, 400),
        ("{month}", {"haed": "0" * 64}, 400),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_sent(
    http: httpx.Client, month: str, path: str, params: dict[str, str], status: int
) -> None:
    answer = http.get(f"/v1/audit/{path.format(month=month)}", params=params)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")


@pytest.fixture
def remote(url: str, harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", harness.headers()["Authorization"].removeprefix("Bearer "))


@pytest.mark.usefixtures("remote")
def test_the_command_writes_it_through_the_api(month: str, tmp_path: Path) -> None:
    shown = run("--month", month)
    assert check(shown.stdout).problems == []
    written = run("--month", month, "-o", "month.json.gz")
    assert (written.exit_code, written.stdout, "wrote month.json.gz" in written.stderr) == (0, "", True)
    assert verify.main(["--audit", str(tmp_path / "month.json.gz")]) == 0
    assert isinstance(run("--month", "2020-01").exception, NotFound)
    assert isinstance(run("--month", month, "-o", "no/such/folder.json").exception, InvalidRequest)
    assert run("--month", month, "--tenant", "rival").exit_code == 2
    assert sorted(path.name for path in tmp_path.glob("*.json*")) == ["month.json.gz"]


def test_the_command_writes_it_from_the_database(
    month: str, harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CARBONQ_DATABASE_URL", harness.db.engine.url.render_as_string(hide_password=False))
    assert run("--month", month).exit_code == 2  # whose?
    for tenant in ("acme", "rival"):
        given: dict[str, Any] = json.loads(run("--tenant", tenant, "--month", month).stdout)
        assert (given["tenant"], given["sums"]["entries"]) == (tenant, 3)
    missing = run("--tenant", "nobody", "--month", month, "-o", "none.json")
    assert isinstance(missing.exception, NotFound)
    assert not (tmp_path / "none.json").exists()
    of_key = run("--tenant", "acme", "--month", month, "--key", "key_none")
    assert isinstance(of_key.exception, NotFound)

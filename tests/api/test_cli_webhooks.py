"""``carbonq webhooks`` against a real API, with a real receiver behind it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from carbonq.cli import main
from carbonq.cli import webhooks as commands
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import Scope
from carbonq.services.deliver import Deliverer
from carbonq.store import keys
from tests.api.harness import Harness
from tests.api.test_webhooks import SECRET, URL, Receiver, deliver, deliverer, receiver

__all__ = ["deliverer", "receiver"]

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def settings(harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with harness.db.write() as tx:
        _, key = keys.create(tx, "acme", "ops", False, scopes=frozenset(Scope))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", key)


def run(*words: str, **options: Any) -> Result:
    return CliRunner().invoke(main.app, ["webhooks", *words], **options)


def test_an_endpoint_from_beginning_to_end(tmp_path: Path) -> None:
    assert "no webhook yet" in run("list").stderr
    made = run("create", URL, "--name", "ours", "--event", "job.completed")
    assert made.stdout.startswith("whsec_") and "cannot be shown again" in made.stderr
    (listed,) = json.loads(run("list", "--json").stdout)
    webhook_id = listed["id"]
    assert "ours" in run("list").stdout
    assert "job.completed" in run("show", webhook_id).stdout
    changed = json.loads(run("update", webhook_id, "--state", "disabled", "--json").stdout)
    assert (changed["state"], changed["event_types"]) == ("disabled", ["job.completed"])
    assert isinstance(run("update", webhook_id).exception, InvalidRequest)
    (tmp_path / "secret").write_text(SECRET + "\n")
    assert run("rotate", webhook_id, "--from-file", "secret").stdout.strip() == SECRET
    assert run("rotate", webhook_id, "--from-file", "-", "--now", input=SECRET).stdout.strip() == SECRET
    assert json.loads(run("delete", webhook_id, "--json").stdout)["deleted"] is True
    assert isinstance(run("show", webhook_id).exception, NotFound)
    assert isinstance(run("show", "../keys").exception, NotFound)


def test_a_test_says_what_came_of_it(receiver: Receiver, deliverer: Deliverer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = json.loads(run("create", receiver.url, "--json").stdout)
    monkeypatch.setattr(commands.time, "sleep", lambda _s: deliver(deliverer))
    done = run("test", made["id"])
    assert (done.exit_code, done.stderr) == (0, "delivered: it answered 200\n")
    receiver.status = 500
    done = run("test", made["id"])
    assert done.exit_code == 1
    assert "not taken: it answered 500; it is sent again at 20" in done.stderr
    table = run("deliveries", made["id"], "--state", "delivered").stdout
    assert table.count("webhook.test") == 1
    assert len(json.loads(run("deliveries", made["id"], "--json").stdout)) == 2
    monkeypatch.setattr(commands, "_WAIT_S", 0.0)
    monkeypatch.setattr(commands.time, "sleep", lambda _s: threading.Event().wait(0.01))
    done = run("test", made["id"])
    assert (done.exit_code, "does a control worker run?" in done.stderr) == (1, True)

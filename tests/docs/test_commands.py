"""Every command line of README and docs: it exists, and it is run, here or in the test that its excuse names."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from carbonq.cli import main
from carbonq.client import Client
from carbonq.config.settings import Settings
from carbonq.model import Scope
from carbonq.store import keys
from carbonq.store.tables import jobs
from tests.api.conftest import harness, http, url
from tests.api.harness import Harness
from tests.api.test_budgets import run_clock
from tests.api.test_jobs import finish, submit
from tests.docs import pages
from tests.docs.pages import ROOT, Line

__all__ = ["harness", "http", "url"]

#: What is not run here, by how its line begins, and why; a file that is named runs it.
EXCUSED = {
    r"\. \.venv/bin/activate$": "a shell's own",
    r"\.venv/bin/pytest -m chaos|CHAOS_FIGURES": "twenty minutes: tests/system/test_chaos.py",
    r"make (demo|test)$": "what it calls is run by CI: .ci/run",
    r"(CARBONQ_EXTRAS=.* )?docker |git |ops/docker/make-secrets": "needs Docker: tests/system/test_compose.py",
    r"kubectl ": "needs a cluster: tests/docs/test_kubernetes.py",
    r"pip |python -m pip |python -m build": "installs: tests/system/test_wheel.py",
    r"createdb |psql ": "needs a PostgreSQL of one's own: tests/system/test_roles.py",
    r"python recipe\.py$": "the openai package: tests/compat/test_sdk.py",
    r"curl .*last_event_id": "goes on for ever: tests/api/test_events.py",
    r"carbonq (up|doctor)": "real processes: tests/system/test_up.py",
    r"carbonq (worker|process) ": "runs until it is stopped: tests/system/test_hosts.py",
    r"carbonq models check": "loads every model, or needs a GPU: tests/unit/test_cli_models.py",
    r"carbonq models pull": "fetches a package: tests/unit/test_pull.py",
    r"carbonq forecast (fetch|import)": "needs an account, or a file: tests/api/test_cli_forecast.py",
    r"carbonq report .*--provider-statement": "a provider's file: tests/api/test_cli_report.py",
    r"carbonq webhooks (create|test|deliveries)": "needs a receiver: tests/api/test_cli_webhooks.py",
}

#: A page that is run as a whole, by real processes.
WHOLE = {"docs/tutorial.md": "tests/system/test_up.py"}

#: Pages that make an installation, with the settings of docs/howto/vllm.md.
MAKING = {"docs/howto/postgresql.md", "docs/howto/vllm.md", "docs/operations.md"}

#: Variables that are no settings.
OTHERS = {"CARBONQ_CONFIG", "OPENAI_BASE_URL", "OPENAI_API_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT"}


def excuse(text: str) -> str | None:
    return next((why for begins, why in EXCUSED.items() if re.match(begins, text)), None)


def test_every_command_and_option_exists() -> None:
    wrong = {
        (line.page, text): said
        for line in pages.lines()
        for text in pages.ours(line.text)
        if (said := pages.complaint(text)) is not None
    }
    wrong |= {(one.page, one.text): said for one in pages.in_text() if (said := pages.complaint(one.text)) is not None}
    assert not wrong
    assert pages.complaint("jobs list --no-such") and pages.complaint("no-such") and pages.complaint("jobs nosuch")
    assert pages.complaint("submit ... --no-such") and pages.complaint("health api|nosuch --no-such")


def test_excuses_are_needed_and_name_what_is_there() -> None:
    texts = [
        text for line in pages.lines() for text in (line.text, *(f"carbonq {one}" for one in pages.ours(line.text)))
    ]
    assert not [begins for begins in EXCUSED if not any(re.match(begins, text) for text in texts)]
    named = [path for why in (*EXCUSED.values(), *WHOLE.values()) for path in re.findall(r"[\w./]+/[\w.]+", why)]
    assert len(named) > 10 and not [path for path in named if not (ROOT / path).exists()]


@dataclass
class World:
    """A served API with work of acme's and its database, another one that is empty, and a folder with inputs."""

    url: str
    served: str
    own: str
    names: dict[str, str]
    env: dict[str, str]

    def fill_in(self, text: str) -> str:
        """Put real addresses and ids into the places of made-up ones."""
        for made_up, real in self.names.items():
            text = re.sub(made_up, real, text)
        return text

    def run(self, line: Line) -> bool:
        """Run what of a line can be run here; say whether all of it is run or excused."""
        inner = list(pages.ours(line.text))
        for text in inner:
            if excuse(f"carbonq {text}") is None:
                self._carbonq(line.page, self.fill_in(text))
        if inner:
            return True
        if line.text.startswith("export "):
            self._export(line)
            return True
        if excuse(line.text) is None and line.text.startswith("curl "):
            command = self.fill_in(line.text).replace("curl ", "curl -sS --fail-with-body ", 1)
            done = subprocess.run(("bash", "-c", command), env=self.env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line.page}: {command}\n{done.stdout}{done.stderr}"
            return True
        return excuse(line.text) is not None

    def _carbonq(self, page: str, text: str) -> None:
        words = shlex.split(re.split(r"\s(?:[0-9]?>|<)", text)[0])
        env = {"CARBONQ_DATABASE_URL": self.own if page in MAKING else self.served}
        done = CliRunner().invoke(main.app, words, input=Path("docs.jsonl").read_text(encoding="utf-8"), env=env)
        assert done.exit_code == 0, f"{page}: carbonq {text}\n{done.output}{done.exception!r}"

    def _export(self, line: Line) -> None:
        for name in re.findall(r"\b([A-Z_]+)=", line.text):
            known = name.removesuffix("_FILE").removeprefix("CARBONQ_").lower()
            assert name in OTHERS or known in Settings.model_fields, f"{line.page}: {name} is no setting"


@pytest.fixture
def world(
    harness: Harness, http: httpx.Client, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    (settings,) = pages.blocks(ROOT / "docs/howto/vllm.md", frozenset({"toml"}))
    (tmp_path / "carbonq.toml").write_text(settings, encoding="utf-8")
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "some text"}\n', encoding="utf-8")
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings"}
    body = {"model": "wordllama-256", "input": "some text"}
    for name in ("lines.jsonl", "requests.jsonl"):
        (tmp_path / name).write_text(json.dumps({**line, "body": body}) + "\n", encoding="utf-8")
    (tmp_path / ".carbonq").mkdir()
    run_clock(harness)
    with harness.db.write() as tx:
        _, key = keys.create(tx, "acme", "docs", False, scopes=frozenset(Scope))
    (tmp_path / ".carbonq" / "api-key").write_text(key, encoding="utf-8")
    (tmp_path / "password").write_text("x", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "CARBONQ_API_URL": url,
        "CARBONQ_API_KEY": key,
        "CARBONQ_ACCOUNTS__WATTTIME__PASSWORD_FILE": str(tmp_path / "password"),
    }.items():
        monkeypatch.setenv(name, value)
    job_id = submit(http)["id"]
    finish(harness, job_id, b"{}\n")
    upload = (tmp_path / "requests.jsonl").read_bytes()
    file_id = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("r.jsonl", upload)}).json()["id"]
    asked = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch_id = http.post("/v1/batches", json=asked).json()["id"]
    names = {
        r"http://127\.0\.0\.1:8750": url,
        r"job_01[a-z0-9.]+|\$JOB": job_id,
        r"file-\.\.\.": file_id,
        r"batch_\.\.\.": batch_id,
        r"CAISO_NORTH": "ZONE_FR",
        r"norcal": "fr",
        r"socal": "se",
    }
    stop = threading.Event()
    ender = threading.Thread(target=_ending, args=(harness, url, key, stop))
    ender.start()
    yield World(
        url,
        f"sqlite:///{tmp_path / 'api.db'}",
        f"sqlite:///{tmp_path / 'own.db'}",
        names,
        {**os.environ, "KEY": key, "NO_PROXY": "*"},
    )
    stop.set()
    ender.join()


def _ending(harness: Harness, url: str, key: str, stop: threading.Event) -> None:
    """End every job shortly after it was stored."""
    with Client(url, key) as client:
        while not stop.wait(0.05):
            for job in client.jobs(states=["waiting"]):
                with harness.db.write() as tx:
                    done = update(jobs).where(jobs.c.job_id == job.id).values(items_succeeded=jobs.c.items_total)
                    tx.execute(done)
                finish(harness, job.id, b'{"custom_id": "a"}\n')


def test_every_line_is_run_or_excused(world: World) -> None:
    left = [line for line in pages.lines() if line.page not in WHOLE and not world.run(line)]
    assert not left, "run it, or say in EXCUSED why not"
    assert Path("vectors.jsonl").exists() and Path("ledger.csv").exists() and Path("results.jsonl").exists()

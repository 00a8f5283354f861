"""``carbonq health``: exit 0 or 1 with one sentence, quick to start. Frozen processes: tests/system/test_compose.py."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from carbonq.cli import health, main
from carbonq.errors import Unavailable
from carbonq.liveness import SignOfLife


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".carbonq"


def ask(*words: str) -> Result:
    return CliRunner().invoke(main.app, ["health", *words])


@contextmanager
def server(path: str, status: int) -> Iterator[int]:
    """A server that answers one path with a status; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == path else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield made.server_port
        finally:
            made.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("process", "path", "variable"),
    [("api", "/healthz", "CARBONQ_PORT"), ("flower", "/healthcheck", "CARBONQ_FLOWER_PORT")],
)
def test_api_and_flower_must_answer(process: str, path: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a container: it listens on all addresses, and is asked on loopback.
    monkeypatch.setenv(variable.replace("PORT", "HOST"), "0.0.0.0")
    with server(path, 200) as port:
        monkeypatch.setenv(variable, str(port))
        done = ask(process)
        assert done.exit_code == 0 and f"answers at http://127.0.0.1:{port}" in done.stdout
    assert "does not answer" in str(ask(process).exception)
    with server(path, 503) as port:
        monkeypatch.setenv(variable, str(port))
        assert f"answered {path} with status 503" in str(ask(process).exception)


def test_a_frozen_api_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # the kernel accepts, nobody answers
        monkeypatch.setenv("CARBONQ_PORT", str(frozen.getsockname()[1]))
        began_at = time.monotonic()
        error = ask("api").exception
    assert time.monotonic() - began_at < 10
    assert isinstance(error, Unavailable) and "gave no answer within 0.2 s" in error.message


@pytest.mark.parametrize("words", [("beat",), ("control",), ("control-slow",), ("worker", "--region", "se")])
def test_others_must_have_turned_their_loop(words: tuple[str, ...], folder: Path) -> None:
    name = words[0] if words[0] != "worker" else "worker-se"
    assert f"no {name} process has given a sign of life" in str(ask(*words).exception)
    alive = SignOfLife(folder, name)
    alive.touch()
    done = ask(*words)
    assert done.exit_code == 0 and done.stdout.startswith(f"{name} turned its loop 0.")
    (path,) = (folder / "run").glob("*.alive")
    long_ago = path.stat().st_mtime - (200 if name == "control-slow" else 31)
    os.utime(path, (long_ago, long_ago))
    error = str(ask(*words).exception)
    limit_s = 120 if name == "control-slow" else 30
    assert f"{name} (process {os.getpid()}) last turned" in error and f"more than {limit_s} s" in error
    assert ask(*words, "--stale", "500").exit_code == 0
    alive.close()


def test_json_says_the_same() -> None:
    done = ask("beat", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert found["is_healthy"] is False and found["process"] == "beat" and "no beat process" in found["finding"]


@pytest.mark.parametrize("words", [("worker",), ("beat", "--region", "se"), ("api", "--stale", "0"), ("broker",)])
def test_a_question_that_makes_no_sense(words: tuple[str, ...]) -> None:
    assert ask(*words).exit_code == 2


def test_it_starts_quickly() -> None:
    """It runs every few seconds beside each process: what it does not need is not imported."""
    command = (sys.executable, "-X", "importtime", "-m", "carbonq", "health", "beat")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no beat process" in done.stderr
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "carbonq" in names
    assert not names & {"alembic", "celery", "fastapi", "httpx", "kombu", "numpy", "rich", "sqlalchemy", "uvicorn"}

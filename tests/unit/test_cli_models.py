"""``carbonq models list`` and ``check``: what is configured, and whether it works, by real engines and servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from carbonq.cli.main import app
from tests.unit.model_server import ModelServer, Reply, chat_reply


@pytest.fixture
def server() -> Iterator[ModelServer]:
    made = ModelServer()
    made.pages = {"/version": {"version": "0.11.2"}}
    yield made
    made.close()


@pytest.fixture
def configured(server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(
        f"""
        data_dir = "{tmp_path}"
        [models.served]
        engine = "openai_http"
        base_url = "{server.url}/v1"
        served_model = "org/big"
        context_tokens = 1000
        max_output_tokens = 50
        retry_budget_s = 0
        tier = 3
        """,
        encoding="utf-8",
    )
    monkeypatch.setenv("CARBONQ_CONFIG", str(path))
    monkeypatch.setenv("CARBONQ_MODELS__SERVED__API_KEY", "geheim-7")
    return path


def run(*arguments: str) -> tuple[int, Any, str]:
    result = CliRunner().invoke(app, ["models", *arguments, "--json"])
    assert "geheim-7" not in result.output
    return result.exit_code, orjson.loads(result.stdout), result.stderr


def test_the_list_has_engine_place_context_and_tier(configured: Path, server: ModelServer) -> None:
    _, rows, _ = run("list")
    served = next(row for row in rows if row["name"] == "served")
    assert (served["engine"], served["path"]) == ("openai_http", f"{server.url}/v1")
    assert (served["context_tokens"], served["tier"], served["is_ready"]) == (1000, 3, True)
    text = CliRunner().invoke(app, ["models", "list"]).stdout
    assert all(word in text.splitlines()[0] for word in ("engine", "context", "tier", "path or URL"))


def test_what_works_says_its_speed_energy_version_and_context(configured: Path, server: ModelServer) -> None:
    status, rows, _ = run("check", "served", "wordllama-256")
    assert status == 0
    words, served = rows
    assert (words["state"], words["completion_tokens"]) == ("works", 0)
    assert words["tokens_per_s"] > 100 and words["joules"] > 0 and words["quality"]
    assert (served["state"], served["engine_version"], served["context_tokens"]) == ("works", "0.11.2 org/big", 1000)
    assert (served["prompt_tokens"], served["completion_tokens"]) == (12, 3)
    assert {headers["Authorization"] for _, _, headers in server.posts} == {"Bearer geheim-7"}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(401, {"error": {"message": "who are you"}}), "answered 401: who are you"),
        (Reply(400, {"error": {"message": "no such model"}}), "refused a plain request: no such model"),
        (Reply(200, b"hello"), "answered no JSON"),
        (chat_reply(usage={"prompt_tokens": -4, "completion_tokens": 3}), "its usage cannot be: prompt_tokens is -4"),
        (chat_reply(usage={"prompt_tokens": 4, "completion_tokens": 10**8}), "completion_tokens is 100000000, of a"),
    ],
)
def test_what_fails_is_named_with_its_reason_and_the_status_says_so(
    configured: Path, server: ModelServer, reply: Reply, said: str
) -> None:
    server.script = lambda *_: reply
    status, rows, told = run("check", "served", "wordllama-256")
    assert status == 1
    assert [row["state"] for row in rows] == ["works", "fails"]
    assert said in rows[1]["error"] and said in told
    assert "these do not work: served" in told
    assert rows[1]["tokens_per_s"] is None and rows[1]["joules"] is None
    # Once it answers, it works.
    server.script = lambda *_: chat_reply()
    assert run("check", "served")[0] == 0


def test_names_that_are_none_are_refused(configured: Path) -> None:
    for arguments in (["check", "nobody"], ["check", "--region", "nowhere"]):
        result = CliRunner().invoke(app, ["models", *arguments])
        assert result.exit_code != 0

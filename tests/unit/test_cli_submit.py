from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from carbonq.cli import connect, jobs, submit
from carbonq.cli.results import carbon_line
from carbonq.client import Client
from carbonq.errors import InvalidRequest, Unavailable

JOB: dict[str, Any] = {
    "id": "job_1",
    "state": "completed",
    "phase": "completed",
    "endpoint": "/v1/embeddings",
    "model": "wordllama-256",
    "regions": None,
    "created_at": "2026-11-29T10:00:00.000000Z",
    "deadline_at": "2026-11-29T16:00:00.000000Z",
    "started_at": "2026-11-29T10:05:00.000000Z",
    "finished_at": "2026-11-29T10:06:00.000000Z",
    "is_late": False,
    "is_cancel_requested": False,
    "error": None,
    "has_results": True,
    "has_errors": False,
    "progress": {"total": 2, "ended": 2, "succeeded": 2, "failed": 0, "expired": 0, "cancelled": 0},
    "carbon": {"energy_uj": 2_000_000, "emission_g": "0.1", "baseline_g": "0.15", "saved_g": "0.05"},
}
FAILED = JOB | {"has_errors": True, "progress": JOB["progress"] | {"succeeded": 1, "failed": 1}}


class Server:
    """Answers like the API; remembers what it was sent."""

    def __init__(self) -> None:
        self.job = JOB
        self.body = b""
        self.query = httpx.QueryParams()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.url.path == "/v1/jobs":
            self.body, self.query = request.read(), request.url.params
            return httpx.Response(202, json=JOB | {"state": "waiting"})
        if request.url.path == "/v1/jobs":
            return httpx.Response(200, json={"data": [self.job], "has_more": False, "last_id": "job_1"})
        if request.url.path.endswith("/results"):
            return httpx.Response(200, content=b'{"custom_id":"a"}\n')
        if request.url.path.endswith("/errors"):
            return httpx.Response(200, content=b'{"custom_id":"b"}\n')
        return httpx.Response(200, json=self.job)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()

    def open_client() -> Client:
        return Client("http://127.0.0.1:1", "key", transport=httpx.MockTransport(made))

    monkeypatch.setattr(connect, "open_client", open_client)
    return made


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n')
    return path


Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    return lambda app, *words, **options: CliRunner().invoke(app, [str(word) for word in words], **options)


def test_embeddings_are_sent_as_openai_lines(server: Server, documents: Path, run: Run) -> None:
    result = run(submit.app, "embeddings", documents, "--deadline", "6h", "--region", "fr", "--region", "se")
    assert result.exit_code == 0, result.output
    assert result.stdout == "job_1\n"
    assert [json.loads(line)["body"]["input"] for line in server.body.splitlines()] == ["one", "two"]
    assert server.query.get_list("region") == ["fr", "se"]
    assert server.query["deadline"] == "6h"
    assert server.query["endpoint"] == "/v1/embeddings"


@pytest.mark.parametrize(("words", "sent"), [((), None), (("--downgrade",), "true"), (("--no-downgrade",), "false")])
def test_a_smaller_model_is_allowed_or_refused(
    server: Server, documents: Path, run: Run, words: tuple[str, ...], sent: str | None
) -> None:
    result = run(submit.app, "embeddings", documents, "--deadline", "6h", *words)
    assert result.exit_code == 0, result.output
    assert server.query.get("downgrade") == sent


def test_items_on_a_smaller_model_are_shown(server: Server, run: Run) -> None:
    server.job = JOB | {"downgraded": {"budget": 2}}
    result = run(jobs.app, "show", "job_1")
    assert result.exit_code == 0, result.output
    assert "downgraded: budget" in result.stdout


def test_stdin_is_read_for_a_dash(server: Server, run: Run) -> None:
    result = run(submit.app, "summarize", "-", "--deadline", "6h", input="first text\nsecond text\n")
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["custom_id"] for line in server.body.splitlines()] == ["line-1", "line-2"]
    assert server.query["model"] == "smollm2-135m-instruct"


def test_waiting_writes_the_results(server: Server, documents: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out.jsonl"
    result = run(submit.app, "embeddings", documents, "--deadline", "6h", "--wait", "-o", out)
    assert result.exit_code == 0, result.output
    assert out.read_bytes() == b'{"custom_id":"a"}\n'
    assert "energy 2 J" in result.stderr
    assert "saved 50 mgCO2e against running at once at home (150 mgCO2e at the same energy)" in result.stderr
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("inventory_g", "end"), [(None, "at the same energy)"), ("0", "; inventory 0 gCO2e by average rates")]
)
def test_the_inventory_is_said_where_there_is_one(inventory_g: str | None, end: str) -> None:
    line = carbon_line({"energy_uj": 2_000_000, "emission_g": None, "inventory_g": inventory_g})
    assert line.startswith("energy 2 J, emission unknown, saved unknown") and line.endswith(end)


def test_a_failed_item_means_exit_status_one(server: Server, documents: Path, tmp_path: Path, run: Run) -> None:
    server.job = FAILED
    out = tmp_path / "out.jsonl"
    result = run(submit.app, "embeddings", documents, "--deadline", "6h", "-o", out)
    assert result.exit_code == 1
    assert "1 succeeded, 1 failed of 2 items" in result.stderr
    assert (tmp_path / "out.jsonl.errors.jsonl").read_bytes() == b'{"custom_id":"b"}\n'


def test_openai_lines_name_their_endpoint_and_model(server: Server, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "batch.jsonl"
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}
    path.write_bytes(b"\xef\xbb\xbf\n" + json.dumps(line).encode() + b"\n")
    result = run(submit.app, "file", path, "--deadline", "24h", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["id"] == "job_1"
    assert (server.query["endpoint"], server.query["model"]) == ("/v1/embeddings", "m")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "empty"), ("hello\n", "line 1"), ('{"id": "a", "text": "x"}\n', "line 1")],
)
def test_a_file_of_something_else_is_refused(
    server: Server, tmp_path: Path, run: Run, text: str, sentence: str
) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text(text)
    result = run(submit.app, "file", path, "--deadline", "24h")
    assert isinstance(result.exception, InvalidRequest)
    assert sentence in result.exception.message
    assert server.body == b""


def test_a_missing_file_is_named(server: Server, run: Run) -> None:
    result = run(submit.app, "embeddings", "/no/such/file", "--deadline", "6h")
    assert isinstance(result.exception, InvalidRequest)
    assert "cannot read /no/such/file" in result.exception.message


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("no/such/out.jsonl", "there is no folder"),
        (".", "it is a folder"),
        ("docs.jsonl", "it is the input; give -o another file"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_sent(
    server: Server, documents: Path, run: Run, out: str, sentence: str
) -> None:
    for command in ("embeddings", "file"):
        result = run(submit.app, command, documents, "--deadline", "6h", "-o", documents.parent / out)
        assert isinstance(result.exception, InvalidRequest)
        assert sentence in result.exception.message
    assert server.body == b""


def test_json_and_results_do_not_mix_on_stdout(server: Server, documents: Path, run: Run) -> None:
    result = run(submit.app, "embeddings", documents, "--deadline", "6h", "--json", "-o", "-")
    assert result.exit_code == 2
    assert "would both write to stdout" in result.stderr
    assert server.body == b""


def test_a_json_array_is_not_taken_for_lines_of_text(server: Server, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "docs.json"
    path.write_text('[\n  {"id": "a", "text": "x"}\n]\n')
    result = run(submit.app, "embeddings", path, "--deadline", "6h")
    assert isinstance(result.exception, InvalidRequest)
    assert "line 1 begins an array" in result.exception.message


def test_a_missing_deadline_is_a_usage_error(server: Server, documents: Path, run: Run) -> None:
    assert run(submit.app, "embeddings", documents).exit_code == 2


def test_jobs_are_listed_shown_and_fetched(server: Server, run: Run) -> None:
    assert "job_1" in run(jobs.app, "list").stdout
    assert json.loads(run(jobs.app, "list", "--json").stdout)[0]["id"] == "job_1"
    assert "finished 2026-11-29T10:06:00.000000Z, by its deadline" in run(jobs.app, "show", "job_1").stdout
    assert run(jobs.app, "watch", "job_1").exit_code == 0
    assert run(jobs.app, "results", "job_1").stdout == '{"custom_id":"a"}\n'
    assert run(jobs.app, "results", "job_1", "--errors").stdout == '{"custom_id":"b"}\n'


def test_the_bar_ends_at_the_size_of_the_file(
    server: Server, documents: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int | None, list[int]]] = []

    @contextmanager
    def bar(label: str, *, total: int | None, is_bytes: bool = False) -> Generator[Callable[[int], None]]:
        seen.append((total, []))
        yield seen[-1][1].append

    monkeypatch.setattr(submit, "bar", bar)
    assert run(submit.app, "embeddings", documents, "--deadline", "6h").exit_code == 0
    total, done = seen[0]
    assert total == documents.stat().st_size == done[-1]
    assert done == sorted(done)


def test_interrupted_while_waiting_it_says_how_to_go_on(
    server: Server, documents: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "wait", interrupted)
    result = run(submit.app, "embeddings", documents, "--deadline", "6h", "--wait")
    assert result.exit_code == 130
    assert "job_1 goes on without this command; carbonq jobs watch job_1" in result.stderr


def test_cancelling_is_asked_of_a_person(server: Server, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[tuple[str, bool]] = []
    monkeypatch.setattr(jobs, "confirm", lambda question, *, is_sure: questions.append((question, is_sure)))
    for words in ((), ("--yes",)):
        assert run(jobs.app, "cancel", "job_1", *words).exit_code == 0
    assert [is_sure for _, is_sure in questions] == [False, True] and "job_1" in questions[0][0]


def test_a_dry_run_asks_for_a_quote_and_submits_nothing(server: Server, documents: Path, run: Run) -> None:
    result = run(submit.app, "embeddings", documents, "--deadline", "6h", "--dry-run")
    assert server.body == b""
    # The scripted server has no quotes: whatever it answers is none.
    assert isinstance(result.exception, Unavailable)

"""Both clients and the command line on a real API, served on a socket."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner, Result

from carbonq import client, errors, verify
from carbonq.api.feed import Topic
from carbonq.cli import main
from carbonq.store.tables import jobs as job_rows
from tests.api.cutting import cutting
from tests.api.harness import EMBEDDER, Harness, serving, until
from tests.api.test_events import happen
from tests.api.test_jobs import finish
from tests.api.test_ledger import book

OUTPUT = b"".join(
    json.dumps(
        {
            "custom_id": f"item-{number}",
            "response": {"status_code": 200, "body": {"data": [{"embedding": [number, 0.5]}]}},
        }
    ).encode()
    + b"\n"
    for number in (1, 2)
)
ERRORS = b'{"custom_id":"item-3","response":null,"error":{"code":"batch_expired","message":"too late"}}\n'


Which = type[client.Client] | type[client.AsyncClient]


def called(which: Which, url: str, key: str, name: str, /, *given: Any, **more: Any) -> Any:
    """Call a method of a client with a fresh connection; return its value, or a list of what it yields."""
    if issubclass(which, client.Client):
        with which(url, key) as made:
            found = getattr(made, name)(*given, **more)
            return list(found) if isinstance(found, Iterator) else found

    async def awaited() -> Any:
        async with which(url, key) as made:
            found = getattr(made, name)(*given, **more)
            return [one async for one in found] if isinstance(found, AsyncIterator) else await found

    return asyncio.run(awaited())


@pytest.fixture(params=[client.Client, client.AsyncClient], ids=["blocking", "awaiting"])
def ask(request: pytest.FixtureRequest, harness: Harness, url: str) -> Callable[..., Any]:
    return lambda name, *given, **more: called(request.param, url, harness.acme, name, *given, **more)


def jobs_stored(harness: Harness) -> int:
    with harness.db.read() as tx:
        return int(tx.execute(select(func.count()).select_from(job_rows)).scalar_one())


def test_a_job_from_submit_to_results(ask: Callable[..., Any], harness: Harness, tmp_path: Path) -> None:
    texts = ["one", {"id": "b", "text": "two"}, "three"]
    terms: dict[str, Any] = {
        "kind": "embeddings",
        "model": EMBEDDER,
        "deadline": "6h",
        "max_carbon_g": "0.5",
        "product_line": "p",
    }
    terms["metadata"] = {"team": "search", "metadata.x": "&="}
    job = ask("submit", texts, regions=["fr"], idempotency_key="k", **terms)
    assert job.metadata == terms["metadata"]
    assert (job.state, job.progress.total, job.regions, str(job.max_carbon_g)) == ("waiting", 3, ("fr",), "0.5")
    assert ask("submit", texts, regions=["fr"], idempotency_key="k", **terms).id == job.id
    assert jobs_stored(harness) == 1
    with pytest.raises(errors.InvalidRequest, match="dempotency") as reused:
        ask("submit", ["other"], regions=["fr"], idempotency_key="k", **terms)
    assert reused.value.code == "idempotency_key_reused" and reused.value.request_id
    assert ask("job", job.id).placement.chunks == 0 and ask("chunks", job.id) == []
    assert [one.id for one in ask("jobs")] == [job.id] == [one.id for one in ask("jobs", states=["waiting"], limit=3)]
    assert ask("jobs", states=["completed"]) == []
    assert ask("why", job.id).data == ()
    with pytest.raises(errors.Conflict, match="can be read when it is final"):
        ask("results", job.id)

    finish(harness, job.id, OUTPUT, ERRORS)
    seen: list[str] = []
    done = ask("wait", job.id, on_progress=lambda one: seen.append(one.state))
    assert done.state == "completed" and done.is_final and seen == ["completed"]
    results = ask("results", job.id)
    assert [(one.custom_id, one.vector) for one in results] == [("item-1", [1, 0.5]), ("item-2", [2, 0.5])]
    (failure,) = ask("failures", job.id)
    assert not failure.is_ok and failure.error["code"] == "batch_expired"
    (tmp_path / f"out.jsonl.{job.id}.results.part").write_bytes(OUTPUT[:20])
    assert ask("download", job.id, tmp_path / "out.jsonl").read_bytes() == OUTPUT
    assert ask("cancel", job.id).state == "completed"


async def _coming() -> AsyncIterator[str]:
    for text in ("one", "two"):
        yield text


def test_items_may_come_asynchronously(harness: Harness, url: str) -> None:
    terms = {"kind": "embeddings", "model": EMBEDDER, "deadline": "6h"}
    job = called(client.AsyncClient, url, harness.acme, "submit", _coming(), **terms)
    assert job.progress.total == 2


def test_many_calls_at_once_share_one_client(harness: Harness, url: str) -> None:
    async def together() -> list[client.Job]:
        async with client.AsyncClient(url, harness.acme) as carbonq:
            terms = {"kind": "embeddings", "model": EMBEDDER, "deadline": "6h"}
            made = await asyncio.gather(*(carbonq.submit([f"text {number}"], **terms) for number in range(12)))
            return list(await asyncio.gather(*(carbonq.job(job.id) for job in made)))

    assert len({job.id for job in asyncio.run(together())}) == 12 == jobs_stored(harness)


@pytest.mark.parametrize("which", [client.Client, client.AsyncClient], ids=["blocking", "awaiting"])
def test_connections_that_are_cut_cost_nothing(
    harness: Harness, url: str, which: Which, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One upload is cut in its middle, one right before its answer; the download is cut twice."""
    monkeypatch.setattr("carbonq.client.patience.BASE_S", 0.01)
    lines = [f"{number} {'word ' * 200}" for number in range(600)]
    output = b"".join(OUTPUT for _ in range(4_000))
    limits: list[tuple[int | None, int | None]] = [(300_000, None), (None, 10)]
    with cutting(url, limits) as address:
        terms = {"kind": "embeddings", "model": EMBEDDER, "deadline": "6h"}
        job = called(which, address, harness.acme, "submit", iter(lines), **terms)
        assert job.progress.total == 600 and jobs_stored(harness) == 1 and not limits
        finish(harness, job.id, output)
        limits += [(None, 100_000), (None, 1_000)]
        path = called(which, address, harness.acme, "download", job.id, tmp_path / "out.jsonl")
        assert path.read_bytes() == output and not limits
        limits += [(None, 50_000)]
        assert len(called(which, address, harness.acme, "results", job.id)) == 8_000 and not limits


def test_a_bad_line_is_named_and_stores_nothing(ask: Callable[..., Any], harness: Harness) -> None:
    lines = [b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}}', b"{nonsense"]
    with pytest.raises(errors.InvalidRequest, match="line 2") as refused:
        ask("submit", lines, kind="embeddings", model=EMBEDDER, deadline="6h")
    assert refused.value.line == 2 and refused.value.request_id and jobs_stored(harness) == 0
    with pytest.raises(errors.InvalidRequest, match="no model") as unknown:
        ask("submit", ["x"], kind="embeddings", model="other", deadline="6h")
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")


def test_what_else_there_is(ask: Callable[..., Any], harness: Harness, tmp_path: Path) -> None:
    assert {region.name: region.slots for region in ask("regions")} == {"fr": 2, "se": 1}
    quote = ask("quote", ["one", "two"], kind="embeddings", model=EMBEDDER, deadline="6h")
    assert (quote.items, quote.endpoint) == (2, "/v1/embeddings") and quote.asked.set and quote.curve
    assert ask("quote", items=7, tokens=700, kind="embeddings", model=EMBEDDER, regions=["se"]).items == 7
    assert jobs_stored(harness) == 0
    assert EMBEDDER in {one["id"] for one in ask("models")} and "status" in ask("health")
    book(harness, "b1", tenant="acme")
    entries = ask("entries")
    assert entries and entries[0].energy_uj is not None and ask("entry", entries[0].id).consistent is True
    path = ask("export_ledger", tmp_path / "ledger.csv")
    assert path.read_bytes().count(b"\n") == len(entries) + 1
    assert ask("export_ledger", tmp_path / "ledger.csv.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert b"".join(ask("ledger_csv", region="se", header="absent")) == b""
    month = f"{harness.clock.now():%Y-%m}"
    assert verify.check_audit(io.StringIO(b"".join(ask("audit", month)).decode())).problems == []
    with pytest.raises(errors.NotFound, match="no ledger entries with key 'key_none'"):
        b"".join(ask("audit", month, api_key_id="key_none"))


def test_a_wrong_key_and_a_foreign_job(harness: Harness, url: str) -> None:
    with client.Client(url, harness.rival) as rival, client.Client(url, "cq_wrong") as nobody:
        job = rival.submit(["x"], kind="embeddings", model=EMBEDDER, deadline="6h")
        with pytest.raises(errors.NotAuthenticated):
            nobody.job(job.id)
    with client.Client(url, harness.acme) as acme, pytest.raises(errors.NotFound):
        acme.job(job.id)


def test_wait_hears_of_the_end_by_events(harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No look of its own would see the end: they come after an event only."""
    monkeypatch.setattr("carbonq.client.flows._DOUBT_S", 3600.0)
    with client.Client(url, harness.acme) as carbonq:
        job = carbonq.submit(["x"], kind="embeddings", model=EMBEDDER, deadline="6h")
        ended: list[client.Job] = []
        waiter = threading.Thread(target=lambda: ended.append(carbonq.wait(job.id, timeout_s=60)))
        waiter.start()
        until(lambda: Topic("acme", job_id=job.id) in harness.api.feed._readers, "the stream to have joined")
        finish(harness, job.id, OUTPUT)
        happen(harness.db, "job.completed", job_id=job.id)
        waiter.join(30)
        assert [one.state for one in ended] == ["completed"]
        assert [one.type for one in carbonq.events(job.id)] == ["job.created", "job.completed"]


# --- the command line -------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Harness:
    """A machine that has nothing but a file with a key."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text(harness.acme + "\n")
    monkeypatch.setenv("CARBONQ_API_KEY_FILE", str(tmp_path / "key"))
    (tmp_path / "docs.txt").write_text("one document\nand another\n")
    return harness


@pytest.fixture
def remote(elsewhere: Harness, url: str, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """The same with an address."""
    monkeypatch.setenv("CARBONQ_API_URL", url)
    return elsewhere


def run(*words: str, **more: Any) -> Result:
    return CliRunner().invoke(main.app, list(words), **more)


def test_a_dry_run_quotes_and_stores_nothing(remote: Harness) -> None:
    dry = ("submit", "embeddings", "docs.txt", "--deadline", "6h", "--region", "se", "--dry-run")
    shown = run(*dry)
    assert shown.exit_code == 0, shown.output
    assert "2 items" in shown.stdout and "nothing was stored" in shown.stderr
    found = json.loads(run(*dry, "--json").stdout)
    assert (found["items"], found["asked"]["regions"]) == (2, ["se"])
    refused = run(*dry, "--late", "never").exception
    assert isinstance(refused, errors.InvalidRequest) and refused.param == "late_policy"
    assert jobs_stored(remote) == 0


def test_a_job_from_another_machine(remote: Harness, tmp_path: Path) -> None:
    words = (
        "submit",
        "embeddings",
        "docs.txt",
        "--deadline",
        "6h",
        "--metadata",
        "team=a=b",
        "--idempotency-key",
        "n1",
    )
    job_id = run(*words).stdout.strip()
    assert json.loads(run(*words, "--json").stdout)["id"] == job_id and jobs_stored(remote) == 1
    assert json.loads(run("jobs", "show", job_id, "--json").stdout)["metadata"] == {"team": "a=b"}
    assert run(*words, "--metadata", "team").exit_code == 2
    assert json.loads(run("jobs", "list", "--state", "waiting", "--all", "--json").stdout)[0]["id"] == job_id
    assert json.loads(run("jobs", "list", "--state", "failed", "--json").stdout) == []
    early = run("jobs", "results", job_id, "-o", "out.jsonl").exception
    assert isinstance(early, errors.Conflict) and not list(tmp_path.glob("out*"))
    finish(remote, job_id, OUTPUT, ERRORS)
    part = tmp_path / f"out.jsonl.{job_id}.results.part"
    part.write_bytes(OUTPUT[:50])
    assert run("jobs", "results", job_id, "-o", "out.jsonl").exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == OUTPUT and not part.exists()
    assert run("jobs", "results", job_id, "--errors").stdout.encode() == ERRORS
    assert run("jobs", "cancel", job_id, "--yes", "--quiet").output == ""
    assert json.loads(run("jobs", "why", job_id, "--json").stdout)["data"] == []


def test_the_ledger_of_another_machine(remote: Harness, url: str, tmp_path: Path) -> None:
    book(remote, "b1", tenant="acme")
    book(remote, "b2", tenant="rival")
    assert run("ledger", "export", "-o", "mine.csv").exit_code == 0
    mine = (tmp_path / "mine.csv").read_bytes()
    assert mine.count(b"\n") == 4 and b"rival" not in mine
    assert run("ledger", "export", "--url", url).stdout_bytes == mine
    assert json.loads(run("ledger", "verify", "mine.csv", "--json").stdout)["is_consistent"] is True
    assert run("ledger", "export", "--tenant", "rival").exit_code == 2
    assert not list(tmp_path.glob("*.part"))


def test_what_can_be_completed(remote: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = run("submit", "embeddings", "docs.txt", "--deadline", "6h").stdout.strip()

    def completed(line: str) -> list[str]:
        words = {"_CARBONQ_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return CliRunner().invoke(main.app, [], prog_name="carbonq", env=words).stdout.split()

    assert completed("carbonq jobs show job_") == [job_id]
    assert completed("carbonq quote --region s") == ["se"]
    assert EMBEDDER in completed("carbonq submit embeddings --model word")
    assert completed("carbonq jobs sh") == ["show"]
    monkeypatch.setenv("CARBONQ_API_URL", "http://127.0.0.1:9")
    assert completed("carbonq jobs show job_") == []


@pytest.mark.system
def test_ctrl_c_ends_at_once_and_says_how_to_go_on(remote: Harness) -> None:
    job_id = run("submit", "embeddings", "docs.txt", "--deadline", "6h").stdout.strip()
    command = [sys.executable, "-m", "carbonq", "jobs", "watch", job_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        until(lambda: Topic("acme", job_id=job_id) in remote.api.feed._readers, "it to follow the events", timeout_s=60)
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=20)
    assert (watching.returncode, out) == (130, "")
    assert err == f"{job_id} goes on without this command; carbonq jobs watch {job_id}\n"


def _under_a_path(app: Any) -> Any:
    """Cut the prefix off and pass the rest on, as nginx does."""

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix("/tools/carbonq")
            assert path != scope["path"], "asked for beside the prefix"
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await app(scope, receive, send)

    return proxy


def test_a_proxy_may_keep_the_api_under_a_path(elsewhere: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(elsewhere.api, wrap=_under_a_path) as address:
        monkeypatch.setenv("CARBONQ_API_URL", f"{address}/tools/carbonq/")
        job_id = run("submit", "embeddings", "docs.txt", "--deadline", "6h").stdout.strip()
        assert run("jobs", "show", job_id).exit_code == 0
        finish(elsewhere, job_id, OUTPUT)
        assert run("jobs", "results", job_id).stdout.encode() == OUTPUT

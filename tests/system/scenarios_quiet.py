"""Scenarios in which nothing breaks: the whole stack by settings alone, a stop in order, realtime calls beside work."""

from __future__ import annotations

import io
import json

from carbonq import verify
from tests.system.chaos import ITEMS, Run, scenario
from tests.system.processes import MODEL, REGIONS, documents


@scenario()
def settings_alone_choose_database_and_broker(run: Run) -> None:
    client, count = run.stack.client, 500
    job = client.submit(documents(count), endpoint="/v1/embeddings", model=MODEL, deadline="40m")
    run.job_ids.append(str(job["id"]))
    assert client.wait(job["id"], timeout_s=90, poll_s=0.1)["state"] == "completed"
    lines = [json.loads(line) for line in client.result_lines(job["id"])]
    assert sorted(line["custom_id"] for line in lines) == sorted(f"c{i}" for i in range(count))
    assert all(line["response"]["status_code"] == 200 for line in lines)
    export = io.StringIO(b"".join(client.ledger_csv(job_id=job["id"])).decode(), newline="")
    report = verify.check(export)
    assert report.problems == []
    assert report.lines >= count  # an item whose engine batch crossed a window has two
    answer = client.embeddings("hello world", model=MODEL)
    assert len(answer["data"][0]["embedding"]) == 256
    assert answer["usage"]["carbon"]["region"] in REGIONS


@scenario()
def a_stopped_worker_gives_its_chunk_back_uncounted(run: Run) -> None:
    _, region = run.caught()
    process = run.on.processes[region]
    process.terminate()
    run.release(region)
    assert process.wait(20) == 0
    assert region not in run.on.live()
    run.finished()
    assert set(run.outcomes()) == {"yielded", "committed"}


@scenario()
def realtime_calls_do_not_wait_for_flexible_work(run: Run) -> None:
    assert run.on.realtime("north")["status_code"] == 200
    job_id = run.submit(15 * ITEMS)
    run.when(lambda: run.on.job(job_id).items_succeeded, "chunk that runs")
    answers = [run.on.realtime("north") for _ in range(5)]
    assert not run.is_final(job_id)  # it answered in the middle of the work
    assert all(answer["status_code"] == 200 for answer in answers)
    assert json.loads(answers[0]["carbon_json"])["region"] == "north"

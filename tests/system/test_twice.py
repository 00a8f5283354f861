"""Every process twice, and one of each killed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carbonq import verify
from carbonq.client import Client
from carbonq.model import JobState
from tests.system.backends import backend
from tests.system.processes import MODEL, Installation, documents, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

REGIONS = ("north", "south")

ITEMS = 6_000


@pytest.fixture
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    with backend(request.param, request) as chosen:
        made = Installation(
            tmp_path, chosen, lease_s=8, renew_s=2, checkpoint_items=500, redispatch_after_s=2, worker_alive_s=5
        )
        try:
            yield made
        finally:
            made.close()
            print(made.logs())  # shown by pytest when the test failed


def submit(client: Client, count: int) -> str:
    job = client.submit(documents(count), endpoint="/v1/embeddings", model=MODEL, deadline="40m")
    return str(job["id"])


def check_over_http(client: Client, job_id: str, count: int) -> None:
    """Every item has its line, and the standalone checker agrees with the ledger."""
    lines = [json.loads(line) for line in client.result_lines(job_id)]
    assert sorted(line["custom_id"] for line in lines) == sorted(f"c{i}" for i in range(count))
    assert all(line["response"]["status_code"] == 200 for line in lines)
    export = io.StringIO(b"".join(client.ledger_csv(job_id=job_id)).decode(), newline="")
    report = verify.check(export)
    assert report.problems == []
    assert report.lines >= count  # an item whose engine batch crossed a window has two


@pytest.mark.chaos
@pytest.mark.parametrize("installation", ["postgresql-rabbitmq"], indirect=True)
def test_every_process_twice_and_one_of_each_killed(installation: Installation) -> None:
    second = {f"{name}-2": arguments for name, arguments in installation.start_all(REGIONS).items()}
    for name, arguments in second.items():
        installation.start(name, *arguments)
    with ExitStack() as stack:
        clients = [stack.enter_context(installation.start_api(name)) for name in ("api", "api-2")]
        until(lambda: installation.count_live() == {"north": 2, "south": 2}, 90, "two workers for each region")
        assert len(installation.node_names(8)) == 8  # none answers for another
        three = [submit(clients[number % 2], ITEMS) for number in range(3)]
        for job_id in three:
            assert clients[1].wait(job_id, timeout_s=120, poll_s=0.1)["state"] == "completed"
        for job_id in three:
            installation.check(job_id)
        check_over_http(clients[0], three[0], ITEMS)

        last = submit(clients[0], 2 * ITEMS)
        until(lambda: installation.job(last).items_succeeded, 60, "committed item")
        for name in ("api", *second):
            installation.kill(name.removesuffix("-2"))
        final = until(lambda: installation.job(last).is_final and installation.job(last), 120, "finished job")
        assert (final.state, final.items_succeeded) == (JobState.COMPLETED, 2 * ITEMS)
        installation.check(last)
        check_over_http(clients[1], last, 2 * ITEMS)
        assert clients[1].embeddings("hello world", model=MODEL)["usage"]["carbon"]["region"] in REGIONS
        assert installation.unexpected_log_lines() == []

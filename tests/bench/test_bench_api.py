"""The benchmark of the API in small, on servers in this process: it measures what it says, its figures mean nothing."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn

from carbonq.api.process import listen
from carbonq.bench import api, api_plain
from carbonq.bench.api_load import Load, drive, figures, request_text
from carbonq.bench.api_site import ApiSite
from carbonq.store.database import Database
from tests.api.harness import Harness, build_harness, serving, until


class Site:
    """What a part of the benchmark needs of its processes, without processes."""

    def __init__(self, harness: Harness, url: str, plain_port: int) -> None:
        self.runtime, self.key = harness.api, harness.acme
        self.port, self.plain_port = int(url.rpartition(":")[2]), plain_port
        self._url = url

    @contextmanager
    def http(self) -> Iterator[httpx.Client]:
        headers = {"Authorization": f"Bearer {self.key}"}
        with httpx.Client(base_url=self._url, headers=headers, trust_env=False) as http:
            yield http

    def loaded(self, load: Load, server: str) -> dict[str, Any]:
        assert server in {"api", "plain"}
        return asyncio.run(drive(replace(load, seconds=min(load.seconds, 0.2))))

    def cpu_s(self, *servers: str) -> dict[str, float | None]:
        return dict.fromkeys(servers, None)

    def cpu_since(self, before: dict[str, float | None]) -> dict[str, float | None]:
        return before


@contextmanager
def plain(db: Database, file: Path) -> Iterator[int]:
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(api_plain.make_app(db, file), log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started, "the plain server")
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(15)
        listener.close()


@pytest.fixture
def site(sqlite_database: Database, tmp_path: Path) -> Iterator[ApiSite]:
    harness = build_harness(sqlite_database, tmp_path / "blobs")
    file = tmp_path / "results.jsonl"
    api.write_results(file, 10)
    with serving(harness.api, background=[]) as url, plain(sqlite_database, file) as port:
        yield cast("ApiSite", Site(harness, url, port))


def test_jobs_and_downloads_are_measured_beside_the_plain_server(site: ApiSite, tmp_path: Path) -> None:
    said: list[str] = []
    jobs = api.measure_jobs(site, 0.2, 1, 3, said.append)["median"]
    assert jobs["ratio"] == jobs["carbonq"]["per_s"] / jobs["plain"]["per_s"] > 0
    assert jobs["carbonq"]["statuses"] == {"202": jobs["carbonq"]["answers"]}
    results = api.measure_results(site, tmp_path / "results.jsonl", 1, said.append)
    assert results["bytes"] > 10 * 2_000 and results["median"]["ratio"] > 0
    assert len(said) == 2


def test_a_refused_load_is_no_figure(site: ApiSite) -> None:
    site.key = "cq_wrong"
    with pytest.raises(RuntimeError, match=r"api answered \{'401'"):
        api.measure_jobs(site, 0.2, 1, 1, print)


def test_quantiles_and_what_is_unknown() -> None:
    found = figures([0.001 * number for number in range(1, 101)], 2.0, Counter({202: 99, 503: 1}), 1)
    assert [found[name] for name in ("per_s", "p50_ms", "p99_ms", "max_ms")] == pytest.approx([50, 51, 100, 100])
    assert found["statuses"] == {"202": 99, "503": 1}
    assert figures([], 0.0, Counter(), 0)["p99_ms"] is None


def test_a_request_states_the_bytes_of_its_body() -> None:
    text = request_text("POST", "/v1/jobs", key="k", body='{"a": "ü"}')
    head, _, body = text.encode().partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head

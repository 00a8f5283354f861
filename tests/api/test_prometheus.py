"""A real Prometheus scrapes a served API, with the rules and the dashboard that ship."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY

from carbonq import telemetry
from tests.api.harness import Harness
from tests.conftest import require
from tests.system.processes import until

OPS = Path(__file__).parents[2] / "ops"


def expressions() -> list[str]:
    document = json.loads((OPS / "grafana/carbonq.json").read_text(encoding="utf-8"))
    return [target["expr"] for panel in document["panels"] for target in panel.get("targets", ())]


@pytest.fixture
def prometheus(url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes the harness's API, and its HTTP API."""
    program = shutil.which("prometheus")
    if program is None:
        require("prometheus is missing: install Debian's package prometheus")
    assert program is not None
    (tmp_path / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
                "rule_files": [str(OPS / "prometheus/*.rules.yml")],
                "scrape_configs": [
                    {"job_name": "carbonq-api", "static_configs": [{"targets": [url.removeprefix("http://")]}]}
                ],
            }
        )
    )
    said = tmp_path / "prometheus.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            (
                *(program, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"),
                "--web.listen-address=127.0.0.1:0",  # a free one that it holds from the beginning; its log says which
            ),
            stdout=log,
            stderr=log,
            env={"GOMAXPROCS": "1", "PATH": "/usr/bin:/bin"},
        )
    try:
        there = until(lambda: re.search(r'"Listening on" address=(\S+)', said.read_text()), 60, "Prometheus")
        with httpx.Client(base_url=f"http://{there[1]}", trust_env=False, timeout=30) as client:
            yield client
    finally:
        process.kill()
        process.wait()


def ask(prometheus: httpx.Client, query: str) -> list[dict[str, Any]]:
    """Ask until there is an answer with a series in it, or for a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            found = prometheus.get("/api/v1/query", params={"query": query}).json()["data"]["result"]
        except (httpx.TransportError, json.JSONDecodeError):  # it starts
            found = []
        if found:
            return found
        time.sleep(0.1)
    pytest.fail(f"no series for {query}")


def test_a_real_prometheus_reads_the_metrics_the_rules_and_the_dashboard(
    harness: Harness, prometheus: httpx.Client
) -> None:
    found = ask(prometheus, 'carbonq_live_workers{job="carbonq-api"} == 1')
    assert {"fr", "se"} <= {one["metric"]["region"] for one in found}
    assert ask(prometheus, "carbonq:api_errors:ratio5m or vector(0)")
    groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    names = {"carbonq-budgets", "carbonq-figures", "carbonq-grid", "carbonq-targets", "carbonq-work"}
    assert names <= {group["name"] for group in groups}
    for query in expressions():
        answer = prometheus.get("/api/v1/format_query", params={"query": query})
        assert answer.status_code == 200, f"{query}: {answer.text}"


def test_the_dashboard_is_about_metrics_that_exist() -> None:
    assert telemetry.MOER is not None
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    known = {metric.name + end for metric in REGISTRY.collect() for end in suffixes.get(metric.type, ("",))}
    rules = "".join(path.read_text(encoding="utf-8") for path in OPS.glob("prometheus/*.rules.yml"))
    recorded = set(re.findall(r"record: (\S+)", rules))
    asked = expressions()
    assert len(asked) > 30
    for query in asked:
        names = set(re.findall(r"\bcarbonq[_:][\w:]+", query))
        assert names and names <= known | recorded, f"{query}: {names - known - recorded}"

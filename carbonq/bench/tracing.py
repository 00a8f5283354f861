"""What traces cost: CPU of API and workers for each job, item and realtime call, with traces on and off.

Two stacks run side by side, one of which sends its spans to a collector that throws them away, in a process of its own.
They are given the same work in turns, so that they meet the same weather; what counts is the CPU time of their
processes, not the wall clock. Units: microseconds of CPU.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil

from carbonq import config
from carbonq.bench.level_grid import level_settings
from carbonq.bench.run import MODEL, lines
from carbonq.clock import GridClock
from carbonq.embedded.stack import Stack

#: A collector that takes everything and keeps the number of bytes, which any GET gets.
_SINK = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
taken = 0
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        global taken
        taken += len(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(b"")
    def do_GET(self):
        self.answer(str(taken).encode())
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""

#: Jobs, calls and items that come before those that count: with the speed that is learned of these, the large job's
#: chunks fit into the window that runs.
_WARM_UP, _WARM_UP_ITEMS = 30, 500

#: Grid seconds for each machine second: a window lasts 15 s, so that what is placed in the next one is soon there.
_FACTOR = 20.0

#: Name of the variable by which OpenTelemetry's SDK finds its collector.
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

Load = Callable[[httpx.Client], None]


def bench(
    folder: Path, *, jobs: int, items: int, calls: int, rounds: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Give both stacks the same work ``rounds`` times, and return JSON values.

    That is ``jobs`` jobs of one item, one job of ``items`` items, ``calls`` realtime calls. Raises ConfigError without
    the extra otel.
    """
    source = b"".join(lines(items, words=60))
    loads: dict[str, tuple[int, Load]] = {
        "job": (jobs, lambda http: _submit_small(http, jobs)),
        "item": (items, lambda http: _run_large(http, source)),
        "call": (calls, lambda http: _call(http, calls)),
    }
    found: dict[str, dict[str, list[float]]] = {unit: {"off": [], "on": []} for unit in loads}
    with (
        _sink() as collector,
        _stack(folder / "off", "none", report) as off,
        _stack(folder / "on", "otlp", report) as on,
    ):
        stacks = {"off": off, "on": on}
        for _, http in stacks.values():
            _submit_small(http, _WARM_UP)
            _call(http, _WARM_UP)
            _run_large(http, b"".join(lines(_WARM_UP_ITEMS, words=60)))
        for number in range(rounds):
            for unit, (count, load) in loads.items():
                for name in ("off", "on") if number % 2 == 0 else ("on", "off"):
                    found[unit][name].append(_cpu_us(*stacks[name], load) / count)
                off_us, on_us = found[unit]["off"][-1], found[unit]["on"][-1]
                report(f"round {number + 1}, {unit}: {off_us:,.1f} us without, {on_us:,.1f} us with traces")
        sent = int(httpx.get(collector, trust_env=False).text)
    if not sent:
        raise RuntimeError("no span arrived: what was measured are no traces")
    units = {unit: _compared(values) for unit, values in found.items()}
    for unit, one in units.items():
        report(f"{unit}: {one['off_us']:,.1f} us without, {one['on_us']:,.1f} us with traces ({one['overhead']:+.1%})")
    return {"bench": "tracing", "jobs": jobs, "items": items, "calls": calls, "sent_bytes": sent, **units}


def _compared(values: dict[str, list[float]]) -> dict[str, Any]:
    """The median of each, and of the ratios of the pairs."""
    ratios = [on / off for off, on in zip(values["off"], values["on"], strict=True)]
    return {
        "off_us": statistics.median(values["off"]),
        "on_us": statistics.median(values["on"]),
        "overhead": statistics.median(ratios) - 1,
        "pairs": [list(pair) for pair in zip(values["off"], values["on"], strict=True)],
    }


@contextmanager
def _sink() -> Generator[str]:
    command = [sys.executable, "-c", _SINK]
    # Of a stack that ends while it sends the server would print a traceback.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    before = os.environ.get(_ENDPOINT)
    try:
        assert process.stdout is not None
        url = os.environ[_ENDPOINT] = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        yield url
    finally:
        os.environ.pop(_ENDPOINT)
        if before is not None:
            os.environ[_ENDPOINT] = before
        process.kill()
        process.communicate()


@contextmanager
def _stack(folder: Path, traces: str, report: Callable[[str], None]) -> Generator[tuple[Stack, httpx.Client]]:
    folder.mkdir()
    settings = config.load(**level_settings(folder), traces=traces)
    clock = GridClock.accelerated(datetime.now(UTC), _FACTOR)
    with Stack(settings, report=report, clock=clock, flower=False) as stack:
        headers = {"Authorization": f"Bearer {stack.api_key}"}
        with httpx.Client(base_url=stack.api_url, headers=headers, trust_env=False, timeout=120.0) as http:
            yield stack, http


def _cpu_us(stack: Stack, http: httpx.Client, load: Load) -> float:
    """Return the CPU time that API and region workers take for a load."""
    processes = [psutil.Process(pid) for name, pid in stack.pids.items() if name == "api" or name.startswith("worker-")]
    before = sum(_cpu_s(one) for one in processes)
    load(http)
    return 1e6 * (sum(_cpu_s(one) for one in processes) - before)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _submit_small(http: httpx.Client, count: int) -> None:
    body = {"model": MODEL, "kind": "embeddings", "deadline": "6h", "items": ["The grid is cleanest at night."]}
    last = ""
    for _ in range(count):
        answer = http.post("/v1/jobs", json=body)
        answer.raise_for_status()
        last = answer.json()["id"]
    _wait(http, last)


def _run_large(http: httpx.Client, source: bytes) -> None:
    answer = http.post(f"/v1/jobs?kind=embeddings&model={MODEL}&deadline=6h", content=source)
    answer.raise_for_status()
    _wait(http, answer.json()["id"])


def _wait(http: httpx.Client, job_id: str) -> None:
    while http.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=30"}).json()["state"] != "completed":
        pass


def _call(http: httpx.Client, count: int) -> None:
    body = orjson.dumps({"model": MODEL, "input": "The feed pump ran hot and tripped twice before sunrise."})
    for _ in range(count):
        http.post("/v1/embeddings", content=body, headers={"Content-Type": "application/json"}).raise_for_status()

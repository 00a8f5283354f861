"""What the HTTP API takes and hands out, beside the plainest server of the same kind in the same run.

*jobs*: single-item jobs a second on one API process, beside a bare FastAPI insert of one row with its commit. *batch*:
one large input until it is accepted, and until it is validated and stored, with the memory that takes. *poll*: many
clients that look at one batch. *results*: a download, beside the same bytes sent as a plain file. CPU seconds stand
beside wall time. Seconds are machine seconds.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from carbonq.bench.api_load import Load, request_text
from carbonq.bench.api_site import ApiSite
from carbonq.bench.backend import Backend
from carbonq.bench.run import MODEL, lines
from carbonq.embedded.address import LOOPBACK
from carbonq.model import JobState
from carbonq.store import jobs

PARTS = ("jobs", "batch", "poll", "results")

#: Seconds of load that are thrown away: connections, caches, the first statements.
_WARM_S = 1.0

#: A result line is about as long as an embedding of 256 numbers makes it.
_RESULT_BYTES = 3_000

#: Seconds that a batch may take to be validated.
_VALIDATED_S = 120.0


def bench(
    folder: Path,
    backend: Backend,
    *,
    parts: Sequence[str] = PARTS,
    seconds: float = 5.0,
    rounds: int = 3,
    connections: int = 64,
    pollers: int = 200,
    items: int = 50_000,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Measure each part and return JSON values; loads last ``seconds``, and each is made ``rounds`` times."""
    file = folder / "results.jsonl"
    write_results(file, items if "results" in parts else 1)
    found: dict[str, Any] = {"bench": "api", "backend": backend.name, "items": items}
    # What the control process makes of new jobs would take turns with taking them.
    if {"jobs", "results"} & set(parts):
        with _site(backend, folder / "alone", file, with_control=False) as site:
            if "jobs" in parts:
                found["jobs"] = measure_jobs(site, seconds, rounds, connections, report)
            if "results" in parts:
                found["results"] = measure_results(site, file, rounds, report)
    if {"batch", "poll"} & set(parts):
        with _site(backend, folder / "controlled", file, with_control=True) as site:
            if "batch" in parts:
                found["batch"] = _batch(site, folder / "documents.jsonl", items, report)
            if "poll" in parts:
                found["poll"] = measure_polls(site, seconds, pollers, report)
    return found


@contextmanager
def _site(backend: Backend, folder: Path, file: Path, *, with_control: bool) -> Generator[ApiSite]:
    folder.mkdir()
    with backend.settings(folder) as settings, ApiSite(settings, file, with_control=with_control) as site:
        yield site


def _line() -> str:
    body = {"model": MODEL, "input": "The tram yard reports that the feed pump ran hot and tripped twice."}
    return orjson.dumps({"custom_id": "one", "method": "POST", "url": "/v1/embeddings", "body": body}).decode()


def measure_jobs(
    site: ApiSite, seconds: float, rounds: int, connections: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Measure single-item jobs a second beside rows a second."""
    path = f"/v1/jobs?kind=embeddings&model={MODEL}&deadline=20d"
    job = request_text("POST", path, key=site.key, body=_line() + "\n", media_type="application/x-ndjson")
    row = request_text("POST", "/rows", key=site.key, body=_line())

    def rate(port: int, request: str, server: str, during_s: float) -> dict[str, Any]:
        found = site.loaded(Load(LOOPBACK, port, [request], connections, during_s), server)
        if set(found["statuses"]) != {"202"} or found["broken"]:
            raise RuntimeError(f"{server} answered {found['statuses']}, {found['broken']} connections broke")
        return found

    for port, request, server in ((site.plain_port, row, "plain"), (site.port, job, "api")):
        rate(port, request, server, _WARM_S)
    pairs: list[dict[str, Any]] = []
    for _ in range(rounds):
        plain = rate(site.plain_port, row, "plain", seconds)
        carbonq = rate(site.port, job, "api", seconds)
        ratio = carbonq["per_s"] / plain["per_s"]
        pairs.append({"plain": plain, "carbonq": carbonq, "ratio": ratio})
        report(
            f"single-item jobs: {carbonq['per_s']:,.0f}/s (p99 {carbonq['p99_ms']:.0f} ms); one row with its commit: "
            f"{plain['per_s']:,.0f}/s"
        )
    median = sorted(pairs, key=lambda pair: pair["ratio"])[rounds // 2]
    return {"connections": connections, "rounds": pairs, "median": median}


def _batch(site: ApiSite, source: Path, items: int, report: Callable[[str], None]) -> dict[str, Any]:
    with source.open("wb") as stream:
        stream.writelines(lines(items, words=60))
    found: dict[str, Any] = {"input_bytes": source.stat().st_size}
    before_mb, cpu = site.forget_peaks("api"), site.cpu_s("api")
    with site.http() as http, source.open("rb") as stream:
        began = time.perf_counter()
        query = {"kind": "embeddings", "model": MODEL, "deadline": "20d"}
        answer = http.post(
            "/v1/jobs", params=query, content=stream, headers={"Content-Type": "application/x-ndjson"}
        ).raise_for_status()
        found["job"] = {"stored_s": time.perf_counter() - began, "cpu_s": site.cpu_since(cpu)}
    if answer.json()["progress"]["total"] != items:
        raise RuntimeError(f"{answer.json()['progress']['total']} items were stored, {items} were sent")
    found["job"] |= _grown(before_mb, site.peaks_mb("api"))
    report(f"a job of {items:,} items: stored after {found['job']['stored_s']:.1f} s")
    names = ("api", "control-slow")
    before_mb, cpu = site.forget_peaks(*names), site.cpu_s(*names)
    began = time.perf_counter()
    batch = create_batch(site, source)
    created_s = time.perf_counter() - began
    ends = began + _VALIDATED_S
    with site.http() as http:
        while batch["status"] == "validating":
            if time.perf_counter() > ends:
                raise RuntimeError(f"the batch was not validated within {_VALIDATED_S:.0f} s")
            time.sleep(0.05)
            batch = http.get(f"/v1/batches/{batch['id']}").raise_for_status().json()
    validated_s = time.perf_counter() - began
    if batch["status"] != "in_progress" or batch["request_counts"]["total"] != items:
        raise RuntimeError(f"the batch is {batch['status']} with {batch['request_counts']}: {batch['errors']}")
    found["batch"] = {"created_s": created_s, "validated_s": validated_s, "cpu_s": site.cpu_since(cpu)}
    found["batch"] |= _grown(before_mb, site.peaks_mb(*names))
    report(
        f"a batch of {items:,} lines: created after {created_s:.1f} s, validated and stored after {validated_s:.1f} s"
    )
    return found


def _grown(before_mb: dict[str, float], peak_mb: dict[str, float]) -> dict[str, Any]:
    return {"before_mb": before_mb, "peak_mb": peak_mb, "grown_mb": {n: peak_mb[n] - before_mb[n] for n in peak_mb}}


def create_batch(site: ApiSite, source: Path) -> dict[str, Any]:
    """Upload a file and create a batch of it, as the SDK does; return the Batch object."""
    with site.http() as http, source.open("rb") as stream:
        file = http.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": (source.name, stream, "application/jsonl")}
        ).raise_for_status()
        body = {"input_file_id": file.json()["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        made: dict[str, Any] = http.post("/v1/batches", json=body).raise_for_status().json()
    return made


def measure_polls(site: ApiSite, seconds: float, pollers: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure answers to clients that look at one batch, each every second and then as fast as they can."""
    source = site.runtime.settings.data_dir / "polled.jsonl"
    with source.open("wb") as stream:
        stream.writelines(lines(100, words=20))
    batch_id = create_batch(site, source)["id"]
    request = request_text("GET", f"/v1/batches/{batch_id}", key=site.key)
    found: dict[str, Any] = {"pollers": pollers}
    for name, pause_s in (("each_second", 1.0), ("without_pause", 0.0)):
        load = Load(LOOPBACK, site.port, [request], pollers, seconds, pause_s)
        found[name] = one = site.loaded(load, "api")
        if set(one["statuses"]) != {"200"} or one["broken"]:
            raise RuntimeError(f"polls were answered {one['statuses']}, {one['broken']} connections broke")
        report(
            f"{pollers} pollers, {name.replace('_', ' ')}: {one['per_s']:,.0f}/s, "
            f"p50 {one['p50_ms']:.1f} ms, p99 {one['p99_ms']:.1f} ms"
        )
    return found


def write_results(path: Path, items: int) -> None:
    """Write so many result lines."""
    filling = ",".join(["-0.123456"] * (_RESULT_BYTES // 10))
    with path.open("wb") as stream:
        for number in range(items):
            stream.write(b'{"id":"batch_req_%d","custom_id":"d%d","data":[%s]}\n' % (number, number, filling.encode()))


def measure_results(site: ApiSite, file: Path, rounds: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure a download beside the same bytes as a plain file."""
    job_id = _finished_job(site, file)
    pairs: list[dict[str, Any]] = []
    for _ in range(rounds):
        plain = _download(site, "plain", site.plain_port, "/file", file)
        carbonq = _download(site, "api", site.port, f"/v1/jobs/{job_id}/results", file)
        pairs.append({"plain": plain, "carbonq": carbonq, "ratio": carbonq["mb_per_s"] / plain["mb_per_s"]})
        report(f"results: {carbonq['mb_per_s']:,.0f} MB/s; the same as a plain file: {plain['mb_per_s']:,.0f} MB/s")
    median = sorted(pairs, key=lambda pair: pair["ratio"])[rounds // 2]
    return {"bytes": file.stat().st_size, "rounds": pairs, "median": median}


def _finished_job(site: ApiSite, file: Path) -> str:
    """Store a job and end it with ``file`` as its results: no worker need compute them."""
    runtime = site.runtime
    with site.http() as http:
        query = {"kind": "embeddings", "model": MODEL, "deadline": "20d"}
        headers = {"Content-Type": "application/x-ndjson"}
        job = http.post("/v1/jobs", params=query, content=_line(), headers=headers).raise_for_status().json()
    key = f"jobs/{job['id']}/output.jsonl"
    with file.open("rb") as stream:
        runtime.blobs.put(key, iter(lambda: stream.read(1 << 20), b""))
    with runtime.db.write() as tx:
        jobs.mark_finishing(tx, job["id"])
        at = datetime.now(UTC)
        jobs.finish(tx, job["id"], JobState.COMPLETED, output_blob=key, error_blob=None, error=None, at=at)
    return str(job["id"])


def _download(site: ApiSite, server: str, port: int, path: str, file: Path) -> dict[str, Any]:
    before, began = site.cpu_s(server), time.perf_counter()
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=120)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {site.key}", "Accept-Encoding": "identity"})
        response = connection.getresponse()
        buffer, size = memoryview(bytearray(1 << 18)), 0
        while count := response.readinto(buffer):
            size += count
    finally:
        connection.close()
    seconds = time.perf_counter() - began
    if response.status != 200 or size != file.stat().st_size:
        raise RuntimeError(f"{server} sent {size} bytes with status {response.status}")
    return {"seconds": seconds, "mb_per_s": size / 1e6 / seconds, "cpu_s": site.cpu_since(before)}

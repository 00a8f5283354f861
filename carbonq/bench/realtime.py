"""What a realtime call costs over its engine call, idle: p50 and p99 of sequential requests on one connection.

Overhead = time the client waited - time inside the engine, which each answer states. The yardstick beside it is the
same request answered by the engine alone in this process. Times are machine milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from carbonq import config, models, wiring
from carbonq.bench.level_grid import level_settings
from carbonq.bench.run import MODEL, lines
from carbonq.embedded.stack import Stack
from carbonq.engines.protocol import EngineRequest

_BODY = {"model": MODEL, "input": "The tram yard reports that the feed pump ran hot and tripped twice before sunrise."}

#: Calls before the counted ones: connections, caches and the model's first pages.
_WARM_UP = 20

#: Documents of the flexible work beside.
_LOAD_ITEMS = 50_000


def bench(folder: Path, *, calls: int, is_loaded: bool = False, report: Callable[[str], None]) -> dict[str, Any]:
    """Make ``calls`` requests against a stack in ``folder`` and return the figures as JSON values.

    With ``is_loaded`` as many again while flexible work runs on all slots; those made after it ended do not count.
    """
    settings = config.load(**level_settings(folder))
    figures: dict[str, list[float]] = {}
    with Stack(settings, report=report, flower=False) as stack:
        headers = {"Authorization": f"Bearer {stack.api_key}"}
        with httpx.Client(base_url=stack.api_url, headers=headers, trust_env=False, timeout=30.0) as http:
            for _ in range(_WARM_UP):
                _call(http)
            idle = [_call(http) for _ in range(calls)]
            figures |= {"waited_ms": [one[0] for one in idle], "overhead_ms": [one[1] for one in idle]}
            if is_loaded:
                beside = _beside_work(stack, http, folder / "documents.jsonl", calls)
                figures["loaded_overhead_ms"] = [one[1] for one in beside]
    figures["engine_alone_ms"] = _engine_alone_ms(calls)
    summary = {
        name: {"calls": len(values), "p50": _quantile(values, 0.50), "p99": _quantile(values, 0.99)}
        for name, values in figures.items()
    }
    report(", ".join(f"{name} p50 {s['p50']:.1f} p99 {s['p99']:.1f}" for name, s in summary.items()))
    return {"bench": "realtime", "calls": calls, **summary}


def _call(http: httpx.Client) -> tuple[float, float]:
    """Return the milliseconds that a call took, and those of them outside the engine."""
    began = time.perf_counter()
    response = http.post("/v1/embeddings", json=_BODY)
    elapsed = time.perf_counter() - began
    response.raise_for_status()
    return elapsed * 1000, (elapsed - float(response.json()["usage"]["carbon"]["engine_s"])) * 1000


def _beside_work(stack: Stack, http: httpx.Client, source: Path, calls: int) -> list[tuple[float, float]]:
    """Make calls while a job runs. Raises RuntimeError when it ended before any call was made."""
    with source.open("wb") as stream:
        stream.writelines(lines(_LOAD_ITEMS, words=60))
    found: list[tuple[float, float]] = []
    with stack.client() as client, source.open("rb") as stream:
        job_id = client.submit(stream, endpoint="/v1/embeddings", model=MODEL, deadline="2h")["id"]
        while client.job(job_id)["phase"] != "running":
            time.sleep(0.05)
        while len(found) < calls:
            one = _call(http)
            if len(found) % 10 == 0 and client.job(job_id)["phase"] != "running":
                break
            found.append(one)
    if not found:
        raise RuntimeError("the flexible work ended before a call was made beside it")
    return found


def _engine_alone_ms(calls: int) -> list[float]:
    engine = wiring.make_engine(models.BUILTIN[MODEL])
    engine.load()
    times: list[float] = []
    for _ in range(calls):
        began = time.perf_counter()
        engine.run([EngineRequest("one", _BODY)], lambda: False)
        times.append((time.perf_counter() - began) * 1000)
    engine.close()
    return times


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]

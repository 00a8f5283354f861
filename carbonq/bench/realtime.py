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
from carbonq.bench.run import MODEL
from carbonq.embedded.stack import Stack
from carbonq.engines.protocol import EngineRequest

_BODY = {"model": MODEL, "input": "The tram yard reports that the feed pump ran hot and tripped twice before sunrise."}

#: Calls before the counted ones: connections, caches and the model's first pages.
_WARM_UP = 20


def bench(folder: Path, *, calls: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Make ``calls`` requests against a stack in ``folder`` and return the figures as JSON values."""
    settings = config.load(**level_settings(folder))
    waited: list[float] = []
    overhead: list[float] = []
    with Stack(settings, report=report, flower=False) as stack:
        headers = {"Authorization": f"Bearer {stack.api_key}"}
        with httpx.Client(base_url=stack.api_url, headers=headers, trust_env=False, timeout=30.0) as http:
            for index in range(calls + _WARM_UP):
                began = time.perf_counter()
                response = http.post("/v1/embeddings", json=_BODY)
                elapsed = time.perf_counter() - began
                response.raise_for_status()
                if index >= _WARM_UP:
                    waited.append(elapsed * 1000)
                    overhead.append((elapsed - float(response.json()["usage"]["carbon"]["engine_s"])) * 1000)
    alone = _engine_alone_ms(calls)
    figures = {"waited_ms": waited, "overhead_ms": overhead, "engine_alone_ms": alone}
    summary = {
        name: {"p50": _quantile(values, 0.50), "p99": _quantile(values, 0.99)} for name, values in figures.items()
    }
    report(", ".join(f"{name} p50 {s['p50']:.1f} p99 {s['p99']:.1f}" for name, s in summary.items()))
    return {"bench": "realtime", "calls": calls, **summary}


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

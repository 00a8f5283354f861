"""Terms in headers that come twice are refused by name, wherever headers carry any: neither wins silently."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.harness import EMBEDDER
from tests.api.test_jobs import lines

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/jobs": {"json": {"model": EMBEDDER, "kind": "embeddings", "items": ["a"]}},
    f"/v1/jobs?model={EMBEDDER}&kind=embeddings": {"content": lines(1)},
    "/v1/batches": {"json": {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}},
    "/v1/embeddings": {"json": {"model": EMBEDDER, "input": "a"}},
    "/v1/files": {"files": {"file": ("in.jsonl", lines(1))}, "data": {"purpose": "batch"}},
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("values", [("6h", "12h"), ("6h", "6h")])
def test_a_header_that_comes_twice_is_refused_by_name(http: httpx.Client, path: str, values: tuple[str, str]) -> None:
    twice = [("X-Carbonq-Deadline", values[0]), ("x-carbonq-deadline", values[1])]
    response = http.post(path, headers=twice, **ROUTES[path])
    assert response.status_code == 400, response.text
    problem = response.json()
    error = problem.get("error", problem)
    assert error["param"] == "X-Carbonq-Deadline"
    said = str(problem)
    assert "came twice" in said and "send it once" in said and values[0] in said and values[1] in said


def test_a_header_that_comes_once_holds(http: httpx.Client) -> None:
    response = http.post("/v1/jobs", headers={"X-Carbonq-Deadline": "7h"}, **ROUTES["/v1/jobs"])
    assert response.status_code == 202, response.text

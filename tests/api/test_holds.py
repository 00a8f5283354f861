"""What an operator paused or drains, as clients see it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from carbonq.model import HeldKind, RegionState
from carbonq.services import hold
from tests.api.harness import EMBEDDER, Harness

NEW = {"endpoint": "/v1/embeddings", "model": EMBEDDER, "deadline": "6h", "items": ["a text"]}
EMBED = {"model": EMBEDDER, "input": "hello"}


def say(harness: Harness, kind: HeldKind, name: str, state: RegionState) -> None:
    hold.set_state(harness.db, harness.clock, kind, name, state, reason="unpaid")
    harness.api.directory.refresh()


@pytest.mark.parametrize(("kind", "name"), [(HeldKind.TENANT, "acme"), (HeldKind.MODEL, EMBEDDER)])
def test_a_paused_job_says_so_and_realtime_is_refused(
    harness: Harness, http: httpx.Client, kind: HeldKind, name: str
) -> None:
    say(harness, kind, name, RegionState.PAUSED)
    job: dict[str, Any] = http.post("/v1/jobs", json=NEW).json()
    assert job["held"] | {"since": ""} == {
        "kind": kind.value,
        "name": name,
        "state": "paused",
        "reason": "unpaid",
        "since": "",
    }
    assert http.get(f"/v1/jobs/{job['id']}").json()["phase"] == "paused"
    refused = http.post("/v1/embeddings", json=EMBED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, f"{kind.value}_paused")
    assert "unpaid" in refused.json()["error"]["message"] and refused.headers["retry-after"] == "60"
    say(harness, kind, name, RegionState.ACTIVE)
    assert http.get(f"/v1/jobs/{job['id']}").json()["held"] is None
    assert http.post("/v1/embeddings", json=EMBED).status_code == 200


def test_a_draining_tenant_is_told_and_others_go_on(harness: Harness, http: httpx.Client) -> None:
    say(harness, HeldKind.TENANT, "acme", RegionState.DRAINING)
    refused = http.post("/v1/jobs", json=NEW)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "tenant_draining")
    assert http.post("/v1/embeddings", json=EMBED).status_code == 503
    assert http.post("/v1/jobs", json=NEW, headers=harness.headers("rival")).status_code == 202

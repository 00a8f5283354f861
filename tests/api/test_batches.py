"""The Batch API: created at once, read by a tick, finished with files; states, times and counts as OpenAI has them."""

from __future__ import annotations

import httpx

from carbonq.model import ItemState
from tests.api import batching
from tests.api.batching import content, create, end, finish_all, lines, look, read_inputs
from tests.api.harness import EMBEDDER, Harness

OK, BAD = ItemState.SUCCEEDED, ItemState.FAILED


def test_a_batch_runs_to_its_end(harness: Harness, http: httpx.Client) -> None:
    made = create(http, lines(3), metadata={"team": "search"})
    now = int(harness.clock.now().timestamp())
    assert made["status"] == made["carbon"]["phase"] == "validating"
    assert (made["object"], made["endpoint"], made["completion_window"]) == ("batch", "/v1/embeddings", "24h")
    assert (made["created_at"], made["expires_at"]) == (now, now + 86_400)
    assert made["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert (made["output_file_id"], made["errors"], made["usage"]) == (None, None, None)
    assert made["metadata"] == {"team": "search"}
    assert read_inputs(harness) == 1
    running = look(http, made)
    assert (running["status"], running["model"], running["in_progress_at"]) == ("in_progress", EMBEDDER, now)
    assert running["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
    end(harness, made, {"a-1": OK})
    assert look(http, made)["request_counts"]["completed"] == 1
    assert finish_all(harness) == 0
    end(harness, made, {"a-2": OK, "a-3": BAD})
    assert finish_all(harness) == 1
    done = look(http, made)
    assert (done["status"], done["completed_at"], done["finalizing_at"]) == ("completed", now, now)
    assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert {one["custom_id"] for one in content(http, done["output_file_id"])} == {"a-1", "a-2"}
    assert [one["custom_id"] for one in content(http, done["error_file_id"])] == ["a-3"]
    file = http.get(f"/v1/files/{done['output_file_id']}").json()
    assert (file["purpose"], file["lines"], file["expires_at"]) == ("batch_output", 2, None)
    assert [one["id"] for one in http.get("/v1/batches").json()["data"]] == [made["id"]]
    assert batching.job_ids(harness, made) == done["carbon"]["jobs"]

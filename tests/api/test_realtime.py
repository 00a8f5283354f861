"""POST /v1/embeddings and /v1/chat/completions: shape, carbon, refusals, and no database on the way."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from carbonq.errors import Unavailable
from carbonq.store import regions
from tests.api.harness import CHATTER, EMBEDDER, Harness, answer, until

EMBED = {"model": EMBEDDER, "input": "hello"}
CHAT = {"model": CHATTER, "messages": [{"role": "user", "content": "hello"}]}


def test_an_embedding_comes_with_its_carbon(harness: Harness, http: httpx.Client) -> None:
    response = http.post("/v1/embeddings", json=EMBED)
    assert response.status_code == 200
    body = response.json()
    assert body["data"][0]["embedding"] == [0.5, -0.5, 0.25, 1.0]
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["carbon"]["region"] == "fr" and body["usage"]["carbon"]["gco2e"] == 0.00008
    assert body["usage"]["carbon"]["why"]["reason"] == "realtime"
    assert response.headers["x-carbonq-region"] == "fr"
    assert float(response.headers["x-carbonq-energy-wh"]) == 0.0002
    assert float(response.headers["x-carbonq-gco2e"]) == 0.00008
    region, payload = harness.tickets.realtime_calls[0]
    assert region == "fr"
    assert payload["tenant"] == "acme" and payload["api_key_id"].startswith("key_")
    assert payload["body"] == EMBED and payload["endpoint"] == "/v1/embeddings"


def test_a_chat_completion(http: httpx.Client) -> None:
    body = http.post("/v1/chat/completions", json={**CHAT, "stream": False}).json()
    assert body["choices"][0]["message"]["content"] == "short"
    assert body["usage"]["completion_tokens"] == 1 and body["usage"]["carbon"]


def test_the_carbon_object_and_headers_choose_region_and_labels(harness: Harness, http: httpx.Client) -> None:
    carbon = {"regions": ["se"], "product_line": "search"}
    headers = {"X-Carbonq-Workload": "web", "X-Carbonq-Product-Line": "other", "X-Carbonq-Regions": "fr"}
    assert http.post("/v1/embeddings", json={**EMBED, "carbon": carbon}, headers=headers).status_code == 200
    region, payload = harness.tickets.realtime_calls[0]
    assert region == "se"
    assert payload["product_line"] == "search" and payload["workload"] == "web"
    assert "carbon" not in payload["body"]


def test_terms_come_by_metadata_too_and_the_body_counts_before_it(harness: Harness, http: httpx.Client) -> None:
    metadata = {"carbonq_regions": "se", "carbonq_workload": "web", "mine": "x"}
    assert http.post("/v1/chat/completions", json={**CHAT, "metadata": metadata}).headers["x-carbonq-region"] == "se"
    assert harness.tickets.realtime_calls[0][1]["workload"] == "web"
    both = {**CHAT, "metadata": metadata, "carbon": {"regions": ["fr"]}}
    assert http.post("/v1/chat/completions", json=both).headers["x-carbonq-region"] == "fr"


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        ("/v1/embeddings", {"input": "x"}, 400, "model", EMBEDDER),
        ("/v1/embeddings", {"model": "gpt-9", "input": "x"}, 400, "model", EMBEDDER),
        ("/v1/embeddings", {"model": CHATTER, "input": "x"}, 400, "model", "answers /v1/chat/completions"),
        ("/v1/embeddings", [1], 400, None, "JSON object"),
        ("/v1/embeddings", {**EMBED, "stream": True}, 400, "stream", "chat completions only"),
        ("/v1/embeddings", {**EMBED, "carbon": []}, 400, "carbon", "object"),
        ("/v1/embeddings", {**EMBED, "carbon": {"deadline": "6h"}}, 400, "carbon.deadline", "a batch or a job"),
        ("/v1/embeddings", {**EMBED, "carbon": {"regions": ["mars"]}}, 400, "carbon.regions", "known regions: fr, se"),
        ("/v1/embeddings", {**EMBED, "carbon": {"workload": 3}}, 400, "carbon.workload", "1 to 255"),
    ],
)
def test_refusals_name_the_field(  # noqa: PLR0917 - one column of the table each
    http: httpx.Client, path: str, body: Any, status: int, param: str | None, words: str
) -> None:
    response = http.post(path, json=body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("value", ["a\0b", "x" * 256, "\n", 5, {"a": 1}])
def test_a_label_that_no_ledger_could_keep_is_refused(http: httpx.Client, value: Any) -> None:
    for name in ("product_line", "workload"):
        response = http.post("/v1/embeddings", json={**EMBED, "carbon": {name: value}})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == f"carbon.{name}"


def test_a_body_that_is_no_json_or_too_long(http: httpx.Client) -> None:
    response = http.post("/v1/embeddings", content=b"{not json")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
    response = http.post("/v1/embeddings", json={**EMBED, "input": "x" * (4 * 1024 * 1024)})
    assert response.status_code == 413
    assert "CARBONQ_MAX_LINE_BYTES" in response.json()["error"]["message"]


def test_the_engines_own_refusal_comes_through(harness: Harness, http: httpx.Client) -> None:
    error = {"message": "4097 tokens, the limit is 4096", "code": "context_length_exceeded", "param": "input"}
    harness.tickets.answer = lambda region, payload: {"status_code": 400, "error": error, "engine_s": 0.0}
    response = http.post("/v1/embeddings", json=EMBED)
    assert response.status_code == 400
    assert {name: response.json()["error"][name] for name in error} == error


def test_nothing_alive_is_said_in_a_sentence(harness: Harness, http: httpx.Client) -> None:
    with harness.db.write() as tx:
        regions.worker_stopped(tx, "worker-fr")
        regions.worker_stopped(tx, "worker-se")
    harness.api.directory.refresh()
    response = http.post("/v1/embeddings", json=EMBED)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_region_available"
    assert "carbonq worker --region" in response.json()["error"]["message"]
    assert response.headers["retry-after"] == "2"


def test_no_broker_and_no_answer(harness: Harness, http: httpx.Client) -> None:
    harness.tickets.is_down = True
    response = http.post("/v1/embeddings", json=EMBED)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "broker_unavailable")
    harness.tickets.is_down = False

    def silent(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        raise Unavailable(f"region {region} gave no answer within 5 s", code="realtime_timeout", retry_after_s=1.0)

    harness.tickets.answer = silent
    response = http.post("/v1/embeddings", json=EMBED)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "realtime_timeout")
    harness.tickets.answer = answer
    assert http.post("/v1/embeddings", json=EMBED).headers["x-carbonq-region"] == "se"  # the one that answers


def test_an_engine_that_failed_is_a_bad_gateway_and_says_whether_to_ask_again(
    harness: Harness, http: httpx.Client
) -> None:
    failed: dict[str, Any] = {"status_code": 502, "error": {"code": "engine_error", "message": "no memory"}}
    harness.tickets.answer = lambda region, payload: failed | {"is_final": False}
    response = http.post("/v1/embeddings", json=EMBED)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_error")
    assert (response.json()["error"]["type"], response.headers.get("x-should-retry")) == ("server_error", None)
    harness.tickets.answer = lambda region, payload: failed | {"is_final": True}
    assert http.post("/v1/embeddings", json=EMBED).headers["x-should-retry"] == "false"


def test_an_engine_that_is_away_says_when_to_come_again(harness: Harness, http: httpx.Client) -> None:
    def away(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"status_code": 503, "error": {"code": "engine_away", "message": "nobody listens", "param": None}}

    harness.tickets.answer = away
    response = http.post("/v1/embeddings", json=EMBED)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_away")
    assert response.headers["retry-after"] == "5"


def test_realtime_needs_no_database(harness: Harness, http: httpx.Client) -> None:
    assert http.get("/v1/models").status_code == 200
    with harness.db.write() as tx:
        for table in ("api_keys", "regions", "workers"):
            tx.execute(text(f"ALTER TABLE {table} RENAME TO away_{table}"))
    assert http.get("/v1/jobs").status_code == 200
    assert http.post("/v1/embeddings", json=EMBED).status_code == 200
    assert http.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_too_many_calls_at_once_get_429(harness: Harness, http: httpx.Client) -> None:
    hold = threading.Event()

    def slow(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert hold.wait(20)
        return answer(region, payload)

    harness.tickets.answer = slow
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(http.post("/v1/embeddings", json=EMBED).status_code))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    until(lambda: harness.api.dispatcher.in_flight == 8, "eight calls in flight")
    response = http.post("/v1/embeddings", json=EMBED)
    hold.set()
    for thread in threads:
        thread.join(20)
    assert statuses == [200] * 8
    assert response.status_code == 429 and response.headers["retry-after"] == "1"
    assert response.json()["error"]["type"] == "rate_limit_error"

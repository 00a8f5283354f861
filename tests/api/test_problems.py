"""Every error has one shape, whatever went wrong."""

from __future__ import annotations

import json

import httpx
import pytest

from carbonq import errors
from carbonq.api import problems
from tests.api.harness import Harness


def test_statuses_and_headers_of_every_error_class() -> None:
    cases = {
        errors.InvalidRequest("m", param="p", line=7): (400, {}),
        errors.Infeasible("m", best="b", param="deadline"): (400, {}),
        errors.InvalidRequest("m", code="request_too_large"): (413, {}),
        errors.NotAuthenticated("m"): (401, {"www-authenticate": "Bearer"}),
        errors.NotFound("m"): (404, {}),
        errors.Conflict("m"): (409, {"x-should-retry": "false"}),
        errors.Conflict("m", code="idempotency_key_reused"): (422, {}),
        errors.QuotaExceeded("m", retry_after_s=1.2): (429, {"retry-after": "2"}),
        errors.StoreUnavailable("m"): (503, {"retry-after": "5"}),
        errors.EngineError("m", is_retryable=True): (502, {}),
        errors.ConfigError("m"): (500, {}),
    }
    for error, (status, headers) in cases.items():
        response = problems.answer(error, "/v1/x")
        assert response.status_code == status, error
        for name, value in headers.items():
            assert response.headers[name] == value
        body = json.loads(bytes(response.body))
        assert body["error"]["message"] == body["detail"] == "m"
        assert body["error"]["code"] == error.code
        assert body["type"] == f"urn:carbonq:error:{error.code}"
        assert body["status"] == status and body["instance"] == "/v1/x" and body["title"]


def test_line_and_best_are_members() -> None:
    body = json.loads(bytes(problems.answer(errors.InvalidRequest("m", param="body", line=7)).body))
    assert body["error"]["line"] == body["line"] == 7 and body["error"]["param"] == "body"
    body = json.loads(bytes(problems.answer(errors.Infeasible("m", best="in 3 h")).body))
    assert body["error"]["best"] == "in 3 h"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/models", "there is no /models here; did you mean /v1/models? A client's base_url ends in /v1"),
        ("/v1/v1/models", "there is no /v1/v1/models here; /openapi.json lists what there is"),
        ("/v1/jobs?state=odd", "state: Input should be 'waiting'"),
        ("/v1/ledger.csv?job=x", "job is not a parameter here; /openapi.json lists those of /v1/ledger.csv"),
    ],
)
def test_sentences_say_what_to_do(http: httpx.Client, path: str, sentence: str) -> None:
    answer = http.get(path).json()
    assert answer["detail"].startswith(sentence)
    assert answer["error"]["param"] == (path.partition("?")[2].partition("=")[0] or None)


def test_an_id_that_is_no_text_is_not_said_to_be_missing(http: httpx.Client) -> None:
    for value, words in ((5, "is 5, which is no id"), (None, "is missing"), ("", "is missing")):
        asked = {"input_file_id": value, "endpoint": "/v1/embeddings", "completion_window": "24h"}
        assert f"input_file_id {words}" in http.post("/v1/batches", json=asked).json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_route"),
        ("GET", "/", 404, "unknown_route"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/jobs?limit=many", 400, "invalid_request"),
        ("GET", "/v1/jobs?limit=1000", 400, "invalid_request"),
        ("GET", "/v1/jobs/job_none", 404, "not_found"),
    ],
)
def test_the_frameworks_own_errors_have_our_shape(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    response = http.request(method, path)
    assert response.status_code == status
    body = response.json()
    assert body["error"]["code"] == code and body["error"]["message"] == body["detail"]
    assert body["status"] == status
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["content-type"] == "application/problem+json"


def test_a_refused_method_names_all_that_are_taken(http: httpx.Client) -> None:
    response = http.delete("/v1/jobs")
    assert response.json()["detail"] == "/v1/jobs does not take DELETE; it takes GET, HEAD, OPTIONS, POST"
    assert response.headers["allow"] == "GET, HEAD, OPTIONS, POST"


def test_a_defect_of_ours_is_an_answer_too(harness: Harness, http: httpx.Client) -> None:
    harness.tickets.answer = lambda region, payload: {"status_code": 200}  # no usage: the route trips over it
    response = http.post("/v1/embeddings", json={"model": "wordllama-256", "input": "x"})
    assert response.status_code == 500
    request_id = response.headers["x-request-id"]
    assert request_id in response.json()["error"]["message"]
    assert "Traceback" not in response.text and "KeyError" not in response.text


def test_the_log_names_the_request_of_an_error_and_at_debug_of_every_answer(
    harness: Harness, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    harness.tickets.is_down = True
    with caplog.at_level("DEBUG", logger="carbonq.api"):
        failed = http.post("/v1/embeddings", json={"model": "wordllama-256", "input": "x"})
        there = http.get("/v1/models")
    assert failed.status_code == 503
    assert f"POST /v1/embeddings, request {failed.headers['x-request-id']}: the broker is down" in caplog.text
    assert f"GET /v1/models, request {there.headers['x-request-id']}: 200" in caplog.text

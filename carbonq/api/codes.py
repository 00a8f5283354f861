"""Every stable code that an error may carry: its status, what it means and what to do. Pure.

The one list: ``docs/errors.md`` is written from it (``python -m carbonq.api.codes > docs/errors.md``), the answers in
``/openapi.json`` take their examples from it, and a test holds all of the source to it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """``statuses``: which HTTP statuses it comes with; ``says``: what it means; ``do``: what the caller can do."""

    statuses: tuple[int, ...]
    says: str
    do: str


def _c(*statuses: int, says: str, do: str) -> Code:
    return Code(statuses, says, do)


def error_type(status: int) -> str:
    """Return the ``error.type`` that OpenAI's API uses for a status."""
    named = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    return named.get(status, "invalid_request_error" if status < 500 else "server_error")


#: Codes of answers to HTTP requests.
CODES: Mapping[str, Code] = {
    "broker_unavailable": _c(503, says="the broker does not answer", do="try again after `Retry-After`"),
    "carbon_budget_exceeded": _c(
        403,
        says="a carbon budget that refuses has no room for it, or its items are larger than a whole cap; `budget_id`, "
        "`cap_g`, `spent_g`, `reserved_g`, `adds_g` and `ends_at` say which and by how much, `line` which item is too "
        "large (`ends_at` is null then: no later period helps)",
        do="come back after `ends_at`, send less, or have the cap raised (`carbonq budget set`)",
    ),
    "carbonq_error": _c(500, says="carbonq failed without a more exact reason", do="give the operator the request id"),
    "config_error": _c(500, says="a setting or the machine is wrong", do="give the operator the sentence"),
    "conflict": _c(409, says="the thing is not in a state that allows this", do="look at its state"),
    "context_length_exceeded": _c(
        400, says="a text is longer than the model takes", do="shorten it or split it over several items"
    ),
    "deadline_in_the_past": _c(
        400,
        says="the deadline is over on the installation's clock, which the sentence shows",
        do="give a later time, or a span such as `6h`, which no clock can get wrong",
    ),
    "disk_full": _c(503, says="the server's disk is full", do="try again later; the operator makes room"),
    "duplicate_custom_id": _c(400, says="two lines have the same `custom_id`", do="name each item differently"),
    "empty_file": _c(400, says="the input has no items", do="send at least one line"),
    "engine_away": _c(503, says="the engine's server is down or refuses us", do="try again later"),
    "engine_error": _c(502, says="the engine failed", do="try again; if it stays, give the operator the request id"),
    "headers_too_large": _c(431, says="the request's target and headers are too long", do="send less of them"),
    "host_not_allowed": _c(
        421, says="the API listens on this machine alone and has no such name", do="use 127.0.0.1 or localhost"
    ),
    "idempotency_key_reused": _c(
        422, says="the `Idempotency-Key` stands for another request", do="use a fresh key for another request"
    ),
    "incomplete_upload": _c(400, says="the upload ended before its last boundary", do="send it again"),
    "infeasible": _c(
        400,
        says="no placement meets the deadline; `best` says what can be done",
        do="give a later deadline or less work",
    ),
    "input_too_large": _c(413, says="the input is larger than a job may hold", do="split it over several jobs"),
    "insufficient_scope": _c(403, says="the key may not do this", do="send one that has a scope of `scopes`"),
    "internal_error": _c(
        500, says="carbonq failed on this request", do="give the operator the request id, which its log has"
    ),
    "invalid_api_key": _c(401, says="the key is wrong, expired or revoked", do="send a valid one"),
    "invalid_http": _c(400, says="what came is no HTTP request", do="look at the client or the proxy between"),
    "invalid_json": _c(400, says="the body is not a JSON object, or nested too deeply", do="correct the body"),
    "invalid_json_line": _c(400, says="a line of the input is not a JSON object", do="correct the line that is named"),
    "invalid_multipart": _c(400, says="the body is no form of few small parts and one file", do="correct the form"),
    "invalid_request": _c(400, says="a field is wrong; `param` names it", do="correct it as the sentence says"),
    "invalid_value": _c(400, says="a field of a line is wrong; `param` and `line` name it", do="correct the line"),
    "job_not_final": _c(
        409,
        says="the job still runs, so its files are not there yet",
        do="wait: `Retry-After` of the job, or `Prefer: wait`",
    ),
    "line_too_long": _c(400, says="a line is longer than allowed", do="split its text over several items"),
    "method_not_allowed": _c(405, says="the path does not take this method; `Allow` lists those", do="use one of them"),
    "missing_api_key": _c(401, says="no key was sent", do="send `Authorization: Bearer KEY`"),
    "missing_required_parameter": _c(400, says="a field is missing; `param` names it", do="add it"),
    "model_draining": _c(
        503, says="an operator takes no new work for the model", do="try again after `Retry-After`, or another model"
    ),
    "model_mismatch": _c(
        400, says="the model answers another endpoint, or lines name different ones", do="send one job for each model"
    ),
    "model_not_found": _c(400, 404, says="there is no such model", do="`GET /v1/models` lists them"),
    "model_paused": _c(
        503, says="an operator has paused the model", do="try again after `Retry-After`, or another model"
    ),
    "model_unavailable": _c(500, says="the worker could not load the model", do="try again, or tell the operator"),
    "no_region_available": _c(
        503, says="no region can answer now, or within the latency budget", do="try again after `Retry-After`"
    ),
    "not_acceptable": _c(406, says="a report is in none of the formats that `Accept` takes", do="ask for one it is in"),
    "not_found": _c(404, says="there is nothing of that name, or it is another tenant's", do="ask for something else"),
    "not_utf8": _c(400, says="the input is not UTF-8 text", do="save it as UTF-8"),
    "quota_exceeded": _c(
        429, says="a limit was reached; the sentence names it", do="wait for `Retry-After`, or ask for less"
    ),
    "range_not_satisfiable": _c(
        416, says="the range begins behind the end of the file", do="look at `Content-Range` for its size"
    ),
    "rate_limit_exceeded": _c(
        429, says="the requests or tokens of this minute are used up", do="wait for `Retry-After`"
    ),
    "realtime_failed": _c(503, says="the worker failed on the call", do="try again after `Retry-After`"),
    "realtime_timeout": _c(503, says="no answer came in time", do="try again after `Retry-After`"),
    "region_not_found": _c(400, says="there is no such region", do="`GET /v1/regions` lists them"),
    "reports_busy": _c(429, says="reports are being made, and enough wait for it", do="try again after `Retry-After`"),
    "request_timeout": _c(408, says="the request's body did not come in time", do="send it again, without pauses"),
    "request_too_large": _c(413, says="the body is larger than this route takes", do="send less at once"),
    "results_in_batch": _c(
        404,
        says="the job is a part of a batch, whose files hold its lines",
        do="`GET /v1/batches/{id}` names the files",
    ),
    "results_removed": _c(
        410, says="the job's files were kept as long as the operator set", do="nothing brings them back"
    ),
    "signal_unavailable": _c(503, says="a carbon signal cannot be had", do="try again after `Retry-After`"),
    "store_unavailable": _c(
        503,
        says="the database does not answer",
        do="try again after `Retry-After`; nothing was changed, or what was changed stays",
    ),
    "tenant_draining": _c(503, says="an operator takes no new work of the tenant", do="try again after `Retry-After`"),
    "tenant_paused": _c(503, says="an operator has paused the tenant", do="try again after `Retry-After`"),
    "target_too_long": _c(414, says="the path with its query is too long", do="shorten it; no id of ours is that long"),
    "token_limit_exceeded": _c(
        429, says="the tenant's tokens of the day are used up", do="wait for `Retry-After`, or ask for less"
    ),
    "too_many_budgets": _c(409, says="the tenant has as many budgets as it may", do="remove one"),
    "too_many_streams": _c(
        429,
        says="this key or this server has as many event streams open as it may",
        do="close some, or ask for the state by GET",
    ),
    "too_many_targets": _c(409, says="the tenant has as many contract targets as it may", do="remove one"),
    "too_many_tasks": _c(400, says="the input has more items than a job may hold", do="split it over several jobs"),
    "too_many_unknown_keys": _c(
        503, says="too many API keys that nobody has are tried", do="try again after `Retry-After`"
    ),
    "too_many_webhooks": _c(409, says="the tenant has as many webhooks as it may", do="delete one"),
    "unavailable": _c(503, says="something carbonq depends on is away", do="try again after `Retry-After`"),
    "unknown_parameter": _c(
        400, says="there is no such field; `param` names it", do="correct its name, or leave it out"
    ),
    "unknown_region": _c(400, says="there is no such region", do="`GET /v1/regions` lists them"),
    "unknown_route": _c(404, says="there is no such path", do="`/openapi.json` lists what there is"),
    "unknown_source": _c(404, says="the zone has no such source", do="leave `source` out, or take one that is named"),
    "unknown_zone": _c(404, says="there is no such zone", do="take one that is named"),
    "unsupported_encoding": _c(415, says="the body is compressed", do="send it as it is, without `Content-Encoding`"),
    "unsupported_media_type": _c(415, says="the route does not take this `Content-Type`", do="send one that is named"),
    "url_mismatch": _c(400, says="a line's `url` is not the job's endpoint", do="send one job for each endpoint"),
    "webhook_disabled": _c(409, says="the webhook is disabled", do="enable it first"),
}

#: Codes in error files: why an item has no result. Some of the codes above come here, too.
ITEM_CODES: Mapping[str, Code] = {
    "attempts_exhausted": _c(
        500, says="every attempt at the item's chunk failed", do="submit it again; if it stays, tell the operator"
    ),
    "context_length_exceeded": _c(400, says="the text is longer than the model takes", do="shorten or split it"),
    "engine_error": _c(502, says="the engine failed on the item", do="submit it again"),
    "input_lost": _c(500, says="the job's input cannot be read any more", do="submit it again, and tell the operator"),
    "no_summary": _c(400, says="no summary could be made of the text", do="look at the text"),
}

#: Codes in ``errors.data`` of a batch, beside those above that lines of an input may get.
BATCH_CODES: Mapping[str, Code] = {
    "all_requests_failed": _c(200, says="not one line succeeded", do="read the error file, which says why for each"),
    "carbon_budget_infeasible": _c(
        200,
        says="even the best plan is foreseen to emit more than `max_gco2e`; the sentence has the figure",
        do="allow more grams, regions or time, or say `on_budget`",
    ),
    "input_file_missing": _c(200, says="the input file is gone", do="upload it again, and tell the operator"),
    "results_missing": _c(200, says="results are missing from the data folder", do="send the batch again"),
    "too_many_terms": _c(200, says="its lines have more than 100 different `carbon`", do="split it"),
}

#: Codes that never leave a process, or that the command line and the client make themselves.
INNER_CODES: frozenset[str] = frozenset(
    {"caller_gone", "invalid_csv", "invalid_signature", "lease_lost", "overtaken", "unreachable"}
)


def page() -> str:
    """Return docs/errors.md."""
    lines = [_HEAD, "| code | status | what it means | what to do |", "|---|---|---|---|"]
    lines += [_row(name, code) for name, code in sorted(CODES.items())]
    lines += ["", _ITEMS, "| code | status | what it means | what to do |", "|---|---|---|---|"]
    lines += [_row(name, code) for name, code in sorted(ITEM_CODES.items())]
    lines += ["", _BATCHES, "| code | what it means | what to do |", "|---|---|---|"]
    lines += [f"| `{name}` | {code.says} | {code.do} |" for name, code in sorted(BATCH_CODES.items())]
    return "\n".join(lines) + "\n"


def _row(name: str, code: Code) -> str:
    return f"| `{name}` | {', '.join(map(str, code.statuses))} | {code.says} | {code.do} |"


_HEAD = """# Errors

Every answer with an error has one shape, whatever went wrong and on whichever route: OpenAI's error object and RFC
9457's members in one body (`application/problem+json`), with the same sentence in `error.message` and `detail`.

```json
{"error": {"message": "...", "type": "invalid_request_error", "param": "model", "code": "model_not_found"},
 "type": "urn:carbonq:error:model_not_found", "title": "Bad Request", "status": 400, "detail": "...",
 "instance": "/v1/jobs"}
```

`code` is stable; go by it, not by the sentence. `param` names the field, `line` the line of the input, `best` what can
be done where a deadline cannot be met. `X-Request-Id` names the request in the server's log. 429 and 503 carry
`Retry-After`, 409 `X-Should-Retry: false` (OpenAI's SDKs would repeat it otherwise), 405 `Allow`. `HEAD` is answered
like `GET` without the body, `OPTIONS` with `Allow`.

This page is written from the code: `python -m carbonq.api.codes > docs/errors.md`.

## Codes of answers
"""

_ITEMS = """## Codes in error files

Why one item has no result; the job goes on. What an engine's own server answers (its `code` or `type`) is passed on.
"""

_BATCHES = """## Codes of batches

What `errors.data` of a batch says beside the codes above; the batch itself is answered with 200.
"""

if __name__ == "__main__":
    sys.stdout.write(page())

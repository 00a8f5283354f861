"""Streamed chat completions: chunks as the text comes, usage.carbon in the last one, errors before and after."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from carbonq.errors import Unavailable
from tests.api.harness import CHATTER, Harness, answer, until

CHAT: dict[str, Any] = {"model": CHATTER, "messages": [{"role": "user", "content": "hello"}], "stream": True}
PATH = "/v1/chat/completions"


@pytest.fixture
def sdk(harness: Harness, url: str) -> Iterator[openai.OpenAI]:
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{url}/v1", api_key=harness.acme, max_retries=0, http_client=http) as client,
    ):
        yield client


def chunks(response: httpx.Response) -> list[Any]:
    """Return the data of a stream's events, without the last, which says that it is over."""
    *data, last = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert last == "[DONE]"
    return [json.loads(one) for one in data]


def text(found: list[Any]) -> list[str]:
    return [one["choices"][0]["delta"].get("content", "") for one in found if one["choices"]]


def test_text_comes_as_it_is_told_and_what_was_not_with_the_answer(harness: Harness, http: httpx.Client) -> None:
    is_read = threading.Event()

    def slow(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert is_read.wait(20)
        return answer(region, payload)

    harness.tickets.pieces, harness.tickets.answer = ("sh", "o"), slow
    with http.stream("POST", PATH, json=CHAT) as response:
        assert (response.status_code, response.headers["x-carbonq-region"]) == (200, "fr")
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        begun = ""
        while "sho" not in begun:
            line = next(lines)
            begun += json.loads(line[6:])["choices"][0]["delta"]["content"] if line else ""
        is_read.set()
        rest = [line[6:] for line in lines if line]
    assert begun == "sho"
    assert json.loads(rest[0])["choices"][0]["delta"] == {"content": "rt"}
    assert json.loads(rest[1])["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert rest[2:] == ["[DONE]"]
    payload = harness.tickets.realtime_calls[0][1]
    assert "stream" not in payload["body"]


def test_the_sdk_reads_a_stream_with_its_carbon_in_the_last_chunk(harness: Harness, sdk: openai.OpenAI) -> None:
    harness.tickets.pieces = ("sho", "rt")
    asked = sdk.chat.completions.create(
        model=CHATTER,
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    *found, last = list(asked)
    assert "".join(one.choices[0].delta.content or "" for one in found) == "short"
    assert found[0].choices[0].delta.role == "assistant" and found[-1].choices[0].finish_reason == "stop"
    assert {one.object for one in found} == {"chat.completion.chunk"} and len({one.id for one in found}) == 1
    assert last.choices == [] and last.usage is not None and last.usage.total_tokens == 6
    carbon = (last.usage.model_extra or {})["carbon"]
    assert (carbon["entry_ids"], carbon["class"], carbon["why"]["reason"]) == (["eb_1.1.0"], "realtime", "realtime")


def test_an_engine_that_tells_nothing_gives_a_stream_of_one_piece(http: httpx.Client) -> None:
    found = chunks(http.post(PATH, json=CHAT))
    assert text(found) == ["", "short", ""]
    assert all("usage" not in one for one in found)


def test_an_error_before_the_first_piece_is_an_answer_and_one_after_it_an_event(
    harness: Harness, sdk: openai.OpenAI, http: httpx.Client
) -> None:
    failed: dict[str, Any] = {"status_code": 502, "error": {"code": "engine_error", "message": "no memory"}}
    harness.tickets.answer = lambda region, payload: failed
    assert http.post(PATH, json=CHAT).json()["error"]["code"] == "engine_error"
    is_read = threading.Event()

    def late(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert is_read.wait(20)
        if payload["body"]["messages"][0]["content"] == "away":
            raise Unavailable("no answer came", code="realtime_timeout", retry_after_s=1.0)
        return failed

    harness.tickets.pieces, harness.tickets.answer = ("sho",), late
    for content, words in (("hi", "no memory"), ("away", "no answer came")):
        is_read.clear()
        seen: list[str] = []
        with pytest.raises(openai.APIError, match=words):
            for one in sdk.chat.completions.create(
                model=CHATTER, messages=[{"role": "user", "content": content}], stream=True
            ):
                seen.append(one.choices[0].delta.content or "")
                is_read.set()
        assert seen[0] == ""


def test_a_client_that_leaves_in_the_middle_stops_the_call(harness: Harness, http: httpx.Client) -> None:
    is_over = threading.Event()

    def endless(region: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert is_over.wait(20)
        return answer(region, payload)

    harness.tickets.pieces, harness.tickets.answer = ("sho",), endless
    with http.stream("POST", PATH, json=CHAT) as response:
        next(response.iter_lines())
    until(lambda: harness.tickets.dropped, "the call to be dropped")
    is_over.set()
    until(lambda: harness.api.dispatcher.in_flight == 0, "the call to end")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"stream": "yes"}, "stream", "true or false"),
        ({"tools": [{}]}, "tools", "without stream"),
        ({"n": 2}, "n", "must be 1"),
        ({"stream_options": []}, "stream_options", "object"),
    ],
)
def test_what_cannot_be_streamed_is_refused_by_name(
    http: httpx.Client, fields: dict[str, Any], param: str, words: str
) -> None:
    response = http.post(PATH, json={**CHAT, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert words in response.json()["error"]["message"]

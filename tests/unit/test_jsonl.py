"""Input lines: what is taken, and exactly what is said of what is not."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carbonq import jsonl
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint

EMBED = Endpoint.EMBEDDINGS
GOOD = {"custom_id": "a-1", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}


def encode(**changes: Any) -> bytes:
    return orjson.dumps({key: value for key, value in {**GOOD, **changes}.items() if value is not ...})


def refused(data: bytes, number: int = 7) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        jsonl.parse_line(data, number, endpoint=EMBED, model="m")
    assert error.value.line == number
    assert error.value.message.startswith(f"line {number}")
    assert "\n" not in error.value.message
    return error.value


def test_a_good_line() -> None:
    line = jsonl.parse_line(encode(), 1, endpoint=EMBED, model="m")
    assert line == ("a-1", "/v1/embeddings", "m", {"model": "m", "input": "x"}, None)
    bare = jsonl.parse_line(b'{"custom_id":"a","body":{"input":"x"}}', 1, endpoint=EMBED, model="m")
    assert (bare.url, bare.model) == (None, None)


@pytest.mark.parametrize(
    ("data", "code", "param", "says"),
    [
        (b"{", "invalid_json_line", None, "is not JSON (unexpected end of data at column 2)"),
        (b"hello", "invalid_json_line", None, "is not JSON (unexpected character at column 1)"),
        (b"[" * 5000, "invalid_json_line", None, "is not JSON"),
        (b'"\\ud800"', "invalid_json_line", None, "is not JSON"),
        (b'{"custom_id":"a\xe9"}', "invalid_json_line", None, "is not UTF-8 text (byte 16 is 0xe9); save it as UTF-8"),
        (b"[]", "invalid_json_line", None, "is an array, not an object"),
        (b'"x"', "invalid_json_line", None, "is a string, not an object"),
        (b"null", "invalid_json_line", None, "is null, not an object"),
        (b"5", "invalid_json_line", None, "is a number, not an object"),
        (encode(custom_id=...), "missing_required_parameter", "custom_id", "custom_id is missing; each line must"),
        (encode(custom_id=5), "invalid_value", "custom_id", "is a number; write it as text"),
        (encode(custom_id=""), "invalid_value", "custom_id", "is empty"),
        (encode(custom_id="x" * 513), "invalid_value", "custom_id", "has 513 characters; the limit is 512"),
        (encode(custom_id="a\0"), "invalid_value", "custom_id", "NUL"),
        (encode(method="GET"), "invalid_value", "method", 'is "GET"; the only method is "POST"'),
        (encode(url=5), "invalid_value", "url", "is a number"),
        (
            encode(url="/v1/chat/completions"),
            "url_mismatch",
            "url",
            'is "/v1/chat/completions", but this job is for /v1/embeddings',
        ),
        (encode(body=...), "missing_required_parameter", "body", "body is missing"),
        (encode(body=[1]), "invalid_value", "body", "is an array, not an object"),
        (encode(body={"model": {}}), "invalid_value", "body.model", "is an object"),
        (encode(body={"model": "n"}), "model_mismatch", "body.model", "is \"n\", but this job is for 'm'"),
    ],
)
def test_a_bad_line_is_told_what_is_wrong(data: bytes, code: str, param: str | None, says: str) -> None:
    error = refused(data)
    assert (error.code, error.param) == (code, param)
    assert says in error.message


def test_long_values_are_not_repeated_whole() -> None:
    assert len(refused(encode(body={"model": "n" * 5000})).message) < 300


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (gzip.compress(b"x", mtime=0), "gzip"),  # without the time: the test's name must not change
        (b"PK\x03\x04", "zip"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b"PAR1", "Parquet"),
        (b"\x28\xb5\x2f\xfd\x00", "zstd"),
    ],
)
def test_files_of_another_kind_are_recognised(data: bytes, what: str) -> None:
    assert what in refused(data, 1).message


@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf{}")
def test_parsing_never_crashes_on_arbitrary_bytes(data: bytes) -> None:
    try:
        line = jsonl.parse_line(data, 3, endpoint=EMBED, model="m")
    except InvalidRequest as error:
        assert error.line == 3
    else:
        assert line.custom_id


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["custom_id", "method", "url", "body"]), JSON))
def test_parsing_never_crashes_on_arbitrary_json(value: dict[str, Any]) -> None:
    test_parsing_never_crashes_on_arbitrary_bytes.hypothesis.inner_test(orjson.dumps(value))  # type: ignore[attr-defined]


def read(data: bytes, limit: int = 1000) -> list[tuple[int, int, bytes]]:
    return [tuple(line) for line in jsonl.read_lines(io.BytesIO(data), max_line_bytes=limit)]


def test_bom_crlf_blank_lines_and_a_missing_last_newline() -> None:
    assert read(b"\xef\xbb\xbf{1}\r\n\r\n \t\n{22} \n{3}") == [(1, 3, b"{1}"), (4, 13, b"{22}"), (5, 19, b"{3}")]
    assert read(b"") == read(b"\n\n \n") == read(b"\xef\xbb\xbf") == []


@given(st.binary(max_size=200))
def test_offsets_lead_to_the_bytes(data: bytes) -> None:
    lines = read(data)
    assert [data[offset : offset + len(line)] for _, offset, line in lines] == [line for _, _, line in lines]
    physical = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert [line for _, _, line in lines] == [line.strip() for line in physical if line.strip()]
    assert [number for number, _, _ in lines] == [n for n, line in enumerate(physical, 1) if line.strip()]


@pytest.mark.parametrize(
    "data", [b"x" * 11, b"{}\n" + b"x" * 11 + b"\n", b"{}\n" + b" " * 50, b"x" * 5 + b" " * 50 + b"y"]
)
def test_a_line_over_the_limit_is_named(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"line [12] is longer than 10 bytes; .*CARBONQ_MAX_LINE_BYTES") as error:
        read(data, 10)
    assert error.value.code == "line_too_long"


def test_a_line_at_the_limit_is_taken() -> None:
    assert read(b"\xef\xbb\xbf" + b"x" * 10 + b"\r\n" + b"y" * 10, 10) == [(1, 3, b"x" * 10), (2, 15, b"y" * 10)]


def test_peek_finds_the_first_line() -> None:
    line = jsonl.peek(io.BytesIO(b"\xef\xbb\xbf\n" + encode() + b"\nnot read"))
    assert line is not None
    assert (line.url, line.model) == ("/v1/embeddings", "m")
    assert jsonl.peek([]) is None


def convert(source: bytes | Iterable[bytes], **options: Any) -> list[dict[str, Any]]:
    lines = io.BytesIO(source) if isinstance(source, bytes) else source
    made = jsonl.to_openai_lines(lines, **{"endpoint": EMBED, "model": "m", **options})
    return [orjson.loads(line) for line in made]


def texts(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    for line in lines:
        jsonl.parse_line(orjson.dumps(line), 1, endpoint=EMBED, model="m")
    return [(line["custom_id"], line["body"]["input"]) for line in lines]


def test_documents_as_json_lines() -> None:
    source = b'\xef\xbb\xbf{"id":"a","text":"one"}\r\n\n{"id":7,"text":"two"}\n{"text":"three"}\n' + encode() + b"\n"
    assert texts(convert(source)) == [("a", "one"), ("7", "two"), ("line-4", "three"), ("a-1", "x")]
    assert texts(convert(b'{"key":"a","story":"x"}', column="story", id_column="key")) == [("a", "x")]


def test_csv_with_quotes_commas_and_line_breaks() -> None:
    source = b'\xef\xbb\xbfid,body,n\r\na,"one, ""two""\nthree",1\r\n\r\nb,four,2\r\n'
    assert texts(convert(source, fmt="csv", column="body")) == [("a", 'one, "two"\nthree'), ("b", "four")]
    assert texts(convert(b"text\none\n\ntwo\n", fmt="csv")) == [("line-2", "one"), ("line-4", "two")]
    assert texts(convert(b"body\n" + b"x" * 200_000, column="body")) == [("line-2", "x" * 200_000)]


def test_plain_text() -> None:
    assert texts(convert("grün\r\n\n {x} \n".encode())) == [("line-1", "grün"), ("line-3", "{x}")]


def test_documents_for_a_chat_model() -> None:
    made = convert(b"a {text} b\n", endpoint=Endpoint.CHAT, max_output_tokens=9)
    assert made[0]["url"] == "/v1/chat/completions"
    assert made[0]["body"] == {
        "model": "m",
        "messages": [{"role": "user", "content": "a {text} b"}],
        "summarize": {"prompt_version": "1"},
        "max_tokens": 9,
    }
    plain = convert(b"x", endpoint=Endpoint.CHAT, prompt="Say it:")[0]["body"]
    assert plain["messages"][0]["content"] == "Say it:\n\nx"


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (b"", {}, "the file has no items"),
        (b"\n\n", {"fmt": "jsonl"}, "the file has no items"),
        (b"", {"fmt": "csv"}, "the file has no items"),
        (b"a,b\n", {"column": "a"}, "the file has no items"),
        (b"x", {"fmt": "xml"}, "format is 'xml'; use auto, jsonl, csv or text"),
        (b'{"id":"a"}', {}, 'line 1: text is missing; each line must be {"id": "a-1", "text": "..."}'),
        (b'{"id":"a","text":5}', {}, "line 1: text is a number, not text"),
        (b'{"id":["a"],"text":"x"}', {}, "line 1: id is an array; write it as text"),
        (b'{"text":"x"}', {"id_column": "key"}, "line 1: key is missing"),
        (b'{"id":"a","text":"x"}\n{"id":"a","text":"y"}', {}, 'line 2: id "a" was used by line 1 already'),
        (b'{"id":"a","text":"x"}\n{', {}, "line 2 is not JSON"),
        (b"ok\nb\xe4d\n", {}, "line 2 is not UTF-8 text (byte 2 is 0xe4); save it as UTF-8"),
        (b"a,b\n1,2\n", {"fmt": "csv"}, 'name the column that holds the text: one of "a", "b"'),
        (b"a,b\n1,2\n", {"column": "c"}, 'line 1: there is no column "c"; the columns are "a", "b"'),
        (b"a,b\n1,2\n1,2,3\n", {"column": "a"}, "line 3: row has 3 cells, but the header has 2"),
        (b'a,b\n1,2\n3,"4\n5,6\n', {"column": "a"}, "line 3 begins a row with a quote that is never closed"),
        (b'a,b\n1,2\n3,"4\n5,6\n7,"8"\n', {"column": "a"}, "line 5 is not CSV ("),
        (b'a,b\n1,2\n3,"4\n5,6\n7,"8"\n', {"column": "a"}, "in the row that begins in line 3"),
        (b"a,b\r1,2\r", {"column": "a"}, "line 1 has a carriage return without a line feed"),
        (b"a,b,a\n1,2,3\n", {"column": "a"}, 'line 1: 2 columns are called "a"'),
        (b"a,b\n", {"column": "a"}, "write one document in each row below the header"),
        (b"\n", {"fmt": "text"}, "write one document on each line"),
        (b"\n", {"fmt": "jsonl"}, 'write one object such as {"id": "a-1", "text": "..."} on each line'),
        (b'[\n {"id": "a", "text": "x"}\n]', {}, "line 1 begins an array; each line must be one object"),
        (b'[{"id": "a", "text": "x"}]', {}, "line 1 is an array, not an object"),
        (b"id,t\nx,1\nx,2\n", {"column": "t"}, 'line 3: id "x" was used by line 2 already'),
        (b"id,t\n,1\n", {"column": "t"}, "line 2: id is empty"),
    ],
)
def test_a_bad_file_is_told_what_is_wrong(source: bytes, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        convert(source, **options)
    assert says in error.value.message


@given(st.binary(max_size=200), st.sampled_from(["auto", "jsonl", "csv", "text"]), st.sampled_from([None, "a"]))
@example(b'a,"\x00\n', "csv", "a")
def test_converting_never_crashes_and_makes_lines_that_are_taken(data: bytes, fmt: str, column: str | None) -> None:
    made: list[bytes] = []
    try:
        made.extend(jsonl.to_openai_lines(io.BytesIO(data), endpoint=EMBED, model="m", fmt=fmt, column=column))
    except InvalidRequest:
        return
    names = [jsonl.parse_line(line.strip(), 1).custom_id for line in made]
    assert names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("source", "options", "at"),
    [
        (b"id,t\n1,a\n2,b\n", {"column": "t"}, [2, 3]),
        (b'id,t\n1,"a\nb"\n\n2,c\n', {"column": "t"}, [2, 5]),
        (b'\n{"id":"a","text":"x"}\n\n{"id":"b","text":"y"}\n', {}, [2, 4]),
        (b"\n\nx\ny\n\nz\n", {}, [3, 4, 6]),
    ],
)
def test_made_lines_keep_the_numbers_of_the_file(source: bytes, options: dict[str, Any], at: list[int]) -> None:
    made = b"".join(jsonl.to_openai_lines(io.BytesIO(source), endpoint=EMBED, model="m", **options))
    assert [line.number for line in jsonl.read_lines(io.BytesIO(made), max_line_bytes=1000)] == at


def test_a_line_without_an_end_is_not_held_in_memory() -> None:
    class Endless(io.RawIOBase):
        taken = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None and 0 < size < 200, "asked for a whole line"
            self.taken += size
            return b"x" * size

    stream: Any = Endless()
    with pytest.raises(InvalidRequest, match="line 1 is longer than 100 bytes"):
        list(jsonl.bounded_lines(stream, max_line_bytes=100))
    assert stream.taken < 200

"""Read job input line by line and say exactly what is wrong with it. Pure: streams are read, nothing is opened.

A job's input is UTF-8 JSON Lines in OpenAI's batch shape; a byte order mark, CRLF and blank lines are accepted. Line
numbers are 1-based. ``to_openai_lines`` turns other files (documents as JSON Lines, CSV, plain text) into this shape.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, BinaryIO, NamedTuple, cast

import orjson

from carbonq import summarize
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint

#: What a line looks like, for error messages.
SHAPE = '{"custom_id": "a-1", "method": "POST", "url": "/v1/embeddings", "body": {"model": "...", "input": "..."}}'

#: Longest custom_id, in characters.
MAX_CUSTOM_ID_CHARS = 512

#: How deep JSON may be nested: more than any request needs, and little enough for every encoder on the way.
MAX_DEPTH = 100

#: Longest CSV cell, in characters (Python's own default of 131,072 is too short for documents).
MAX_CELL_CHARS = 64 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"

#: First bytes of files that people forget to unpack, or save in another encoding.
_FOREIGN = {
    b"\x1f\x8b": "a gzip file; unpack it first",
    b"PK": "a zip file; unpack it first",
    b"\x28\xb5\x2f\xfd": "a zstd file; unpack it first",
    b"PAR1": "a Parquet file; export it as JSON Lines or CSV first",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}


class RawLine(NamedTuple):
    """One line that is not blank: its number, where its bytes begin in the stream, and the bytes without line end."""

    number: int
    offset: int
    data: bytes


class ParsedLine(NamedTuple):
    """An OpenAI batch line; ``url`` and ``model`` are None where the line leaves them to the job.

    ``carbon``: terms of its own, as they came; only a batch knows those.
    """

    custom_id: str
    url: str | None
    model: str | None
    body: Mapping[str, Any]
    carbon: object = None


def read_lines(stream: BinaryIO, *, max_line_bytes: int) -> Iterator[RawLine]:
    """Yield the lines of a stream that are not blank, in constant memory.

    Raises InvalidRequest for a line of more than ``max_line_bytes``.
    """
    offset = 0
    for number, raw in enumerate(bounded_lines(stream, max_line_bytes=max_line_bytes), 1):
        skipped = len(_BOM) if number == 1 and raw.startswith(_BOM) else 0
        data = raw[skipped:].strip()
        if len(data) > max_line_bytes:
            raise line_too_long(number, max_line_bytes)
        if data:
            yield RawLine(number, offset + raw.index(data, skipped), data)
        offset += len(raw)


def bounded_lines(stream: BinaryIO, *, max_line_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a stream as they are; memory stays bounded whatever is in it.

    Raises InvalidRequest for a line that must be longer than ``max_line_bytes``.
    """
    longest = max_line_bytes + len(_BOM) + 2  # room for a byte order mark and CRLF
    number = 0
    while raw := stream.readline(longest + 1):
        number += 1
        if len(raw) > longest and not raw.endswith(b"\n"):
            raise line_too_long(number, max_line_bytes)
        yield raw


def line_too_long(number: int, max_line_bytes: int) -> InvalidRequest:
    """Return the error for a line over the limit."""
    return InvalidRequest(
        f"line {number} is longer than {max_line_bytes:,} bytes; split its text over several items "
        "or raise CARBONQ_MAX_LINE_BYTES",
        line=number,
        code="line_too_long",
    )


def decode_object(data: bytes, number: int, shape: str = SHAPE) -> dict[str, Any]:
    """Decode one line that must be a JSON object. Raises InvalidRequest saying where and why it is none."""
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(_why_not_json(data, number, error, shape), line=number, code="invalid_json_line") from None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"line {number} is {_kind(value)}, not an object; each line must be one object such as {shape}",
            line=number,
            code="invalid_json_line",
        )
    if is_too_deep(data, value):
        raise InvalidRequest(
            f"line {number} is nested more than {MAX_DEPTH} levels deep", line=number, code="invalid_json_line"
        )
    return cast("dict[str, Any]", value)


def is_too_deep(raw: bytes, value: object) -> bool:
    """Say whether JSON is nested more than ``MAX_DEPTH`` levels deep; ``value`` is ``raw`` decoded."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _members(one) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _why_not_json(data: bytes, number: int, error: orjson.JSONDecodeError, shape: str = SHAPE) -> str:
    if number == 1:
        for magic, what in _FOREIGN.items():
            if data.startswith(magic):
                return f"line 1 is not JSON: the input looks like {what}"
    try:
        data.decode()
    except UnicodeDecodeError as wrong:
        return (
            f"line {number} is not UTF-8 text (byte {wrong.start + 1} is 0x{data[wrong.start]:02x}); save it as UTF-8"
        )
    if number == 1 and data.startswith(b"["):
        return f"line 1 begins an array; each line must be one object such as {shape} (`jq -c '.[]' FILE` makes that)"
    return (
        f"line {number} is not JSON ({error.msg.partition(':')[0].partition(',')[0]} at column {error.colno}); "
        f"each line must be one object such as {shape}"
    )


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return "a string"
    return "null" if value is None else "true or false" if isinstance(value, bool) else "a number"


def parse_line(data: bytes, number: int, *, endpoint: Endpoint | None = None, model: str | None = None) -> ParsedLine:
    """Parse an OpenAI batch line and check it against the job's endpoint and model, where these are given.

    Raises InvalidRequest with ``line``, ``param`` and one of the codes invalid_json_line, missing_required_parameter,
    invalid_value, url_mismatch, model_mismatch. Whatever else is in ``body`` is the engine's to judge, item by item.
    """
    value = decode_object(data, number)
    custom_id = check_custom_id(value.get("custom_id"), number)
    method = value.get("method", "POST")
    if method != "POST":
        raise _wrong(number, "method", f'is {_show(method)}; the only method is "POST"')
    url: object = value.get("url")
    if url is not None and not isinstance(url, str):
        raise _wrong(number, "url", f"is {_kind_or_object(url)}; write the path as text, such as /v1/embeddings")
    if endpoint is not None and url is not None and url != endpoint:
        raise _wrong(
            number,
            "url",
            f"is {_show(url)}, but this job is for {endpoint}; send it as a job of its own",
            code="url_mismatch",
        )
    body: object = value.get("body")
    if not isinstance(body, dict):
        state = "is missing" if "body" not in value else f"is {_kind(body)}, not an object"
        code = "missing_required_parameter" if "body" not in value else "invalid_value"
        raise _wrong(number, "body", f"{state}; each line must look like {SHAPE}", code=code)
    checked = cast("dict[str, Any]", body)
    named: object = checked.get("model")
    if named is not None and not isinstance(named, str):
        raise _wrong(number, "body.model", f"is {_kind_or_object(named)}; write the model's name as text")
    if model is not None and named is not None and named != model:
        raise _wrong(
            number,
            "body.model",
            f"is {_show(named)}, but this job is for {model!r}; send one job for each model",
            code="model_mismatch",
        )
    return ParsedLine(custom_id, url, named, checked, value.get("carbon"))


def check_custom_id(value: object, number: int, name: str = "custom_id") -> str:
    """Return an item's name if it can serve as one. Raises InvalidRequest."""
    if value is None:
        raise _wrong(number, name, f"is missing; each line must look like {SHAPE}", code="missing_required_parameter")
    if not isinstance(value, str):
        raise _wrong(number, name, f'is {_kind_or_object(value)}; write it as text, such as "a-1"')
    if not value:
        raise _wrong(number, name, "is empty; give each item a name of its own")
    if len(value) > MAX_CUSTOM_ID_CHARS:
        raise _wrong(number, name, f"has {len(value):,} characters; the limit is {MAX_CUSTOM_ID_CHARS}")
    if "\0" in value:  # PostgreSQL cannot store it
        raise _wrong(number, name, "contains a NUL character; leave it out")
    return value


def duplicate(custom_id: str, number: int, first: int, name: str = "custom_id") -> InvalidRequest:
    """Return the error for a name that an earlier line has taken."""
    return _wrong(
        number,
        name,
        f"{_show(custom_id)} was used by line {first} already; each item needs a name of its own",
        code="duplicate_custom_id",
    )


def empty_input(
    what: str = "the input", *, way_out: str = f"write one object such as {SHAPE} on each line"
) -> InvalidRequest:
    """Return the error for input without a single item."""
    return InvalidRequest(f"{what} has no items; {way_out}", code="empty_file")


def peek(stream: Iterable[bytes]) -> ParsedLine | None:
    """Return the first line that is not blank, to learn endpoint and model from; None for empty input.

    Raises InvalidRequest as ``parse_line`` does.
    """
    for number, raw in enumerate(stream, 1):
        data = raw.removeprefix(_BOM).strip() if number == 1 else raw.strip()
        if data:
            return parse_line(data, number)
    return None


def _wrong(number: int, param: str, what: str, *, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"line {number}: {param} {what}", line=number, param=param, code=code)


def _kind_or_object(value: object) -> str:
    return "an object" if isinstance(value, dict) else _kind(value)


def _show(value: object) -> str:
    """Quote a value of the input, shortened so that an error stays one readable sentence."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


def to_openai_lines(
    source: Iterable[bytes],
    *,
    endpoint: Endpoint,
    model: str,
    fmt: str = "auto",
    column: str | None = None,
    id_column: str | None = None,
    prompt: str | None = None,
    max_output_tokens: int | None = None,
) -> Iterator[bytes]:
    """Turn documents into OpenAI batch lines, one document at a time; ``source`` yields the lines of a file.

    ``fmt``: ``jsonl`` (objects with ``id`` and ``text``, or OpenAI lines, which pass through), ``csv`` (a header row;
    ``column`` names the text, ``id_column`` the ids, by default ``id`` where there is one), ``text`` (a document a
    line), ``auto`` (by the first line). Lines that hold no item become blank ones, so that whoever reads the result
    counts lines as the file does. For a chat endpoint ``prompt`` is asked of each document, a summary without one, and
    ``max_output_tokens`` bounds the answer. Raises InvalidRequest naming the line, with everything before it yielded.
    """
    lines = _text_lines(source)
    if fmt == "auto":
        fmt, lines = _sniff(lines, column)
    if fmt == "jsonl":
        documents = _from_jsonl(lines, column or "text", id_column)
        way_out = f"write one object such as {_document_shape(column or 'text')} on each line"
    elif fmt == "csv":
        documents = _from_csv(lines, column, id_column)
        way_out = "write one document in each row below the header"
    elif fmt == "text":
        way_out = "write one document on each line"
        documents = ((number, f"line-{number}", text.strip()) for number, text in lines if text.strip())
    else:
        raise InvalidRequest(f"format is {fmt!r}; use auto, jsonl, csv or text", param="format")
    return _built(documents, endpoint, model, prompt=prompt, max_output_tokens=max_output_tokens, way_out=way_out)


def document_body(
    text: str, *, endpoint: Endpoint, model: str, prompt: str | None = None, max_output_tokens: int | None = None
) -> dict[str, Any]:
    """Return the request body that embeds or, on a chat endpoint, asks ``prompt`` of one document.

    Without a prompt it asks for a summary, of a document of any length.
    """
    if endpoint is Endpoint.EMBEDDINGS:
        return {"model": model, "input": text}
    content, asked = text, {summarize.MEMBER: {"prompt_version": summarize.PROMPT_VERSION}}
    if prompt is not None:
        # replace, not format: a document may be full of braces
        content = prompt.replace("{text}", text) if "{text}" in prompt else f"{prompt}\n\n{text}"
        asked = {}
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}], **asked}
    if max_output_tokens is not None:
        body["max_tokens"] = max_output_tokens
    return body


def _built(
    documents: Iterator[tuple[int, str, str | bytes]],
    endpoint: Endpoint,
    model: str,
    *,
    prompt: str | None,
    max_output_tokens: int | None,
    way_out: str,
) -> Iterator[bytes]:
    seen: dict[str, int] = {}
    written = 0
    for number, custom_id, text in documents:
        if custom_id in seen:
            raise duplicate(custom_id, number, seen[custom_id], "id")
        seen[custom_id] = number
        blank, written = b"\n" * (number - 1 - written), number
        if isinstance(text, bytes):  # an OpenAI line as it came
            yield blank + text + b"\n"
            continue
        body = document_body(text, endpoint=endpoint, model=model, prompt=prompt, max_output_tokens=max_output_tokens)
        line = {"custom_id": custom_id, "method": "POST", "url": str(endpoint), "body": body}
        yield blank + orjson.dumps(line) + b"\n"
    if not seen:
        raise empty_input("the file", way_out=way_out)


def _text_lines(source: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(source, 1):
        data = raw.removeprefix(_BOM) if number == 1 else raw
        try:
            yield number, data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                _why_not_json(data, number, orjson.JSONDecodeError("", "", 0)), line=number, code="not_utf8"
            ) from error


def _sniff(lines: Iterator[tuple[int, str]], column: str | None) -> tuple[str, Iterator[tuple[int, str]]]:
    head: list[tuple[int, str]] = []
    for line in lines:
        head.append(line)
        if line[1].strip():
            break
    first = head[-1][1].strip() if head else ""
    is_json = first.startswith(("{", "[{")) or first == "["  # arrays are refused, but as what they are
    return "jsonl" if is_json else "csv" if column else "text", chain(head, lines)


def _document_shape(column: str) -> str:
    return f'{{"id": "a-1", {_show(column)}: "..."}}'


def _from_jsonl(
    lines: Iterator[tuple[int, str]], column: str, id_column: str | None
) -> Iterator[tuple[int, str, str | bytes]]:
    shape = _document_shape(column)
    for number, text in lines:
        data = text.strip().encode()
        if not data:
            continue
        value = decode_object(data, number, shape)
        if "body" in value:
            yield number, parse_line(data, number).custom_id, data
            continue
        document: object = value.get(column)
        if not isinstance(document, str):
            state = f"is {_kind_or_object(document)}, not text" if column in value else "is missing"
            raise _wrong(number, column, f"{state}; each line must be {shape} or an OpenAI batch line")
        name = id_column or ("id" if "id" in value else "custom_id")
        identity: object = value.get(name, f"line-{number}" if id_column is None else None)
        if isinstance(identity, int) and not isinstance(identity, bool):
            identity = str(identity)
        yield number, check_custom_id(identity, number, name), document


def _from_csv(
    lines: Iterator[tuple[int, str]], column: str | None, id_column: str | None
) -> Iterator[tuple[int, str, str]]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_CHARS))
    rows = csv.reader((text for _, text in lines), strict=True)
    begins = 1
    try:
        header = next(rows, None)
        if header is None:
            raise empty_input("the file", way_out="write a header row and one document in each row below it")
        if column is None and len(header) == 1:
            column = header[0]
        known = ", ".join(_show(name) for name in header)
        if column is None:
            raise InvalidRequest(f"name the column that holds the text: one of {known}", param="column")
        for name in (column, id_column):
            if name is not None and name not in header:
                raise InvalidRequest(
                    f"line 1: there is no column {_show(name)}; the columns are {known}", param="column", line=1
                )
            if name is not None and header.count(name) > 1:
                raise InvalidRequest(
                    f"line 1: {header.count(name)} columns are called {_show(name)}; give each a name of its own",
                    param="column",
                    line=1,
                )
        at = header.index(column)
        id_name = id_column or ("id" if "id" in header and column != "id" else None)
        id_at = None if id_name is None else header.index(id_name)
        begins = rows.line_num + 1
        for row in rows:
            if row:
                if len(row) != len(header):
                    raise _wrong(
                        begins,
                        "row",
                        f"has {len(row)} cells, but the header has {len(header)}; quote cells with commas",
                    )
                identity = f"line-{begins}" if id_at is None else row[id_at]
                yield begins, check_custom_id(identity, begins, id_name or "id"), row[at]
            begins = rows.line_num + 1
    except csv.Error as error:
        raise _not_csv(str(error), begins, rows.line_num) from None


def _not_csv(reason: str, begins: int, at: int) -> InvalidRequest:
    """Return the error for a row that begins in line ``begins`` and stopped making sense in line ``at``."""
    if "unexpected end of data" in reason:
        at, what = begins, f"line {begins} begins a row with a quote that is never closed; close it, or double it"
    elif "new-line character" in reason:
        what = f"line {at} has a carriage return without a line feed; save the file with LF or CRLF line ends"
    else:
        row = "" if at == begins else f", in the row that begins in line {begins}"
        what = f"line {at} is not CSV ({reason}{row}); quote cells that hold commas, quotes or line breaks"
    return InvalidRequest(what, line=at, code="invalid_csv")

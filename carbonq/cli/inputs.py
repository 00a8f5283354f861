"""INPUT of a command: a file or stdin, read line by line, with how much of it was read."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from carbonq.cli.output import say
from carbonq.errors import InvalidRequest


class Given:
    """INPUT: its lines, its size in bytes where it has one, and how many bytes were read."""

    def __init__(self, stream: BinaryIO, size: int | None, max_line_bytes: int) -> None:
        self.size = size
        self.read = 0
        self.lines = self._counted(stream, max_line_bytes)

    def _counted(self, stream: BinaryIO, max_line_bytes: int) -> Iterator[bytes]:
        from carbonq import jsonl

        for line in jsonl.bounded_lines(stream, max_line_bytes=max_line_bytes):
            self.read += len(line)
            yield line


@contextlib.contextmanager
def opened(source: str) -> Generator[Given]:
    """Open INPUT for reading line by line. Raises InvalidRequest."""
    from carbonq import config

    max_line_bytes = config.given().basics().max_line_bytes
    if source == "-":
        if sys.stdin.isatty():
            say("reading from this terminal; Ctrl-D ends it")
        yield Given(sys.stdin.buffer, None, max_line_bytes)
        return
    path = Path(source)
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror}") from error
    with stream:
        yield Given(stream, os.fstat(stream.fileno()).st_size or None, max_line_bytes)


def format_of(fmt: str, source: str) -> str:
    """Return the format named, or the one that the file's ending names; else let the content decide."""
    known = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".txt": "text"}
    return known.get(Path(source).suffix.lower(), "auto") if fmt == "auto" else fmt


def watched(lines: Iterable[bytes], given: Given, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Tell how much of INPUT was read; what is sent of it is longer or shorter."""
    for line in lines:
        advance(given.read)
        yield line
    advance(given.read)


def first_line(lines: Iterator[bytes]) -> tuple[bytes, int, Iterator[bytes]]:
    """Return the first line that is not blank, its number, and all lines again. Raises InvalidRequest for none."""
    read: list[bytes] = []
    for line in lines:
        read.append(line)
        if line.removeprefix(b"\xef\xbb\xbf").strip():
            return line, len(read), chain(read, lines)
    raise InvalidRequest("the file is empty: it needs at least one line", code="empty_file")

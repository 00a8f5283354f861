"""The body of a submit: lines joined into pieces, in constant memory, that can be sent again when a connection broke.

Items of a one-way source (a generator, a file) are kept in a temporary file as they go out, so that a second try sends
the same bytes and then goes on; a list is simply begun again.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import IO, Any

#: Pieces have about this many bytes: one HTTP chunk a line would cost more than the line.
BLOCK_BYTES = 256 * 1024

#: What was sent is kept in memory up to this many bytes, beyond them on disk.
_KEPT_BYTES = 4 * 1024 * 1024


class Upload:
    """One body; ``blocks`` or ``async_blocks`` is called once a try. ``keep`` False: there will be one try only."""

    def __init__(
        self, source: Iterable[Any] | AsyncIterable[Any], line: Callable[[object, int], bytes], *, keep: bool = True
    ) -> None:
        if isinstance(source, str | bytes | Mapping):
            raise TypeError("items is a single one; give an iterable of them, such as [item] or an open file")
        self._source = source
        self._line = line
        self._is_restarted = isinstance(source, Iterable) and iter(source) is not source
        self._sent: IO[bytes] | None = None
        if keep and not self._is_restarted:
            self._sent = tempfile.SpooledTemporaryFile(_KEPT_BYTES)  # noqa: SIM115 (closed by close)
        self._rest: Any = None
        self._begin()

    def _begin(self) -> None:
        self._number = 0
        self._buffer = bytearray()
        self._rest = None

    def close(self) -> None:
        """Forget what was sent."""
        if self._sent is not None:
            self._sent.close()

    def blocks(self) -> Iterator[bytes]:
        """Yield the body from its first byte, for a client that blocks. Raises what the source raises."""
        if isinstance(self._source, AsyncIterable):
            raise TypeError("these items come asynchronously; use carbonq.AsyncClient for them")
        yield from self._again()
        if self._rest is None:
            self._rest = iter(self._source)
        for item in self._rest:
            if block := self._taken(item):
                yield block
        if block := self._flushed():
            yield block

    async def async_blocks(self) -> AsyncIterator[bytes]:
        """Yield the body from its first byte, for a client that awaits. Raises what the source raises."""
        for block in self._again():
            yield block
        if isinstance(self._source, AsyncIterable):
            if self._rest is None:
                self._rest = aiter(self._source)
            async for item in self._rest:
                if block := self._taken(item):
                    yield block
        else:
            if self._rest is None:
                self._rest = iter(self._source)
            for item in self._rest:
                if block := self._taken(item):
                    yield block
        if block := self._flushed():
            yield block

    def _again(self) -> Iterator[bytes]:
        """Yield what an earlier try has taken from the source already."""
        if self._is_restarted:
            self._begin()
        elif self._sent is not None:
            self._sent.seek(0)
            while block := self._sent.read(BLOCK_BYTES):
                yield block

    def _taken(self, item: object) -> bytes:
        """Add an item; return a piece once there is enough for one."""
        self._number += 1
        line = self._line(item, self._number)
        self._buffer += line
        if not line.endswith(b"\n"):
            self._buffer += b"\n"
        return self._flushed() if len(self._buffer) >= BLOCK_BYTES else b""

    def _flushed(self) -> bytes:
        block = bytes(self._buffer)
        self._buffer.clear()
        if self._sent is not None and block:
            self._sent.seek(0, 2)
            self._sent.write(block)
        return block

"""Cut streamed bytes into whole lines, and CSV into whole rows, whatever the pieces they come in. Pure."""

from __future__ import annotations

import csv


class Lines:
    """JSON Lines: no line feed inside a line."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, block: bytes) -> list[bytes]:
        """Return the lines that a piece completes, each with its line feed."""
        *whole, last = block.split(b"\n")
        lines = [line + b"\n" for line in whole]
        if lines:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest.clear()
        self._rest.append(last)
        return lines

    def end(self) -> bytes:
        """Return what no line feed ended."""
        return b"".join(self._rest)


class Rows:
    """CSV (RFC 4180), where a line feed inside quotes ends no row; remembers the last whole row, to go on after it."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._last = b""

    def feed(self, block: bytes) -> bytes:
        """Return the rows that a piece completes, as they came."""
        searched = len(self._rest)
        self._rest += block
        end = self._row_end(len(self._rest), searched)
        if end == 0:
            return b""
        begin = self._row_end(end - 1, 0)
        whole, self._last = bytes(self._rest[:end]), bytes(self._rest[begin:end])
        del self._rest[:end]
        return whole

    def _row_end(self, stop: int, start: int) -> int:
        """Return where the last row that ends in ``start..stop`` does; 0: none. What is kept begins with a row."""
        while (found := self._rest.rfind(b"\n", start, stop)) >= 0:
            if self._rest.count(b'"', 0, found) % 2 == 0:
                return found + 1
            stop = found
        return 0

    def end(self) -> bytes:
        """Return what no line feed ended."""
        return bytes(self._rest)

    def restart(self) -> None:
        """Drop the beginning of a row that will come again."""
        self._rest.clear()

    @property
    def last_row(self) -> list[str] | None:
        """The cells of the last whole row; None before any."""
        return next(csv.reader([self._last.decode()])) if self._last else None

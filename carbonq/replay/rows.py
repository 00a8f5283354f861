"""Rows of recorded CSV files (gzip too), with errors that name file, line and limit. Only reading, no meaning."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.units import WINDOW, parse_iso, window_at, window_index

#: Above this (g/kWh) no grid emits: the unit is wrong.
MAX_G_PER_KWH = 10_000.0


@dataclass(frozen=True, slots=True)
class Source:
    """A file as a person names it: ``PATH``, ``PATH:COLUMN``, or ``PATH:COLUMN=NAME,...`` to choose and rename."""

    path: Path
    chosen: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Source:
        """Read it from an argument; a file whose own name has a colon is taken whole if it is there."""
        whole = Path(text)
        if ":" not in text or whole.exists():
            return cls(whole)
        path, _, columns = text.rpartition(":")
        pairs = [column.partition("=")[::2] for column in columns.split(",")]
        return cls(Path(path), tuple((column.strip(), (name or column).strip()) for column, name in pairs))

    def error(self, what: str, line: int | None = None) -> InvalidRequest:
        """Return an error that names the file and, where there is one, the line."""
        where = f"{self.path}" if line is None else f"{self.path}, line {line}"
        return InvalidRequest(f"{where}: {what}", line=line)


@dataclass(slots=True)
class Reader:
    """One open file: its columns by name, then its rows with their line numbers."""

    source: Source
    columns: list[str]
    _rows: Iterator[list[str]]
    _lines: Callable[[], int]
    _windows: dict[str, int] = field(default_factory=dict[str, int])

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, cells); raises InvalidRequest for a row of another width and for a file that ends early."""
        width = len(self.columns)
        try:
            for cells in self._rows:
                if not cells:
                    continue
                line = self._lines()
                if len(cells) != width:
                    raise self.source.error(f"has {len(cells)} cells, the header {width}", line)
                yield line, cells
        except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError, csv.Error) as error:
            raise self.source.error(f"cannot be read beyond line {self._lines()}: {error}") from error

    def place(self, column: str) -> int:
        """Return the position of a column. Raises InvalidRequest naming it where there is none."""
        if column not in self.columns:
            raise self.source.error(f"has no column {column!r}; it has {', '.join(self.columns)}", 1)
        return self.columns.index(column)

    def window(self, text: str, line: int, column: str) -> int:
        """Return the number of the window that begins at a time. Raises InvalidRequest for any other text."""
        known = self._windows.get(text)
        if known is not None:
            return known
        try:
            at = parse_iso(text)
        except ValueError as error:
            raise self.source.error(f"{column} is {text!r}: {error}", line) from error
        window = window_index(at)
        if window_at(window) != at:
            minutes = int(WINDOW.total_seconds() // 60)
            raise self.source.error(f"{column} {text} does not lie on a multiple of {minutes} minutes", line)
        self._windows[text] = window
        return window

    def rate(self, text: str, line: int, column: str) -> float:
        """Return g/kWh, NaN for an empty cell. Raises InvalidRequest for what is no intensity."""
        value = self.number(text, line, column)
        if value < 0 or value > MAX_G_PER_KWH:
            raise self.source.error(f"{column} is {text} g/kWh; it must lie in 0..{MAX_G_PER_KWH:,.0f}", line)
        return value

    def rates(self, cells: Sequence[str], line: int, columns: Sequence[str]) -> list[float]:
        """Return many at once, like ``rate``."""
        try:
            values = [float(cell) if cell else np.nan for cell in cells]
        except ValueError:
            values = [np.inf]
        # Not "outside": a NaN that was written out is to be found too.
        if all(0.0 <= value <= MAX_G_PER_KWH for value in values):
            return values
        return [self.rate(cell, line, column) for cell, column in zip(cells, columns, strict=True)]

    def number(self, text: str, line: int, column: str) -> float:
        """Return a finite number, NaN for an empty cell."""
        if not text or text.isspace():
            return np.nan
        try:
            value = float(text)
        except ValueError:
            raise self.source.error(f"{column} is {text!r}, which is no number", line) from None
        if not math.isfinite(value):
            raise self.source.error(f"{column} is {text!r}; leave a missing value empty", line)
        return value


@contextmanager
def opened(source: Source) -> Generator[Reader]:
    """Open a file and read its header. Raises InvalidRequest where there is none."""
    with _openable(source) as lines:
        rows = csv.reader(lines)
        try:
            columns = [name.strip().lstrip("\ufeff") for name in next(rows, [])]
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
            raise source.error(f"cannot be read: {error}") from error
        if not columns:
            raise source.error("is empty; the first line must name the columns")
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice:
            raise source.error(f"has the column {twice[0]!r} twice", 1)
        yield Reader(source, columns, rows, lambda: rows.line_num)


def _openable(source: Source) -> TextIO:
    path = source.path
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8", newline="")
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise source.error(f"cannot be read: {error.strerror or error}") from error

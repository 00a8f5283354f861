"""Arrivals from recorded traces: files known by their columns. None of them has deadlines, so the slack is a choice.

``arrival_h,length_h,units`` (Alibaba PAI as GAIA prepared it), ``arrival_s,input_tokens,output_tokens`` (Azure and
Mooncake LLM requests), and ``time_utc,length_h[,units][,deadline_utc]`` for anything else.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.replay.arrivals import MAX_JOBS, MAX_SPAN, Span
from carbonq.replay.rows import Reader, Source, opened
from carbonq.replay.work import Jobs
from carbonq.units import WINDOW_S

#: The most slots that one job may hold at once.
MAX_UNITS = 100_000


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a trace does not say: tokens a slot takes in and gives out in a second."""

    prompt_tokens_per_s: float = 8000.0
    output_tokens_per_s: float = 800.0


def read_trace(source: Source, *, first: int, slack: Span | None, seed: int, assumed: Assumed = Assumed()) -> Jobs:
    """Read a trace; its time 0 is window ``first``. ``slack`` is drawn for each job that has no deadline of its own.

    Requests of a token trace are gathered by window of arrival into one job, as chunks are. Raises InvalidRequest
    naming file, line and limit.
    """
    with opened(source) as reader:
        names = set(reader.columns)
        if {"arrival_h", "length_h"} <= names:
            rows = _hours(reader, first)
        elif {"arrival_s", "input_tokens", "output_tokens"} <= names:
            rows = _requests(reader, first, assumed)
        elif {"time_utc", "length_h"} <= names:
            rows = _dated(reader)
        else:
            raise source.error(
                f"has the columns {', '.join(reader.columns[:6])}; known are arrival_h,length_h,units, "
                "arrival_s,input_tokens,output_tokens and time_utc,length_h",
                1,
            )
    if not rows:
        raise source.error("holds no job")
    if len(rows) > MAX_JOBS:
        raise source.error(f"holds {len(rows):,} jobs; at most {MAX_JOBS:,}")
    table = np.array(rows, dtype=np.int64)
    due = table[:, 3]
    if (due < 0).any():
        if slack is None:
            raise InvalidRequest(f"{source.path} has no deadlines; give --slack, as in --slack 24h", param="slack")
        drawn = slack.draw(len(table), np.random.default_rng(seed))
        due = np.where(due < 0, table[:, 0] + table[:, 1] + drawn, due)
    order = np.argsort(table[:, 0], kind="stable")
    return Jobs(table[order, 0], table[order, 1], table[order, 2], due[order])


def _length(reader: Reader, text: str, line: int) -> int:
    hours = reader.number(text, line, "length_h")
    windows = math.ceil(hours * 12 - 1e-9) if not math.isnan(hours) else 0
    if not 0 < windows <= MAX_SPAN:
        raise reader.source.error(f"length_h is {text!r}; it must be more than 0 and at most {MAX_SPAN // 12}", line)
    return windows


def _units(reader: Reader, cells: list[str], line: int) -> int:
    if "units" not in reader.columns:
        return 1
    text = cells[reader.columns.index("units")]
    units = reader.number(text, line, "units")
    if not (1 <= units <= MAX_UNITS and float(units).is_integer()):
        raise reader.source.error(f"units is {text!r}; it must be a whole number from 1 to {MAX_UNITS:,}", line)
    return int(units)


def _seconds(reader: Reader, text: str, line: int, column: str, scale: float) -> float:
    value = reader.number(text, line, column)
    if not 0 <= value * scale <= 1e9:
        raise reader.source.error(f"{column} is {text!r}; it must be a time after the trace's beginning", line)
    return value * scale


def _hours(reader: Reader, first: int) -> list[tuple[int, int, int, int]]:
    arrival, length = reader.place("arrival_h"), reader.place("length_h")
    found: list[tuple[int, int, int, int]] = []
    for line, cells in reader.rows():
        at_s = _seconds(reader, cells[arrival], line, "arrival_h", 3600.0)
        release = first + math.ceil(at_s / WINDOW_S - 1e-9)
        found.append((release, _length(reader, cells[length], line), _units(reader, cells, line), -1))
    return found


def _requests(reader: Reader, first: int, assumed: Assumed) -> list[tuple[int, int, int, int]]:
    arrival, taken, given = (reader.place(name) for name in ("arrival_s", "input_tokens", "output_tokens"))
    seconds: defaultdict[int, float] = defaultdict(float)
    for line, cells in reader.rows():
        tokens = [reader.number(cells[place], line, reader.columns[place]) for place in (taken, given)]
        if not all(0 <= one <= 1e9 for one in tokens):
            raise reader.source.error("a request's tokens must be numbers from 0 to 1,000,000,000", line)
        window = math.floor(_seconds(reader, cells[arrival], line, "arrival_s", 1.0) / WINDOW_S)
        seconds[window] += tokens[0] / assumed.prompt_tokens_per_s + tokens[1] / assumed.output_tokens_per_s
    # What came within a window can be planned when it is over.
    return [(first + window + 1, max(1, math.ceil(s / WINDOW_S - 1e-9)), 1, -1) for window, s in seconds.items()]


def _dated(reader: Reader) -> list[tuple[int, int, int, int]]:
    time, length = reader.place("time_utc"), reader.place("length_h")
    deadline = reader.columns.index("deadline_utc") if "deadline_utc" in reader.columns else None
    found: list[tuple[int, int, int, int]] = []
    for line, cells in reader.rows():
        release, windows = reader.window(cells[time], line, "time_utc"), _length(reader, cells[length], line)
        due = -1
        if deadline is not None and cells[deadline]:
            due = reader.window(cells[deadline], line, "deadline_utc")
            if due < release + windows:
                raise reader.source.error("deadline_utc is before the job could end if it ran at once", line)
        found.append((release, windows, _units(reader, cells, line), due))
    return found

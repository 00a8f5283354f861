"""Arrivals of jobs that a person describes in words, drawn with a seed.

    1000 jobs of 2h with slack 24h               at random times
    poisson 4/h of 30m with slack 8h             a Poisson stream
    nightly 10 jobs of 2h at 01:00 with slack 8h the same every day (UTC)

A span is ``30m``, ``2h`` or ``1d``; ``10m..4h`` draws evenly from a range and ``1h|8h|24h`` from a choice. Slack is how
much later than at once a job may end: its deadline is release + length + slack.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.plan.evidence import IntArray
from carbonq.plan.forecaster import WINDOWS_A_DAY
from carbonq.replay.work import Jobs
from carbonq.units import WINDOW_S

#: The most jobs that are drawn.
MAX_JOBS = 2_000_000

#: The longest span: a job's length or slack, in windows (30 days).
MAX_SPAN = 30 * WINDOWS_A_DAY

_UNITS_S = {"m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86_400, "day": 86_400}
_ONE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(min|minute|m|hour|h|day|d)s?\s*")
_EXAMPLES = (
    "'1000 jobs of 2h with slack 24h', 'poisson 4/h of 30m with slack 8h' or "
    "'nightly 10 jobs of 2h at 01:00 with slack 8h'"
)
_COUNTED = re.compile(r"(?P<n>[\d_]+) jobs? of (?P<length>.+?) with slack (?P<slack>.+)")
_POISSON = re.compile(r"poisson (?P<rate>\d+(?:\.\d+)?)/(?P<per>h|d) of (?P<length>.+?) with slack (?P<slack>.+)")
_NIGHTLY = re.compile(
    r"nightly (?P<n>[\d_]+) jobs? of (?P<length>.+?) at (?P<h>\d\d):(?P<m>\d\d) with slack (?P<slack>.+)"
)


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time that is drawn: evenly from ``low..high`` windows, or from ``choice``."""

    low: int
    high: int
    choice: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, what: str) -> Span:
        """Read ``2h``, ``10m..4h`` or ``1h|8h``. Raises InvalidRequest naming ``what``."""
        if "|" in text:
            choice = tuple(span(part, what) for part in text.split("|"))
            return cls(min(choice), max(choice), choice)
        low, dots, high = text.partition("..")
        made = cls(span(low, what), span(high if dots else low, what))
        if made.high < made.low:
            raise InvalidRequest(f"{what} {text!r}: the range ends before it begins", param=what)
        return made

    def draw(self, count: int, random: np.random.Generator) -> IntArray:
        """Return that many windows."""
        if self.choice:
            return random.choice(np.array(self.choice, dtype=np.int64), size=count)
        if self.low == self.high:
            return np.full(count, self.low, dtype=np.int64)
        return random.integers(self.low, self.high + 1, size=count, dtype=np.int64)


def span(text: str, what: str) -> int:
    """Return a span such as ``90m`` in windows, rounded up. Raises InvalidRequest naming ``what``."""
    found = _ONE.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"{what} is {text.strip()!r}; write it as 30m, 2h or 1d", param=what)
    windows = math.ceil(float(found[1]) * _UNITS_S[found[2]] / WINDOW_S - 1e-9)
    if windows > MAX_SPAN:
        raise InvalidRequest(f"{what} is {text.strip()}; at most {MAX_SPAN // WINDOWS_A_DAY} days", param=what)
    return windows


def step(text: str, what: str) -> int:
    """Return a span in windows as ``span`` does. Raises InvalidRequest also for one that is no multiple of a window."""
    windows = span(text, what)
    found = _ONE.fullmatch(text)
    if found is not None and abs(float(found[1]) * _UNITS_S[found[2]] - windows * WINDOW_S) > 1e-6:
        raise InvalidRequest(
            f"--{what} is {text.strip()}; a replay goes in steps of {WINDOW_S // 60} minutes: write a multiple",
            param=what,
        )
    return windows


def drawn(spec: str, *, first: int, end: int, seed: int) -> Jobs:
    """Return the jobs of a description, released from window ``first`` on and all due by ``end``, in order.

    Raises InvalidRequest for a description that is none, and where its jobs do not fit.
    """
    text = " ".join(spec.split())
    found = _COUNTED.fullmatch(text) or _POISSON.fullmatch(text) or _NIGHTLY.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"arrivals {spec!r} are not understood; write {_EXAMPLES}", param="arrivals")
    length, slack = Span.parse(found["length"], "length"), Span.parse(found["slack"], "slack")
    if length.low < 1:
        raise InvalidRequest(f"arrivals {spec!r}: a job's length must be more than 0", param="arrivals")
    last = end - length.high - slack.high
    if last < first:
        hours = (length.high + slack.high) / 12
        raise InvalidRequest(
            f"length and slack are {hours:g} h together, the recorded time is {(end - first) / 12:g} h",
            param="arrivals",
        )
    random = np.random.default_rng(seed)
    release = _releases(found, first, last, random)
    if not len(release):
        raise InvalidRequest(f"arrivals {spec!r} bring no job between the recorded times", param="arrivals")
    windows = length.draw(len(release), random)
    due = release + windows + slack.draw(len(release), random)
    return Jobs(release, windows, np.ones(len(release), dtype=np.int64), due)


def _releases(found: re.Match[str], first: int, last: int, random: np.random.Generator) -> IntArray:
    named = found.groupdict()
    if "rate" in named:
        mean = float(named["rate"]) * (last - first + 1) / (12 if named["per"] == "h" else WINDOWS_A_DAY)
        _check_count(mean)
        count = int(random.poisson(mean))
    else:
        count = int(named["n"].replace("_", "") or 0)
    _check_count(count)
    if "h" not in named:
        return np.sort(random.integers(first, last + 1, size=count, dtype=np.int64))
    hour, minute = int(named["h"]), int(named["m"])
    if hour > 23 or minute > 59 or minute % 5:
        raise InvalidRequest(
            f"nightly at {hour:02d}:{minute:02d}: a time of day in steps of 5 minutes", param="arrivals"
        )
    at = hour * 12 + minute // 5
    begin = first + (at - first) % WINDOWS_A_DAY
    nights = np.arange(begin, last + 1, WINDOWS_A_DAY, dtype=np.int64)
    _check_count(count * len(nights))
    return np.repeat(nights, count)


def _check_count(count: float) -> None:
    if count > MAX_JOBS:
        raise InvalidRequest(f"arrivals bring {count:,.0f} jobs; at most {MAX_JOBS:,}", param="arrivals")

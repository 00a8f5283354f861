"""What a person asks of a replay, read from words into a site, work and rules. Errors name the option and the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.model import Signal
from carbonq.plan.forecaster import WINDOWS_A_DAY, FloatArray
from carbonq.replay.arrivals import Span, drawn, step
from carbonq.replay.grids import Grid, read
from carbonq.replay.policies import Rules
from carbonq.replay.rows import Source
from carbonq.replay.site import UNLIMITED, Site
from carbonq.replay.traces import Assumed, read_trace
from carbonq.replay.work import Jobs, Work, pieces
from carbonq.units import parse_iso, window_at, window_index

#: The most slots of a region.
MAX_SLOTS = 100_000

#: Re-planning at least every so many windows: six hours.
MAX_EVERY = 72


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of ``carbonq replay`` as they were typed; docs/replay.md has their meaning."""

    intensity: Sequence[str]
    signal: Signal
    forecast: Sequence[str] = ()
    jobs: str | None = None
    arrivals: str | None = None
    slack: str | None = None
    piece: str = "5m"
    home: str | None = None
    regions: Sequence[str] = ()
    slots: Sequence[str] = ()
    pue: Sequence[str] = ()
    price: Sequence[str] = ()
    slot_price: Sequence[str] = ()
    start: str | None = None
    end: str | None = None
    every: str = "15m"
    published_after: str | None = None
    margins: Sequence[float] = ()
    displacement: float = 0.0
    power_w: float = 1000.0
    seed: int = 0
    only_foretold: bool = False
    assumed: Assumed = field(default_factory=Assumed)


@dataclass(frozen=True, slots=True)
class Ready:
    """What is replayed: the site, the work, the rules, the slots that vary, and what has to be said beside it."""

    site: Site
    work: Work
    rules: Rules
    ranges: dict[str, Sequence[int]]
    said: str
    notes: list[str] = field(default_factory=list[str])


def ready(asked: Asked) -> Ready:
    """Read files and options. Raises InvalidRequest naming the file and line, or the option."""
    if (asked.jobs is None) == (asked.arrivals is None):
        raise InvalidRequest("give either --jobs FILE or --arrivals SPEC", param="arrivals")
    rules = _rules(asked)
    if not 0 < asked.power_w <= 1e7:
        raise InvalidRequest(f"--power-w is {asked.power_w:g}; it must be more than 0 and at most 1e7", param="power-w")
    grid = read(
        [Source.parse(one) for one in asked.intensity],
        [Source.parse(one) for one in asked.forecast],
        signal=asked.signal,
    )
    notes: list[str] = []
    site, ranges = _site(grid, asked, notes)
    jobs, said = _jobs(site, asked)
    if asked.only_foretold:
        jobs = _foretold(site, jobs, notes)
    work = _measured(site, pieces(jobs, power_w=asked.power_w, piece=_piece(asked.piece)), notes)
    return Ready(site, work, rules, ranges, said, notes)


def _rules(asked: Asked) -> Rules:
    every = step(asked.every, "every")
    if not 1 <= every <= MAX_EVERY:
        raise InvalidRequest(f"--every is {asked.every}; from 5m to {MAX_EVERY // 12}h", param="every")
    margins = tuple(asked.margins) or (3.0,)
    if any(not 0 <= one <= 100 for one in margins):
        raise InvalidRequest(f"--margin is {max(margins):g} %; from 0 to 100", param="margin")
    delay = None if asked.published_after is None else step(asked.published_after, "published-after")
    if not 0 <= asked.displacement <= 10:
        raise InvalidRequest(f"--displacement is {asked.displacement:g}; from 0 to 10", param="displacement")
    return Rules(tuple(dict.fromkeys(one / 100 for one in margins)), every, delay, asked.displacement)


def _piece(text: str) -> int | None:
    if text == "whole":
        return None
    piece = step(text, "piece")
    if piece < 1:
        raise InvalidRequest("--piece must be at least 5m, or whole", param="piece")
    return piece


def _site(grid: Grid, asked: Asked, notes: list[str]) -> tuple[Site, dict[str, Sequence[int]]]:
    names = tuple(dict.fromkeys(asked.regions)) or grid.zones
    for name in (*names, *([] if asked.home is None else [asked.home])):
        if name not in grid.zones:
            raise InvalidRequest(
                f"region {name!r} is in no --intensity file; they have {', '.join(grid.zones)}", param="region"
            )
    home = names[0] if asked.home is None else asked.home
    if home not in names:
        raise InvalidRequest(f"--home {home} is not among the regions {', '.join(names)}", param="home")
    slots, ranges = _slots(names, asked.slots)
    if not asked.slots:
        notes.append("slots are unlimited: with a capacity (--slots) less can be saved")
    pue = _numbers(names, asked.pue, "pue", default=1.0, low=1.0, high=3.0)
    price = _numbers(names, asked.price, "price", default=0.0, low=0.0, high=1e6)
    slot_price = _numbers(names, asked.slot_price, "slot-price", default=0.0, low=0.0, high=1e6)
    if slot_price.any() and not asked.slots:
        raise InvalidRequest("--slot-price needs --slots", param="slot-price")
    for name in names:
        if name not in grid.issued:
            notes.append(f"{name} has no forecasts as issued: planned by its own daily shape alone")
    first, end = grid.span()
    first = _time(asked.start, "from", first)
    end = min(_time(asked.end, "to", end), end)
    if end <= first:
        raise InvalidRequest(f"nothing is recorded between {window_at(first):%F} and {window_at(end):%F}", param="from")
    return Site(grid, names, slots, pue, names.index(home), first, end, price, slot_price), ranges


def _time(text: str | None, what: str, default: int) -> int:
    if text is None:
        return default
    try:
        return window_index(parse_iso(text if "T" in text else f"{text}T00:00Z"))
    except ValueError as error:
        raise InvalidRequest(
            f"--{what} {text!r} is no time: write 2021-04-01 or 2021-04-01T12:00Z", param=what
        ) from error


def _pairs(names: Sequence[str], given: Sequence[str], what: str) -> list[tuple[str | None, str]]:
    found: list[tuple[str | None, str]] = []
    for one in given:
        name, is_named, value = one.rpartition("=")
        if is_named and name not in names:
            raise InvalidRequest(f"--{what} {one}: {name!r} is not among the regions {', '.join(names)}", param=what)
        found.append((name if is_named else None, value))
    return found


def _numbers(
    names: Sequence[str], given: Sequence[str], what: str, *, default: float, low: float, high: float
) -> FloatArray:
    values = np.full(len(names), default)
    for name, text in _pairs(names, given, what):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise InvalidRequest(f"--{what} {text!r} must be a number from {low:g} to {high:g}", param=what)
        values[slice(None) if name is None else names.index(name)] = value
    return values


def _slots(
    names: Sequence[str], given: Sequence[str]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], dict[str, Sequence[int]]]:
    slots = np.full(len(names), UNLIMITED, dtype=np.int64)
    ranges: dict[str, Sequence[int]] = {}
    # What is said of all regions first, so that the order of options does not matter.
    for name, text in sorted(_pairs(names, given, "slots"), key=lambda pair: pair[0] is not None):
        counts = _counts(text)
        if name is None and len(counts) > 1:
            raise InvalidRequest(
                f"--slots {text}: name the region whose slots vary, as in {names[0]}={text}", param="slots"
            )
        slots[slice(None) if name is None else names.index(name)] = counts[0]
        if name is not None and len(counts) > 1:
            ranges[name] = counts
    if not slots.any():
        raise InvalidRequest("--slots leaves no region a slot", param="slots")
    return slots, ranges


def _counts(text: str) -> list[int]:
    low, dots, high = text.partition("..")
    parts = [low, high] if dots else text.split(",")
    if not all(part.isdecimal() and int(part) <= MAX_SLOTS for part in parts):
        raise InvalidRequest(
            f"--slots {text!r} must be a whole number up to {MAX_SLOTS:,}, a range 1..8, or 1,2,4", param="slots"
        )
    numbers = [int(part) for part in parts]
    if not dots:
        return list(dict.fromkeys(numbers))
    if numbers[1] < numbers[0]:
        raise InvalidRequest(f"--slots {text}: the range ends before it begins", param="slots")
    # About a dozen points, ends included.
    return np.unique(np.rint(np.linspace(*numbers, num=min(12, numbers[1] - numbers[0] + 1))).astype(np.int64)).tolist()


def _jobs(site: Site, asked: Asked) -> tuple[Jobs, str]:
    slack = None if asked.slack is None else Span.parse(asked.slack, "slack")
    if asked.arrivals is not None:
        if slack is not None:
            raise InvalidRequest("--slack belongs to --jobs; the slack of --arrivals is in its words", param="slack")
        said = f"{asked.arrivals} (seed {asked.seed})"
        return drawn(asked.arrivals, first=site.first, end=site.end, seed=asked.seed), said
    path = asked.jobs or ""
    jobs = read_trace(Source(Path(path)), first=site.first, slack=slack, seed=asked.seed, assumed=asked.assumed)
    inside = jobs.within(site.first, site.end)
    if not inside.count:
        raise InvalidRequest(
            f"{path}: none of its {jobs.count:,} jobs is released and due between {window_at(site.first):%FT%RZ} and "
            f"{window_at(site.end):%FT%RZ}",
            param="jobs",
        )
    said = path if asked.slack is None else f"{path}, slack {asked.slack} (our choice: the trace has no deadlines)"
    return (
        inside,
        said if inside.count == jobs.count else f"{said}; {jobs.count - inside.count:,} jobs outside the time",
    )


def _foretold(site: Site, jobs: Jobs, notes: list[str]) -> Jobs:
    """Leave out the jobs that are released while some region's newest forecast as issued is more than a day old."""
    is_told = np.ones(jobs.count, dtype=np.bool_)
    for name in site.regions:
        if name not in site.grid.issued:
            raise InvalidRequest(f"--only-foretold: {name} has no forecasts as issued", param="only-foretold")
        is_told &= site.grid.issued[name].age(jobs.release) <= WINDOWS_A_DAY
    if not is_told.any():
        raise InvalidRequest("--only-foretold: no job is released while there are forecasts", param="only-foretold")
    if not is_told.all():
        notes.append(
            f"{int((~is_told).sum()):,} jobs are left out: no forecast of the last day was there when they came"
        )
    return jobs.rows(np.flatnonzero(is_told))


def _measured(site: Site, work: Work, notes: list[str]) -> Work:
    """Leave out the jobs in whose time some region has no observed value: their carbon cannot be told."""
    is_bad = ~site.is_measured(work.release, work.due)
    bad = np.zeros(int(work.job.max()) + 1, dtype=np.bool_)
    bad[work.job[is_bad]] = True
    kept = work.rows(np.flatnonzero(~bad[work.job]))
    if not kept.count:
        raise InvalidRequest("every job's time has windows without an observed value in some region", param="intensity")
    if bad.any():
        notes.append(f"{int(bad.sum()):,} jobs are left out: some region has no observed value in their time")
    return kept

"""Say in sentences what ``why.py`` found. Pure.

A group of chunks alike is spoken of as one, and compared by its dirtiest member; grams are those of one chunk. Times
are UTC, to the minute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from carbonq import readable
from carbonq.model import ChunkState, Signal
from carbonq.plan.outlook import Basis, Outlook
from carbonq.plan.why import Cell, Explained, Passed, Why


@dataclass(frozen=True, slots=True)
class Facts:
    """What is to be said beside the comparison, of the dirtiest of some chunks alike but for their windows.

    ``windows`` counts these, from ``first_at`` to ``last_at``, and ``lowest_g_per_kwh`` is the rate of the cleanest;
    ``g_per_kwh`` and ``issued_at`` are those the dirtiest was placed by. ``rate_now`` is what the outlook says now of
    the same cell (None: nothing, or its window is over), ``is_rebuilt``: the comparison is with the outlook the plan
    was made from, not with the present one.
    """

    chunks: int
    state: ChunkState
    reason: str | None
    region: str
    window_at: datetime
    deadline_at: datetime
    latest_start_at: datetime | None
    g_per_kwh: float | None
    issued_at: datetime | None
    signal: Signal
    basis: Basis | None
    planned_at: datetime | None
    rate_now: float | None
    is_rebuilt: bool
    margin: float
    windows: int
    first_at: datetime
    last_at: datetime
    lowest_g_per_kwh: float | None
    max_g: float | None = None


def placed(facts: Facts) -> str:
    """Say where and when, and by which rate."""
    many = facts.chunks != 1
    subject = f"{facts.chunks:,} chunks" if many else "1 chunk"
    verb = {
        ChunkState.RUNNING: f"run{'' if many else 's'} now",
        ChunkState.DONE: "ran",
    }.get(facts.state, f"{'are' if many else 'is'} to run")
    spread = f"{facts.windows:,} windows from {_time(facts.first_at)} to {_time(facts.last_at)}"
    when = spread if facts.windows > 1 else f"the window of {_time(facts.window_at)}"
    text = f"{subject} {verb} in {facts.region} in {when}"
    if facts.g_per_kwh is None:
        return f"{text}; no rate was known."
    kind = "MOER" if facts.signal is Signal.MOER else "AER"
    source = {
        Basis.HELD: "the last observation",
        Basis.SEASONAL: "what is usual at that time of day",
        Basis.BLEND: "all that was known",
    }.get(facts.basis or Basis.FORECAST, "the forecast")
    issued = "" if facts.issued_at is None else f", newest forecast of {_time(facts.issued_at)}"
    low, high = facts.lowest_g_per_kwh, facts.g_per_kwh
    rates = f"{high:.0f}" if low is None or f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}"
    dirtiest = "" if facts.windows == 1 else f" What follows is of the dirtiest, {_time(facts.window_at)}."
    return f"{text}: {rates} g/kWh {kind} by {source}{issued}.{dirtiest}"


def because(facts: Facts, found: Explained | None, outlook: Outlook) -> list[str]:
    """Say why there: the reason that the plan gave, what was passed over, the runner-up, and what has changed since."""
    lines = [placed(facts), *_reason(facts, found)]
    if found is not None and found.own is not None:
        lines += [_passed(one, facts, found.own, outlook) for one in found.passed]
        lines += _runner_up(facts, found, outlook)
    lines += _since(facts)
    return lines


def _reason(facts: Facts, found: Explained | None) -> Iterable[str]:
    if facts.reason == "late":
        yield f"It cannot be finished by its deadline {_time(facts.deadline_at)}: this is the earliest there was room."
    elif facts.reason == "overlay":
        yield "No carbon rate was known there: the earliest window of the nearest region was taken, deadlines first."
    elif facts.reason == "at_once":
        yield "It runs at once at home: the job is only observed, or held out to measure what planning saves."
    elif facts.reason == "deadline":
        yield f"Its deadline {_time(facts.deadline_at)} left no other window."
    if found is None:
        if facts.reason in {"carbon", "deadline"}:
            yield (
                "What else there was cannot be told any more: what was known at that time is no longer kept, or was "
                "corrected since."
            )
        return
    if found.own is None:
        return
    if found.is_over_cap and facts.max_g is not None:
        yield f"That is above its share of the job's carbon cap, {readable.grams(facts.max_g)} a chunk."
    if found.is_cheapest and facts.reason in {"carbon", "deadline"}:
        if found.choices > 1:
            yield f"Of the {found.choices:,} cells that are allowed, in time and free, none causes less."
        else:
            yield "No other cell is allowed, in time and free."


def _passed(one: Passed, facts: Facts, own: Cell, outlook: Outlook) -> str:
    is_priced = own.price_g > 0 or one.best.price_g > 0
    cells = f"{one.cells:,} {'cheaper' if is_priced else 'cleaner'} cell{'s' if one.cells != 1 else ''}"
    lie = "lies" if one.cells == 1 else "lie"
    best = f"the {'cheapest' if is_priced else 'cleanest'} is {_cell(one.best, outlook)}"
    share = 100 * (own.cost_g - one.best.cost_g) / own.cost_g if own.cost_g > 0 else 0.0
    latest = facts.latest_start_at
    before = f"its latest safe start {_time(latest)}" if latest is not None else "its latest safe start"
    return {
        Why.NOT_ALLOWED: f"{cells} {lie} in regions where the job may not run; {best}, {share:.1f} % less.",
        Why.AWAY: f"{cells} {lie} in regions without its model or closed to work now; {best}, {share:.1f} % less.",
        Why.BEFORE_RELEASE: f"{cells} {lie} before it may start; {best}.",
        Why.AFTER_DEADLINE: (
            f"{cells} {lie} after {before} for the deadline {_time(facts.deadline_at)}; {best}, {share:.1f} % less."
        ),
        Why.FULL: f"{cells} {'is' if one.cells == 1 else 'are'} full; {best}, {share:.1f} % less.",
        Why.NEAR_TIE: (
            f"{cells} {'is' if one.cells == 1 else 'are'} free, but {best}, {share:.1f} % less: far within "
            "the error that such forecasts have, so the earlier one is taken."
        ),
        Why.BELOW_MARGIN: (
            f"{cells} {'is' if one.cells == 1 else 'are'} free, but {best}: {share:.1f} % less, and a chunk that has a "
            f"place is moved only for more than {100 * facts.margin:g} %."
        ),
        Why.FREE: (
            f"{cells} {'is' if one.cells == 1 else 'are'} free by now; {best}, {share:.1f} % less: other work needed "
            "that room, or it came free or cleaner after the plan, which moves what has no ticket yet."
        ),
    }[one.why]


def _runner_up(facts: Facts, found: Explained, outlook: Outlook) -> Iterable[str]:
    if found.runner_up is None or found.own is None or found.more_g is None or found.more_price_g is None:
        return
    more_g = found.more_g + found.more_price_g
    if more_g < 0:
        return
    there = _cell(found.runner_up, outlook)
    if not more_g:
        yield f"{there} costs as much."
        return
    share = "" if found.more_share is None else f" ({100 * found.more_share:.1f} %)"
    each = "" if facts.chunks == 1 else " a chunk"
    parts = f": {_signed(found.more_g)} of carbon, {_signed(found.more_price_g)} by price" if found.more_price_g else ""
    yield f"The runner-up, {there}, would cost {readable.grams(more_g)}{each}{share} more{parts}."


def _signed(grams: float) -> str:
    return f"{readable.grams(abs(grams))} {'less' if grams < 0 else 'more'}"


def _since(facts: Facts) -> Iterable[str]:
    if facts.planned_at is not None and not facts.is_rebuilt and facts.g_per_kwh is not None:
        yield (
            f"The outlook of the plan of {_time(facts.planned_at)} cannot be put together exactly any more: the other "
            "cells are as they look now."
        )
    if facts.rate_now is None or facts.g_per_kwh is None:
        return
    change = facts.rate_now - facts.g_per_kwh
    if abs(change) >= 0.5:
        way = "up" if change > 0 else "down"
        yield f"Since then its forecast went {way} from {facts.g_per_kwh:.0f} to {facts.rate_now:.0f} g/kWh."


def _cell(cell: Cell, outlook: Outlook) -> str:
    return f"{outlook.regions[cell.region]} at {_time(outlook.window_at(cell.window))} ({cell.g_per_kwh:.0f} g/kWh)"


def _time(at: datetime) -> str:
    return f"{at:%d %b %H:%MZ}"

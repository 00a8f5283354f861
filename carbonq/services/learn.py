"""Learn from what has come how to weigh what was known before: one step a source and tick, each window once.

When windows have been observed, the moments before them are put together again as the outlook saw them (the forecasts
issued by then, the observations published by then), and the zone's skill takes in the pairs. The work of a tick is
bounded; ``learned_until`` says where the next one goes on, whoever does it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np

from carbonq.model import Signal
from carbonq.plan.blend import MAX_LEAD, Pairs, Skill, learn, origins_of
from carbonq.plan.evidence import ISSUE_AGES, Known, evidence
from carbonq.plan.forecaster import EMPTY, HISTORY_DAYS, WINDOWS_A_DAY, Series
from carbonq.services.outlook import read_history, series
from carbonq.store import forecasts, skills, sources
from carbonq.store.database import Database, Tx
from carbonq.units import WINDOW, WINDOW_S, window_at, window_index

#: Windows that are learned together, and at most in one step: half an hour, six hours.
AT_LEAST, AT_MOST = 6, 72

#: How far back learning goes on after a long rest, and where it begins for a new source: two weeks, a day.
BACKLOG, FIRST_BACKLOG = HISTORY_DAYS * WINDOWS_A_DAY, WINDOWS_A_DAY

#: Publication delays beyond this are outages, not habits (windows).
_LATEST = 36

#: Grid time by which clocks may differ.
_SKEW = timedelta(hours=1)

#: The moment within a window at which the outlook is taken to have been made.
_MOMENT = WINDOW / 2


def learn_tick(db: Database, now: datetime, *, max_s: float = 2.0) -> int:
    """Learn from newly observed windows of all configured sources; return how many windows were taken in.

    Bounded: at most one step a source, those that are furthest behind first, and no new step after ``max_s`` machine
    seconds. Idempotent. Raises StoreUnavailable.
    """
    give_up_at = time.monotonic() + max_s
    with db.read() as tx:
        waiting: list[tuple[datetime, tuple[str, Signal, str]]] = []
        for state in sources.states(tx):
            key = (state.zone, state.signal, state.source)
            row = skills.load(tx, *key)
            waiting.append((window_at(0) if row is None else row.learned_until, key))
    learned = 0
    for _, key in sorted(waiting):
        learned += learn_source(db, key, now)
        if time.monotonic() > give_up_at:
            break
    return learned


def learn_source(db: Database, key: tuple[str, Signal, str], now: datetime) -> int:
    """Take one step for one source; return how many windows were taken in (0: nothing new, or somebody was faster)."""
    with db.read() as tx:
        newest = skills.newest_observed(tx, *key)
        if newest is None:
            return 0
        row = skills.load(tx, *key)
        # Far ahead of now: it was learned while the clock ran ahead, and one would wait long for it to be true.
        is_ahead = row is not None and row.learned_until > now + _SKEW
        until = None if row is None or is_ahead else window_index(row.learned_until)
        step = max(1, newest[1] // WINDOW_S)
        end = min(window_index(newest[0]) + step, window_index(now))
        start = end - FIRST_BACKLOG if until is None else max(end - BACKLOG, until)
        if end - start < AT_LEAST:
            return 0
        delay = min(window_index(now) - end, _LATEST)
        end = min(end, start + AT_MOST)
        skill = Skill() if row is None else Skill.from_json(row.state)
        pairs = _pairs(tx, key, range(start + -start % step, end, step), delay)
    made = learn(skill, pairs, end) if pairs is not None else skill.aged(end)
    before = None if row is None else row.learned_until
    with db.write() as tx:
        is_mine = skills.save(tx, key, made.to_json(), learned_until=window_at(end), before=before, now=now)
    return end - start if is_mine else 0


def _pairs(tx: Tx, key: tuple[str, Signal, str], targets: range, delay: int) -> Pairs | None:
    """Return the pairs of some windows; what is published later than ``delay`` was not known.

    Of values that cover several windows one is a target: the same value twelve times is no evidence of twelve.
    """
    if not targets:
        return None
    by_origin: defaultdict[int, list[int]] = defaultdict(list)
    for window in targets:
        for origin in origins_of(window):
            by_origin[origin].append(window)
    first = window_at(targets[0] - MAX_LEAD) - timedelta(days=HISTORY_DAYS)
    history = read_history(tx, key, first, window_at(targets[-1] + 1))
    if np.isnan(history.values).all():
        return None
    issued = _issues(tx, key)
    found: list[Pairs] = []
    for origin, ahead in by_origin.items():
        windows = np.array(ahead, dtype=np.int64)
        seen = history.slice(origin - HISTORY_DAYS * WINDOWS_A_DAY, origin - delay)
        known = evidence(Known(origin, [issued(origin - age) for age in ISSUE_AGES], seen), windows)
        found.append(Pairs.of(known, history.at(windows)))
    return Pairs.joined(found)


def _issues(tx: Tx, key: tuple[str, Signal, str]) -> Callable[[int], Series]:
    """Return a function that tells which forecast was the newest in a window; each is read once."""
    by_window: dict[int, Series] = {}

    def issued(window: int) -> Series:
        if window not in by_window:
            found = forecasts.newest_forecast(tx, key[0], key[1], window_at(window) + _MOMENT, source=key[2])
            by_window[window] = EMPTY if found is None else series(found)
        return by_window[window]

    return issued

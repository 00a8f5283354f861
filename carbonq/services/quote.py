"""Say what a job would cause, now and over deadlines and regions, without storing anything.

Accepted work keeps its place; the new chunks take what is left. The estimates, the cut into chunks and the baseline are
those of a submit, but for chunks being taken as equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from carbonq import chunking, estimate
from carbonq.clock import Clock
from carbonq.estimate import Speed
from carbonq.model import Model, Region, RegionState, Signal, Throughput
from carbonq.plan import hardware, policy
from carbonq.plan.capacity import window_starts
from carbonq.plan.outlook import Outlook
from carbonq.plan.quote import Baseline, Point, Quoter, Work, baseline_of
from carbonq.services.accepted import Asked, Fleet, shortage
from carbonq.services.free import NO_LOAD, free_lanes, read_load
from carbonq.services.outlook import load_outlook
from carbonq.store import accepted, sources
from carbonq.store.database import Database
from carbonq.units import WINDOW_S, window_at, window_index

#: The deadlines of the curve, in hours from now, as far as the outlook goes.
CURVE_HOURS = (1, 3, 6, 12, 24, 48)

#: The longest horizon in windows (a week), as in planning.
MAX_HORIZON = 2016

#: Single regions on the curve at most.
MAX_SINGLES = 20

#: Names of the region sets that are not one region's own.
HOME, ALL = "home", "all"


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be quoted: items of about this many tokens together, the longest one of ``longest_item``."""

    items: int
    tokens: int
    longest_item: int
    regions: tuple[str, ...] | None = None
    deadline_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """What the estimate says of all the work in one region: machine seconds on one slot, and energy."""

    region: Region
    speed: Speed
    work_s: float
    energy_uj: int
    issued_at: datetime | None
    is_known: bool


@dataclass(frozen=True, slots=True)
class SetPoint:
    """A point of the curve; ``name`` is ``home``, ``all`` or a region's own. Times are grid times."""

    name: str
    point: Point
    deadline_at: datetime | None
    start_at: datetime | None
    finish_at: datetime | None


@dataclass(frozen=True, slots=True)
class BaselineFacts:
    """The work at home, first come first served, with home's own hardware; grams None where no rate is known then."""

    region: str
    grams: float | None
    spread_g: float | None
    start_at: datetime
    finish_at: datetime


@dataclass(frozen=True, slots=True)
class Quote:
    """What a job would cause. ``asked`` is None without a deadline; ``regions`` are the outlook's rows.

    ``shortage`` is asked for where the deadline is not met beside accepted work that stays in its place: what submit
    would say, that is how much cannot be in time however accepted work is moved. None: all of it may be.
    """

    now: datetime
    signal: Signal
    regions: tuple[str, ...]
    chunks: int
    sites: tuple[Site, ...]
    baseline: BaselineFacts | None
    asked: SetPoint | None
    shortage: str | None
    curve: tuple[SetPoint, ...]
    known_until_at: datetime | None
    notes: tuple[str, ...]


def quote(
    db: Database,
    ask: Ask,
    model: Model,
    *,
    regions: Sequence[Region],
    home_region: str,
    clock: Clock,
    chunk_fill: float,
    max_chunk_items: int,
    throughputs: Mapping[tuple[str, str], Throughput],
    max_stale_s: float,
    models: Mapping[str, Model] | None = None,
    price_weight_g: float = 0.0,
) -> Quote:
    """Return what ``ask`` would cause; nothing is written and nothing locked.

    ``regions`` are all of the installation's as they are now, ``models`` those that accepted work may be of,
    ``price_weight_g`` the grams that one unit of price weighs; that the ask makes sense is checked by
    ``meaning.check_meaning``. Raises StoreUnavailable.
    """
    now = clock.now()
    home = next((region for region in regions if region.name == home_region), None)
    shown = [region for region in regions if region.serves(model.name) or region is home]
    windows = _horizon(ask, now)
    with db.read() as tx:
        signal = sources.decision_signal(tx)
        load = read_load(tx, now, windows, clock.factor)
        free_at = [] if home is None else accepted.baseline_free_at(tx, home.name, home.slots, now)
    outlook = load_outlook(db, shown, now, windows, max_stale_s, signal=signal)
    left_s = (window_at(outlook.first_window + 1) - now).total_seconds()
    quoter = Quoter(outlook, free_lanes(shown, load, now, windows), window_starts(now, windows), left_s)
    estimates = _Estimates(
        ask,
        model,
        shown,
        throughputs,
        home=home_region,
        factor=clock.factor,
        chunk_fill=chunk_fill,
        max_chunk_items=max_chunk_items,
        price_weight_g=price_weight_g,
    )
    curve = _Curve(
        ask, now, regions=shown, home=home, quoter=quoter, outlook=outlook, estimates=estimates, free_at=free_at
    )
    made = curve.quote(signal)
    if made.asked is None or made.asked.point.is_met or ask.deadline_at is None:
        return made
    empty = free_lanes(shown, NO_LOAD, now, windows)
    alone = curve.asked(Quoter(outlook, empty, window_starts(now, windows), left_s))
    if not alone.is_met:
        return replace(made, shortage="not even with all slots of its regions to itself")
    fleet = Fleet(regions, {**(models or {}), model.name: model}, throughputs, now=now, factor=clock.factor)
    asked = Asked(model, ask.regions, ask.tokens, estimates.longest_chunk_s, ask.deadline_at)
    with db.read() as tx:
        return replace(made, shortage=shortage(tx, fleet, asked))


class _Estimates:
    """The work by region, cut into chunks that suit a deadline."""

    def __init__(
        self,
        ask: Ask,
        model: Model,
        regions: Sequence[Region],
        throughputs: Mapping[tuple[str, str], Throughput],
        *,
        home: str,
        factor: float,
        chunk_fill: float,
        max_chunk_items: int,
        price_weight_g: float,
    ) -> None:
        self.ask, self.factor, self._model, self._home = ask, factor, model, home
        self._price_weight_g = price_weight_g
        self._regions, self._learned = regions, throughputs
        self.speeds = [estimate.speed(model, region.hardware, throughputs) for region in regions]
        allowed = estimate.allowed_regions(regions, ask.regions, model.name)
        self.allowed = [row for row, region in enumerate(regions) if region in allowed]
        self._margin = policy.duration_margin(model.name, [one.hardware for one in allowed], throughputs)
        self._chunk_fill, self._max_chunk_items = chunk_fill, max_chunk_items

    @property
    def longest_chunk_s(self) -> float:
        """Machine seconds of a chunk on the slowest allowed hardware, where there is time for a whole one."""
        slowest = min(self.speeds[row].tokens_per_s for row in self.allowed)
        return max(self.ask.tokens / self.work(math.inf).chunks, self.ask.longest_item) / slowest

    def work(self, left_s: float) -> Work:
        """Return the chunks of a job whose deadline is ``left_s`` grid seconds away."""
        slowest = min(self.speeds[row].tokens_per_s for row in self.allowed)
        # A whole window's budget where there is time; less for a deadline that is near (``chunking.budget_s``).
        longest_s = chunking.budget_s(
            min(left_s, 10.0 * WINDOW_S),
            policy.guard_s(0.0, self.factor),
            chunk_fill=self._chunk_fill,
            factor=self.factor,
        )
        by_tokens = math.ceil(self.ask.tokens / max(longest_s * slowest, 1.0))
        chunks = min(self.ask.items, max(1, by_tokens, math.ceil(self.ask.items / self._max_chunk_items)))
        # Of equal chunks none is shorter than the longest item, which is never cut.
        tokens = self.ask.tokens / chunks
        machine_s = np.array([tokens / speed.tokens_per_s for speed in self.speeds])
        energy_uj = np.array([tokens * speed.uj_per_token for speed in self.speeds])
        return Work(
            chunks=chunks,
            duration_s=(machine_s + policy.TURNOVER_S) * self.factor,
            energy_uj=energy_uj,
            extra_g=np.array([self._extra_g(round(tokens), region) for region in self._regions]),
            guard_s=policy.guard_s(max(tokens, self.ask.longest_item) / slowest, self.factor, self._margin),
            price_g=hardware.weighted_price_g(self._regions, energy_uj, self._price_weight_g),
        )

    def _extra_g(self, tokens: int, region: Region) -> float:
        return hardware.extra_g(tokens, 0.0, region, self._model, self._learned, home=self._home)


class _Curve:
    """One quote being made."""

    def __init__(
        self,
        ask: Ask,
        now: datetime,
        *,
        regions: Sequence[Region],
        home: Region | None,
        quoter: Quoter,
        outlook: Outlook,
        estimates: _Estimates,
        free_at: list[datetime],
    ) -> None:
        self.ask, self.now, self.regions, self.home, self.outlook = ask, now, regions, home, outlook
        self.quoter, self.estimates = quoter, estimates
        active = [row for row in estimates.allowed if regions[row].state is RegionState.ACTIVE]
        # With no worker anywhere (everything is just starting) a quote is still better than none, as with a plan.
        self.usable = [row for row in active if regions[row].is_healthy] or active
        self.baseline = None if home is None else self._baseline(regions.index(home), free_at)

    def quote(self, signal: Signal) -> Quote:
        known_s = self.quoter.known_until_s(self.usable) if self.usable else 0.0
        hours: list[float | None] = [None, *(one * 3600.0 for one in CURVE_HOURS if one * 3600 <= known_s)]
        asked_s = None if self.ask.deadline_at is None else (self.ask.deadline_at - self.now).total_seconds()
        return Quote(
            now=self.now,
            signal=signal,
            regions=self.outlook.regions,
            chunks=self.estimates.work(math.inf).chunks,
            sites=tuple(self._site(row) for row in self.estimates.allowed),
            baseline=self._baseline_facts(),
            asked=None if asked_s is None or not self.usable else self._point(ALL, self.usable, asked_s),
            shortage=None,
            curve=tuple(self._point(name, rows, one) for one in hours for name, rows in self._sets()),
            known_until_at=self.now + timedelta(seconds=known_s) if known_s else None,
            notes=tuple(self._notes()),
        )

    def asked(self, quoter: Quoter) -> Point:
        """Return what comes of the asked deadline in other room than the present one."""
        assert self.ask.deadline_at is not None
        left_s = (self.ask.deadline_at - self.now).total_seconds()
        return quoter.point(self.estimates.work(left_s), self.usable, left_s)

    def _sets(self) -> list[tuple[str, list[int]]]:
        if not self.usable:
            return []
        sets: list[tuple[str, list[int]]] = []
        if self.home is not None and (row := self.regions.index(self.home)) in self.usable:
            sets.append((HOME, [row]))
        singles = [row for row in self.usable if self.regions[row] is not self.home]
        sets += [(self.regions[row].name, [row]) for row in singles[:MAX_SINGLES]]
        return [*sets, (ALL, self.usable)] if len(self.usable) > 1 else sets

    def _point(self, name: str, rows: Sequence[int], deadline_s: float | None) -> SetPoint:
        work = self.estimates.work(math.inf if deadline_s is None else deadline_s)
        found = self.quoter.point(work, rows, deadline_s, self.baseline)
        first = found.first_window
        return SetPoint(
            name=name,
            point=found,
            deadline_at=None if deadline_s is None else self.now + timedelta(seconds=deadline_s),
            start_at=None if first is None else max(self.now, self.outlook.window_at(first)),
            finish_at=None if found.finish_s is None else self.now + timedelta(seconds=found.finish_s),
        )

    def _site(self, row: int) -> Site:
        speed, tokens = self.estimates.speeds[row], self.ask.tokens
        return Site(
            region=self.regions[row],
            speed=speed,
            work_s=estimate.duration_s(tokens, speed.tokens_per_s),
            energy_uj=estimate.energy_uj(tokens, speed.uj_per_token),
            issued_at=self.outlook.issued_at[row],
            is_known=not bool(np.isnan(self.outlook.g_per_kwh[row]).all()),
        )

    def _baseline(self, home: int, free_at: list[datetime]) -> Baseline:
        """Queue the chunks up behind what the baseline's queue holds already, as the ledger will."""
        work = self.estimates.work(math.inf)
        # Without the time between two chunks: the ledger's baseline leaves it out too.
        duration_s = float(work.duration_s[home]) - policy.TURNOVER_S * self.estimates.factor
        starts = [chunking.queue_up(free_at, self.now, duration_s) for _ in range(work.chunks)]
        finish_s = (max(starts) - self.now).total_seconds() + duration_s
        columns = [window_index(at) - self.outlook.first_window for at in starts]
        return baseline_of(columns, home, self.outlook.windows, finish_s)

    def _baseline_facts(self) -> BaselineFacts | None:
        if self.baseline is None or self.home is None:
            return None
        grams, spread = self.quoter.baseline_grams(self.estimates.work(math.inf), self.baseline)
        columns = np.flatnonzero(self.baseline.counts)
        first = int(columns[0]) if len(columns) else self.outlook.windows
        return BaselineFacts(
            region=self.home.name,
            grams=grams,
            spread_g=spread,
            start_at=max(self.now, self.outlook.window_at(first)),
            finish_at=self.now + timedelta(seconds=self.baseline.finish_s),
        )

    def _notes(self) -> list[str]:
        notes: list[str] = []
        away = [self.regions[row].name for row in self.estimates.allowed if row not in self.usable]
        if away:
            notes.append(f"not counted on, because paused or without a live worker: {', '.join(away)}")
        blind = [self.regions[row].name for row in self.usable if np.isnan(self.outlook.g_per_kwh[row]).all()]
        if blind:
            notes.append(f"no rate is known of {', '.join(blind)}, so nothing is said of grams there")
        if any(not self.estimates.speeds[row].is_learned for row in self.usable):
            notes.append("speed or energy is the model's starting value where nothing has run yet; it may be far off")
        if self.baseline is not None and self.baseline.beyond:
            notes.append("the baseline's queue at home reaches beyond the outlook, so no saving can be said")
        return notes


def _horizon(ask: Ask, now: datetime) -> int:
    """Return the windows to look ahead: the whole curve, and the asked deadline with a day for what comes late."""
    hours = max(CURVE_HOURS)
    if ask.deadline_at is not None:
        hours = max(hours, (ask.deadline_at - now).total_seconds() / 3600 + 24)
    return min(MAX_HORIZON, math.ceil(hours * 3600 / WINDOW_S) + 1)

"""Explain where a job's chunks are: chunks alike together, the dirtiest of each group for all of it.

The outlook it was placed by is put together again from the forecasts and observations that are kept, and is believed if
it says of the placement's own cell what the placement was decided by. Which cells are full is as it is known now.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from carbonq.clock import Clock
from carbonq.errors import InvalidRequest
from carbonq.model import ChunkState, DowngradeReason, Job, LatePolicy, Model, Region, RegionState, Signal, Throughput
from carbonq.plan import capacity, hardware, policy
from carbonq.plan.because import Facts, because
from carbonq.plan.capacity import window_starts
from carbonq.plan.outlook import Outlook
from carbonq.plan.taken import lanes_taken
from carbonq.plan.why import Case, Explained, explain
from carbonq.services.free import read_held
from carbonq.services.outlook import load_outlook
from carbonq.store import explained
from carbonq.store.database import Database
from carbonq.store.explained import ChunkFacts, HeldBy
from carbonq.units import UJ_PER_KWH, WINDOW, window_index, window_of

#: Plans whose outlooks are put together again for one page; groups of older ones are told by the present outlook.
MOST_MOMENTS = 4

#: The longest outlook put together, in windows: a week, as in planning.
MAX_WINDOWS = 2016

#: How far past the last deadline cleaner windows are looked for: twelve hours.
WINDOWS_AFTER = 144


#: Why a smaller model runs work than was asked for.
_SMALLER: Mapping[str, str] = {
    DowngradeReason.BUDGET: "a carbon budget says to downgrade what does not fit it",
    DowngradeReason.POLICY: "the installation's settings send such work there (`[tiers]`)",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Chunks alike but for their windows, and what was found of ``dirtiest``, the one of the highest rate.

    ``outlook`` is the one compared with; both None: nothing to compare. ``grams`` is what all of them cause by the
    rates they were placed by, None where one is not known.
    """

    chunks: tuple[ChunkFacts, ...]
    dirtiest: ChunkFacts
    sentences: tuple[str, ...]
    found: Explained | None
    outlook: Outlook | None
    is_rebuilt: bool
    rate_now: float | None
    grams: float | None


@dataclass(frozen=True, slots=True)
class WhyPage:
    """A page of groups by window, and what is to be said of the whole job."""

    now: datetime
    summary: str
    groups: tuple[Group, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class World:
    """What placements are explained by.

    ``margin`` is the gain below which nothing moves, as a share; ``price_weight_g`` the grams that one unit of price
    weighs.
    """

    regions: Sequence[Region]
    models: Mapping[str, Model]
    learned: Mapping[tuple[str, str], Throughput]
    max_stale_s: float
    margin: float
    price_weight_g: float = 0.0


def why(db: Database, job: Job, world: World, clock: Clock, *, after: str | None = None, limit: int = 20) -> WhyPage:
    """Explain a page of a job's groups; ``after`` is the id of the first chunk of the page before's last group.

    Raises InvalidRequest for an ``after`` that is none, StoreUnavailable.
    """
    now = clock.now()
    with db.read() as tx:
        found = explained.of_job(tx, job.job_id)
    groups = _grouped(found)
    start = 0
    if after is not None:
        place = next((place for place, group in enumerate(groups) if group[0].chunk_id == after), None)
        if place is None:
            raise InvalidRequest(f"after is {after!r}, not the last_id of a page of this job", param="after")
        start = place + 1
    page = groups[start : start + limit]
    until_at = max((max(one.deadline_at, one.window_at or one.deadline_at) for one in found), default=now)
    teller = _Teller(db, job, world, clock.factor, now=now, until_at=until_at)
    return WhyPage(
        now=now,
        summary=_nothing_of(job) if not found else summary_of(found, groups, job.model),
        groups=tuple(teller.tell(group) for group in page),
        has_more=start + limit < len(groups),
    )


def _nothing_of(job: Job) -> str:
    """Say why a job has no chunks."""
    if job.is_final or job.items_succeeded + job.items_failed + job.items_expired + job.items_cancelled:
        return "The job has no chunks: it ended before any were made, or they are not kept any more."
    if job.is_cancel_requested:
        return "The job has no chunks: it is being cancelled, and none will be made."
    return "The job has no chunks yet: they are made within seconds, and planned at once."


def summary_of(found: Sequence[ChunkFacts], groups: Sequence[Sequence[ChunkFacts]], model: str) -> str:
    """Say in a sentence or two where all the chunks are and why; there is at least one. ``model`` was asked for."""
    reasons = Counter("never run" if _is_never_run(one) else _reason(one) for one in found)
    placed = [one for one in found if not _is_never_run(one)]
    regions = Counter(one.region for one in placed if one.region is not None)
    windows = [one.window_at for one in placed if one.window_at is not None]
    many = len(found) != 1
    text = f"{len(found):,} chunk{'s' if many else ''} in {len(groups):,} group{'s' if len(groups) != 1 else ''}"
    text += "; reasons: " + ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
    if windows:
        text += "; regions: " + ", ".join(f"{name} {count:,}" for name, count in regions.most_common())
        first, last = f"{min(windows):%d %b %H:%MZ}", f"{max(windows):%d %b %H:%MZ}"
        text += f"; window {first}" if first == last else f"; windows from {first} to {last}"
    return text + "." + _downgraded(found, model)


def _downgraded(found: Sequence[ChunkFacts], model: str) -> str:
    """Say how many items a smaller model runs than was asked for, and why; nothing where none does."""
    counts: Counter[tuple[str, str]] = Counter()
    for one in found:
        if one.downgraded is not None:
            counts[one.model, one.downgraded] += one.items
    return "".join(
        f" {items:,} item{'s are' if items != 1 else ' is'} for {name} instead of {model}: {_SMALLER[reason]}."
        for (name, reason), items in sorted(counts.items())
    )


def _is_never_run(one: ChunkFacts) -> bool:
    """Say whether all it held was cancelled or expired before a worker took it."""
    return one.state is ChunkState.DONE and not one.has_run


def _reason(one: ChunkFacts) -> str:
    return "held by a budget" if one.held_by is not None else one.reason or "no place yet"


def _grouped(found: Sequence[ChunkFacts]) -> list[list[ChunkFacts]]:
    groups: dict[tuple[object, ...], list[ChunkFacts]] = {}
    for one in found:
        key = (
            *(one.region, one.window_at is None, one.state, one.has_ticket, one.has_run),
            *(one.reason, one.planned_at, one.signal),
            *(one.model, one.regions, one.deadline_at, hardware.round_to_digits(one.est_tokens, 1)),
            *(one.downgraded, one.held_by, one.error is None),
        )
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _never_run(count: int) -> str:
    subject, held = ("1 chunk", "it") if count == 1 else (f"{count:,} chunks", "they")
    return f"{subject} never ran: what {held} held was cancelled, or expired, before a worker took it."


def _held_back(count: int, by: HeldBy) -> str:
    subject, wait = ("1 chunk is", "It waits") if count == 1 else (f"{count:,} chunks are", "They wait")
    until = "" if by.until is None else f" until {by.until:%Y-%m-%dT%H:%MZ}"
    what = "a window that is clean enough for each item" if by.until is None else "room in it, or its next period"
    return (
        f"{subject} held back by the budget of {by.level.replace('_', ' ')} {by.name!r}{until}. {wait} for {what}: a "
        "budget's cap comes before a deadline."
    )


class _Teller:
    """Tells of groups, one after another, and keeps the outlooks it put together."""

    def __init__(
        self, db: Database, job: Job, world: World, factor: float, *, now: datetime, until_at: datetime
    ) -> None:
        self._db, self._job, self._world, self._factor = db, job, world, factor
        self._now, self._until_at = now, until_at
        self._outlooks: dict[tuple[datetime, Signal], Outlook] = {}
        self._free: dict[datetime, npt.NDArray[np.int64]] = {}

    def tell(self, group: Sequence[ChunkFacts]) -> Group:
        # An unknown rate counts as the worst.
        first = max(group, key=lambda one: math.inf if one.g_per_kwh is None else float(one.g_per_kwh))
        if _is_never_run(first):
            return Group(tuple(group), first, (_never_run(len(group)),), None, None, False, None, None)
        if first.region is None or first.window_at is None:
            lines = (self._waiting(group), *self._trouble(first))
            return Group(tuple(group), first, lines, None, None, False, None, None)
        signal = Signal(first.signal or Signal.MOER)
        present = self._outlook(self._now, signal, first)
        rate_now = None if present is None else _rate(present, first)
        then = None
        if first.planned_at is not None and window_of(first.planned_at) <= first.window_at:
            then = self._outlook(first.planned_at, signal, first)
        is_rebuilt = then is not None and first.g_per_kwh is not None and _rate(then, first) == first.g_per_kwh
        has_begun = first.state is not ChunkState.PLACED or first.has_ticket or first.has_run
        # What has begun cannot be compared with what is free from now on.
        chosen = then if is_rebuilt else None if has_begun else present
        at = first.planned_at if is_rebuilt and first.planned_at is not None else self._now
        case = None if chosen is None else self._case(chosen, first, at)
        found = None
        if chosen is not None and case is not None and first.reason not in {"at_once", "overlay"}:
            found = explain(
                case,
                chosen,
                self._lanes(at, chosen.windows),
                window_starts(at, chosen.windows),
                own_g_per_kwh=None if first.g_per_kwh is None else float(first.g_per_kwh),
                margin=self._world.margin,
            )
        is_over = first.window_at + WINDOW <= self._now
        windows = {one.window_at for one in group if one.window_at is not None}
        known = [float(one.g_per_kwh) for one in group if one.g_per_kwh is not None]
        facts = Facts(
            windows=len(windows),
            first_at=min(windows),
            last_at=max(windows),
            lowest_g_per_kwh=min(known, default=None),
            chunks=len(group),
            state=first.state,
            reason=first.reason,
            region=first.region,
            window_at=first.window_at,
            deadline_at=first.deadline_at,
            latest_start_at=first.latest_start_at,
            g_per_kwh=None if first.g_per_kwh is None else float(first.g_per_kwh),
            issued_at=first.issued_at,
            signal=signal,
            basis=None
            if case is None or chosen is None or not is_rebuilt
            else chosen.basis_of(case.region, case.window),
            planned_at=first.planned_at,
            rate_now=None if is_over or rate_now is None else float(rate_now),
            is_rebuilt=is_rebuilt or found is None,
            margin=self._world.margin,
            max_g=self._cap(first),
        )
        lines = because(facts, found, chosen) if chosen is not None else because(facts, None, _nothing())
        lines += self._trouble(first)
        rate = None if rate_now is None else float(rate_now)
        shown = None if found is None else chosen
        return Group(tuple(group), first, tuple(lines), found, shown, is_rebuilt, rate, self._grams(group))

    def _grams(self, group: Sequence[ChunkFacts]) -> float | None:
        regions = {region.name: region for region in self._world.regions}
        total = 0.0
        for one in group:
            region = regions.get(one.region or "")
            if region is None or one.g_per_kwh is None:
                return None
            model = self._world.models.get(one.model)
            energy = hardware.energy_uj(one.est_tokens, one.est_energy_uj, region, model, self._world.learned)
            total += energy / UJ_PER_KWH * float(region.pue) * float(one.g_per_kwh)
        return total

    def _waiting(self, group: Sequence[ChunkFacts]) -> str:
        many = len(group) != 1
        if group[0].held_by is not None:
            return _held_back(len(group), group[0].held_by)
        regions = {region.name: region for region in self._world.regions}
        allowed = [regions[name] for name in group[0].regions or regions if name in regions]
        able = [one for one in allowed if one.serves(group[0].model) and one.state is RegionState.ACTIVE]
        if not able:
            return (
                f"{len(group):,} chunk{'s have' if many else ' has'} no place: no region that the job may use serves "
                f"{group[0].model} and takes work now."
            )
        return f"{len(group):,} chunk{'s have' if many else ' has'} no place yet; the planner runs every few seconds."

    def _trouble(self, first: ChunkFacts) -> list[str]:
        """Say why what is still open was given back, and what becomes of it after its deadline."""
        if first.state is ChunkState.DONE:
            return []
        lines = [] if first.error is None else [f"Its last try failed: {first.error.rstrip('.')}."]
        if self._now > first.deadline_at:
            late = "it goes on, late" if self._job.late_policy is LatePolicy.FINISH_LATE else "what waits of it expires"
            lines.append(f"Its deadline {first.deadline_at:%d %b %H:%MZ} has passed: {late}.")
        return lines

    def _outlook(self, at: datetime, signal: Signal, first: ChunkFacts) -> Outlook | None:
        """Return the outlook as it was at a time; None where too many were asked for, or the window is not in it."""
        key = (at, signal)
        if key not in self._outlooks:
            if len(self._outlooks) >= MOST_MOMENTS and at != self._now:
                return None
            ahead = max(0, math.ceil((self._until_at - at) / WINDOW))
            windows = min(MAX_WINDOWS, ahead + WINDOWS_AFTER)
            self._outlooks[key] = load_outlook(
                self._db, self._world.regions, at, windows, self._world.max_stale_s, signal=signal
            )
        made = self._outlooks[key]
        return made if first.window_at is not None and 0 <= _column(made, first.window_at) < made.windows else None

    def _lanes(self, at: datetime, windows: int) -> npt.NDArray[np.int64]:
        """Return the lanes that are free of everything that is or was placed from a time on."""
        if at not in self._free or self._free[at].shape[1] < windows:
            start = window_of(at)
            with self._db.read() as tx:
                held, long = read_held(tx, start, start + windows * WINDOW, self._factor, with_ended=True)
            made = capacity.build(self._world.regions, now=at, windows=windows, running_s={}, due_s={})
            taken = lanes_taken(held, long, made.regions, made.first_window, windows)
            self._free[at] = made.slots - taken
        return self._free[at][:, :windows]

    def _case(self, outlook: Outlook, first: ChunkFacts, at: datetime) -> Case | None:
        regions = self._world.regions
        names = [region.name for region in regions]
        if first.region not in names or first.window_at is None:
            return None  # the region left the settings
        allowed = [row for row, name in enumerate(names) if first.regions is None or name in first.regions]
        latest_at = first.latest_start_at or policy.latest_safe_start(
            first.deadline_at, first.est_duration_s, self._factor
        )
        model = self._world.models.get(first.model)
        cap = self._cap(first)
        tokens, duration_s = first.est_tokens, first.est_duration_s
        energies = [
            hardware.energy_uj(tokens, first.est_energy_uj, region, model, self._world.learned) for region in regions
        ]
        energy_uj = np.array(energies, dtype=np.float64)
        return Case(
            region=names.index(first.region),
            window=_column(outlook, first.window_at),
            release_s=max(0.0, (first.release_at - at).total_seconds()),
            latest_s=(latest_at - at).total_seconds(),
            duration_s=(duration_s + policy.TURNOVER_S) * self._factor,
            energy_uj=energy_uj,
            extra_g=np.array(
                [
                    hardware.extra_g(tokens, duration_s, region, model, self._world.learned, home=first.home)
                    for region in regions
                ]
            ),
            allowed=frozenset(allowed),
            usable=frozenset(
                row for row in allowed if regions[row].serves(first.model) and regions[row].state is RegionState.ACTIVE
            ),
            max_g=math.inf if cap is None else cap,
            price_g=hardware.weighted_price_g(regions, energy_uj, self._world.price_weight_g),
        )

    def _cap(self, first: ChunkFacts) -> float | None:
        """Return the grams that the job's carbon cap leaves to a chunk, by its share of the tokens."""
        cap: Decimal | None = self._job.max_carbon_g
        return None if cap is None else float(cap) * first.est_tokens / max(self._job.est_tokens, 1)


def _rate(outlook: Outlook, first: ChunkFacts) -> Decimal | None:
    if first.region not in outlook.regions or first.window_at is None:
        return None
    return outlook.rate(outlook.regions.index(first.region), _column(outlook, first.window_at))


def _column(outlook: Outlook, at: datetime) -> int:
    return window_index(at) - outlook.first_window


def _nothing() -> Outlook:
    """Return an outlook that is never looked into."""
    empty = np.empty((0, 0))
    return Outlook((), 0, empty, empty.astype(np.int8), (), np.empty(0))

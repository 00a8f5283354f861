"""Place every waiting chunk, and move placed ones where that pays: read, plan, write in one batch.

Runs on the slow control queue every few seconds and at once after chunks were made. It rests while nothing it depends
on has changed. The solver runs outside any transaction; what was dispatched meanwhile is left alone.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from carbonq import estimate, ids
from carbonq.clock import Clock
from carbonq.model import Chunk, ChunkState, Region, RegionState, Signal, Throughput
from carbonq.plan import capacity, planner, policy
from carbonq.plan.planner import ChunkNeed, Plan
from carbonq.services.outlook import load_outlook
from carbonq.store import chunks as chunk_rows
from carbonq.store import placements, sources, throughputs
from carbonq.store import regions as region_rows
from carbonq.store.database import Database
from carbonq.store.placements import Busy, NewPlacement, NewPlan
from carbonq.units import WINDOW_S, window_index

#: The shortest and longest horizon in windows: three hours, a week. Later deadlines are planned when they come nearer.
MIN_HORIZON, MAX_HORIZON = 36, 2016


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What a round of planning did; ``plan_id`` None: nothing to plan, or nothing had changed."""

    plan_id: str | None = None
    chunks: int = 0
    placed: int = 0
    moved: int = 0
    late: int = 0
    unplaced: int = 0
    is_overlay: bool = False
    objective_g: float | None = None
    lower_bound_g: float | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _State:
    """What is read at the beginning."""

    now: datetime
    factor: float
    regions: list[Region]
    chunks: list[Chunk]
    busy: list[Busy]
    backoffs: Mapping[str, float]
    caps: Mapping[str, Decimal]
    inputs: str
    last_inputs: str | None
    signal: Signal
    learned: Mapping[tuple[str, str], Throughput]

    def margin(self, chunk: Chunk) -> float:
        """The share of a chunk's estimated duration to keep free on top, wherever it may run."""
        allowed = estimate.allowed_regions(self.regions, chunk.regions, chunk.model)
        return policy.duration_margin(chunk.model, [region.hardware for region in allowed], self.learned)


def plan_waiting(
    db: Database,
    clock: Clock,
    *,
    margin: float = 0.03,
    worker_alive_s: float = 15.0,
    max_stale_s: float = 7200.0,
    is_forced: bool = False,
) -> PlanSummary:
    """Plan all chunks that are waiting or placed with no ticket out. Idempotent; safe beside a dispatcher.

    ``margin`` is the relative gain below which nothing moves; ``max_stale_s`` is grid seconds, ``worker_alive_s``
    machine seconds. Raises StoreUnavailable.
    """
    started = time.monotonic()
    state = _read(db, clock, worker_alive_s)
    is_new = any(chunk.state is ChunkState.WAITING for chunk in state.chunks)
    if not state.chunks or not (is_new or is_forced or state.inputs != state.last_inputs):
        return PlanSummary()
    due, free = _split(state)
    needs = [_need(state, chunk) for chunk in free]
    windows = _horizon(state, needs)
    active = [region for region in state.regions if region.state is RegionState.ACTIVE]
    if not active:
        return PlanSummary(chunks=len(free), unplaced=len(free))
    outlook = load_outlook(db, active, state.now, windows, max_stale_s, signal=state.signal)
    lanes = capacity.build(
        active,
        now=state.now,
        windows=windows,
        running_s=_running_s(state),
        due_s=_due_s(state, due),
    )
    made = planner.plan(needs, outlook, lanes, now=state.now, margin=margin)
    return _write(db, state, made, time.monotonic() - started)


def _read(db: Database, clock: Clock, worker_alive_s: float) -> _State:
    with db.read() as tx:
        found = chunk_rows.plannable(tx)
        now = clock.now()
        regions = region_rows.load_all(tx, worker_alive_s=worker_alive_s)
        states = ",".join(f"{region.name}={region.state.value[0]}{region.is_healthy:d}" for region in regions)
        signal = sources.decision_signal(tx)
        newest = placements.newest_forecast_id(tx, signal)
        return _State(
            now=now,
            factor=clock.factor,
            regions=regions,
            chunks=found,
            busy=placements.busy(tx) if found else [],
            backoffs=placements.backoffs(tx) if found else {},
            caps=placements.caps(tx) if found else {},
            inputs=f"window {window_index(now)}; {signal.value} forecast {newest}; regions {states}",
            signal=signal,
            learned=throughputs.get_all(tx) if found else {},
            last_inputs=placements.last_inputs(tx) if found else None,
        )


def _running_s(state: _State) -> dict[str, list[float]]:
    """Return the grid seconds that running chunks still need, by region."""
    left: defaultdict[str, list[float]] = defaultdict(list)
    for one in state.busy:
        if one.elapsed_s is not None:
            # An overdue chunk is taken to need another tenth of its estimate, never nothing.
            still = max(one.est_duration_s - one.elapsed_s, one.est_duration_s / 10)
            left[one.region].append(still * state.factor)
    return left


def _due_s(state: _State, due: Sequence[Chunk]) -> dict[str, list[float]]:
    """Return the grid seconds of chunks that take the next free slots, by region: tickets out first."""
    ahead: defaultdict[str, list[float]] = defaultdict(list)
    for one in state.busy:
        if one.elapsed_s is None:
            ahead[one.region].append(one.est_duration_s * state.factor)
    for chunk in due:
        assert chunk.region is not None
        ahead[chunk.region].append(chunk.est_duration_s * state.factor)
    return ahead


def _split(state: _State) -> tuple[list[Chunk], list[Chunk]]:
    """Part the chunks into those that are about to start where they are, and those to be planned.

    A placed chunk whose window has come waits only for the next free slot of its region. It stays there, unless that
    is more than a window or its latest safe start away, or the region went away.
    """
    regions = {region.name: region for region in state.regions}
    lanes: dict[str, list[float]] = {}
    running, ahead = _running_s(state), _due_s(state, ())
    for name, region in regions.items():
        busy = running.get(name, [])
        lanes[name] = [0.0] * max(0, region.slots - len(busy)) + busy
        heapq.heapify(lanes[name])
        for seconds in ahead.get(name, ()):
            heapq.heapreplace(lanes[name], lanes[name][0] + seconds)
    due: list[Chunk] = []
    free: list[Chunk] = []
    for chunk in sorted(state.chunks, key=lambda chunk: (chunk.latest_start_at or chunk.deadline_at, chunk.chunk_id)):
        region = regions.get(chunk.region or "")
        has_come = chunk.state is ChunkState.PLACED and chunk.window_at is not None and chunk.window_at <= state.now
        if (
            not has_come
            or region is None
            or not policy.may_start(region, chunk.model)
            or chunk.chunk_id in state.backoffs
        ):
            free.append(chunk)
            continue
        wait = lanes[region.name][0]
        latest = chunk.latest_start_at or chunk.deadline_at
        if wait > WINDOW_S or 0 < wait > (latest - state.now).total_seconds():
            free.append(chunk)
            continue
        heapq.heapreplace(lanes[region.name], wait + chunk.est_duration_s * state.factor)
        due.append(chunk)
    return due, free


def _need(state: _State, chunk: Chunk) -> ChunkNeed:
    allowed = [
        region
        for region in state.regions
        if (chunk.regions is None or region.name in chunk.regions)
        and region.serves(chunk.model)
        and region.state is RegionState.ACTIVE
    ]
    # With no worker anywhere (everything is just starting) a plan is still better than none.
    healthy = [region for region in allowed if region.is_healthy] or allowed
    wait_s = state.backoffs.get(chunk.chunk_id, 0.0) * state.factor
    placed = chunk.state is ChunkState.PLACED and chunk.region is not None and chunk.window_at is not None
    return ChunkNeed(
        chunk_id=chunk.chunk_id,
        release_at=max(chunk.release_at, state.now + timedelta(seconds=wait_s)),
        deadline_at=chunk.deadline_at,
        duration_s=(chunk.est_duration_s + policy.TURNOVER_S) * state.factor,
        energy_uj=chunk.est_energy_uj,
        regions=tuple(region.name for region in healthy),
        model=chunk.model,
        current=(chunk.region, chunk.window_at) if placed and chunk.region and chunk.window_at else None,
        max_g=state.caps.get(chunk.chunk_id),
        guard_s=policy.guard_s(chunk.est_duration_s, state.factor, state.margin(chunk)),
    )


def _horizon(state: _State, needs: Sequence[ChunkNeed]) -> int:
    """Return the windows to look ahead: to the last deadline, and far enough for all the work there is."""
    last = max((need.deadline_at for need in needs), default=state.now)
    to_deadline = window_index(last) - window_index(state.now) + 1
    slots = max(1, sum(region.slots for region in state.regions))
    work_s = sum(max(need.duration_s, 1.0) for need in needs) + state.factor * sum(
        one.est_duration_s for one in state.busy
    )
    to_finish = math.ceil(2 * work_s / slots / WINDOW_S) + MIN_HORIZON
    return min(MAX_HORIZON, max(MIN_HORIZON, to_deadline, to_finish))


def _write(db: Database, state: _State, made: Plan, duration_s: float) -> PlanSummary:
    plan_id = ids.new("pln")
    chunks = {chunk.chunk_id: chunk for chunk in state.chunks}
    changed = [one for one in made.placements if not _is_there(chunks[one.chunk_id], one)]
    with db.write() as tx:
        open_ids = placements.still_plannable(tx, [one.chunk_id for one in changed]) if changed else set[str]()
        new = [
            NewPlacement(
                placement_id=ids.new("plc"),
                chunk_id=one.chunk_id,
                region=one.region,
                window_at=one.window_at,
                g_per_kwh=one.g_per_kwh,
                issued_at=one.issued_at,
                reason=one.reason.value,
                latest_start_at=_latest_start(chunks[one.chunk_id], state),
                signal=state.signal,
            )
            for one in changed
            if one.chunk_id in open_ids
        ]
        placements.add_plan(
            tx,
            NewPlan(
                plan_id=plan_id,
                created_at=state.now,
                chunks=len(made.placements),
                moved=made.moved,
                late=made.late,
                objective_g=made.objective_g,
                lower_bound_g=made.lower_bound_g,
                is_overlay=made.is_overlay,
                duration_s=duration_s,
                note=_note(made, state.signal),
                inputs=state.inputs,
                signal=state.signal,
            ),
        )
        placements.place(tx, plan_id, new, created_at=state.now)
    return PlanSummary(
        plan_id=plan_id,
        chunks=len(made.placements),
        placed=len(new),
        moved=made.moved,
        late=made.late,
        unplaced=len(made.unplaced),
        is_overlay=made.is_overlay,
        objective_g=made.objective_g,
        lower_bound_g=made.lower_bound_g,
        duration_s=duration_s,
    )


def _is_there(chunk: Chunk, planned: planner.PlannedChunk) -> bool:
    """Say whether a chunk is where it was planned to be already."""
    return (
        chunk.state is ChunkState.PLACED
        and chunk.latest_start_at is not None
        and (chunk.region, chunk.window_at) == (planned.region, planned.window_at)
    )


def _latest_start(chunk: Chunk, state: _State) -> datetime:
    return policy.latest_safe_start(chunk.deadline_at, chunk.est_duration_s, state.factor, state.margin(chunk))


def _note(made: Plan, signal: Signal) -> str | None:
    """Say what an operator should know of a plan; None if there is nothing."""
    parts: list[str] = []
    if made.is_overlay:
        kind = "marginal" if signal is Signal.MOER else "average"
        parts.append(f"no {kind} rate is known: earliest window, nearest region")
    elif signal is Signal.AER:
        parts.append("decided by average rates: no zone has a marginal source")
    if made.late:
        parts.append(f"{made.late} chunks cannot be finished by their deadline")
    if made.unplaced:
        parts.append(f"{len(made.unplaced)} chunks have no region to run in")
    return "; ".join(parts) or None

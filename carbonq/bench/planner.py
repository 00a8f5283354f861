"""Time, memory and gap of the planner beside a linear programme in HiGHS, on made loads. One core; CPU time."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from carbonq.bench.long_chunks import long_case
from carbonq.bench.planner_cases import NOW, Size, case
from carbonq.bench.planner_lp import has_highs, solve
from carbonq.plan.planner import assign
from carbonq.plan.solver import contiguous
from carbonq.plan.solver.feasible import most_in_time
from carbonq.plan.solver.incremental import add
from carbonq.units import WINDOW_S

Report = Callable[[str], None]

SIZES = {
    "1k": Size(1_000, 5, 288),
    "10k": Size(10_000, 10, 576),
    "100k": Size(100_000, 10, 576),
    "1m": Size(1_000_000, 20, 576),
}

#: Energies in kWh, each as often.
ENERGIES = {"equal": (1.0,), "four unlike": (1.0, 2.0, 4.0, 8.0)}

LOADS = (0.62, 0.93)

#: Seconds that a plan may take, and the gap it must prove, by energies and size.
TARGETS = {
    "equal": {"1k": 0.010, "10k": 0.1, "100k": 0.25, "1m": 2.0},
    "four unlike": {"1k": 0.010, "10k": 0.2, "100k": 1.0, "1m": 6.0},
}
GAP_TARGETS = {"equal": 1e-6, "four unlike": 1e-3}

#: CPU milliseconds that others need for one 1-hour job in one region without capacity (24 h of 5-minute points, one
#: core of a two-core EPYC, measured once, not in this run): WattTime's client, contiguous, and cats 1.2.1.
OTHERS_MS = {"watttime": 1.52, "cats": 1.87}

_MB = 1024.0


def bench(sizes: Sequence[str], *, rounds: int, lp_limit_s: float, report: Report) -> dict[str, Any]:
    """Measure all cases of some sizes (keys of ``SIZES``); the best of ``rounds`` counts, each in a fresh process."""
    plans: list[dict[str, Any]] = []
    for size in sizes:
        for energies in ENERGIES:
            for load in LOADS:
                made = _apart(_plan, size, energies, load, 1 if size == "1m" else rounds)
                plans.append(made)
                report(_line(made))
    if lp_limit_s > 0 and not has_highs():
        report("HiGHS is not installed (pip install highspy): no linear programmes beside")
    elif lp_limit_s > 0:
        for made in plans:
            if made["size"] == "1m":
                continue
            made["highs"] = _apart(_lp, made["size"], made["energies"], made["load"], lp_limit_s)
            if made["highs"]["status"] == "optimal":
                made["highs"]["times_as_long"] = made["highs"]["cpu_s"] / made["cpu_s"]
            report(f"HiGHS, {made['size']}, {made['energies']}, load {made['load']:.0%}: {made['highs']}")
    extras = {
        "beyond_capacity": _apart(_beyond, "10k"),
        "contiguous_hours": _apart(_contiguous, [size for size in sizes if size != "1m"], rounds),
        "new_chunks": _apart(_new_chunks, "100k" if "100k" in sizes else sizes[-1], rounds),
    }
    for name, made in extras.items():
        report(f"{name.replace('_', ' ')}: {made}")
    return {"plans": plans, **extras, "per_job": _per_job(plans)}


def _apart(measure: Callable[..., Any], *arguments: object) -> Any:
    """Measure in a process of its own, so that its peak of memory is that of the case."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def _best(rounds: int, work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the least CPU and wall seconds of some rounds and the last result."""
    cpu, wall, made = float("inf"), float("inf"), None
    for _ in range(rounds):
        began, clock = time.process_time(), time.perf_counter()
        made = work()
        cpu, wall = min(cpu, time.process_time() - began), min(wall, time.perf_counter() - clock)
    return cpu, wall, made


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MB


def _plan(size: str, energies: str, load: float, rounds: int) -> dict[str, Any]:
    demand, outlook, capacity = case(SIZES[size], kwh=ENERGIES[energies], load=load)
    before = _peak_mib()
    # The first solve of a process loads the solver.
    small = case(Size(10, 2, 12))
    assign(small[0], small[1], small[2], now=NOW)
    cpu_s, wall_s, made = _best(rounds, lambda: assign(demand, outlook, capacity, now=NOW))
    most = most_in_time(demand, capacity, now=NOW).most if size != "1m" else None
    in_time = len(demand) - made.late - made.unplaced
    return {
        "size": size,
        "chunks_regions_windows": str(SIZES[size]),
        "energies": energies,
        "load": load,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "target_s": TARGETS[energies][size],
        "is_within_target": cpu_s <= TARGETS[energies][size],
        "objective_g": made.objective,
        "bound_g": made.bound,
        "gap": made.gap,
        "gap_target": GAP_TARGETS[energies],
        "in_time": in_time,
        "most_in_time": most,
        "peak_mib": _peak_mib(),
        "peak_mib_before": before,
    }


def _line(made: dict[str, Any]) -> str:
    return (
        f"{made['chunks_regions_windows']}, {made['energies']}, load {made['load']:.0%}: {made['cpu_s']:.3f} s CPU "
        f"(target {made['target_s']} s), {made['wall_s']:.3f} s wall, gap {made['gap']:.1e}, "
        f"{made['in_time']} in time, {made['peak_mib']:.0f} MiB"
    )


def _lp(size: str, energies: str, load: float, limit_s: float) -> dict[str, Any]:
    return solve(*case(SIZES[size], kwh=ENERGIES[energies], load=load), limit_s=limit_s)


def _beyond(size: str) -> dict[str, Any]:
    """More work than slots: how much is in time, beside the most that maximum flow could have."""
    demand, outlook, capacity = case(SIZES[size], load=1.1)
    cpu_s, _, made = _best(1, lambda: assign(demand, outlook, capacity, now=NOW))
    return {
        "size": size,
        "load": 1.1,
        "cpu_s": cpu_s,
        "in_time": len(demand) - made.late - made.unplaced,
        "most_in_time": most_in_time(demand, capacity, now=NOW).most,
        "gap": made.gap,
    }


def _contiguous(sizes: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """One-hour chunks that hold their slot."""
    found: list[dict[str, Any]] = []
    for size in sizes:
        shape = SIZES[size]
        demand, grams, slots = long_case(shape.chunks, shape.regions, shape.windows)
        starts_s = np.arange(0, shape.windows * WINDOW_S, WINDOW_S).astype(np.float64)
        place = contiguous.place
        cpu_s, _, made = _best(
            rounds if size == "1k" else 1,
            lambda: place(demand, grams, slots, starts_s=starts_s, left_s=float(WINDOW_S)),  # noqa: B023 (run at once)
        )
        gap = (made.objective - made.bound) / made.objective
        found.append({"size": size, "cpu_s": cpu_s, "gap": gap, "gap_target": 0.01, "late": int(made.late.sum())})
    return found


def _new_chunks(size: str, rounds: int) -> dict[str, Any]:
    """A thousand new chunks, and one new job, beside what is placed."""
    shape = SIZES[size]
    few = min(1_000, shape.chunks // 10)
    whole = replace(shape, chunks=shape.chunks + few)
    demand, outlook, capacity = case(whole, kwh=ENERGIES["four unlike"], load=0.7)
    old, new = demand.take(np.arange(shape.chunks)), demand.take(np.arange(shape.chunks, whole.chunks))
    made = assign(old, outlook, capacity, now=NOW)
    old = replace(old, current=np.stack((made.region, made.window), axis=1))
    thousand_s, _, added = _best(rounds, lambda: add(new, old, outlook, capacity, now=NOW, prices=made.prices))
    one = new.take(np.arange(1))
    one_s, _, single = _best(max(rounds, 5), lambda: add(one, old, outlook, capacity, now=NOW, prices=made.prices))
    best = assign(demand, outlook, capacity, now=NOW)
    total = made.objective + added.made.objective
    return {
        "placed": shape.chunks,
        "new": few,
        "cpu_s": thousand_s,
        "target_s": 0.2,
        "are_all_in_time": added.is_enough,
        "above_planning_anew": total / best.objective - 1,
        "one_job_ms": one_s * 1000,
        "one_job_target_ms": 5.0,
        "is_one_job_in_time": single.is_enough,
    }


def _per_job(plans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """CPU time for each chunk in bulk, beside what others need for one job."""
    made: dict[str, Any] = {"others_ms_as_published": OTHERS_MS}
    for one in plans:
        ms = 1000 * one["cpu_s"] / SIZES[one["size"]].chunks
        made[f"{one['size']}, {one['energies']}, {one['load']:.0%}"] = {
            "ms": ms,
            **{f"{name}_times_as_long": other / ms for name, other in OTHERS_MS.items()},
        }
    return made

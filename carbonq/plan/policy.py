"""Rules about when and where work may start. Pure: durations are given in machine seconds, times are grid times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from carbonq.model import Region, RegionState, Throughput
from carbonq.units import WINDOW_S

#: A lane may still be busy for this share of a window when the next chunk is planned into it.
OVERRUN_SHARE = 0.2

#: Machine seconds from "start now" to a running engine: a dispatch tick, a ticket, a claim.
START_DELAY_S = 2.0

#: Machine seconds between one chunk's end and the next one's start on a slot: commit, nudge, dispatch, claim.
TURNOVER_S = 0.5

#: How far estimates of a chunk's duration are trusted before anything was learned: this share on top is kept free
#: before the deadline. Afterwards it is what ``store/throughputs.py`` learned of (model, hardware).
DURATION_MARGIN = 0.25


def duration_margin(model: str, hardware: Iterable[str], learned: Mapping[tuple[str, str], Throughput]) -> float:
    """Return the share of an estimated duration to keep free on top: the largest of the hardware that may run it.

    Where nothing was learned of a hardware, or there is none, that is ``DURATION_MARGIN``.
    """
    margins: list[float] = []
    for name in set(hardware):
        seen = learned.get((model, name))
        margins.append(DURATION_MARGIN if seen is None or seen.overrun is None else seen.overrun - 1.0)
    return max(margins, default=DURATION_MARGIN)


_Seconds = TypeVar("_Seconds", float, npt.NDArray[np.float64])


def guard_s(est_duration_s: _Seconds, factor: float, margin: _Seconds | float = DURATION_MARGIN) -> _Seconds:
    """Return the grid seconds a plan keeps free before a deadline, for delays, overruns and wrong estimates.

    ``est_duration_s`` is machine seconds, of one chunk or of many as an array; ``factor`` is grid seconds for each
    machine second; ``margin`` the share of the duration that estimates err by.
    """
    return factor * (START_DELAY_S + margin * est_duration_s) + OVERRUN_SHARE * WINDOW_S


def latest_safe_start(
    deadline_at: datetime, est_duration_s: float, factor: float, margin: float = DURATION_MARGIN
) -> datetime:
    """Return the last grid time at which a chunk may start and still be finished by its deadline.

    ``est_duration_s`` is machine seconds on one slot; ``margin`` as for ``guard_s``. From this time on the dispatcher
    starts the chunk whatever the plan says.
    """
    return deadline_at - timedelta(seconds=est_duration_s * factor + guard_s(est_duration_s, factor, margin))


def is_open(region: Region) -> bool:
    """Say whether a region takes new work: active, with a live worker."""
    return region.state is RegionState.ACTIVE and region.is_healthy


def may_start(region: Region, model: str) -> bool:
    """Say whether new work of a model may start in a region now."""
    return is_open(region) and region.serves(model)


def nearest_region(regions: Sequence[Region], model: str) -> Region | None:
    """Return the healthy, active region with the lowest latency that serves the model; None if there is none."""
    usable = [region for region in regions if may_start(region, model)]
    return min(usable, key=lambda region: (region.latency_ms, region.name), default=None)


def feasibility(
    *,
    now: datetime,
    deadline_at: datetime,
    work_s: float,
    longest_chunk_s: float,
    slots: int,
    factor: float,
) -> str | None:
    """Say in one sentence why a job cannot meet its deadline even alone on all its slots; None if it can.

    ``work_s`` is the job's whole duration on one slot and ``longest_chunk_s`` that of its longest chunk, both machine
    seconds; ``slots`` counts the slots of the regions it may use.
    """
    left_s = (deadline_at - now).total_seconds()
    if slots < 1:
        return "no region that the job may use serves its model"
    shortest_s = max(longest_chunk_s, work_s / slots) * factor
    reserve_s = guard_s(longest_chunk_s, factor)
    needed_s = shortest_s + reserve_s
    if needed_s <= left_s:
        return None
    return (
        f"the work takes about {work_s * factor:.0f} s on one slot, so at least {needed_s:.0f} s on {slots} "
        f"slot{'s' if slots != 1 else ''} with the {reserve_s:.0f} s that are kept free before a deadline for delays "
        f"and wrong estimates, but the deadline is in {max(left_s, 0):.0f} s"
    )

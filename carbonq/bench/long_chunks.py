"""A made load of chunks that hold their slot for several windows, to measure how they are placed. Seeds fixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from carbonq.bench.planner_cases import SLACKS, swings
from carbonq.plan.demand import Demand, FloatArray, IntArray, Kind
from carbonq.units import UJ_PER_KWH, WINDOW_S


def long_case(
    chunks: int,
    regions: int,
    windows: int,
    *,
    lengths: Sequence[int] = (12,),
    load: float = 0.62,
    slacks: Sequence[int] = SLACKS,
    seed: int = 1,
) -> tuple[Demand, FloatArray, IntArray]:
    """Return chunks of 1 kWh, what one causes by ``[kind, region, window]`` and slots by ``[region, window]``.

    ``lengths`` are windows that a chunk takes, each as often; ``load`` is the share of all slots that the chunks hold.
    Rates swing by the day around 150 to 550 g/kWh, with noise that fades over an hour and a half. Windows start at
    ``300 x window`` seconds from now.
    """
    rng = np.random.default_rng(seed)
    rates = swings(rng, regions, windows)
    length = np.array(lengths)[rng.integers(0, len(lengths), chunks)]
    slack = np.array(slacks)[rng.integers(0, len(slacks), chunks)]
    first = np.floor(rng.uniform(0, 1, chunks) * np.maximum(1, windows - length - slack + 1))
    last = np.minimum(first + slack, windows - length)
    share = rng.uniform(0.5, 1.5, regions)
    slots = np.rint(length.sum() / (load * regions * windows) * share / share.mean()).astype(np.int64)
    demand = Demand(
        release_s=first * WINDOW_S,
        due_s=(last + length) * float(WINDOW_S),
        duration_s=length * float(WINDOW_S),
        kind=np.zeros(chunks, dtype=np.int64),
        kinds=(Kind(tuple(range(regions)), (UJ_PER_KWH,) * regions, (0.0,) * regions, float("inf")),),
        current=np.full((chunks, 2), -1, dtype=np.int64),
    )
    return demand, rates[None], np.repeat(np.maximum(slots, 1)[:, None], windows, axis=1)

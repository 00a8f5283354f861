"""A made load of chunks that hold their slot for several windows, to measure how they are placed. Seeds fixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from carbonq.plan.demand import Demand, FloatArray, IntArray, Kind
from carbonq.units import UJ_PER_KWH, WINDOW_S

#: Slack between earliest and latest start, in windows: 1, 4, 8 and 24 h, each as often.
SLACKS = (12, 48, 96, 288)


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
    window = np.arange(windows)
    base, phase, swing = (rng.uniform(low, high, regions)[:, None] for low, high in ((150, 550), (0, 288), (0.1, 0.35)))
    noise = np.zeros((regions, windows))
    steps = rng.normal(0, 0.31, (regions, windows))
    for one in range(1, windows):
        noise[:, one] = 0.95 * noise[:, one - 1] + steps[:, one]
    rates = np.maximum(base * (1 + swing * np.sin(2 * np.pi * (window - phase) / 288) + 0.08 * noise), 5.0)
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

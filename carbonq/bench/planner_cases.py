"""Made loads of one-window chunks, to measure the planner. Seeds fixed; the settings are those of published tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from carbonq.plan.capacity import Capacity
from carbonq.plan.demand import Demand, FloatArray, Kind
from carbonq.plan.outlook import Outlook
from carbonq.units import UJ_PER_KWH, WINDOW_S, window_index

#: When the made plans are made.
NOW = datetime(2021, 6, 10, tzinfo=UTC)

#: Slack between earliest and latest start, in windows: 1, 4, 8 and 24 h, each as often.
SLACKS = (12, 48, 96, 288)


@dataclass(frozen=True, slots=True)
class Size:
    """Chunks, regions and windows."""

    chunks: int
    regions: int
    windows: int

    def __str__(self) -> str:
        """Write it as in the tables."""
        return f"{self.chunks} x {self.regions} x {self.windows}"


def swings(rng: np.random.Generator, regions: int, windows: int) -> FloatArray:
    """Return rates by [region, window]: swings by the day around 150 to 550 g/kWh, with noise that fades in 90 min."""
    window = np.arange(windows)
    base, phase, swing = (rng.uniform(low, high, regions)[:, None] for low, high in ((150, 550), (0, 288), (0.1, 0.35)))
    noise = np.zeros((regions, windows))
    steps = rng.normal(0, 0.31, (regions, windows))
    for one in range(1, windows):
        noise[:, one] = 0.95 * noise[:, one - 1] + steps[:, one]
    made: FloatArray = np.maximum(base * (1 + swing * np.sin(2 * np.pi * (window - phase) / 288) + 0.08 * noise), 5.0)
    return made


def case(
    size: Size, *, kwh: Sequence[float] = (1.0,), load: float = 0.62, seed: int = 1
) -> tuple[Demand, Outlook, Capacity]:
    """Return chunks of 200 s with the energies ``kwh``, each as often, on slots of which they take the share ``load``.

    Slots are spread evenly over cells; what does not divide goes to cells by chance.
    """
    rng = np.random.default_rng(seed)
    n, cells = size.chunks, size.regions * size.windows
    slack = np.minimum(np.array(SLACKS)[rng.integers(0, len(SLACKS), n)], size.windows - 1)
    first = np.floor(rng.random(n) * (size.windows - slack))
    lanes = int(np.ceil(n / load))
    slots = np.full(cells, lanes // cells, dtype=np.int64)
    slots[rng.choice(cells, lanes % cells, replace=False)] += 1
    names = tuple(f"r{row:02d}" for row in range(size.regions))
    demand = Demand(
        release_s=first * WINDOW_S,
        due_s=(first + slack) * float(WINDOW_S),
        duration_s=np.full(n, 200.0),
        kind=rng.integers(0, len(kwh), n),
        kinds=tuple(
            Kind(
                tuple(range(size.regions)),
                (int(one * UJ_PER_KWH),) * size.regions,
                (0.0,) * size.regions,
                float("inf"),
            )
            for one in kwh
        ),
        current=np.full((n, 2), -1, dtype=np.int64),
    )
    outlook = Outlook(
        regions=names,
        first_window=window_index(NOW),
        g_per_kwh=np.round(swings(np.random.default_rng(seed), size.regions, size.windows), 1),
        basis=np.ones((size.regions, size.windows), dtype=np.int8),
        issued_at=(NOW,) * size.regions,
        pue=np.ones(size.regions),
    )
    capacity = Capacity(names, outlook.first_window, slots.reshape(size.regions, size.windows), (1.0,) * size.regions)
    return demand, outlook, capacity

"""What the planner places and on which terms, by column: plain arrays, so that a million chunks are a few of them.

Pure. Seconds are grid seconds from the plan's ``now``; energies are microjoules; carbon is gCO2e; rows of regions and
columns of windows are those of the plan's ``Outlook``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Kind:
    """What chunks with the same costs have in common.

    ``energy_uj[r]`` and ``extra_g[r]`` are those of one chunk in region row ``r``: hardware differs, and so do the
    grams that transfer and embodied carbon add whatever the hour. ``max_g`` caps the grams of one chunk where its
    deadline allows; inf where there is no cap.
    """

    regions: tuple[int, ...]
    energy_uj: tuple[int, ...]
    extra_g: tuple[float, ...]
    max_g: float


@dataclass(frozen=True, slots=True)
class Demand:
    """Chunks by column, ``n`` rows.

    ``release_s`` is the earliest start (at most 0: now), ``due_s`` when each must be finished, guard already taken off,
    ``duration_s`` its time on one slot, ``kind`` an index into ``kinds``, ``current`` its present (region row, window
    column), (-1, -1) without one.
    """

    release_s: FloatArray
    due_s: FloatArray
    duration_s: FloatArray
    kind: IntArray
    kinds: tuple[Kind, ...]
    current: IntArray

    def __post_init__(self) -> None:
        """Raise ValueError where columns are of unlike length or name a kind that is not there."""
        n = len(self.kind)
        lengths = {len(self.release_s), len(self.due_s), len(self.duration_s), len(self.current), n}
        if len(lengths) > 1 or self.current.shape != (n, 2):
            raise ValueError("the columns of a demand must have one row for each chunk")
        if n and not 0 <= int(self.kind.min()) <= int(self.kind.max()) < len(self.kinds):
            raise ValueError("every chunk needs a kind among kinds")

    def __len__(self) -> int:
        """Count the chunks."""
        return len(self.kind)

    @property
    def latest_s(self) -> FloatArray:
        """The latest starts."""
        return self.due_s - self.duration_s

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Demand:
        """Return the chunks at some rows, in that order."""
        return Demand(
            self.release_s[rows],
            self.due_s[rows],
            self.duration_s[rows],
            self.kind[rows],
            self.kinds,
            self.current[rows],
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """What is minimised beside carbon, and the rules of re-planning.

    ``margin``: a placed chunk moves only for more than this share of its cost. ``price_per_kwh`` is by ``[region,
    window]`` (NaN: unknown, counts as the dearest known), ``price_weight_g`` the grams that one unit of price weighs.
    ``displacement`` weighs the expected cost of taking scarce clean capacity from work that comes later. ``near_tie``:
    between cells nearer to each other than the forecast's error can tell, the earlier and less loaded one.
    """

    margin: float = 0.03
    price_per_kwh: FloatArray | None = None
    price_weight_g: float = 0.0
    displacement: float = 0.0
    near_tie: bool = True

    def __post_init__(self) -> None:
        """Raise ValueError for a weight or margin that is negative or no number."""
        for name in ("margin", "price_weight_g", "displacement"):
            value = getattr(self, name)
            if not 0 <= value < np.inf:
                raise ValueError(f"{name} must be a number of at least 0, not {value}")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where chunks go, by row of the demand, and how far that may be from the best.

    ``region`` and ``window`` are -1 and ``start_s`` NaN for a chunk that has no room within the horizon; ``late_s`` is
    0 where in time. ``objective`` is the cost of all that is placed in grams (carbon plus weighted price), ``bound`` a
    proven lower bound on it for any plan that leaves no more chunks late or unplaced, ``gap`` their difference as a
    share of the objective. All three are NaN where no rate at all is known. A cell without a rate counts as the worst
    one that is known. ``prices[r, w]`` is what taking one more lane of a cell would cost all others together, in grams
    (None where it was not worked out).
    """

    region: IntArray
    window: IntArray
    start_s: FloatArray
    late_s: FloatArray
    objective: float
    bound: float
    gap: float
    prices: FloatArray | None = None

    @property
    def late(self) -> int:
        """Count the chunks that are placed but not in time."""
        return int((self.late_s > 0).sum())

    @property
    def unplaced(self) -> int:
        """Count the chunks without a place."""
        return int((self.window < 0).sum())

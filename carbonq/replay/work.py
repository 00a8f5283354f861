"""Work to replay, as arrays: jobs with a release, a length and a deadline, cut into the pieces that a plan places.

Times are numbers of 5-minute windows (``units.window_index``). A length is rounded up to whole windows, and a job's
energy is its power over that, so every policy runs exactly the same energy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.plan.evidence import IntArray
from carbonq.units import WINDOW_S

#: The most pieces that are replayed: each takes about 60 bytes, and a plan of all of them must still fit.
MAX_PIECES = 5_000_000


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs by column: each holds ``units`` slots for ``windows`` windows, from ``release`` on and before ``due``."""

    release: IntArray
    windows: IntArray
    units: IntArray
    due: IntArray

    @property
    def count(self) -> int:
        """How many jobs there are."""
        return len(self.release)

    def within(self, first: int, end: int) -> Jobs:
        """Return the jobs that are released from ``first`` on and due by ``end``, in order of release."""
        rows = np.flatnonzero((self.release >= first) & (self.due <= end))
        return self.rows(rows[np.argsort(self.release[rows], kind="stable")])

    def rows(self, rows: IntArray) -> Jobs:
        """Return some of the jobs."""
        return Jobs(self.release[rows], self.windows[rows], self.units[rows], self.due[rows])


@dataclass(frozen=True, slots=True)
class Work:
    """Pieces by column, in order of release: each holds one slot for ``windows`` windows in one region.

    ``energy_uj`` is the IT energy of the whole piece, spread evenly over its windows; ``job`` numbers its job.
    """

    release: IntArray
    due: IntArray
    windows: IntArray
    energy_uj: IntArray
    job: IntArray

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(self.release)

    @property
    def longest(self) -> int:
        """Windows of the longest piece (1 where there is none)."""
        return int(self.windows.max(initial=1))

    @property
    def energy_kwh(self) -> float:
        """All energy in kWh."""
        return float(self.energy_uj.sum(dtype=np.float64)) / 3.6e12

    def rows(self, rows: IntArray) -> Work:
        """Return some of the pieces."""
        return Work(self.release[rows], self.due[rows], self.windows[rows], self.energy_uj[rows], self.job[rows])


def pieces(jobs: Jobs, *, power_w: float, piece: int | None) -> Work:
    """Cut jobs into pieces of at most ``piece`` windows (None: whole); a slot draws ``power_w`` watts while it works.

    Pieces of a job may run at the same time, as far as there are slots: they are chunks of a batch, not steps of a
    training run. Raises InvalidRequest for more than ``MAX_PIECES``.
    """
    size = jobs.windows if piece is None else np.minimum(jobs.windows, piece)
    parts = -(-jobs.windows // size) * jobs.units
    total = int(parts.sum())
    if total > MAX_PIECES:
        raise InvalidRequest(
            f"this is {total:,} pieces, more than {MAX_PIECES:,}; give longer pieces (--piece 1h) or fewer jobs"
        )
    job = np.repeat(np.arange(jobs.count), parts)
    place = np.arange(total) - np.repeat(np.cumsum(parts) - parts, parts)
    # The last piece of each unit takes what is left.
    per_unit = (-(-jobs.windows // size))[job]
    is_last = place % per_unit == per_unit - 1
    windows = np.where(is_last, jobs.windows[job] - (per_unit - 1) * size[job], size[job])
    energy = np.rint(windows * (power_w * WINDOW_S * 1e6)).astype(np.int64)
    return Work(jobs.release[job], jobs.due[job], windows.astype(np.int64), energy, job)

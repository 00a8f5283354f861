"""What every submit asks of the database, remembered for a moment: learned speeds and the work that was accepted.

A picture is at most ``STALE_S`` machine seconds old (and never more than ``STALE_GRID_S`` of grid time), or twenty
times as long as it took to make, if that is more. In between, what this process accepts is added to it; what other
processes accept, and what ends, is seen with the next one. The sentence ``infeasible`` may be that old; nothing else
goes by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from carbonq.clock import Clock
from carbonq.model import Model, Region
from carbonq.services.accepted import Asked, Fleet, Picture
from carbonq.store import throughputs
from carbonq.store.database import Database

#: How old a picture may be, in machine and in grid seconds.
STALE_S = 1.0
STALE_GRID_S = 30.0

#: A picture is made so seldom that it takes at most this share of one core.
_SHARE = 0.05


class Standing:
    """Remembers one picture of the accepted work. Not thread-safe: one thread asks."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        models: Mapping[str, Model],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without a picture."""
        self._db, self._clock, self._models, self._monotonic = db, clock, models, monotonic
        self._picture: Picture | None = None
        self._good_until = float("-inf")

    def shortage(self, regions: Sequence[Region], asked: Asked, now: datetime) -> str | None:
        """Return a sentence on what of a job cannot be in time; None if all of it can. Raises StoreUnavailable."""
        began = self._monotonic()
        picture = self._picture
        if picture is None or began >= self._good_until:
            with self._db.read() as tx:
                learned = throughputs.get_all(tx)
                fleet = Fleet(regions, self._models, learned, now=now, factor=self._clock.factor)
                picture = self._picture = Picture(tx, fleet)
            ended = self._monotonic()
            stale_s = min(STALE_S, STALE_GRID_S / self._clock.factor)
            self._good_until = ended + max(stale_s, (ended - began) / _SHARE)
        return picture.shortage(asked)

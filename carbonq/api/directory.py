"""The regions as the API knows them, in memory: configured values, live workers, and latencies measured from here.

Refreshed by a background thread; a realtime call only looks. When the database is away the last picture stays.
Latencies are machine milliseconds of the way there and back, without the engine's own time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from carbonq.errors import InvalidRequest, Unavailable
from carbonq.model import HeldKind, Hold, Model, Region, RegionState, Throughput, Worker
from carbonq.plan.policy import nearest_region
from carbonq.store import holds, regions, throughputs
from carbonq.store.database import Database

#: Weight of a new latency against the mean so far.
_EWMA = 0.2

#: A measured latency older than this says nothing any more; the stated one counts until the next call measures anew.
_LATENCY_KEPT_S = 60.0


#: What a caller is told to wait while an operator holds its tenant or model, in seconds.
_HELD_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The regions at one moment; ``Region.latency_ms`` is the stated one, ``is_healthy``: a live worker serves it.

    ``holds`` by kind and name, ``learned`` throughputs by model and hardware.
    """

    regions: Mapping[str, Region] = field(default_factory=dict[str, Region])
    workers: Mapping[str, tuple[Worker, ...]] = field(default_factory=dict[str, tuple[Worker, ...]])
    holds: Mapping[tuple[HeldKind, str], Hold] = field(default_factory=dict[tuple[HeldKind, str], Hold])
    learned: Mapping[tuple[str, str], Throughput] = field(default_factory=dict[tuple[str, str], Throughput])

    def hold_of(self, tenant: str, model: str) -> Hold | None:
        """Return what holds the work of a tenant with a model, if anything does: what is paused first."""
        found = [self.holds.get((HeldKind.TENANT, tenant)), self.holds.get((HeldKind.MODEL, model))]
        return min((one for one in found if one is not None), key=lambda one: one.state.value != "paused", default=None)


class Directory:
    """Answers "which regions are there, and which one is nearest" without the database. Thread-safe."""

    def __init__(self, db: Database, *, worker_alive_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Know nothing until the first ``refresh``."""
        self._db = db
        self._worker_alive_s = worker_alive_s
        self._monotonic = monotonic
        self._latencies: dict[str, tuple[float, float]] = {}  # region -> (mean ms, when measured last)
        self._lock = threading.Lock()
        self.snapshot = Snapshot()

    def refresh(self) -> None:
        """Reread regions and workers. Raises StoreUnavailable."""
        with self._db.read() as tx:
            found = regions.load_all(tx, worker_alive_s=self._worker_alive_s)
            alive = regions.live_workers(tx, worker_alive_s=self._worker_alive_s)
            held = holds.get_all(tx)
            learned = throughputs.get_all(tx)
        self.snapshot = Snapshot(
            {region.name: region for region in found},
            {region.name: tuple(w for w in alive if w.region == region.name) for region in found},
            {(one.kind, one.name): one for one in held},
            learned,
        )

    def observe(self, region: str, latency_ms: float) -> None:
        """Take a measured latency into the region's mean."""
        with self._lock:
            before = self._measured(region)
            if before is None:
                # From the stated one on: a first call also opens connections, and would look far away for a minute.
                known = self.snapshot.regions.get(region)
                before = latency_ms if known is None else known.latency_ms
            self._latencies[region] = (before + _EWMA * (latency_ms - before), self._monotonic())

    def measured_ms(self, region: str) -> float | None:
        """Return the mean measured latency; None when nothing was measured lately."""
        with self._lock:
            return self._measured(region)

    def _measured(self, region: str) -> float | None:
        mean, at = self._latencies.get(region, (0.0, float("-inf")))
        return None if self._monotonic() - at > _LATENCY_KEPT_S else mean

    def check_open(self, tenant: str, model: str) -> None:
        """Raise Unavailable where a tenant or model is paused or draining: nothing new of it is answered."""
        hold = self.snapshot.hold_of(tenant, model)
        if hold is not None:
            said = "" if hold.reason is None else f" ({hold.reason})"
            raise Unavailable(
                f"{hold.kind.value} {hold.name!r} is {hold.state.value}{said}",
                code=f"{hold.kind.value}_{hold.state.value}",
                retry_after_s=_HELD_RETRY_S,
            )

    def nearest(
        self,
        model: Model,
        allowed: Collection[str] | None = None,
        *,
        has_room: Callable[[str], bool] = lambda _: True,
    ) -> Region:
        """Return the nearest healthy region that serves a model, among ``allowed`` (None: all).

        One that has no room is passed over unless none has. ``has_room`` is asked by name.
        Raises InvalidRequest for an unknown region and Unavailable when no region can answer now.
        """
        wanted = self._wanted(allowed)
        able = [self._with_latency(r) for r in wanted if r.state is RegionState.ACTIVE and r.serves(model.name)]
        region = nearest_region([one for one in able if has_room(one.name)], model.name) or nearest_region(
            able, model.name
        )
        if region is None:
            raise Unavailable(_sentence(model, wanted, able), code="no_region_available", retry_after_s=2.0)
        return region

    def serving(self, model: Model, allowed: Collection[str] | None = None) -> list[Region]:
        """Return the regions that serve a model, healthy or not, among ``allowed`` (None: all).

        Raises InvalidRequest for an unknown region.
        """
        return [region for region in self._wanted(allowed) if region.serves(model.name)]

    def lanes(self, region: str) -> int:
        """Count the threads that a region's live workers keep for realtime calls."""
        found = self.snapshot.regions.get(region)
        return 0 if found is None else found.realtime_slots * len(self.snapshot.workers.get(region, ()))

    def _wanted(self, allowed: Collection[str] | None) -> list[Region]:
        known = self.snapshot.regions
        for name in allowed or ():
            if name not in known:
                raise InvalidRequest(
                    f"there is no region {name!r}; known regions: {', '.join(sorted(known)) or 'none'}",
                    param="carbon.regions",
                    code="unknown_region",
                )
        return [region for region in known.values() if allowed is None or region.name in allowed]

    def _with_latency(self, region: Region) -> Region:
        measured = self.measured_ms(region.name)
        return region if measured is None else replace(region, latency_ms=measured)


def _sentence(model: Model, wanted: list[Region], able: list[Region]) -> str:
    if able:
        names = ", ".join(region.name for region in able)
        return f"no worker is alive in {names}; start one with `carbonq worker --region {able[0].name}`"
    if any(region.serves(model.name) for region in wanted):
        return f"every region that serves {model.name} is paused or draining"
    return f"no region serves {model.name}"

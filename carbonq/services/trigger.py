"""Say whether anything has changed since the last plan: a few quick questions, before 100,000 chunks are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zlib import crc32

from carbonq.clock import Clock
from carbonq.model import Region, Signal, Throughput
from carbonq.store import placements, sources, throughputs, waiting
from carbonq.store import regions as region_rows
from carbonq.store.database import Tx
from carbonq.store.placements import Busy
from carbonq.units import window_index

#: Waiting chunks that are counted one by one; above, it is new work, whatever the last plan left without a place.
COUNTED = 2_000

#: The name of new work among the triggers.
NEW_WORK = "new work"

#: What the last plan left without a place, by a digest of its ids.
_LEFT = "left"


@dataclass(frozen=True, slots=True)
class Look:
    """What is known at a moment, and how it differs from what the last plan was made from.

    ``waiting`` are the chunks without a place, at most ``COUNTED + 1`` of them. ``last`` is empty where no plan is
    known.
    """

    now: datetime
    regions: Sequence[Region]
    learned: Mapping[tuple[str, str], Throughput]
    signal: Signal
    waiting: frozenset[str]
    inputs: Mapping[str, str]
    last: Mapping[str, str]

    @property
    def trigger(self) -> str:
        """Why there is something to do: what has changed since the last plan; empty if nothing has."""
        found = [name for name, value in self.inputs.items() if self.last.get(name) != value]
        if self.waiting and (len(self.waiting) > COUNTED or self.last.get(_LEFT) != digest(self.waiting)):
            found.insert(0, NEW_WORK)
        return ", ".join(found)

    def to_keep(self, left: Iterable[str]) -> str:
        """Return what is kept of this moment with a plan that leaves some chunks without a place."""
        kept = {**self.inputs, _LEFT: digest(left)}
        return "; ".join(f"{name} {value}" for name, value in kept.items())


def look(tx: Tx, clock: Clock, *, worker_alive_s: float) -> Look:
    """Look at all that a plan depends on but the chunks that have a place. Raises StoreUnavailable."""
    now = clock.now()
    regions = region_rows.load_all(tx, worker_alive_s=worker_alive_s)
    learned = throughputs.get_all(tx)
    signal = sources.decision_signal(tx)
    inputs = {
        "window": str(window_index(now)),
        "forecast": f"{signal.value} {placements.newest_forecast_id(tx, signal)}",
        "regions": ",".join(_state(region, now) for region in regions),
        "drift": str(_drift(regions, learned, placements.busy(tx, only_running=True))),
    }
    ids = frozenset(waiting.without_place(tx, limit=COUNTED + 1))
    return Look(now, regions, learned, signal, ids, inputs, parse(placements.last_inputs(tx)))


def parse(text: str | None) -> dict[str, str]:
    """Read what ``Look.to_keep`` wrote; anything else counts as nothing known."""
    parts = (part.partition(" ") for part in (text or "").split("; "))
    return {name: value for name, _, value in parts if value}


def digest(ids: Iterable[str]) -> str:
    """Return a short text that differs for other sets of ids."""
    return f"{crc32(' '.join(sorted(ids)).encode()):08x}"


def _state(region: Region, now: datetime) -> str:
    """Return what planning takes of a region, in a few letters; maintenance counts from when it is known."""
    coming = [one for one in region.maintenance if one.end_at > now]
    facts = (
        *(region.zone, region.slots, region.pue, region.hardware, region.models, region.price_per_kwh),
        *(region.embodied_kg, region.life_h, region.transfer_kwh_per_gb, region.transfer_g_per_kwh, coming),
    )
    slots = region.least_slots(now, now)
    return f"{region.name}={region.state.value[0]}{region.is_healthy:d}{slots}/{crc32(repr(facts).encode()):08x}"


def _drift(regions: Sequence[Region], learned: Mapping[tuple[str, str], Throughput], running: Sequence[Busy]) -> int:
    """Return in powers of two how many running chunks take longer than even their margin allows."""
    count = 0
    hardware = {region.name: region.hardware for region in regions}
    for one in running:
        seen = learned.get((one.model, hardware.get(one.region, "")))
        overrun = throughputs.FIRST_OVERRUN if seen is None or seen.overrun is None else seen.overrun
        count += one.elapsed_s is not None and one.elapsed_s > one.est_duration_s * overrun + throughputs.FORGIVEN_S
    return count.bit_length()

"""One look at a running installation, taken through the HTTP API: what the live view draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from carbonq.client import Client
from carbonq.units import WINDOW, parse_iso, window_of


@dataclass(frozen=True, slots=True)
class ChunkPicture:
    """A chunk with its place in the plan."""

    label: str
    state: str
    region: str | None
    window_at: datetime | None
    items: int
    items_ended: int


@dataclass(frozen=True, slots=True)
class JobPicture:
    """A job's progress in items."""

    label: str
    phase: str
    ended: int
    total: int


@dataclass(frozen=True, slots=True)
class RegionPicture:
    """A region's MOER in gCO2e/kWh: now, and by window start as last forecast or observed (None: unknown)."""

    name: str
    moer: Decimal | None
    ahead: Mapping[datetime, Decimal]


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything at one moment; ``now`` is grid time."""

    now: datetime
    jobs: Sequence[JobPicture]
    chunks: Sequence[ChunkPicture]
    regions: Sequence[RegionPicture]

    @property
    def items_waiting(self) -> int:
        """Items of chunks that have not begun."""
        return sum(chunk.items for chunk in self.chunks if chunk.state in {"waiting", "placed"})

    @property
    def chunks_running(self) -> int:
        """Chunks that run now."""
        return sum(chunk.state == "running" for chunk in self.chunks)

    @property
    def next_window_at(self) -> datetime | None:
        """The earliest window for which a chunk waits."""
        waiting = [c.window_at for c in self.chunks if c.state in {"waiting", "placed"} and c.window_at is not None]
        return min(waiting, default=None)


class Watcher:
    """Takes pictures; keeps what changes seldom."""

    def __init__(self, client: Client, jobs: Mapping[str, str]) -> None:
        """``jobs``: label -> job id."""
        self._client = client
        self._jobs = jobs
        self._seen: dict[str, dict[datetime, Decimal]] = {}
        self._regions: list[dict[str, Any]] = []
        self._window: datetime | None = None

    def look(self) -> Picture:
        """Ask the API for everything. Raises what the client raises."""
        now = parse_iso(self._client.plan()["clock"]["now"])
        # Rates change once a window; asking for them more often only takes cores from the work.
        if self._window != window_of(now) or any(region["moer"] is None for region in self._regions):
            self._regions = [region.raw for region in self._client.regions()]
            self._window = window_of(now)
            for region in self._regions:
                self._remember(region, now)
        jobs = {label: self._client.job(job_id) for label, job_id in self._jobs.items()}
        return Picture(
            now=now,
            jobs=[
                JobPicture(label, job["phase"], job["progress"]["ended"], job["progress"]["total"])
                for label, job in jobs.items()
            ],
            chunks=[
                _chunk(label, one.raw) for label, job_id in self._jobs.items() for one in self._client.chunks(job_id)
            ],
            regions=[
                RegionPicture(region["name"], _rate(region["moer"]), dict(self._seen.get(region["zone"], {})))
                for region in self._regions
            ],
        )

    def _remember(self, region: Mapping[str, Any], now: datetime) -> None:
        seen = self._seen.setdefault(region["zone"], {})
        forecast = self._client.forecasts(region["zone"])
        start = parse_iso(forecast["start_at"])
        for index, value in enumerate(forecast["values"]):
            at = start + index * WINDOW
            if value is not None and at >= window_of(now):
                seen[at] = Decimal(value)
        current = _rate(region["moer"])
        if current is not None:
            seen[window_of(now)] = current


def _rate(moer: Mapping[str, Any] | None) -> Decimal | None:
    value = (moer or {}).get("g_per_kwh")
    return None if value is None else Decimal(value)


def _chunk(label: str, chunk: Mapping[str, Any]) -> ChunkPicture:
    return ChunkPicture(
        label=label,
        state=chunk["state"],
        region=chunk["region"],
        window_at=parse_iso(chunk["window_at"]) if chunk["window_at"] else None,
        items=chunk["items"],
        items_ended=chunk["items_ended"],
    )

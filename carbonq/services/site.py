"""What a region worker runs with: its adapters and plain values, made once by the edge and passed to every use case."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from carbonq.blobs import BlobStore
from carbonq.booking import Fact
from carbonq.clock import Clock
from carbonq.engines.protocol import Engine
from carbonq.meters.hub import Hub
from carbonq.model import Model, Region
from carbonq.ratebook import RateBook
from carbonq.spool import Spool
from carbonq.store.database import Database
from carbonq.tickets import TicketPublisher
from carbonq.tracing import OFF, Traces


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of running: machine seconds and counts, as documented in the settings."""

    lease_s: float = 60.0
    renew_s: float = 15.0
    max_attempts: int = 4
    checkpoint_items: int = 2_000
    checkpoint_s: float = 15.0
    backoff_base_s: float = 2.0
    backoff_cap_s: float = 60.0


class MachineTime:
    """The database's clock as this process last heard it; for stamps that must not cost a round trip."""

    def __init__(self) -> None:
        self._offset = timedelta(0)

    def sync(self, database_now: datetime) -> None:
        """Take the difference to the database's clock."""
        self._offset = database_now - datetime.now(UTC)

    def now(self) -> datetime:
        """Return machine time."""
        return datetime.now(UTC) + self._offset


class Gate:
    """Lets realtime calls go first: flexible engine batches begin only while no realtime call runs."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._realtime = 0

    def __enter__(self) -> Gate:
        with self._condition:
            self._realtime += 1
        return self

    def __exit__(self, *_error: object) -> None:
        with self._condition:
            self._realtime -= 1
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Return when no realtime call runs, or after ``timeout_s``: a stream of them must not starve a deadline."""
        with self._condition:
            self._condition.wait_for(lambda: self._realtime == 0, timeout_s)


class Weighed:
    """Models whose token weights are learned, with those that are in force, as this process last heard."""

    def __init__(self) -> None:
        self._models: Mapping[str, Model] = {}

    def hear(self, models: Mapping[str, Model]) -> None:
        """Take what is in force."""
        self._models = models

    def of(self, model: Model) -> Model:
        """Return the model as its entries are to be weighed."""
        return self._models.get(model.name, model)


def _expect_nothing(_baselines: Sequence[tuple[str, datetime]]) -> None:
    """Take no notice: for sites whose rates cover everything."""


@dataclass(frozen=True, slots=True)
class Site:
    """One region worker's surroundings.

    ``rates`` gives the newest snapshot; ``engine_of`` a loaded engine; ``expect`` is told of baseline (region, window)
    pairs before entries need their rates, and may raise StoreUnavailable. ``settings_digest`` is that of the shared
    settings it started with, ``clock_offset_s`` its host's clock minus the database's; both are told at registration.
    """

    db: Database
    blobs: BlobStore
    spool: Spool
    tickets: TicketPublisher
    clock: Clock
    hub: Hub
    rates: Callable[[], RateBook]
    region: Region
    facts: Mapping[str, Fact]
    models: Mapping[str, Model]
    engine_of: Callable[[str], Engine]
    worker_id: str
    software_version: str
    expect: Callable[[Sequence[tuple[str, datetime]]], None] = _expect_nothing
    limits: Limits = field(default_factory=Limits)
    machine: MachineTime = field(default_factory=MachineTime)
    gate: Gate = field(default_factory=Gate)
    weighed: Weighed = field(default_factory=Weighed)
    traces: Traces = OFF
    settings_digest: str | None = None
    clock_offset_s: float | None = None

    @property
    def fact(self) -> Fact:
        """What is stated of this worker's region."""
        return self.facts[self.region.name]

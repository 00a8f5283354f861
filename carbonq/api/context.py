"""What the routes work with: adapters, memory and plain values, built once by the process and put on the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request

from carbonq.api import batch_view
from carbonq.api.allowance import Allowance
from carbonq.api.auth import Caller, KeyRing, caller_of
from carbonq.api.directory import Directory
from carbonq.api.dispatcher import Dispatcher
from carbonq.api.feed import Feed
from carbonq.api.interactive import Router
from carbonq.api.limits import RateLimits
from carbonq.api.nudger import Nudger
from carbonq.api.sums import JobChunks, JobMemory, JobSums
from carbonq.blobs import BlobStore
from carbonq.clock import Clock
from carbonq.model import Model, Region
from carbonq.plan.treatment import TreatmentRules
from carbonq.services.budget_alarms import Thresholds
from carbonq.services.budget_room import Gate
from carbonq.services.group_commit import GroupCommit
from carbonq.services.rates import RateCache
from carbonq.services.trends import Trends
from carbonq.store.database import Database
from carbonq.tracing import OFF, Traces


class ApiTickets(Protocol):
    """What the API needs of the broker: realtime calls, nudges, and whether it is there (``tickets.Tickets``)."""

    def realtime(
        self,
        region: str,
        payload: dict[str, Any],
        timeout_s: float,
        call_id: str | None = None,
        on_piece: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Send one realtime call and wait for its answer. Raises Unavailable."""
        ...

    def drop(self, call_id: str) -> None:
        """Tell the worker that nobody waits for a realtime call any more; never raises."""
        ...

    def nudge(self, tick: str) -> None:
        """Ask for a tick before its time; never raises."""
        ...

    def ping(self) -> None:
        """Raise BrokerUnavailable unless the broker answers now."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for: bytes, items and machine seconds; ``chunk_fill`` is a share of a window."""

    chunk_fill: float
    interactive_slo_ms: float
    max_input_bytes: int
    max_items: int
    max_line_bytes: int
    realtime_timeout_s: float
    realtime_queue_limit: int
    max_chunk_items: int = 10_000
    webhooks_may_be_private: bool = False


@dataclass(frozen=True, slots=True)
class Api:
    """Everything behind the routes. ``regions`` are those of the settings; the directory knows how they are now.

    ``settle_after_s`` and ``max_stale_s`` are grid seconds. ``allowed_hosts``: names that it answers to beside those of
    loopback; None: to any. ``metrics_name_tenants``: whether ``/metrics`` says whose a budget or target is.
    """

    db: Database
    blobs: BlobStore
    clock: Clock
    models: Mapping[str, Model]
    regions: Sequence[Region]
    home_region: str
    limits: Limits
    keyring: KeyRing
    allowance: Allowance
    directory: Directory
    dispatcher: Dispatcher
    router: Router
    rates: RateCache
    trends: Trends
    settle_after_s: float
    max_stale_s: float
    tickets: ApiTickets
    nudger: Nudger
    group: GroupCommit
    feed: Feed
    replan_margin: float = 0.03
    price_weight_g: float = 0.0
    gate: Gate | None = None
    sums: JobSums = field(default_factory=JobSums)
    chunks: JobChunks = field(default_factory=JobChunks)
    batch_figures: JobMemory[batch_view.Figures] = field(default_factory=batch_view.memory)
    batch_chunks: JobChunks = field(default_factory=batch_view.chunks)
    treatments: TreatmentRules = field(default_factory=TreatmentRules)
    rate_limits: RateLimits = field(default_factory=RateLimits)
    allowed_hosts: Sequence[str] | None = None
    traces: Traces = OFF
    flower_url: str | None = None
    budget_thresholds: Thresholds = field(default_factory=Thresholds)
    metrics_name_tenants: bool = False


async def api_of(request: Request) -> Api:
    """Return the app's context (a FastAPI dependency; as a plain ``def`` it would cost each request a thread)."""
    api: Api = request.app.state.api
    return api


def seen_by(request: Request) -> tuple[Api, Caller]:
    """Return the app's context, and who sends a request that ``needs`` let pass.

    What ``ApiDep`` and ``CallerDep`` give; for routes that are called so often that solving these shows.
    """
    caller: Caller = request.state.caller
    return request.app.state.api, caller


ApiDep = Annotated[Api, Depends(api_of)]
CallerDep = Annotated[Caller, Depends(caller_of)]

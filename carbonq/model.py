"""The values that travel between rooms: frozen, typed, in the words of the mission. No I/O.

Times are aware UTC *grid* times unless the name says ``machine``; energies are whole microjoules; rates gCO2e/kWh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any


class Endpoint(StrEnum):
    """What an item asks of an engine (the OpenAI path of its line)."""

    EMBEDDINGS = "/v1/embeddings"
    CHAT = "/v1/chat/completions"


class WorkClass(StrEnum):
    """The three classes of work, by latency budget (mission.md)."""

    REALTIME = "realtime"
    INTERACTIVE = "interactive"
    FLEXIBLE = "flexible"


class JobState(StrEnum):
    """A job's states; the last four are final."""

    WAITING = "waiting"  # stored; no chunk of it has run yet
    RUNNING = "running"
    FINISHING = "finishing"  # all items ended; output files are being assembled
    COMPLETED = "completed"  # every item succeeded or failed by itself
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"  # the job as a whole could not be carried out


FINAL_JOB_STATES = frozenset({JobState.COMPLETED, JobState.EXPIRED, JobState.CANCELLED, JobState.FAILED})


class ItemState(StrEnum):
    """An item's states; all but the first are final."""

    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class ChunkState(StrEnum):
    """A chunk's states. ``placed`` with ``dispatched_at`` set means that a ticket is out."""

    WAITING = "waiting"  # no placement yet
    PLACED = "placed"
    RUNNING = "running"
    DONE = "done"


class Treatment(StrEnum):
    """What carbonq does with a job; the last two run at once in the home region, as without it."""

    PLANNED = "planned"
    OBSERVED = "observed"  # a plan is kept beside
    HELD_OUT = "held_out"  # what planned jobs are compared with


class RegionState(StrEnum):
    """What an operator has said of a region."""

    ACTIVE = "active"
    PAUSED = "paused"
    DRAINING = "draining"


class HeldKind(StrEnum):
    """What an operator can pause or drain."""

    REGION = "region"
    TENANT = "tenant"
    MODEL = "model"


class Scope(StrEnum):
    """What an API key may be allowed to do."""

    SUBMIT = "submit"  # store, cancel and run: jobs, batches, files, realtime calls
    READ = "read"  # jobs, batches, results, the plan, regions, forecasts
    EXPORT = "export"  # the ledger
    ADMIN = "admin"  # the log of admin actions, webhooks


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may hold and use; None is no limit. Tokens count by grid day, rates by machine minute."""

    open_jobs: int | None = None
    items_waiting: int | None = None
    bytes_waiting: int | None = None
    tokens_per_day: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant has open: jobs, items that have not ended, bytes of their inputs."""

    open_jobs: int = 0
    items: int = 0
    input_bytes: int = 0

    def plus(self, other: Usage) -> Usage:
        """Return the sum."""
        return Usage(self.open_jobs + other.open_jobs, self.items + other.items, self.input_bytes + other.input_bytes)


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    COMMITTED = "committed"  # it ran to the chunk's end
    FAILED = "failed"  # the engine raised; the chunk goes back with a backoff, or its items fail
    LOST = "lost"  # the lease ran out
    FENCED = "fenced"  # it came back after its lease and was refused
    YIELDED = "yielded"  # it gave the rest back on request (stop, pause, realtime); not counted as an attempt
    CANCELLED = "cancelled"  # all of its jobs were cancelled before the chunk's end; what had run was committed


class Signal(StrEnum):
    """Which book a rate belongs to. The two are never compared, mixed or summed (invariant 6)."""

    MOER = "moer"
    AER = "aer"


class RateKind(StrEnum):
    """Whether a rate was foretold or observed."""

    FORECAST = "forecast"
    OBSERVED = "observed"


class RateStatus(StrEnum):
    """How final a rate in an entry is."""

    PROVISIONAL = "provisional"
    SETTLED = "settled"
    RESTATED = "restated"
    UNSETTLEABLE = "unsettleable"
    MISSING = "missing"


class EntryKind(StrEnum):
    """What a ledger entry is about."""

    ITEM = "item"
    IDLE = "idle"
    WASTED = "wasted"
    GAP = "gap"
    HOST_OTHER = "host_other"


class EntryReason(StrEnum):
    """Why a revision exists."""

    INITIAL = "initial"
    SETTLED = "settled"
    RESTATED = "restated"
    CORRECTED = "corrected"


class Quality(StrEnum):
    """How an entry's energy is known, best first."""

    MEASURED = "measured"
    MIXED = "mixed"
    ESTIMATED = "estimated"
    UPPER_BOUND = "upper_bound"


class DowngradeReason(StrEnum):
    """Why work runs on the next smaller model instead of the one that was asked for."""

    BUDGET = "budget"  # a carbon budget that says downgrade
    POLICY = "policy"  # the installation's settings (`[tiers]`)


class LatePolicy(StrEnum):
    """What happens to items that are unfinished at the deadline."""

    FINISH_LATE = "finish_late"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that clients may ask for.

    ``max_input_tokens`` is the limit on one item's input. ``tokens_per_s`` and ``uj_per_token`` are documented starting
    values per slot, used until (model, hardware) has been measured. ``w_*`` are the token weights of shares, stated
    unless ``weights_learned_at`` says when (machine time) they were learned. ``script_tokens`` are the tokens of a
    character outside ASCII by the first byte of its UTF-8: (the byte from which on, tokens), rising; empty: by bytes.
    ``smaller`` names the model of the next smaller tier; ``same_space``: its vectors can be compared with this one's.
    """

    name: str
    engine: str
    endpoint: Endpoint
    max_input_tokens: int
    chars_per_token: float
    tokens_per_s: float
    uj_per_token: int
    batch_tokens: int
    batch_items: int
    tier: int = 1
    max_output_tokens: int = 0
    w_prompt: int = 1
    w_cached: int = 1
    w_completion: int = 0
    learns_weights: bool = False
    weights_learned_at: datetime | None = None
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    script_tokens: tuple[tuple[int, float], ...] = ()
    smaller: str | None = None
    same_space: bool = False


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """How the engine batches of a model went in a region: how full, how fast, for how much energy.

    ``fill_items`` is their items by how many they might have held, ``fill_tokens`` their tokens by what an engine that
    pads computes; both are at most 1. Times are machine seconds; what no engine told of is None.
    """

    model: str
    region: str
    engine_batches: int
    items: int
    tokens: int
    fill_items: float | None
    fill_tokens: float | None
    ttft_s: float | None
    output_token_s: float | None
    tokens_per_s: float | None
    uj_per_token: float | None


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A span of grid time, half-open, in which a region offers at most ``slots`` slots to flexible work."""

    start_at: datetime
    end_at: datetime
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """A place that can run work.

    ``slots`` are those of flexible work; ``realtime_slots`` come on top and are never planned into. ``latency_ms`` is
    the stated network latency from the API (measured latency replaces it); ``embodied_kg`` and ``life_h`` describe the
    hardware a slot occupies whole (None: unknown, so embodied carbon stays empty). ``transfer_kwh_per_gb`` and
    ``transfer_g_per_kwh`` are stated of the network from the home region to here; ``price_per_kwh`` in one currency.
    """

    name: str
    zone: str
    slots: int
    pue: Decimal
    pue_source: str
    hardware: str
    realtime_slots: int = 1
    latency_ms: float = 0.0
    ownership: str = "owned"
    models: tuple[str, ...] | None = None
    embodied_kg: Decimal | None = None
    life_h: Decimal | None = None
    state: RegionState = RegionState.ACTIVE
    is_healthy: bool = True
    maintenance: tuple[Maintenance, ...] = ()
    transfer_kwh_per_gb: Decimal | None = None
    transfer_g_per_kwh: Decimal | None = None
    price_per_kwh: Decimal | None = None

    def serves(self, model: str) -> bool:
        """Say whether this region offers a model."""
        return self.models is None or model in self.models

    def least_slots(self, start_at: datetime, end_at: datetime) -> int:
        """Return how many slots it offers all through ``[start_at, end_at)``: maintenance takes some away."""
        spans = [one for one in self.maintenance if one.start_at < end_at and start_at < one.end_at]
        return min([self.slots, *(one.slots for one in spans)])


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a client asks for, checked for meaning by ``services/submit.py``. ``deadline_at`` means *finished by*.

    ``trace_context``: the span of its submit (a ``traceparent``), for its runs to be linked to.
    ``may_downgrade``: whether a smaller model may run it; None where nobody said.
    """

    tenant: str
    endpoint: Endpoint
    model: str
    deadline_at: datetime
    api_key_id: str | None = None
    regions: tuple[str, ...] | None = None
    max_carbon_g: Decimal | None = None
    product_line: str | None = None
    workload: str | None = None
    late_policy: LatePolicy = LatePolicy.FINISH_LATE
    idempotency_key: str | None = None
    source: str = "jobs"
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    trace_context: str | None = None
    may_downgrade: bool | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A stored job. ``*_pg_per_token``: expected emission by book, in picograms; None: not known, or not asked for."""

    job_id: str
    tenant: str
    api_key_id: str | None
    endpoint: Endpoint
    model: str
    requested_model: str
    product_line: str | None
    workload: str | None
    home_region: str
    regions: tuple[str, ...] | None
    deadline_at: datetime
    late_policy: LatePolicy
    max_carbon_g: Decimal | None
    state: JobState
    is_cancel_requested: bool
    input_blob: str
    input_bytes: int
    items_total: int
    items_succeeded: int
    items_failed: int
    items_expired: int
    items_cancelled: int
    est_tokens: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    output_blob: str | None
    error_blob: str | None
    infeasible: str | None
    error: str | None
    metadata: Mapping[str, str]
    retired_at: datetime | None = None
    treatment: Treatment = Treatment.PLANNED
    batch_id: str | None = None
    may_downgrade: bool | None = None
    impact_pg_per_token: int | None = None
    inventory_pg_per_token: int | None = None

    @property
    def is_final(self) -> bool:
        """Say whether nothing more will happen to this job."""
        return self.state in FINAL_JOB_STATES

    @property
    def items_ended(self) -> int:
        """Count the items in a final state."""
        return self.items_succeeded + self.items_failed + self.items_expired + self.items_cancelled


@dataclass(frozen=True, slots=True)
class NewItem:
    """One accepted input line: where it lies in the input blob and how many tokens it is thought to have."""

    idx: int
    custom_id: str
    line_offset: int
    line_bytes: int
    est_tokens: int


@dataclass(frozen=True, slots=True)
class Item:
    """A stored item, as the chunker and the runner need it."""

    item_id: int
    job_id: str
    idx: int
    custom_id: str
    line_offset: int
    line_bytes: int
    est_tokens: int


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A group of items to be planned, leased and fenced as one. ``est_duration_s`` is machine seconds on one slot.

    ``model`` is what runs; ``downgraded`` says why where that is a smaller one than its jobs asked for. ``for_tenant``,
    ``product_line`` and ``workload`` are those of all its items (``for_tenant`` None: they differ), ``longest_item``
    the tokens of the longest; ``held_by`` is the budget that holds it back.
    """

    chunk_id: str
    tenant: str | None
    model: str
    endpoint: Endpoint
    regions: tuple[str, ...] | None
    release_at: datetime
    deadline_at: datetime
    item_ids: Sequence[int]
    est_tokens: int
    est_duration_s: float
    est_energy_uj: int
    baseline_region: str
    baseline_window_at: datetime
    latest_start_at: datetime | None = None
    parent_chunk_id: str | None = None
    treatment: Treatment = Treatment.PLANNED
    downgraded: DowngradeReason | None = None
    may_downgrade: bool | None = None
    for_tenant: str | None = None
    product_line: str | None = None
    workload: str | None = None
    longest_item: int | None = None
    impact_pg_per_token: int | None = None
    inventory_pg_per_token: int | None = None
    held_by: str | None = None
    held_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stored chunk. ``lease_until`` and ``dispatched_at`` are machine times."""

    chunk_id: str
    tenant: str | None
    model: str
    endpoint: Endpoint
    regions: tuple[str, ...] | None
    release_at: datetime
    deadline_at: datetime
    items_count: int
    est_tokens: int
    est_duration_s: float
    est_energy_uj: int
    state: ChunkState
    attempt: int
    token: int
    lease_until: datetime | None
    worker_id: str | None
    region: str | None
    window_at: datetime | None
    placement_id: str | None
    latest_start_at: datetime | None
    dispatched_at: datetime | None
    baseline_region: str
    baseline_window_at: datetime
    treatment: Treatment = Treatment.PLANNED
    downgraded: DowngradeReason | None = None
    may_downgrade: bool | None = None
    for_tenant: str | None = None
    product_line: str | None = None
    workload: str | None = None
    longest_item: int | None = None
    impact_pg_per_token: int | None = None
    inventory_pg_per_token: int | None = None
    held_by: str | None = None
    held_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and when a plan put a chunk, why, and the forecast it went by (``g_per_kwh`` None: none was known)."""

    region: str
    window_at: datetime
    reason: str
    signal: Signal
    g_per_kwh: Decimal | None
    issued_at: datetime | None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a chunk, until ``lease_until`` (machine time), provable by ``token``.

    ``placement`` is why it runs here and now; None where it was dispatched without one. ``lag_s``: machine seconds
    since its ticket went out first; None where that was not noted.
    """

    chunk: Chunk
    token: int
    attempt: int
    worker_id: str
    region: str
    placement: Placement | None = None
    lag_s: float | None = None


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a lease renewal brings back. Items of ``cancelled_jobs`` must not run any more, of ``held_jobs`` not now."""

    lease_until: datetime
    is_paused: bool
    cancelled_jobs: frozenset[str]
    held_jobs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Hold:
    """What an operator has said of a region, tenant or model that is not active. ``held_at`` is machine time.

    A paused one runs nothing: what runs goes back at its next engine batch. A draining region ends what it runs and
    takes nothing new; a draining tenant or model ends all that was accepted, and no new job is.
    """

    kind: HeldKind
    name: str
    state: RegionState
    held_at: datetime
    reason: str | None = None
    held_by: str | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """One emissions rate as a ledger entry refers to it; immutable once stored. ``g_per_kwh`` is never a default."""

    rate_id: str
    signal: Signal
    zone: str
    source: str
    model: str | None
    gas: str
    method: str | None
    window_at: datetime
    step_s: int
    issued_at: datetime | None
    retrieved_at: datetime
    g_per_kwh: Decimal
    raw: Decimal
    raw_unit: str
    is_estimated: bool
    kind: RateKind
    may_settle: bool


@dataclass(frozen=True, slots=True)
class Worker:
    """A region worker process as it last reported. ``last_seen_at`` is machine time.

    ``clock_offset_s``: its host's clock minus the database's when it registered; ``gpus``: what it meters, by UUID.
    """

    worker_id: str
    region: str
    host: str
    pid: int
    slots: int
    started_at: datetime
    last_seen_at: datetime
    last_claimed_at: datetime | None
    software_version: str
    hardware: str
    settings_digest: str | None = None
    clock_offset_s: float | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Throughput:
    """What one slot of a hardware was measured to do with a model.

    ``overrun`` is the ratio of actual to foretold duration that 95 % of the chunks stayed below; None: not known yet.
    """

    model: str
    hardware: str
    tokens_per_s: float
    uj_per_token: int
    samples: int
    overrun: float | None = None

"""What the API answers, typed: attributes for what is documented, ``record["name"]`` for every field as it was sent.

Times are aware ``datetime`` in UTC, grams ``Decimal`` where the API writes them exactly, unknown is None. Fields that
this version does not know are kept: as attributes, in ``record["name"]`` and in ``record.raw``.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from carbonq.errors import Unavailable

Json = dict[str, Any]

#: Job states that never change again (``carbonq.model.FINAL_JOB_STATES``, as the API writes them).
FINAL_STATES = frozenset({"completed", "expired", "cancelled", "failed"})


class Record(BaseModel):
    """An answer of the API; see the module's text. Cannot be changed."""

    model_config = ConfigDict(extra="allow", frozen=True)

    _raw: Json = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(value)
        if isinstance(value, dict):
            made._raw = cast("Json", value)
        return made

    @classmethod
    def of(cls, raw: Json) -> Self:
        """Read a record. Raises Unavailable for what is none."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole"
            raise Unavailable(
                f"the answer is no {cls.__name__} as this client knows it ({where}: {first['msg']}); "
                "is the server carbonq, and of this version?"
            ) from error

    @property
    def raw(self) -> Json:
        """The answer as it was sent; do not change it."""
        return self._raw

    def __getitem__(self, name: str) -> Any:
        return self._raw[name]

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field as it was sent, or ``default``."""
        return self._raw.get(name, default)


class Progress(Record):
    """How many items of a job there are, have ended, and how."""

    total: int
    ended: int
    succeeded: int
    failed: int
    expired: int
    cancelled: int


class Placement(Record):
    """Where and when a job's chunks run, counted."""

    chunks: int
    states: dict[str, int]
    regions: dict[str, int]
    next_window_at: datetime | None = None
    last_window_at: datetime | None = None


class Carbon(Record):
    """What a job has used and emitted so far: the two books stand side by side and are never added up."""

    energy_uj: int | None = None
    emission_g: Decimal | None = None
    inventory_g: Decimal | None = None
    baseline_g: Decimal | None = None
    saved_g: Decimal | None = None
    status: str | None = None
    quality: str | None = None


class Job(Record):
    """A job; ``placement``, ``downgraded`` (items on a smaller model, by why) and ``carbon`` are not in lists."""

    id: str
    state: str
    phase: str
    endpoint: str
    model: str
    created_at: datetime
    deadline_at: datetime
    progress: Progress
    started_at: datetime | None = None
    finished_at: datetime | None = None
    is_late: bool = False
    is_cancel_requested: bool = False
    has_results: bool = False
    has_errors: bool = False
    files_removed_at: datetime | None = None
    regions: tuple[str, ...] | None = None
    home_region: str | None = None
    late_policy: str | None = None
    max_carbon_g: Decimal | None = None
    downgrade: bool | None = None
    product_line: str | None = None
    workload: str | None = None
    metadata: Mapping[str, str] = Field(default_factory=dict)
    infeasible: str | None = None
    error: str | None = None
    placement: Placement | None = None
    downgraded: Mapping[str, int] | None = None
    carbon: Carbon | None = None

    @property
    def is_final(self) -> bool:
        """Whether it will never change again."""
        return self.state in FINAL_STATES


class Chunk(Record):
    """A part of a job: where and when it runs, by which forecast, and why there."""

    id: str
    state: str
    region: str | None = None
    window_at: datetime | None = None
    forecast_g_per_kwh: Decimal | None = None
    reason: str | None = None
    items: int | None = None
    items_ended: int | None = None


class WhyGroup(Record):
    """Chunks alike: where they run, and in sentences why there."""

    id: str
    chunks: int
    sentences: tuple[str, ...]
    region: str | None = None
    reason: str | None = None
    first_window_at: datetime | None = None
    last_window_at: datetime | None = None
    gco2e: float | None = None


class Why(Record):
    """A page of what explains a job's placements."""

    summary: str
    data: tuple[WhyGroup, ...]
    has_more: bool
    last_id: str | None = None


class QuotePoint(Record):
    """What a job would cause by one deadline in one set of regions."""

    set: str
    regions: tuple[str, ...]
    is_met: bool
    after_s: float | None = None
    deadline_at: datetime | None = None
    start_at: datetime | None = None
    finish_at: datetime | None = None
    placed: Mapping[str, int] = Field(default_factory=dict)
    energy_wh: float | None = None
    gco2e: float | None = None
    spread_gco2e: float | None = None
    baseline_gco2e: float | None = None
    saved_gco2e: float | None = None
    saved_pct: float | None = None


class QuoteBaseline(Record):
    """The same work at once at home, first come first served."""

    region: str
    start_at: datetime
    finish_at: datetime
    gco2e: float | None = None
    spread_gco2e: float | None = None


class Quote(Record):
    """What a job would cause: at once at home, by the asked deadline, and over deadlines and regions."""

    model: str
    endpoint: str
    items: int
    est_tokens: int
    chunks: int
    signal: str
    baseline: QuoteBaseline | None
    asked: QuotePoint | None
    curve: tuple[QuotePoint, ...]
    known_until_at: datetime | None = None
    notes: tuple[str, ...] = ()


class RateNow(Record):
    """A rate with its own stamps."""

    g_per_kwh: Decimal
    status: str | None = None
    kind: str | None = None
    source: str | None = None
    window_at: datetime | None = None
    is_estimated: bool | None = None
    is_stale: bool | None = None


class Region(Record):
    """A place that can run work, and what its grid emits now."""

    name: str
    zone: str
    state: str
    is_healthy: bool
    slots: int
    pue: Decimal | None = None
    models: tuple[str, ...] = ()
    is_home: bool = False
    moer: RateNow | None = None
    aer: RateNow | None = None


class BudgetStatus(Record):
    """How a budget stands in its running period (grid time); unknown, or none of its kind: None."""

    started_at: datetime | None = None
    ends_at: datetime | None = None
    spent_g: Decimal | None = None
    provisional_g: Decimal | None = None
    reserved_g: Decimal | None = None
    left_g: Decimal | None = None
    unknown_entries: int | None = None
    unknown_reserved: int | None = None
    elapsed_share: float | None = None
    burn_rate: float | None = None
    exhausted_at: datetime | None = None
    waiting_chunks: int = 0


class Budget(Record):
    """A cap of grams of one book, and how it stands; ``level`` is ``product_line``, ``workload`` or ``item``."""

    id: str
    level: str
    name: str
    period: str
    book: str
    action: str
    cap_g: Decimal
    status: BudgetStatus


class Entry(Record):
    """A ledger entry in its current revision; every cell of its CSV line is in ``entry["name"]``, as text or None."""

    id: str
    revision: int | None = None
    kind: str | None = None
    job_id: str | None = None
    custom_id: str | None = None
    region: str | None = None
    energy_uj: int | None = None
    emission_g: Decimal | None = None
    inventory_g: Decimal | None = None
    baseline_g: Decimal | None = None
    saved_g: Decimal | None = None
    recomputed_emission_g: Decimal | None = None
    consistent: bool | None = None


class Event(Record):
    """Something that happened; ``number`` is where to go on after it, ``data`` is as a webhook would have it."""

    number: int
    id: str
    type: str
    created_at: datetime
    data: Json


@dataclass(frozen=True, slots=True)
class Result:
    """One item's line of the output or error file; ``raw`` is all of it."""

    custom_id: str
    status_code: int | None
    body: Any
    error: Json | None
    raw: Json = field(repr=False)

    @classmethod
    def of(cls, raw: Json) -> Result:
        """Read a line of an output or error file."""
        answer = raw.get("response") or {}
        body = answer.get("body")
        error = raw.get("error") or (body.get("error") if isinstance(body, dict) else None)
        return cls(str(raw["custom_id"]), answer.get("status_code"), body, cast("Json | None", error), raw)

    @property
    def is_ok(self) -> bool:
        """Whether the item has a result."""
        return self.error is None and self.status_code == 200

    @property
    def vector(self) -> list[float]:
        """The embedding of an item that had one text. Raises ValueError where there is none."""
        try:
            found = self.body["data"][0]["embedding"]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"item {self.custom_id!r} has no embedding: {self.error or 'look at its body'}") from None
        if isinstance(found, str):  # as asked for with encoding_format base64
            packed = base64.b64decode(found)
            return list(struct.unpack(f"<{len(packed) // 4}f", packed))
        return found

    @property
    def text(self) -> str:
        """The answer of a chat item. Raises ValueError where there is none."""
        try:
            return str(self.body["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"item {self.custom_id!r} has no answer: {self.error or 'look at its body'}") from None

    @property
    def carbon(self) -> Json | None:
        """What this item used and emitted, where its line says so."""
        usage = self.body.get("usage") if isinstance(self.body, dict) else None
        return usage.get("carbon") if isinstance(usage, dict) else None

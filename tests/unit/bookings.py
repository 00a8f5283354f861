"""Engine batches, rates and bookings for the ledger's tests: ready-made ones and Hypothesis strategies."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st

from carbonq import export, ids, ledger, verify
from carbonq.booking import Booking, EngineBatch, Fact, WorkItem
from carbonq.clock import ClockKind
from carbonq.meters.protocol import MeteredPart, MeterInfo, MeterKind
from carbonq.model import Endpoint, EntryKind, Model, Quality, Rate, RateKind, Region, Signal, WorkClass
from carbonq.ratebook import RateBook, make_rate
from carbonq.units import WINDOW

W0 = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
RECORDED = datetime(2026, 3, 2, 9, 0, 0, 250, tzinfo=UTC)

HOME = Region("home", "Z-HOME", 2, Decimal("1.50"), "stated by the operator", "cpu")
AWAY = Region(
    "away", "Z-AWAY", 2, Decimal("1.2"), "measured 2025", "gpu", embodied_kg=Decimal(150), life_h=Decimal(35040)
)
ZONES = {"home": "Z-HOME", "away": "Z-AWAY"}
FACTS = {"home": Fact.of(HOME), "away": Fact.of(AWAY)}

EMBEDDER = Model("embedder", "fake", Endpoint.EMBEDDINGS, 512, 4.0, 1000.0, 10, 4096, 64)
WRITER = Model("writer", "fake", Endpoint.CHAT, 2048, 4.0, 100.0, 100, 4096, 8, w_prompt=1, w_cached=0, w_completion=4)


def rate(
    zone: str = "Z-AWAY",
    window_at: datetime = W0,
    value: str = "250.5",
    *,
    signal: Signal = Signal.MOER,
    kind: RateKind = RateKind.FORECAST,
    **changes: Any,
) -> Rate:
    is_forecast = kind is RateKind.FORECAST
    values: dict[str, Any] = {
        "signal": signal,
        "zone": zone,
        "source": "test",
        "model": "2026-01",
        "gas": "co2",
        "method": None,
        "window_at": window_at,
        "step_s": 300,
        "issued_at": window_at - timedelta(minutes=10) if is_forecast else None,
        "retrieved_at": window_at + timedelta(minutes=-9 if is_forecast else 6),
        "g_per_kwh": Decimal(value),
        "raw": Decimal(value),
        "raw_unit": "g/kWh",
        "is_estimated": False,
        "kind": kind,
        "may_settle": True,
    }
    return make_rate(**values | changes)


def rate_book(rates: Iterable[Rate] | None = None, *, now: datetime = W0, settle_after_s: float = 0) -> RateBook:
    """By default: forecasts for the eight windows from an hour before W0, marginal and (away only) average."""
    if rates is None:
        windows = [W0 + number * WINDOW for number in range(-12, 8)]
        rates = [rate(zone, at, f"{300 + at.minute}.25") for zone in ZONES.values() for at in windows]
        rates += [rate("Z-AWAY", at, "90.125", signal=Signal.AER, method="lifecycle") for at in windows]
    return RateBook.of(ZONES, rates, now=now, settle_after_s=settle_after_s)


def item(number: int = 0, *, tokens: tuple[int, int, int] = (10, 0, 0), **changes: Any) -> WorkItem:
    values: dict[str, Any] = {
        "tenant": "acme",
        "api_key_id": "key_1",
        "product_line": "search",
        "workload": "backfill",
        "job_id": "job_1",
        "custom_id": f"doc-{number}",
        "item": number,
        "chunk_id": "chunk_1",
        "attempt": 1,
        "work_class": WorkClass.FLEXIBLE,
        "requested_model": "embedder",
        "outcome": "succeeded",
        "prompt_tokens": tokens[0],
        "cached_tokens": tokens[1],
        "completion_tokens": tokens[2],
        "placement_id": None,
        "baseline_region": "home",
        "baseline_window_at": W0 - WINDOW,
    }
    return WorkItem(**values | changes)


def part(
    number: int = 0, *, gpu: int | None = None, cpu: int | None = 1_000_003, dram: int | None = None
) -> MeteredPart:
    at = W0 + number * WINDOW
    return MeteredPart(at, at + timedelta(seconds=1), at + timedelta(seconds=61.5), 0.8, gpu, cpu, dram)


def info_of(parts: Iterable[MeteredPart]) -> MeterInfo:
    parts = list(parts)

    def kind(name: str, known: MeterKind) -> MeterKind:
        return known if any(getattr(one, name) is not None for one in parts) else MeterKind.NONE

    return MeterInfo(
        kind("gpu_uj", MeterKind.NVML_COUNTER),
        kind("cpu_uj", MeterKind.CPU_TIME),
        kind("dram_uj", MeterKind.RAPL),
        Quality.ESTIMATED,
        30.0,
        ("GPU-1", "GPU-2"),
    )


def batch(
    items: Iterable[WorkItem] | None = None, parts: Iterable[MeteredPart] | None = None, **changes: Any
) -> EngineBatch:
    parts = [part()] if parts is None else list(parts)
    values: dict[str, Any] = {
        "engine_batch_id": ids.new("eb"),
        "worker_id": "worker_1",
        "work_class": WorkClass.FLEXIBLE,
        "fact": FACTS["away"],
        "info": info_of(parts),
        "parts": parts,
        "items": [item(n, tokens=(n + 1, 0, 0)) for n in range(5)] if items is None else list(items),
        "model": EMBEDDER,
        "engine": "fake",
        "engine_version": "1",
        "software_version": "0.1.0",
        "clock": ClockKind.REAL,
    }
    return EngineBatch(**values | changes)


def book(made: EngineBatch | None = None, rates: RateBook | None = None) -> Booking:
    return ledger.book(
        made or batch(), rates or rate_book(), recorded_at=RECORDED, recorded_by="worker_1", baseline_facts=FACTS
    )


def overhead(kind: EntryKind = EntryKind.IDLE, parts: Iterable[MeteredPart] | None = None, **changes: Any) -> Booking:
    return ledger.book_overhead(
        batch([], parts, model=None, engine=None, engine_version=None, **changes),
        rate_book(),
        kind,
        outcome=None,
        recorded_at=RECORDED,
        recorded_by="worker_1",
    )


def cells(*bookings: Booking) -> list[dict[str, str]]:
    """Render bookings as export lines, without a database."""
    lines: list[dict[str, str]] = []
    for booking in bookings:
        facts = {row["fact_id"]: row for row in booking.facts}
        rates = {row["rate_id"]: row for row in booking.rates}
        batches = {(row["engine_batch_id"], row["part"]): row for row in booking.engine_batches}
        for entry in booking.entries:
            made_in = batches[entry["engine_batch_id"], entry["part"]]
            lines.append(
                {
                    **export.batch_cells(made_in),
                    **export.fact_cells(facts[made_in["fact_id"]]),
                    **export.rate_cells("moer", rates.get(entry["moer_rate_id"])),
                    **export.rate_cells("aer", rates.get(entry["aer_rate_id"])),
                    **export.placement_cells(None),
                    **export.baseline_cells(facts.get(entry["baseline_fact_id"]), rates.get(entry["baseline_rate_id"])),
                    **export.entry_cells(entry),
                }
            )
    return lines


def csv_text(lines: Iterable[Mapping[str, str]]) -> str:
    return export.header() + "".join(export.line(cells) for cells in lines)


def check(lines: Iterable[Mapping[str, str]]) -> verify.Report:
    return verify.check(io.StringIO(csv_text(lines), newline=""))


# --- anything that may be booked --------------------------------------------------------------------------------

#: Examples are large; a slow machine is no reason to fail.
PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

_tokens = st.tuples(st.integers(0, 5000), st.integers(0, 100), st.integers(0, 300))
_baselines = st.none() | st.tuples(st.sampled_from(["home", "away", "gone"]), st.integers(0, 5))
_items = st.lists(st.tuples(_tokens, _baselines), min_size=1, max_size=10)
_energy = st.integers(0, 10**13)
_parts = st.lists(st.tuples(_energy, _energy, _energy), min_size=1, max_size=3)
_meters = st.tuples(st.booleans(), st.booleans(), st.booleans())
_values = st.decimals(Decimal("-50"), Decimal(2000), places=9)
_kinds = st.lists(st.sampled_from([None, *RateKind]), min_size=8, max_size=8)


@st.composite
def engine_batches(draw: st.DrawFn) -> EngineBatch:
    """Any engine batch; some large enough (more than 48 items) for the vectorised apportionment."""
    items: list[WorkItem] = []
    for (prompt, cached, completion), baseline in draw(_items) * draw(st.sampled_from([1, 1, 7])):
        at = None if baseline is None else W0 - baseline[1] * WINDOW
        region = None if baseline is None else baseline[0]
        tokens = (prompt, min(prompt, cached), completion)
        items.append(item(len(items), tokens=tokens, baseline_region=region, baseline_window_at=at))
    meters = draw(_meters)
    parts = [
        part(
            number,
            **{name: uj if on else None for name, uj, on in zip(("gpu", "cpu", "dram"), ujs, meters, strict=True)},
        )
        for number, ujs in enumerate(draw(_parts))
    ]
    model, fact = draw(st.sampled_from([EMBEDDER, WRITER])), draw(st.sampled_from(list(FACTS.values())))
    return batch(items, parts, model=model, fact=fact)


@st.composite
def rate_books(draw: st.DrawFn) -> RateBook:
    """Forecasts and observations of both books, final or not, with gaps."""
    known: list[Rate] = []
    values = draw(st.lists(_values, min_size=3, max_size=3))
    for zone in ZONES.values():
        for signal in Signal:
            for number, kind in enumerate(draw(_kinds), start=-5):
                if kind is not None:
                    value = str(values[number % 3])
                    known.append(
                        rate(zone, W0 + number * WINDOW, value, signal=signal, kind=kind, may_settle=number != 1)
                    )
    return rate_book(known, now=W0 + draw(st.integers(-5, 5)) * WINDOW)

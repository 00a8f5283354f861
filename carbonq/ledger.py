"""The ledger's rules: what one metered engine batch is booked as. Pure: values in, rows out.

Energies are whole microjoules, rates gCO2e/kWh, grams decimals with 15 places; ``docs/methodology.md`` is the text for
the auditor. All products are whole-number fractions, rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from carbonq import shares
from carbonq.batching import NO_FIGURES
from carbonq.booking import (
    METHOD,
    SCHEMA,
    BaselineAt,
    Block,
    Booking,
    EngineBatch,
    Entries,
    Fact,
    Figures,
    PartRates,
    WorkItem,
)
from carbonq.meters.protocol import MeteredPart
from carbonq.model import EntryKind, EntryReason, Rate, RateStatus, Signal
from carbonq.pricing import NO_BASELINE, Baseline, embodied_ratio, quanta_of, ratio_of, savings
from carbonq.ratebook import OPEN_STATUSES, RateBook, Row, make_rate, rate_row, worst

__all__ = [
    "METHOD",
    "SCHEMA",
    "Booking",
    "EngineBatch",
    "Fact",
    "Figures",
    "RateBook",
    "WorkItem",
    "book",
    "book_overhead",
    "make_rate",
]


def book(
    batch: EngineBatch,
    rates: RateBook,
    *,
    recorded_at: datetime,
    recorded_by: str,
    baseline_facts: Mapping[str, Fact],
) -> Booking:
    """Book an engine batch: one entry for each item and part, shares and energies exact (invariant 1).

    ``recorded_at`` is machine time; ``baseline_facts`` is by region. Raises ValueError for a batch without items or
    model, or impossible token counts.
    """
    model = batch.model
    if not batch.items or model is None:
        raise ValueError(f"engine batch {batch.engine_batch_id} has no items or no model; book it as overhead")
    weights = [
        shares.token_weight(
            item.prompt_tokens,
            item.cached_tokens,
            item.completion_tokens,
            model.w_prompt,
            model.w_cached,
            model.w_completion,
        )
        for item in batch.items
    ]
    constants = {
        "recorded_at": recorded_at,
        "recorded_by": recorded_by,
        "kind": EntryKind.ITEM.value,
        "w_prompt": model.w_prompt,
        "w_cached": model.w_cached,
        "w_completion": model.w_completion,
    }
    return _Booker(batch, rates, constants, weights, baseline_facts).run(batch.items)


def book_overhead(
    batch: EngineBatch,
    rates: RateBook,
    kind: EntryKind,
    *,
    outcome: str | None,
    recorded_at: datetime,
    recorded_by: str,
    tenant: str | None = None,
    chunk_id: str | None = None,
    attempt: int | None = None,
) -> Booking:
    """Book idle, wasted or unknowable energy: one entry for each part that carries all of it, never an item's.

    Raises ValueError for kind ``item``.
    """
    if kind is EntryKind.ITEM:
        raise ValueError("an item's energy is not overhead")
    constants = {
        "recorded_at": recorded_at,
        "recorded_by": recorded_by,
        "kind": kind.value,
        "w_prompt": 0,
        "w_cached": 0,
        "w_completion": 0,
    }
    columns = dict.fromkeys(_ITEM_COLUMNS) | {
        **dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), 0),
        "outcome": outcome,
        "tenant": tenant,
        "chunk_id": chunk_id,
        "attempt": attempt,
        "class": None if kind is EntryKind.IDLE else batch.work_class.value,
    }
    return _Booker(batch, rates, constants, [1], {}).run([tuple(columns[name] for name in _ITEM_COLUMNS)])


#: What each entry takes from its item, in the item's order.
_ITEM_COLUMNS = tuple("class" if name == "work_class" else name for name in WorkItem._fields)


class _Booker:
    """Writes the rows of one engine batch, part by part, and remembers which rates and facts they refer to."""

    def __init__(
        self, batch: EngineBatch, rates: RateBook, constants: Row, weights: Sequence[int], facts: Mapping[str, Fact]
    ) -> None:
        self._batch = batch
        self._rates = rates
        self._constants = constants
        self._weights = weights
        self._facts = facts
        self._numerators, self._denominator = shares.fractions(weights)
        self._fact_id = batch.fact.fact_id
        self._baselines: dict[tuple[str, datetime], Baseline] = {}
        self._used_facts = {self._fact_id: batch.fact}
        self._used_rates: dict[str, Rate] = {}
        self._awaited: dict[tuple[Signal, str, datetime], None] = {}
        self._parts: list[PartRates] = []

    def run(self, items: Sequence[tuple[Any, ...]]) -> Booking:
        batch_rows: list[Row] = []
        awaited: list[Row] = []
        blocks: list[Block] = []
        columns: dict[str, tuple[Any, ...]] = dict(zip(_ITEM_COLUMNS, zip(*items, strict=True), strict=True))
        for number, part in enumerate(self._batch.parts, start=1):
            self._awaited = {}
            batch_rows.append(self._batch_row(number, part, len(items)))
            blocks.append(self._entries(number, part, columns))
            awaited += [
                {"engine_batch_id": self._batch.engine_batch_id, "part": number}
                | {"signal": signal.value, "zone": zone, "window_at": window_at}
                for signal, zone, window_at in self._awaited
            ]
        return Booking(
            facts=[fact.row() for fact in self._used_facts.values()],
            rates=[rate_row(rate) for rate in self._used_rates.values()],
            engine_batches=batch_rows,
            entries=Entries(blocks),
            awaited=awaited,
            figures=self._figures(blocks, columns),
        )

    def _figures(self, blocks: Sequence[Block], columns: Mapping[str, tuple[Any, ...]]) -> Figures:
        pairs = list(zip(columns["baseline_region"], columns["baseline_window_at"], strict=True))
        distinct = {pair: self._baseline_at(*pair) for pair in dict.fromkeys(pairs)}
        energies, emissions, inventories, alternatives, saved = (
            _totals([_values(block, name) for block in blocks], len(pairs))
            for name in ("energy_uj", "emission_g", "inventory_g", "baseline_g", "saved_g")
        )
        return Figures(
            engine_batch_id=self._batch.engine_batch_id,
            region=self._batch.fact.region,
            pue=self._batch.fact.pue,
            quality=self._batch.info.quality,
            status=worst(part.moer_status for part in self._parts),
            inventory_status=worst(part.aer_status for part in self._parts),
            parts=tuple(self._parts),
            baselines=[distinct[pair] for pair in pairs],
            energies_uj=energies,
            emissions=emissions,
            inventories=inventories,
            alternatives=alternatives,
            savings=saved,
            requested_model=columns["requested_model"][0],
            downgraded=self._batch.downgraded,
        )

    def _baseline_at(self, region: str | None, window_at: datetime | None) -> BaselineAt | None:
        if region is None or window_at is None:
            return None
        known = self._baselines.get((region, window_at))
        return BaselineAt(region, window_at, None if known is None else known.status)

    def _find(self, signal: Signal, zone: str, window_at: datetime) -> tuple[Rate | None, RateStatus]:
        rate, status = self._rates.lookup(signal, zone, window_at)
        if rate is not None:
            self._used_rates[rate.rate_id] = rate
        return rate, status

    def _await(self, status: RateStatus | None, signal: Signal, zone: str, window_at: datetime) -> None:
        # A region that left the settings has no zone, so nothing can settle it.
        if status in OPEN_STATUSES and zone:
            self._awaited[signal, zone, window_at] = None

    def _baseline(self, region: str | None, window_at: datetime | None) -> Baseline:
        if region is None or window_at is None:
            return NO_BASELINE
        zone = self._rates.zone_of(region)
        found = self._baselines.get((region, window_at))
        if found is None:
            rate, status = self._find(Signal.MOER, zone, window_at)
            fact = self._facts.get(region)
            if fact is not None:
                self._used_facts[fact.fact_id] = fact
            columns = {
                "baseline_fact_id": fact and fact.fact_id,
                "baseline_rate_id": rate and rate.rate_id,
                "baseline_moer_status": status.value,
            }
            found = self._baselines[region, window_at] = Baseline(columns, ratio_of(fact and fact.pue, rate), status)
        self._await(found.status, Signal.MOER, zone, window_at)
        return found

    def _batch_row(self, number: int, part: MeteredPart, count: int) -> Row:
        batch, info, model = self._batch, self._batch.info, self._batch.model
        return {
            "engine_batch_id": batch.engine_batch_id,
            "part": number,
            "parts": len(batch.parts),
            "items": count,
            "weight": self._denominator,
            "class": batch.work_class.value,
            "worker_id": batch.worker_id,
            "fact_id": self._fact_id,
            "region": batch.fact.region,
            "device_ids": list(info.device_ids),
            "model": model and model.name,
            "engine": batch.engine,
            "engine_version": batch.engine_version,
            "precision": model and model.precision,
            "software_version": batch.software_version,
            "clock": batch.clock.value,
            "window_at": part.window_at,
            "started_at": part.started_at,
            "ended_at": part.ended_at,
            "duration_s": _duration(part),
            "gpu_uj": part.gpu_uj,
            "cpu_uj": part.cpu_uj,
            "dram_uj": part.dram_uj,
            "energy_uj": _sum((part.gpu_uj, part.cpu_uj, part.dram_uj)),
            "gpu_meter": info.gpu_meter.value,
            "cpu_meter": info.cpu_meter.value,
            "dram_meter": info.dram_meter.value,
            "quality": info.quality.value,
            "uncertainty_pct": info.uncertainty_pct,
            "downgraded": batch.downgraded and batch.downgraded.value,
            **(batch.figures if number == 1 else NO_FIGURES),
        }

    def _entries(self, number: int, part: MeteredPart, columns: Mapping[str, tuple[Any, ...]]) -> Block:
        batch = self._batch
        zone = self._rates.zone_of(batch.fact.region)
        moer, moer_status = self._find(Signal.MOER, zone, part.window_at)
        aer, aer_status = self._find(Signal.AER, zone, part.window_at)
        self._await(moer_status, Signal.MOER, zone, part.window_at)
        self._await(aer_status, Signal.AER, zone, part.window_at)
        energy_uj = _sum((part.gpu_uj, part.cpu_uj, part.dram_uj))
        self._parts.append(PartRates(part.window_at, energy_uj, moer, moer_status, aer, aer_status))
        pairs = list(zip(columns["baseline_region"], columns["baseline_window_at"], strict=True))
        distinct = {pair: self._baseline(*pair) for pair in dict.fromkeys(pairs)}
        baselines = [distinct[pair] for pair in pairs]
        split = [self._split(total) for total in (part.gpu_uj, part.cpu_uj, part.dram_uj)]
        energies = _sums([column for column in split if None not in column], len(pairs))
        own: dict[str, Sequence[Any]] = {
            **columns,
            "entry_id": [f"{batch.engine_batch_id}.{number}.{position}" for position in range(len(baselines))],
            "share_num": self._numerators,
            **dict(zip(("gpu_uj", "cpu_uj", "dram_uj"), split, strict=True)),
            "energy_uj": energies,
        }
        for name in NO_BASELINE.columns:
            own[name] = [baseline.columns[name] for baseline in baselines]
        if number > 1:  # tokens are counted once, on part 1
            own |= dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), [0] * len(baselines))
        alike = {name for name, column in own.items() if column.count(column[0]) == len(column)}
        shared: Row = {
            **self._constants,
            "revision": 1,
            "supersedes": None,
            "reason": EntryReason.INITIAL.value,
            "restatement_id": None,
            "schema": SCHEMA,
            "method": METHOD,
            "engine_batch_id": batch.engine_batch_id,
            "part": number,
            "window_at": part.window_at,
            "share_den": self._denominator,
            "moer_rate_id": moer and moer.rate_id,
            "moer_status": moer_status.value,
            "aer_rate_id": aer and aer.rate_id,
            "aer_status": aer_status.value,
            **dict.fromkeys(("transfer_bytes", "transfer_kwh_per_gb", "transfer_g_per_kwh", "transfer_g", "cost")),
            **{name: own[name][0] for name in alike},
        }
        return Block(
            len(baselines),
            shared,
            {name: column for name, column in own.items() if name not in alike},
            self._grams(part, energies, baselines, (moer, aer, moer_status)),
        )

    def _grams(
        self,
        part: MeteredPart,
        energies: Sequence[int | None],
        baselines: Sequence[Baseline],
        rates: tuple[Rate | None, Rate | None, RateStatus],
    ) -> dict[str, list[int | None]]:
        moer, aer, moer_status = rates
        fact = self._batch.fact
        emissions = quanta_of(energies, ratio_of(fact.pue, moer))
        if len({id(one) for one in baselines}) == 1:
            alternatives = quanta_of(energies, baselines[0].ratio)
        else:
            alternatives = [quanta_of([energy], one.ratio)[0] for energy, one in zip(energies, baselines, strict=True)]
        return {
            "emission_g": emissions,
            "inventory_g": quanta_of(energies, ratio_of(fact.pue, aer)),
            "embodied_g": quanta_of(self._numerators, embodied_ratio(fact, _duration(part), self._denominator)),
            "baseline_g": alternatives,
            "saved_g": savings(baselines, alternatives, emissions, moer_status),
        }

    def _split(self, total_uj: int | None) -> Sequence[int | None]:
        return [None] * len(self._weights) if total_uj is None else shares.apportion(total_uj, self._weights)


def _sum(components: Sequence[int | None]) -> int | None:
    """Add what was metered; None when nothing was."""
    known = [component for component in components if component is not None]
    return sum(known) if known else None


def _sums(columns: Sequence[Sequence[Any]], count: int) -> Sequence[Any]:
    """Add columns item by item; all None where there is no column, or one has None."""
    if not columns or any(None in column for column in columns):
        return [None] * count
    return columns[0] if len(columns) == 1 else list(map(sum, zip(*columns, strict=True)))


def _totals(columns: Sequence[Sequence[Any]], count: int) -> Sequence[Any]:
    """Add the parts' columns item by item; None for an item of which a part is not known, or that has no part."""
    if len(columns) == 1:
        return columns[0]
    return [None if None in values else sum(values) for values in zip(*columns, strict=True)] or [None] * count


def _values(block: Block, name: str) -> Sequence[Any]:
    if name in block.shared:
        return [block.shared[name]] * block.count
    return block.quanta[name] if name in block.quanta else block.own[name]


def _duration(part: MeteredPart) -> Decimal:
    return Decimal(f"{part.duration_s:.6f}")

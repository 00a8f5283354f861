"""What the demonstration has to show, as values, and the conditions it stands or falls by. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from carbonq.units import parse_iso

#: The whole demonstration, from its start to its last line, in machine seconds.
MAX_TOTAL_S = 180.0

#: A real-time answer that took longer than this did wait for something, in milliseconds.
MAX_REALTIME_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class JobFacts:
    """How one job ended. Energies in uJ, masses in gCO2e (impact book), times are grid times; None is unknown."""

    label: str
    job_id: str
    state: str
    items: int
    succeeded: int
    deadline_at: datetime
    finished_at: datetime | None
    energy_uj: int | None
    emission_g: Decimal | None
    baseline_g: Decimal | None
    saved_g: Decimal | None
    is_settled: bool

    @property
    def is_in_time(self) -> bool:
        """Say whether it is finished, and by its deadline."""
        return self.finished_at is not None and self.finished_at <= self.deadline_at

    @property
    def saved_pct(self) -> float | None:
        """The saving in per cent of the baseline; None where either is unknown."""
        if self.saved_g is None or not self.baseline_g:
            return None
        return float(100 * self.saved_g / self.baseline_g)


@dataclass(frozen=True, slots=True)
class RealtimeFacts:
    """The one real-time request: how long it took, and what was waiting meanwhile."""

    latency_ms: float
    engine_ms: float | None
    region: str | None
    is_in_ledger: bool
    items_waiting: int
    chunks_running: int
    next_window_at: datetime | None


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """The ledger's CSV and what the standalone checker says of it."""

    path: str
    lines: int
    exit_status: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Condition:
    """One claim of the demonstration, and whether it came true."""

    name: str
    is_met: bool
    detail: str


def job_facts(label: str, job: dict[str, Any]) -> JobFacts:
    """Read a job as the API shows it."""
    carbon: dict[str, Any] = job.get("carbon") or {}
    return JobFacts(
        label=label,
        job_id=job["id"],
        state=job["state"],
        items=job["progress"]["total"],
        succeeded=job["progress"]["succeeded"],
        deadline_at=parse_iso(job["deadline_at"]),
        finished_at=parse_iso(job["finished_at"]) if job["finished_at"] else None,
        energy_uj=carbon.get("energy_uj"),
        emission_g=_decimal(carbon.get("emission_g")),
        baseline_g=_decimal(carbon.get("baseline_g")),
        saved_g=_decimal(carbon.get("saved_g")),
        is_settled=carbon.get("emission_status") == ["settled"] and carbon["compared_entries"] == carbon["entries"],
    )


def _decimal(value: Any) -> Decimal | None:
    return None if value is None else Decimal(str(value))


def conditions(
    jobs: Sequence[JobFacts], realtime: RealtimeFacts | None, check: CheckFacts | None, *, total_s: float
) -> list[Condition]:
    """Say of each claim whether it came true; the demonstration fails if one did not."""
    found: list[Condition] = []
    for job in jobs:
        is_done = job.state == "completed" and job.succeeded == job.items
        found.append(Condition(f"{job.label}: all done", is_done, f"{job.succeeded:,} of {job.items:,} items"))
        when = f"finished {job.finished_at:%H:%M:%S}" if job.finished_at else "not finished"
        detail = f"{when}, deadline {job.deadline_at:%H:%M:%S} (grid time)"
        found.append(Condition(f"{job.label}: by its deadline", job.is_in_time, detail))
        is_known = None not in {job.energy_uj, job.emission_g, job.saved_g, job.baseline_g}
        known = "energy, emission, baseline and saving are known" if is_known else "a figure is missing"
        state = "settled on observed rates" if job.is_settled else "still provisional"
        found.append(Condition(f"{job.label}: figures", is_known and job.is_settled, f"{known}, {state}"))
    found.append(_realtime(realtime))
    if check is None:
        found.append(Condition("ledger recomputed", False, "no CSV was written"))
    else:
        found.append(Condition("ledger recomputed", check.exit_status == 0 and check.lines > 0, check.verdict))
    found.append(Condition("within three minutes", total_s <= MAX_TOTAL_S, f"{total_s:.0f} s from start to finish"))
    return found


def _realtime(facts: RealtimeFacts | None) -> Condition:
    name = "real-time did not wait"
    if facts is None:
        return Condition(name, False, "it was not answered")
    detail = f"{facts.latency_ms:.0f} ms while {facts.items_waiting:,} items waited for their windows"
    is_met = facts.latency_ms <= MAX_REALTIME_MS and facts.items_waiting > 0 and facts.is_in_ledger
    return Condition(name, is_met, detail if facts.is_in_ledger else f"{detail}; not in the ledger")
